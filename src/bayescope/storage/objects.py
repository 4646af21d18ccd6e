"""The classes that a file may hold: a closed list of names, of the library's own classes and of scikit-learn's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar, final, get_type_hints

import numpy as np
import sklearn
from scipy.interpolate import BSpline
from sklearn import compose, feature_selection, impute, kernel_approximation, pipeline, preprocessing
from sklearn.base import BaseEstimator

from bayescope.errors import BayescopeError, BayescopeWarning, UnsupportedError, warn
from bayescope.storage.answers import guard_answers
from bayescope.storage.codec import MalformedError, Node, Reader, StoredForm, Writer, add_form, of
from bayescope.storage.hints import fits

C = TypeVar("C", bound=type)
# The method, where a class has it, that raises where the parts of an object from a file do not go together.
CHECK = "_check_stored"
# Parameters that would have a file reach beyond itself: a folder of pickles, other processes, a file to be replaced.
_REACHING = ("memory", "n_jobs", "checkpoint")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@final
@dataclass(frozen=True, eq=False)
class StoredClass:
    """How the objects of a class with named parts are stored.

    Attributes:
        type: the class.
        named: its parts with their types; ``None`` for those of a dataclass or named tuple.
        without: fields that files leave out, and that come back as their defaults.
        possible: fields that files hold where they can: not where they are the caller's own code, nor in files of
            earlier versions.
        lost: the field that lists, on an object that was read, which of ``possible`` it had when it was saved and the
            file could not hold.
        kept: cached properties that are computed and stored too.
    """

    type: type
    named: Mapping[str, Any] | None
    without: tuple[str, ...]
    possible: tuple[str, ...]
    lost: str | None
    kept: tuple[str, ...]

    @cached_property
    def hints(self) -> dict[str, Any]:
        """What each part is to be, by its name."""
        if self.named is not None:
            return dict(self.named)
        known = get_type_hints(self.type)
        names = [each.name for each in fields(self.type) if each.init] if is_dataclass(self.type) else known
        return {name: known[name] for name in names if name not in self.without}

    @cached_property
    def cached(self) -> dict[str, Any]:
        """What each kept property is to be."""
        return {name: get_type_hints(vars(self.type)[name].func)["return"] for name in self.kept}

    def parts(self, value: object, path: str) -> dict[str, Any]:
        """The parts of an object, and those of its cached properties that are defined."""
        found = {name: getattr(value, name) for name in self.hints}
        for name in self.possible:
            if not _can_be_stored(found[name], f"{path}.{name}"):
                found[name] = None
                if self.lost is not None:
                    found[self.lost] = tuple(dict.fromkeys((*found[self.lost], name)))
        for name in self.kept:
            try:
                found[name] = getattr(value, name)
            except BayescopeError:  # a factor of a matrix that has none
                continue
        return found

    def made(self, parts: Any, _reader: Reader) -> Any:
        """The object with these parts.

        Raises:
            MalformedError: if they are not those that the class has.
        """
        hints, name = self.hints | self.cached, self.type.__name__
        if not self.hints.keys() - set(self.possible) <= of(parts, dict).keys() <= hints.keys():
            raise MalformedError(f"a {name} has other parts")
        for part, value in parts.items():
            if not fits(value, hints[part]):
                raise MalformedError(f"the {part} of a {name} is not one")
        kept = {part: parts.pop(part) for part in self.kept if part in parts}
        made: Any = object.__new__(self.type) if self.named is not None else self.type(**parts)
        if self.named is not None:
            vars(made).update(parts)
        if kept:
            vars(made).update(kept)
        if hasattr(self.type, CHECK):
            getattr(made, CHECK)()
        return made


def _can_be_stored(value: object, path: str) -> bool:
    try:
        Writer().value(value, path)
    except UnsupportedError:
        return False
    return True


@final
@dataclass(frozen=True, eq=False)
class StoredEstimator:
    """How estimators of a class are stored: by their parameters and all that they have learnt.

    Attributes:
        type: the class.
        without: parameters and learned attributes that files leave out.
        check: raises for an estimator whose parts go together badly.
    """

    type: type[BaseEstimator]
    without: tuple[str, ...] = ()
    check: Callable[[BaseEstimator], None] | None = None

    @cached_property
    def hints(self) -> dict[str, Any]:
        """What learned attributes of a class of the house are to be, as far as it says."""
        return {} if self.foreign else get_type_hints(self.type)

    @cached_property
    def foreign(self) -> bool:
        """Whether the class is scikit-learn's."""
        return self.type.__module__.partition(".")[0] == "sklearn"

    def parts(self, value: BaseEstimator, path: str) -> dict[str, Any]:
        """The parameters and what was learnt."""
        parameters = value.get_params(deep=False)
        for name in _REACHING if self.foreign else ():
            if parameters.get(name) is not None:
                raise UnsupportedError(
                    f"save: expected {path}.{name} to be None, got {parameters[name]!r}, which leads out of the file. "
                    "Fit without it."
                )
        return {name: each for name, each in (parameters | vars(value)).items() if name not in self.without}

    def made(self, parts: Any, _reader: Reader) -> BaseEstimator:
        """The estimator with these parts.

        Raises:
            MalformedError: if they are not those that the class has.
        """
        name = self.type.__name__
        parameters = self.type._get_param_names()
        options = {key: part for key, part in of(parts, dict).items() if key in parameters}
        if any(options.get(key) is not None for key in _REACHING):
            raise MalformedError("a parameter leads out of the file")
        made = self.type(**options)
        for key in parts.keys() - options.keys():
            if not _IDENTIFIER.match(key) or key.startswith("__") or hasattr(self.type, key):
                raise MalformedError(f"{key[:40]!r} is not learnt by {name}")
            if not fits(parts[key], self.hints.get(key, Any)):
                raise MalformedError(f"the {key} of {name} is not one")
        vars(made).update({key: part for key, part in parts.items() if key not in options})
        if self.check is not None:
            self.check(made)
        return made


