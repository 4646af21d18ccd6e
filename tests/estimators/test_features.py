from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer

from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.estimators import RadialBasis
from bayescope.estimators.features import feature_map, feature_names


def plane(rows: int = 200) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 2))


def test_bumps_are_gaussian_around_rows_of_the_table():
    X = plane()
    bumps = RadialBasis(centres=12).fit(X)
    phi = bumps.transform(X)
    distance = np.linalg.norm(X[:, None] - bumps.centres_, axis=-1)
    np.testing.assert_allclose(phi, np.exp(-(distance**2) / (2 * bumps.width_**2)), rtol=1e-12)
    assert phi.shape == (200, 12)
    np.testing.assert_array_equal(phi.max(axis=0), 1.0)  # every centre is a row


def test_the_width_is_the_median_distance_of_neighbours():
    bumps = RadialBasis(centres=9).fit(plane())
    nearest = [
        min(np.linalg.norm(c - other) for j, other in enumerate(bumps.centres_) if j != i)
        for i, c in enumerate(bumps.centres_)
    ]
    assert bumps.width_ == pytest.approx(np.median(nearest))
    assert RadialBasis(centres=9, width=0.3).fit(plane()).width_ == 0.3


def test_centres_are_different_rows_and_repeat_with_the_seed():
    X = np.repeat(plane(5), 4, axis=0)
    bumps = RadialBasis(centres=50).fit(X)
    assert bumps.centres_.shape == (5, 2)
    first, again, other = (RadialBasis(centres=9, random_state=seed).fit(plane()).centres_ for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert RadialBasis().fit(np.ones((4, 2))).transform(np.ones((1, 2))).tolist() == [[1.0]]


@pytest.mark.parametrize("options", [{"centres": 0}, {"width": -1.0}], ids=str)
def test_sizes_are_checked(options):
    with pytest.raises(InputError, match=next(iter(options))):
        RadialBasis(**options).fit(plane())


def test_names_stand_for_transformers():
    assert feature_map(None, 0) is None
    assert isinstance(feature_map("rbf", 3), RadialBasis)
    assert feature_map("rbf", 3).random_state == 3
    polynomial = feature_map("polynomial", None)
    assert polynomial.fit_transform(np.array([[2.0, 3.0]])).tolist() == [[2.0, 3.0, 4.0, 6.0, 9.0]]
    own = SplineTransformer(n_knots=4)
    assert feature_map(own, 0) is not own
    assert feature_map(own, 0).n_knots == 4
    with pytest.raises(OptionError, match="'rbf', 'polynomial'"):
        feature_map("radial", 0)
    for wrong in (3, PolynomialFeatures, object()):
        with pytest.raises(InputTypeError, match="transform"):
            feature_map(wrong, 0)


def test_outputs_have_names():
    assert feature_names(None, ["a", "b"], 2) == ("a", "b")
    fitted = PolynomialFeatures(degree=2, include_bias=False).fit(plane())
    assert feature_names(fitted, ["a", "b"], 5) == ("a", "b", "a^2", "a b", "b^2")
    assert feature_names(RadialBasis(centres=2).fit(plane()), ["a", "b"], 2) == ("rbf0", "rbf1")
    assert feature_names(object(), ["a"], 2) == ("φ0", "φ1")
