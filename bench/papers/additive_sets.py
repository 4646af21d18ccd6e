"""The tables that the additive models are compared on, and the folds, as DataFrames.

The seven sets of the authors' own run of LA-NAM have five folds each: the first five splits of Gal and Ghahramani
(2016), or scikit-learn's five shuffled folds with seed 0. Adult has the one split that it was published with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold, StratifiedKFold

from bench.papers.sets import folder, text

Task = Literal["regression", "classification"]

# Of the files without column names; the last one is the target.
NAMES = {
    "yacht": "buoyancy|prismatic|length_displacement|beam_draught|length_beam|froude|resistance",
    "concrete": "cement|slag|fly_ash|water|superplasticizer|coarse_aggregate|fine_aggregate|age|strength",
    "energy": "compactness|surface|wall|roof|height|orientation|glazing|glazing_distribution|heating",
    "bostonHousing": "crim|zn|indus|chas|nox|rm|age|dis|rad|tax|ptratio|black|lstat|medv",
    "adult": "age|workclass|fnlwgt|education|education_num|marital_status|occupation|relationship|race|sex|"
    "capital_gain|capital_loss|hours_per_week|native_country|income",
    "german": "checking|months|history|purpose|amount|savings|employed_since|rate|status_sex|guarantor|resident_since|"
    "property|age|other_plans|housing|credits|job|dependants|telephone|foreign|bad",
    "pima": "pregnancies|glucose|pressure|triceps|insulin|bmi|pedigree|age|positive",
    "sonar": "|".join([f"band_{band}" for band in range(60)] + ["mine"]),
}


class AuthorsResult(NamedTuple):
    """What the authors' code gave on the same folds: means over them and standard errors; NaN where none is known.

    Attributes:
        nll: in the data's own units.
        nll_error: its standard error.
        other: RMSE in regression, AUROC otherwise.
        other_error: its standard error.
        coverage: of the 95 % interval.
    """

    nll: float
    nll_error: float
    other: float
    other_error: float
    coverage: float = np.nan


AUTHORS = {
    "yacht": AuthorsResult(1.70, 0.05, 1.22, 0.12, 0.96),
    "autompg": AuthorsResult(2.46, 0.09, 2.77, 0.19, 0.94),
    "concrete": AuthorsResult(3.26, 0.02, 6.33, 0.15, 0.97),
    "energy": AuthorsResult(1.51, 0.05, 1.10, 0.07, 0.97),
    "bostonHousing": AuthorsResult(2.73, 0.13, 3.54, 0.45, 0.97),
    "heart": AuthorsResult(0.395, 0.028, 0.900, 0.017),
    "breast": AuthorsResult(0.105, 0.024, 0.991, 0.004),
}
AUTHORS_PAIRS = {
    "yacht": AuthorsResult(1.52, 0.08, 0.95, 0.12),
    "autompg": AuthorsResult(2.45, 0.08, np.nan, np.nan),
}
SETS = tuple(AUTHORS)


@dataclass(frozen=True, eq=False)
class Table:
    """A whole set: its columns, its targets (numbers, or 0 and 1), and which columns hold labels."""

    x: pd.DataFrame
    y: NDArray[Any]
    task: Task
    categorical: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Split:
    """One fold of one set.

    Attributes:
        X_train: the columns as they came: numbers with NaN where one is missing, labels of pandas' type category.
        y_train: float64 in regression, otherwise 0 and 1.
        X_test: the same columns.
        y_test: the same kind.
        task: ``"regression"`` or ``"classification"``.
        categorical: the columns that hold labels.
    """

    X_train: pd.DataFrame
    y_train: NDArray[Any]
    X_test: pd.DataFrame
    y_test: NDArray[Any]
    task: Task
    categorical: tuple[str, ...]


# --- the sets ---------------------------------------------------------------------------------------------------------


def _gal(name: str) -> Table:
    """One of the sets that come with the splits of Gal and Ghahramani."""
    where = folder("uci_regression") / name
    table, columns = text(where / "data.txt"), text(where / "index_features.txt").astype(int)
    target = int(text(where / "index_target.txt"))
    return Table(pd.DataFrame(table[:, columns], columns=NAMES[name].split("|")[:-1]), table[:, target], "regression")


def _autompg() -> Table:
    """The name of the car is left out; six values of horsepower are missing; origin stays a number."""
    table = pd.read_csv(folder("tabular") / "autompg" / "auto-mpg.csv", na_values="?").drop(columns="car name")
    table.columns = table.columns.str.replace(" ", "_")
    table = table.astype(np.float64)
    return Table(table.drop(columns="mpg"), table["mpg"].to_numpy(), "regression")


def _heart() -> Table:
    """Statlog's; class 2, the disease, is 1. All columns are numbers, as in the file."""
    table = pd.read_csv(folder("tabular") / "heart" / "statlog_heart.dat", sep=r"\s+")
    return Table(table.drop(columns="Class"), (table["Class"] == 2).to_numpy(np.int64), "classification")


