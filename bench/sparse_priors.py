"""Sparse priors of linear models beside one precision for all weights and relevance (ARD).

Simulated: 100 rows of 100 independent columns, of which five matter (weights 2, −1.5, 1, .7, −.5; noise of sd 1), ten
times; NUTS on the first. More columns than rows: 60 rows of 200 such columns, five times each for noise of three sds;
the lasso is scikit-learn's, with its penalty by cross-validation. Shares: sds of weights by variational inference over
those by NUTS, of all rows of three real tables under the horseshoe. Real tables: three splits each, up to 400 training
rows of at most 70 %; "degree 2" has all squares and products of two columns; nan: a fit failed. NLL is in nats a test
row. Few splits: read differences in the second digit.

    python -m bench.sparse_priors [--quick]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LassoCV

import bayescope as bs
from bench import record

FOLDER = Path(os.environ.get("BAYESCOPE_REFERENCE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
PRIORS = ("evidence", "ard", "horseshoe", "laplace")
WEIGHTS = np.array([2.0, -1.5, 1.0, 0.7, -0.5])
ROWS, COLUMNS, TEST_ROWS = 100, 100, 1_000
WIDE, SDS = (60, 200), (0.5, 1.0, 2.0)
TRAINING_ROWS, SHARE = 400, 0.7


class Table(NamedTuple):
    """A real table; y is numbers, or labels where ``labels`` says so."""

    name: str
    X: pd.DataFrame
    y: np.ndarray
    labels: bool
    features: str | None = None


def tables() -> Iterator[Table]:
    """Tables of the reference data, and one of scikit-learn's."""
    for name, degrees in (("bostonHousing", 2), ("yacht", 2), ("concrete", 2), ("wine-quality-red", 1)):
        folder = FOLDER / "uci_regression" / name
        columns, target = (np.loadtxt(folder / f"index_{which}.txt").astype(int) for which in ("features", "target"))
        numbers = np.loadtxt(folder / "data.txt")
        X, y = pd.DataFrame(numbers[:, columns]).add_prefix("x"), numbers[:, int(target)]
        yield Table(name, X, y, labels=False)
        if degrees == 2:
            yield Table(f"{name}, degree 2", X, y, labels=False, features="polynomial")
    for name, options in (
        ("sonar.csv", {}),
        ("german.csv", {}),
        ("heart/statlog_heart.dat", {"sep": " ", "skiprows": 1}),
    ):
        frame = pd.read_csv(FOLDER / "tabular" / name, header=None, **options)
        X, y = frame.iloc[:, :-1].add_prefix("x"), frame.iloc[:, -1].astype(str).to_numpy()
        yield Table(Path(name).stem, X, y, labels=True)
        if name.startswith("heart"):
            yield Table("heart, degree 2", X, y, labels=True, features="polynomial")
    X, y = load_breast_cancer(return_X_y=True)
    yield Table("breast cancer", pd.DataFrame(X).add_prefix("x"), y.astype(str), labels=True)


def on_split(table: Table, prior: str, seed: int) -> dict[str, float]:
    """One fit, judged on the rows that were left out."""
    order = np.random.default_rng(seed).permutation(len(table.X))
    count = min(TRAINING_ROWS, int(SHARE * len(order)))
    train, test = order[:count], order[count:]
    kind = bs.BayesianLogisticRegression if table.labels else bs.BayesianLinearRegression
    model: Any = kind(prior_precision=prior, features=table.features)
    try:
        model.fit(table.X.iloc[train], table.y[train])
    except bs.errors.ConvergenceError:
        return {"nll": np.nan, "on": np.nan}
    y = np.searchsorted(model.classes_, table.y[test]) if table.labels else table.y[test]
    nll = -float(torch.as_tensor(model.predict_distribution(table.X.iloc[test]).log_prob(y)).mean())
    return {"nll": nll, "on": float((~model.relevance()["switched_off"]).mean())}


def simulated(prior: str, seed: int, *, nuts: bool = False) -> dict[str, float]:
    """One fit to a simulated table: how far the weights are off, and whether 95 % intervals cover them."""
    source = np.random.default_rng(seed)
    X, X_test = source.standard_normal((ROWS, COLUMNS)), source.standard_normal((TEST_ROWS, COLUMNS))
    truth = np.pad(WEIGHTS, (0, COLUMNS - len(WEIGHTS)))
    y, y_test = (each @ truth + source.standard_normal(len(each)) for each in (X, X_test))
    options: dict[str, Any] = {"prior_precision": prior, "standardize": False}
    if nuts:
        chains = {"draws": 500, "tune": 500, "chains": 2, "random_state": seed}
        model: Any = bs.BayesianGeneralizedLinearModel(posterior="nuts", **chains, **options).fit(X, y)
    else:
        model = bs.BayesianLinearRegression(**options).fit(X, y)
    found = model.coefficients().set_index("name").reindex([f"x{at}" for at in range(COLUMNS)]).fillna(0.0)
    covered = (found["low"] <= truth) & (truth <= found["high"])
    relevant = np.arange(COLUMNS) < len(WEIGHTS)
    nll = -float(torch.as_tensor(model.predict_distribution(X_test).log_prob(y_test)).mean())
    return {
        "error of w": float(np.linalg.norm(found["mean"] - truth)),
        "covered, relevant": float(covered[relevant].mean()),
        "covered, others": float(covered[~relevant].mean()),
        "NLL": nll,
        "switched on": float((~model.relevance()["switched_off"]).sum()),
        "sd of relevant": float(found["sd"][relevant].mean()),
        "sd of others": float(found["sd"][~relevant].mean()),
    }


