"""Random tables through the estimators: finite answers or our own errors.

A table is drawn from its seed: one to four columns of any dtype that a data frame holds, with missing and infinite
values, constants, dates, huge numbers, odd characters and names, few rows; then rows to predict, in which labels,
columns and dtypes may be others.
"""

from __future__ import annotations

import datetime
import decimal
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import bayescope as bs
from bayescope.errors import BayescopeError

Record = dict[str, Any]
Column = Callable[[np.random.Generator, int], Any]
ODD = [
    "", " ", "a", "A", "é", "e\u0301", "😀", "\x00", "a,b", "line\nbreak", '"', "nan", "None", "1", "1.0", "\u202e",
    "x" * 500,
]  # fmt: skip
ALTERED = ("the same", "a new label", "missing", "infinite", "text", "a column less", "turned", "none", "one")


def spoilt(values: np.ndarray, source: np.random.Generator, value: Any) -> np.ndarray:
    """Numbers some of which are another value."""
    values = values.copy()
    values[source.random(len(values)) < 0.2] = value
    return values


def objects(source: np.random.Generator, rows: int, choices: list[Any]) -> pd.Series:
    """A column of objects."""
    found = pd.Series([None] * rows, dtype=object)
    for row in range(rows):
        found.iat[row] = choices[source.integers(len(choices))]
    return found


COLUMNS: dict[str, Column] = {
    "numbers": lambda s, n: s.normal(size=n),
    "large numbers": lambda s, n: 1e12 + s.normal(size=n),
    "extreme numbers": lambda s, n: s.choice([1e300, -1e300, 1e-300, 0.0], n),
    "denormal numbers": lambda s, n: s.choice([5e-324, 0.0], n),
    "32 bits": lambda s, n: s.normal(size=n).astype(np.float32),
    "16 bits": lambda s, n: s.normal(size=n).astype(np.float16),
    "long double": lambda s, n: s.normal(size=n).astype(np.longdouble),
    "missing": lambda s, n: spoilt(s.normal(size=n), s, np.nan),
    "all missing": lambda s, n: np.full(n, np.nan),
    "infinite": lambda s, n: spoilt(s.normal(size=n), s, np.inf),
    "constant": lambda s, n: np.full(n, 3.7),
    "whole": lambda s, n: s.integers(-3, 4, n),
    "huge whole": lambda s, n: s.choice(np.array([2**63 - 1, -(2**63), 0]), n),
    "unsigned": lambda s, n: s.choice(np.array([2**64 - 1, 0, 5], dtype=np.uint64), n),
    "beyond 64 bits": lambda s, n: objects(s, n, [2**70, -(2**90), 1]),
    "beyond all floats": lambda s, n: objects(s, n, [10**400, -(10**400), 1]),
    "nullable": lambda s, n: pd.array(s.choice([1, 2, None], n).tolist(), dtype="Int64"),
    "nullable float": lambda s, n: pd.array(s.choice([1.5, 2.5, None], n).tolist(), dtype="Float64"),
    "nullable truth": lambda s, n: pd.array(s.choice([True, False, None], n).tolist(), dtype="boolean"),
    "truth": lambda s, n: s.random(n) < 0.5,
    "complex": lambda s, n: s.normal(size=n) + 1j,
    "text": lambda s, n: objects(s, n, ["red", "blue", "green"]),
    "pandas text": lambda s, n: pd.array(s.choice(["red", "blue", "green"], n), dtype="string"),
    "odd text": lambda s, n: objects(s, n, ODD),
    "text and missing": lambda s, n: objects(s, n, ["red", None, float("nan"), pd.NA]),
    "each its own": lambda s, n: pd.Series([f"row {row}" for row in range(n)], dtype=object),
    "text and numbers": lambda s, n: objects(s, n, ["red", 1, 2.5, True]),
    "numbers as text": lambda s, n: objects(s, n, ["1", "2.5", "-3e2"]),
    "category": lambda s, n: pd.Categorical(s.choice(["a", "b"], n), categories=["a", "b", "never"]),
    "category of numbers": lambda s, n: pd.Categorical(s.choice([1, 2], n), ordered=True),
    "empty category": lambda s, n: pd.Categorical([None] * n, categories=[]),
    "only None": lambda s, n: objects(s, n, [None]),
    "dates": lambda s, n: pd.to_datetime("2024-01-01") + pd.to_timedelta(s.integers(0, 99, n), unit="D"),
    "dates as objects": lambda s, n: objects(s, n, [datetime.date(2024, 1, 1), None]),
    "spans": lambda s, n: pd.to_timedelta(s.integers(0, 99, n), unit="h"),
    "periods": lambda s, n: pd.period_range("2024-01", periods=max(n, 1), freq="M")[:n],
    "intervals": lambda s, n: pd.interval_range(0, max(n, 1))[:n],
    "sparse": lambda s, n: pd.arrays.SparseArray(spoilt(np.zeros(n), s, 1.0)),
    "decimals": lambda s, n: objects(s, n, [decimal.Decimal("1.5"), decimal.Decimal("NaN")]),
    "bytes": lambda s, n: objects(s, n, [b"a", b"\xff"]),
    "lists": lambda s, n: objects(s, n, [[1, 2], (3,), {"a": 1}]),
    "things": lambda s, n: objects(s, n, [object(), len, type]),
}
TARGETS: dict[str, Column] = {
    "labels": lambda s, n: s.choice(["no", "yes"], n),
    "three labels": lambda s, n: s.choice([0, 1, 2], n),
    "truth": lambda s, n: s.random(n) < 0.5,
    "numbers": lambda s, n: s.normal(size=n),
    **{name: COLUMNS[name] for name in (
        "missing", "infinite", "constant", "huge whole", "extreme numbers", "odd text", "text and missing", "category",
        "category of numbers", "each its own", "nullable", "dates", "lists", "complex", "text and numbers",
    )},
}  # fmt: skip
# Those that a random table has more often, so that some can be fitted.
CLASSES = ("labels", "three labels", "truth")
USUAL_TARGETS = (*CLASSES, "numbers")
NAMES: tuple[Any, ...] = ("a", "b", "c", "d", "", " ", "é", "a", 0, 1, ("a", 1), None, 2.5, "x\ny", "missing a")