def _breast() -> Table:
    """Scikit-learn's, 569 rows; 1 is benign."""
    found = load_breast_cancer(as_frame=True)
    return Table(found.data, found.target.to_numpy(np.int64), "classification")


def _file(name: str, *files: str) -> pd.DataFrame:
    """Files without a header, one below the other; labels share their categories among them."""
    options: dict[str, Any] = {"names": NAMES[name].split("|"), "na_values": "?", "skipinitialspace": True}
    parts = [pd.read_csv(folder("tabular") / file, **options) for file in files]
    table = pd.concat(parts, ignore_index=True)
    labels = [column for column in table if not pd.api.types.is_numeric_dtype(table[column])]
    return table.astype(dict.fromkeys(labels, "category"))


def _labelled(table: pd.DataFrame, positive: NDArray[np.bool_]) -> Table:
    """A set whose last column is the target."""
    x = table.iloc[:, :-1]
    labels = tuple(x.select_dtypes("category").columns)
    return Table(x, positive.astype(np.int64), "classification", labels)


def _adult() -> Table:
    """Train and test one below the other; 1 is an income above 50,000."""
    table = _file("adult", "adult-train.csv", "adult-test.csv")
    return _labelled(table, table["income"].str.startswith(">").to_numpy(bool))


def _german() -> Table:
    table = _file("german", "german.csv")
    return _labelled(table, (table["bad"] == 2).to_numpy())


def _pima() -> Table:
    """Zeros stay as they are in the file, where they often mean that nothing was measured."""
    table = _file("pima", "pima-indians-diabetes.csv")
    return _labelled(table, (table["positive"] == 1).to_numpy())


def _sonar() -> Table:
    table = _file("sonar", "sonar.csv")
    return _labelled(table, (table["mine"] == "M").to_numpy(bool))


# --- the folds --------------------------------------------------------------------------------------------------------

Folds = Callable[[str, Table, int], tuple[NDArray[np.int64], NDArray[np.int64]]]


def _published(name: str, table: Table, fold: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # noqa: ARG001
    where = folder("uci_regression") / name
    train, test = (text(where / f"index_{part}_{fold}.txt").astype(np.int64) for part in ("train", "test"))
    return train, test


def _shuffled(name: str, table: Table, fold: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # noqa: ARG001
    """Five folds with seed 0, by class where there are classes."""
    cut = KFold if table.task == "regression" else StratifiedKFold
    return list(cut(5, shuffle=True, random_state=0).split(table.x, table.y))[fold]


def _given(name: str, table: Table, fold: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Adult's first 32,561 rows to train, the others to test."""
    if fold != 0:
        raise ValueError(f"fold: {name} has the one split it was published with, 0, got {fold}.")
    rows = np.arange(len(table.x))
    return rows[:32561], rows[32561:]


# For each set: how it is read, how it is cut, and how many cuts are run.
SOURCES: dict[str, tuple[Callable[[], Table], Folds, int]] = {
    "yacht": (lambda: _gal("yacht"), _published, 5),
    "autompg": (_autompg, _shuffled, 5),
    "concrete": (lambda: _gal("concrete"), _published, 5),
    "energy": (lambda: _gal("energy"), _published, 5),
    "bostonHousing": (lambda: _gal("bostonHousing"), _published, 5),
    "heart": (_heart, _shuffled, 5),
    "breast": (_breast, _shuffled, 5),
    "adult": (_adult, _given, 1),
    "german": (_german, _shuffled, 5),
    "pima": (_pima, _shuffled, 5),
    "sonar": (_sonar, _shuffled, 5),
}


def folds(name: str) -> range:
    """The folds of a set that are run."""
    return range(SOURCES[name][2])


def load(name: str, fold: int) -> Split:
    """One fold of one of the sets: ``yacht``, ``autompg``, …, ``adult``, ``german``, ``pima``, ``sonar``."""
    read, cut, _ = SOURCES[name]
    table = read()
    train, test = cut(name, table, fold)
    x_train, x_test = (table.x.iloc[rows].reset_index(drop=True) for rows in (train, test))
    return Split(x_train, table.y[train], x_test, table.y[test], table.task, table.categorical)