def wide(prior: str, sd: float, seed: int) -> dict[str, float]:
    """One fit to a simulated table of more columns than rows, whose five columns are anywhere."""
    source = np.random.default_rng(seed)
    rows, columns = WIDE
    X, X_test = source.standard_normal((rows, columns)), source.standard_normal((TEST_ROWS, columns))
    truth = source.permutation(np.pad(WEIGHTS, (0, columns - len(WEIGHTS))))
    y, y_test = (each @ truth + sd * source.standard_normal(len(each)) for each in (X, X_test))
    if prior == "lasso":
        lasso = LassoCV(random_state=0).fit(X, y)
        found, error = lasso.coef_, y_test - lasso.predict(X_test)
        free = max(1, rows - 1 - np.count_nonzero(found))
        noise = float(np.square(y - lasso.predict(X)).sum() / free)
        nll = float(0.5 * (np.square(error).mean() / noise + np.log(2.0 * np.pi * noise)))
    else:
        model: Any = bs.BayesianLinearRegression(prior_precision=prior, standardize=False).fit(X, y)
        found, noise = model.coef_, model.noise_variance_
        nll = -float(torch.as_tensor(model.predict_distribution(X_test).log_prob(y_test)).mean())
    return {"error of w": float(np.linalg.norm(found - truth)), "NLL": nll, "noise sd / truth": noise**0.5 / sd}


def shares_of_nuts(table: Table, draws: int) -> dict[str, float]:
    """The sds of the weights by variational inference as a share of those by NUTS: the least and the largest."""
    kind = bs.BayesianLogisticRegression if table.labels else bs.BayesianLinearRegression
    chains = {"draws": draws, "tune": draws, "chains": 4, "random_state": 0}
    near, drawn = (
        kind(prior_precision="horseshoe", **options).fit(table.X, table.y).coefficients()["sd"][:-1]
        for options in ({}, {"posterior": "nuts", **chains})
    )
    share = near / drawn
    return {"least": float(share.min()), "median": float(share.median()), "largest": float(share.max())}


def mean_of(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each number."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", bs.errors.BayescopeWarning)
    seeds, splits, chains = (2, 1, 0) if options.quick else (10, 3, 1)
    simulation = [{"prior": prior, **mean_of([simulated(prior, seed) for seed in range(seeds)])} for prior in PRIORS]
    for prior in PRIORS[2:]:
        for nuts in (False, True) if chains else ():
            found = mean_of([simulated(prior, seed, nuts=nuts) for seed in range(chains)])
            simulation.append({"prior": f"{prior}, {'NUTS' if nuts else 'VI'}, {chains} table", **found})
    real = []
    for table in list(tables())[: 2 if options.quick else None]:
        found = {prior: mean_of([on_split(table, prior, seed) for seed in range(splits)]) for prior in PRIORS}
        real.append({"table": table.name, "rows": len(table.X), **found})
    wide_tables = [
        {"noise sd": sd, "prior": prior, **mean_of([wide(prior, sd, seed) for seed in range(seeds // 2)])}
        for sd in (SDS[1:2] if options.quick else SDS)
        for prior in ("lasso", *PRIORS[:3])
    ]
    small = [table for table in tables() if table.name in ("yacht", "concrete", "statlog_heart")]
    chosen, draws = (small[:1], 50) if options.quick else (small, 1_000)
    shares = [{"table": table.name, **shares_of_nuts(table, draws)} for table in chosen]
    shown = [
        [each["table"], *(f"{each[prior]['nll']:.3f}" for prior in PRIORS), f"{each['horseshoe']['on']:.2f}"]
        for each in real
    ]
    parts = [
        "## Five of 100 columns", record.table_of(simulation, ".3f"),
        "## More columns than rows", record.table_of(wide_tables, ".3f"),
        "## Standard deviations as a share of NUTS'", record.table_of(shares, ".2f"),
        "## Real tables", record.table(["test NLL", *PRIORS, "features on, horseshoe"], shown),
    ]  # fmt: skip
    how = record.method_in(__doc__)
    results = {"simulation": simulation, "wide": wide_tables, "shares": shares, "tables": real}
    record.publish(options, "bench.sparse_priors", "Sparse priors", how, parts, results)


if __name__ == "__main__":
    main()