# How the objects of each class are stored, by the name of the class in files.
RECORDS: dict[str, StoredClass | StoredEstimator] = {}


def stored(
    name: str,
    *,
    parts: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    possible: tuple[str, ...] = (),
    lost: str | None = None,
    kept: tuple[str, ...] = (),
) -> Callable[[C], C]:
    """A class decorator: objects of the class may be saved, as a dataclass or named tuple by their fields.

    An estimator, as scikit-learn has them, is saved by its parameters and all that it has learnt but ``without``.

    A dataclass or named tuple is read back by its own constructor, so that what that checks is checked; an object of a
    class whose ``parts`` are named gets these as its attributes. A method ``_check_stored`` of the class then raises
    where the parts do not go together.

    Args:
        name: in files, where it stays when the class moves or is renamed.
        parts: of a class that is no dataclass, the attributes that make up an object, with their types.
        without: fields that files leave out, and that come back as their defaults.
        possible: fields that are stored where that is possible, and come back as ``None`` where it is not.
        lost: a field, a tuple of names, that says after reading which of ``possible`` the object had when it was saved
            and the file could not hold.
        kept: cached properties that are stored beside the fields, computed if they are not yet: an object that was
            read answers with the same bits, and at once.
    """

    def register(kind: C) -> C:
        guard_answers(kind)
        if issubclass(kind, BaseEstimator):
            add_record(name, StoredEstimator(kind, without))
        else:
            add_record(name, StoredClass(kind, parts, without, possible, lost, kept))
        return kind

    return register


def add_record(name: str, record: StoredClass | StoredEstimator) -> None:
    """Adds a class to those that files may hold.

    Raises:
        ValueError: if the name is taken.
    """
    add_form(StoredForm(name, record.type, record.parts, record.made))
    RECORDS[name] = record


def unstorable(reason: str) -> Callable[[C], C]:
    """A class decorator: objects of the class cannot be saved, for a reason of their own, which the error gives."""

    def refused(_value: object, path: str) -> None:
        raise UnsupportedError(f"save: {reason.format(path=path)}")

    def register(kind: C) -> C:
        add_form(StoredForm(f"unstorable {kind.__qualname__}", kind, refused, _unread))
        return kind

    return register


def _unread(_parts: object, _reader: Reader) -> None:
    raise MalformedError("a file holds what none can")


# scikit-learn's transformers -------------------------------------------------------------------------------------

TRANSFORMERS = (
    compose.ColumnTransformer, compose.TransformedTargetRegressor, feature_selection.VarianceThreshold,
    impute.MissingIndicator, impute.SimpleImputer, kernel_approximation.Nystroem, kernel_approximation.RBFSampler,
    pipeline.FeatureUnion, pipeline.Pipeline,
    *(getattr(preprocessing, name) for name in (
        "FunctionTransformer", "KBinsDiscretizer", "LabelBinarizer", "LabelEncoder", "MaxAbsScaler", "MinMaxScaler",
        "Normalizer", "OneHotEncoder", "OrdinalEncoder", "PolynomialFeatures", "PowerTransformer",
        "QuantileTransformer", "RobustScaler", "SplineTransformer", "StandardScaler", "TargetEncoder",
    )),
)  # fmt: skip
_NAMES = frozenset(kind.__name__ for kind in TRANSFORMERS)
# Of polynomials and splines. A model has a weight for each feature, and no model has this many.
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
    polynomial = isinstance(made, preprocessing.PolynomialFeatures) and degree <= MOST_DEGREE
    monomials = math.comb(columns + degree, degree) if polynomial else 0
    if degree > MOST_DEGREE or max(monomials, features) > MOST_FEATURES:
        raise MalformedError(f"a {type(made).__name__} of degree {str(degree)[:20]} for {str(columns)[:20]} columns")


def _spline_parts(value: BSpline, _path: str) -> dict[str, Any]:
    return {"t": value.t, "c": value.c, "k": int(value.k), "extrapolate": value.extrapolate, "axis": int(value.axis)}


def _spline(parts: Any, _reader: Reader) -> BSpline:
    knots, coefficients, degree, axis = parts["t"], parts["c"], parts["k"], parts["axis"]
    whole = isinstance(knots, np.ndarray) and isinstance(coefficients, np.ndarray) and type(degree) is int
    if not whole or not 0 <= degree <= 100 or type(axis) is not int:
        raise MalformedError("a spline is malformed")
    return BSpline(knots, coefficients, degree, extrapolate=parts["extrapolate"], axis=axis)


for _kind in TRANSFORMERS:
    _sized = _kind in (preprocessing.PolynomialFeatures, preprocessing.SplineTransformer)
    add_record(_kind.__name__, StoredEstimator(_kind, check=_check_features if _sized else None))
add_form(StoredForm("spline", BSpline, _spline_parts, _spline))
