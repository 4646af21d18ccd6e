"""scikit-learn's transformers, which files know by their names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sklearn
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    LabelBinarizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from bayescope.errors import BayescopeWarning, warn
from bayescope.storage.codec import MalformedError, Node, Reader, StoredForm, add_form
from bayescope.storage.objects import StoredEstimator, add_record

TRANSFORMERS = (
    ColumnTransformer, FeatureUnion, FunctionTransformer, KBinsDiscretizer, LabelBinarizer, LabelEncoder, MaxAbsScaler,
    MinMaxScaler, MissingIndicator, Normalizer, Nystroem, OneHotEncoder, OrdinalEncoder, Pipeline, PolynomialFeatures,
    PowerTransformer, QuantileTransformer, RBFSampler, RobustScaler, SimpleImputer, SplineTransformer, StandardScaler,
    TargetEncoder, VarianceThreshold,
)  # fmt: skip
_NAMES = frozenset(kind.__name__ for kind in TRANSFORMERS)
# Of polynomials and splines. A model has a weight for each feature, and none has so many.
MOST_DEGREE, MOST_FEATURES = 100, 2**24


def warn_of_other_version(packages: Mapping[str, Any], objects: Sequence[Node]) -> None:
    """Warns where transformers of scikit-learn were learnt by another version of it than the one that is here.

    Warns:
        BayescopeWarning: with both versions.
    """
    there, here = packages.get("scikit-learn"), sklearn.__version__
    foreign = any(isinstance(node, dict) and node.keys() & _NAMES for node in objects)
    if foreign and isinstance(there, str) and there.split(".")[:2] != here.split(".")[:2]:
        warn(
            f"The file has transformers of scikit-learn {there[:20]}, and this is {here}: they may answer otherwise, "
            "or not at all. Save the estimator again after a fit with this version.",
            BayescopeWarning,
        )


def _check_features(made: BaseEstimator) -> None:
    """Refuses polynomials and splines of more features than anybody has: making them takes all memory, or for ever."""
    learnt = vars(made)
    degrees = [learnt.get(name, 0) for name in ("degree", "_min_degree", "_max_degree")]
    degree = max(number for each in degrees for number in (each if isinstance(each, list | tuple) else [each]))
    columns = learnt.get("n_features_in_", 0)
    features = max(learnt.get(name, 0) for name in ("_n_out_full", "n_output_features_", "n_features_out_"))
    polynomial = isinstance(made, PolynomialFeatures) and degree <= MOST_DEGREE
    monomials = math.comb(columns + degree, degree) if polynomial else 0
    if degree > MOST_DEGREE or max(monomials, features) > MOST_FEATURES:
        raise MalformedError(f"a {type(made).__name__} of degree {str(degree)[:20]} for {str(columns)[:20]} columns")


def _spline_parts(value: BSpline, _path: str) -> dict[str, Any]:
    return {"t": value.t, "c": value.c, "k": int(value.k), "extrapolate": value.extrapolate, "axis": int(value.axis)}


def _spline(parts: Any, _reader: Reader) -> BSpline:
    knots, coefficients, degree, axis = parts["t"], parts["c"], parts["k"], parts["axis"]
    whole = isinstance(knots, np.ndarray) and isinstance(coefficients, np.ndarray) and type(degree) is int
    if not whole or not 0 <= degree <= 100 or type(axis) is not int:
        raise MalformedError("a spline is none")
    return BSpline(knots, coefficients, degree, extrapolate=parts["extrapolate"], axis=axis)


for _kind in TRANSFORMERS:
    _sized = _kind in (PolynomialFeatures, SplineTransformer)
    add_record(_kind.__name__, StoredEstimator(_kind, check=_check_features if _sized else None))
add_form(StoredForm("spline", BSpline, _spline_parts, _spline))
