"""Named feature maps: fixed basis functions that make a linear model curved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, final

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.cluster import kmeans_plusplus
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.validation import check_is_fitted, validate_data

from bayescope import checks
from bayescope.errors import InputTypeError, OptionError
from bayescope.estimators.base import RandomState
from bayescope.storage import stored

CENTRES = 50
# What ``features=`` may be.
Features: TypeAlias = Literal["rbf", "polynomial"] | TransformerMixin | None


@stored("RadialBasis")
@final
class RadialBasis(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """φ_j(x) = exp(−‖x − c_j‖²/(2 s²)), Gaussian bumps on rows of the table (Bishop 2006, eq. 3.4).

    The centres c_j are rows chosen by k-means++ (Arthur & Vassilvitskii 2007): spread out, dense where the data are.
    One width s serves all bumps: the median distance from a centre to the nearest other one, so that neighbours
    overlap. Distances are in the inputs' units: features on different scales want to be standardised first.

    Args:
        centres: how many; at most as many as there are different rows.
        width: s, in the inputs' unit; ``None`` for the rule above.
        random_state: of the choice of centres, an int or a ``numpy.random.RandomState``.

    Attributes:
        centres_: shape (J, D).
        width_: s.
    """

    def __init__(self, centres: int = CENTRES, width: float | None = None, random_state: RandomState = 0) -> None:
        self.centres = centres
        self.width = width
        self.random_state = random_state

    def fit(self, X: object, y: object = None) -> RadialBasis:
        """Chooses centres and width.

        Raises:
            InputError: if an option is not positive.
        """
        table = validate_data(self, X, dtype=np.float64)
        distinct = np.unique(table, axis=0)
        count = min(checks.count("centres", self.centres), distinct.shape[0])
        self.centres_, _ = kmeans_plusplus(distinct, count, random_state=self.random_state)
        self.width_ = float(checks.positive("width", self._rule() if self.width is None else self.width))
        return self

    def transform(self, X: object) -> np.ndarray:
        """φ(x) of each row, shape (N, J)."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, reset=False)
        return np.exp(-0.5 * _squared_distances(table, self.centres_) / self.width_**2)

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """The bumps are called rbf0, rbf1, and so on."""
        check_is_fitted(self)
        return np.array([f"rbf{j}" for j in range(self.centres_.shape[0])], dtype=object)

    def _rule(self) -> float:
        if self.centres_.shape[0] == 1:
            return 1.0  # one bump has no neighbour to overlap with
        distances = _squared_distances(self.centres_, self.centres_)
        np.fill_diagonal(distances, np.inf)
        return float(np.median(np.sqrt(distances.min(axis=1))))


FEATURES: dict[str, Callable[[Any], Any]] = {
    "rbf": lambda random_state: RadialBasis(random_state=0 if random_state is None else random_state),
    "polynomial": lambda random_state: PolynomialFeatures(degree=2, include_bias=False),
}


def feature_map(features: Features, random_state: RandomState) -> Any | None:
    """The unfitted transformer that ``features=`` stands for: ``None``, a named one, or a copy of the caller's own.

    Raises:
        OptionError: if the name is unknown.
        InputTypeError: if it is neither a name nor a transformer.
    """
    if features is None:
        return None
    if isinstance(features, str):
        if features not in FEATURES:
            raise OptionError.unknown("features", features, FEATURES)
        return FEATURES[features](random_state)
    if isinstance(features, type) or not hasattr(features, "fit") or not hasattr(features, "transform"):
        named = ", ".join(map(repr, FEATURES))
        raise InputTypeError(f"features: expected None, {named} or an object with fit and transform, got {features!r}.")
    return clone(features)


def feature_names(transformer: Any | None, names: Sequence[str], count: int) -> tuple[str, ...]:
    """What the transformer calls its ``count`` outputs; φ0, φ1, … where it does not say."""
    if transformer is None:
        return tuple(names)
    if hasattr(transformer, "get_feature_names_out"):
        return tuple(map(str, transformer.get_feature_names_out(names)))
    return tuple(f"φ{j}" for j in range(count))


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """‖a_i − b_j‖², a column of centres at a time: exact where ‖a‖² + ‖b‖² − 2 a·b would cancel."""
    return np.stack([np.square(a - centre).sum(axis=1) for centre in b], axis=1)