def frame(source: np.random.Generator, rows: int) -> tuple[pd.DataFrame, list[str]]:
    """A random table, and what its columns are."""
    kinds = [str(kind) for kind in source.choice(list(COLUMNS), source.integers(1, 5))]
    if source.random() < 0.7:
        kinds[0] = "numbers"
    plain = source.random() < 0.7
    names = [f"c{place}" if plain else NAMES[source.integers(len(NAMES))] for place in range(len(kinds))]
    index = pd.RangeIndex(rows) if source.random() < 0.8 else pd.Index([7] * rows)
    columns = [pd.Series(COLUMNS[kind](source, rows)) for kind in kinds]
    for column in columns:
        column.index = index
    found = pd.concat(columns, axis=1)
    found.columns = pd.Index(names, dtype=object, tupleize_cols=False)
    return found, kinds


def altered(X: pd.DataFrame, source: np.random.Generator) -> tuple[pd.DataFrame, str]:
    """Rows to predict, and in what they are others than those of the fit."""
    other = X.copy()
    place = int(source.integers(X.shape[1]))
    how = str(source.choice(ALTERED))
    if how in ("a new label", "missing", "infinite", "text"):
        value = {"a new label": "never seen", "missing": None, "infinite": np.inf, "text": "red"}[how]
        column = other.iloc[:, place].astype(object)
        if len(column):
            column.iat[0] = value
        if how == "missing" and isinstance(other.dtypes.iloc[place], np.dtype) and other.dtypes.iloc[place].kind == "f":
            column = column.astype(float)
        other.isetitem(place, column)
    elif how == "a column less":
        other = other.iloc[:, 1:]
    elif how == "turned":
        other = other.iloc[:, ::-1]
    elif how in ("none", "one"):
        other = other.iloc[: int(how == "one")]
    return other, how


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "BayesianLogisticRegression": lambda: bs.BayesianLogisticRegression(standardize=True),
    "BayesianLinearRegression": lambda: bs.BayesianLinearRegression(standardize=True),
    "NeuralAdditiveClassifier": lambda: bs.NeuralAdditiveClassifier(hidden=3, epochs=6, random_state=0),
    "NeuralAdditiveRegressor": lambda: bs.NeuralAdditiveRegressor(hidden=3, epochs=6, random_state=0),
    "BayesianMLPClassifier": lambda: bs.BayesianMLPClassifier(hidden=(3,), epochs=2, random_state=0),
    "BayesianMLPRegressor": lambda: bs.BayesianMLPRegressor(hidden=(3,), epochs=2, random_state=0),
}


