"""Objects with parameters and learned attributes: estimators of the house, and scikit-learn's transformers by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, final, get_type_hints

import numpy as np
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

from bayescope.errors import BayescopeWarning, UnsupportedError, warn
from bayescope.storage.codec import OBJECT_BYTES, MalformedError, Node, Reader, Writer, node_of, of, tag
from bayescope.storage.hints import outside_fits

TRANSFORMERS = (
    ColumnTransformer, FeatureUnion, FunctionTransformer, KBinsDiscretizer, LabelBinarizer, LabelEncoder, MaxAbsScaler,
    MinMaxScaler, MissingIndicator, Normalizer, Nystroem, OneHotEncoder, OrdinalEncoder, Pipeline, PolynomialFeatures,
    PowerTransformer, QuantileTransformer, RBFSampler, RobustScaler, SimpleImputer, SplineTransformer, StandardScaler,
    TargetEncoder, VarianceThreshold,
)  # fmt: skip
# Parameters that would have a file reach beyond itself: a folder of pickles, other processes, a file to be replaced.
_REACHING = ("memory", "n_jobs", "checkpoint")
# Of polynomials and splines. A model has a weight for each feature, and none has so many.
MOST_DEGREE, MOST_FEATURES = 100, 2**24
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@final
@dataclass(frozen=True)
class Estimator:
    """How estimators of a class are stored.

    Attributes:
        name: in files.
        type: the class.
        without: parameters and learned attributes that files leave out.
        foreign: whether it is scikit-learn's.
    """

    name: str
    type: type[BaseEstimator]
    without: tuple[str, ...] = ()
    foreign: bool = False

    @cached_property
    def hints(self) -> dict[str, Any]:
        """What learned attributes of a class of the house are to be, as far as it tells."""
        return {} if self.foreign else get_type_hints(self.type)


_BY_NAME: dict[str, Estimator] = {}
_BY_TYPE: dict[type, Estimator] = {}


def stored_estimator(kind: Estimator) -> None:
    """Adds a class to those that files may hold: by its parameters and all that it has learnt."""
    if kind.name in _BY_NAME and _BY_NAME[kind.name].type.__qualname__ != kind.type.__qualname__:
        raise ValueError(f"the name {kind.name!r} is taken")
    _BY_NAME[kind.name] = _BY_TYPE[kind.type] = kind
    node_of.register(kind.type)(_write)


def estimator_name(kind: type) -> str | None:
    """What files call a class, or ``None`` for one that they do not hold."""
    return _BY_TYPE[kind].name if kind in _BY_TYPE else None


def warn_of_other_version(packages: Mapping[str, Any], objects: Sequence[Node]) -> None:
    """Warns where transformers of scikit-learn were learnt by another version of it than the one that is here.

    Warns:
        BayescopeWarning: with both versions.
    """
    there, here = packages.get("scikit-learn"), version("scikit-learn")
    foreign = any(isinstance(node, dict) and _is_foreign(node.get("estimator")) for node in objects)
    if foreign and isinstance(there, str) and there.split(".")[:2] != here.split(".")[:2]:
        warn(
            f"The file has transformers of scikit-learn {there[:20]}, and this is {here}: they may answer otherwise, "
            "or not at all. Save the estimator again after a fit with this version.",
            BayescopeWarning,
        )


def _is_foreign(content: Any) -> bool:
    name = content[0] if isinstance(content, list) and content else None
    return isinstance(name, str) and name in _BY_NAME and _BY_NAME[name].foreign


def _write(value: BaseEstimator, writer: Writer, path: str) -> Node:
    kind = _BY_TYPE.get(type(value))
    if kind is None:  # a subclass of one that is stored
        return node_of.dispatch(object)(value, writer, path)
    parameters = value.get_params(deep=False)
    reaching = [name for name in _REACHING if kind.foreign and parameters.get(name) is not None]
    if reaching:
        raise UnsupportedError(
            f"save: expected {path}.{reaching[0]} to be None, got {parameters[reaching[0]]!r}, which leads out of the "
            "file. Fit without it."
        )
    learnt = {name: each for name, each in vars(value).items() if name not in parameters}

    def make() -> Node:
        nodes = [
            {name: writer.value(each, f"{path}.{name}") for name, each in part.items() if name not in kind.without}
            for part in (parameters, learnt)
        ]
        return {"estimator": [kind.name, *nodes]}

    return writer.shared(value, path, make)


@tag("estimator", shared=True)
def _read(reader: Reader, content: Any) -> BaseEstimator:
    name, parameters, learnt = of(content, list)
    if not isinstance(name, str) or name not in _BY_NAME:
        raise MalformedError(f"the estimator {str(name)[:40]!r} is not known; a newer bayescope may have it")
    kind = _BY_NAME[name]
    reader.meet(OBJECT_BYTES)
    options = {key: reader.value(node) for key, node in of(parameters, dict).items()}
    if any(options.get(key) is not None for key in _REACHING):
        raise MalformedError("a parameter leads out of the file")
    made = kind.type(**options)
    taken = made.get_params(deep=False)
    for key, node in of(learnt, dict).items():
        if not _IDENTIFIER.match(key) or key.startswith("__") or key in taken or hasattr(kind.type, key):
            raise MalformedError(f"{key[:40]!r} is not learnt by {kind.name}")
        value = reader.value(node)
        if not outside_fits(value, kind.hints.get(key, Any)):
            raise MalformedError(f"the {key} of {kind.name} is none")
        vars(made)[key] = value
    _check_features(kind, made)
    return made


def _check_features(kind: Estimator, made: BaseEstimator) -> None:
    """Refuses polynomials and splines of more features than anybody has: making them takes all memory, or for ever."""
    if kind.type not in (PolynomialFeatures, SplineTransformer):
        return
    learnt = vars(made)
    degrees = [learnt.get(name, 0) for name in ("degree", "_min_degree", "_max_degree")]
    degree = max(number for each in degrees for number in (each if isinstance(each, list | tuple) else [each]))
    columns = learnt.get("n_features_in_", 0)
    features = max(learnt.get(name, 0) for name in ("_n_out_full", "n_output_features_", "n_features_out_"))
    monomials = math.comb(columns + degree, degree) if kind.type is PolynomialFeatures and degree <= MOST_DEGREE else 0
    if degree > MOST_DEGREE or max(monomials, features) > MOST_FEATURES:
        raise MalformedError(f"a {kind.name} of degree {str(degree)[:20]} for {str(columns)[:20]} columns")


for _kind in TRANSFORMERS:
    stored_estimator(Estimator(_kind.__name__, _kind, foreign=True))


@node_of.register(BSpline)
def _spline(value: BSpline, writer: Writer, path: str) -> Node:
    parts = {"t": value.t, "c": value.c, "k": int(value.k), "extrapolate": value.extrapolate, "axis": int(value.axis)}
    nodes = lambda: [writer.value(part, f"{path}.{name}") for name, part in parts.items()]  # noqa: E731
    return writer.shared(value, path, lambda: {"spline": nodes()})


@tag("spline", shared=True)
def _read_spline(reader: Reader, content: Any) -> BSpline:
    knots, coefficients, degree, extrapolate, axis = (reader.value(node) for node in of(content, list))
    whole = isinstance(knots, np.ndarray) and isinstance(coefficients, np.ndarray) and type(degree) is int
    if not whole or not 0 <= degree <= 100 or type(axis) is not int:
        raise MalformedError("a spline is none")
    return BSpline(knots, coefficients, degree, extrapolate=extrapolate, axis=axis)