def answers(estimator: Any, X: pd.DataFrame) -> str:
    """Whether predictions are finite and one a row."""
    predicted = np.asarray(estimator.predict(X))
    if len(predicted) != len(X):
        return f"WRONG: {len(predicted)} predictions for {len(X)} rows"
    if hasattr(estimator, "predict_proba"):
        probs = np.asarray(estimator.predict_proba(X))
        right = np.isfinite(probs).all() and (len(probs) == 0 or np.allclose(probs.sum(1), 1.0, atol=1e-6))
        return "answers" if right else "WRONG: probabilities"
    return "answers" if np.isfinite(predicted.astype(float)).all() else "WRONG: predictions are not finite"


# What scikit-learn asks of every estimator, in its own words and by its own functions.
SCIKIT_LEARN = (
    "Unknown label type: ", "Complex data not supported", "The feature names should match", "X has ",
    "Feature names are only supported", "You appear to be using a legacy multi-label data representation",
)  # fmt: skip


def outcome(work: Callable[[], str]) -> str:
    """What came of a call: its answer, "refused", the same by scikit-learn's checks, or the error of others."""
    try:
        return work()
    except BayescopeError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - anything else is what this is looking for
        if str(error).startswith(SCIKIT_LEARN):
            return "refused by scikit-learn's check"
        return f"FOREIGN {type(error).__name__}: {error}".splitlines()[0][:160]


def table(seed: int) -> Record:
    """The table of a seed through an estimator."""
    source = np.random.default_rng(seed)
    name = list(ESTIMATORS)[seed % len(ESTIMATORS)]
    rows = int(source.choice([0, 1, 2, 5, 12, 30], p=[0.03, 0.07, 0.1, 0.2, 0.3, 0.3]))
    X, kinds = frame(source, rows)
    target = str(source.choice(USUAL_TARGETS if source.random() < 0.8 else list(TARGETS)))
    if target in USUAL_TARGETS:
        target = str(source.choice(CLASSES)) if hasattr(ESTIMATORS[name](), "predict_proba") else "numbers"
    y = TARGETS[target](source, rows)
    before, estimator = X.copy(deep=True), ESTIMATORS[name]()
    found: Record = {"seed": seed, "estimator": name, "rows": rows, "columns": kinds, "target": target}

    def fitted() -> str:
        estimator.fit(X, y)
        return "fitted"

    found["fit"] = outcome(fitted)
    if found["fit"] == "fitted":
        found["predict"] = outcome(lambda: answers(estimator, X))
        other, found["altered"] = altered(X, source)
        found["predict altered"] = outcome(lambda: answers(estimator, other))
    try:
        pd.testing.assert_frame_equal(X, before)
    except AssertionError:
        found["fit"] = "WRONG: the table was changed"
    return found


def run(count: int, first: int = 0) -> Record:
    """This many tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [table(seed) for seed in range(first, first + count)]
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in ESTIMATORS}
    bad = []
    for each in found:
        steps = {step: each[step] for step in ("fit", "predict", "predict altered") if step in each}
        outcomes[each["estimator"]].update(f"{step}: {came.split(' ')[0].rstrip(':')}" for step, came in steps.items())
        if any(came.startswith(("WRONG", "FOREIGN")) for came in steps.values()):
            bad.append(each)
    return {"count": count, "outcomes": {name: dict(counts) for name, counts in outcomes.items()}, "bad": bad}
