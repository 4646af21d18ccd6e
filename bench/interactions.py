"""Rankings of pairs of features: whether they find planted pairs, what they foretell, and what they cost.

Two pairs interact among ten independent features. "evidence" has the target of both in the first two places in at least
18 of 20 seeds; mutual information stands beside it without one, since it asks for dependent effects and not for
interaction. The gain that "evidence" foretells is compared with what log Z rises by when the pair has its net.

    python -m bench.interactions [--seeds 20] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayescope.additive.additive import Additive, fit_additive
from bayescope.additive.fit import AdditiveOptions
from bayescope.additive.interactions import rank
from bayescope.additive.observed import RowsInMemory
from bayescope.additive.terms import EncodedRows
from bayescope.likelihoods import Bernoulli, Gaussian
from bayescope.tables import TableEncoding, read_table
from bench import record
from bench.papers.additive_sets import load
from bench.turns import Work, in_turns

FEATURES = 10
METHODS = ("evidence", "mutual_information")
PLANTED = {(0, 4), (5, 6)}
Row = dict[str, Any]
Numbers = NDArray[np.float64]


# --- the problems -----------------------------------------------------------------------------------------------------


def products(x: Numbers) -> Numbers:
    """Effects of four features, a product, and a wave whose height another feature sets."""
    main = np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + x[:, 2] + np.abs(x[:, 3])
    return main + 2 * x[:, 0] * x[:, 4] + 1.5 * np.sin(3 * x[:, 5]) * x[:, 6]


def steps(x: Numbers) -> Numbers:
    """The same effects; the pairs are an exclusive or, and a hill."""
    main = np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + x[:, 2] + np.abs(x[:, 3])
    hill = np.exp(-4 * ((x[:, 5] - 0.2) ** 2 + x[:, 6] ** 2))
    return main + 0.7 * np.sign(x[:, 0] * x[:, 4]) + 3.0 * hill


SHAPES: dict[str, Callable[[Numbers], Numbers]] = {"products": products, "steps": steps}
CASES = [
    ("products", "regression", 300),
    ("products", "regression", 1000),
    ("steps", "regression", 1000),
    ("products", "classification", 1000),
]


def table(shape: str, task: str, rows: int, seed: int) -> tuple[Numbers, NDArray[Any]]:
    """Independent features, evenly in [−1, 1], and y: with noise of sd 1, or by the logit of twice the mean."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (rows, FEATURES))
    mean = SHAPES[shape](x)
    if task == "classification":
        return x, (2.0 * (mean - np.median(mean)) + rng.logistic(size=rows) > 0).astype(np.int64)
    return x, mean + rng.normal(size=rows)


def fitted(x: Any, y: NDArray[Any], options: AdditiveOptions, seed: int = 0) -> tuple[Additive, RowsInMemory]:
    """An additive model of a table."""
    columns = read_table(x)
    encoding = TableEncoding.fit(columns)
    rows = EncodedRows.of(encoding.encode(columns))
    likelihood = Gaussian(0.5) if y.dtype.kind == "f" else Bernoulli()
    targets = likelihood.targets((y - y.mean()) / y.std() if y.dtype.kind == "f" else y, 1)
    unit = torch.ones(1, dtype=torch.float64)
    data = RowsInMemory(rows, targets, torch.ones(len(rows), dtype=torch.float64), unit, 0.0 * unit)
    return fit_additive(encoding, data, likelihood, options, seed=seed), data


# --- what is measured -------------------------------------------------------------------------------------------------


def found(shape: str, task: str, rows: int, seeds: int) -> Row:
    """How often both planted pairs come first, under either ranking, and the seconds that each takes."""
    first, each = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0)
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(seeds):
        model, data = fitted(*table(shape, task, rows, seed), AdditiveOptions(), seed)
        for method in METHODS:
            start = time.perf_counter()
            ranking = rank(model.fit, model.encoding, data, method, torch.Generator().manual_seed(seed))
            seconds[method].append(time.perf_counter() - start)
            hits = len(PLANTED & set(ranking.pairs[:2]))
            first[method] += hits == 2
            each[method] += hits
    return {
        "pairs": shape,
        "task": task,
        "rows": rows,
        "seeds": seeds,
        **{f"{method}: both first": first[method] for method in METHODS},
        **{f"{method}: of the pairs": f"{each[method]}/{2 * seeds}" for method in METHODS},
        **{f"{method}: ms": round(1e3 * median(seconds[method]), 1) for method in METHODS},
    }


def foretold(seeds: int) -> list[Row]:
    """The gain foretold for the first, second, third and tenth pair, and what log Z rises by when it is added."""
    rows = []
    for seed in range(seeds):
        x, y = table("products", "regression", 500, seed)
        without, data = fitted(x, y, AdditiveOptions(), seed)
        ranking = rank(without.fit, without.encoding, data, "evidence", torch.Generator().manual_seed(seed))
        for place in (0, 1, 2, 9):
            refitted, _ = fitted(x, y, AdditiveOptions(interactions=[ranking.pairs[place]]), seed)
            rise = refitted.fit.log_evidence - without.fit.log_evidence
            rows.append({"seed": seed, "place": place + 1, "foretold": float(ranking.scores[place]), "rise": rise})
    return rows


def cost(name: str, x: Any, y: NDArray[Any]) -> Row:
    """Seconds of ranking all pairs, the median of three turns."""
    model, data = fitted(x, y, AdditiveOptions(hidden=8, epochs=3, burn_in=1))
    row: Row = {"table": name, "rows": len(data.rows), "pairs": x.shape[1] * (x.shape[1] - 1) // 2}

    def ranked(method: str) -> object:
        return rank(model.fit, model.encoding, data, method, torch.Generator().manual_seed(0))

    works = [Work(method, partial(ranked, method), METHODS[0]) for method in METHODS]
    in_turns(works, 3)
    return row | {f"{work.name}: s": round(median(work.seconds), 3) for work in works}


def costs() -> list[Row]:
    """A small wide table and a long mixed one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 30))
    adult = load("adult", 0)
    return [
        cost("independent", x, x[:, 0] * x[:, 1] + rng.normal(size=512)),
        cost("adult", adult.X_train, np.asarray(adult.y_train)),
    ]


TITLES = {
    "found": "Two planted pairs among ten independent features: seeds in which both come first",
    "foretold": "The gain in log evidence that is foretold, and the rise of log Z with the pair's net",
    "cost": "Seconds to rank all pairs",
}


def main() -> None:
    """Runs everything and writes it."""
    parser = record.arguments(__doc__)
    parser.add_argument("--seeds", type=int, help="20; 1 of a quick run")
    options = parser.parse_args()
    seeds = options.seeds or (1 if options.quick else 20)
    cases = CASES[:1] if options.quick else CASES
    report = {"found": [found(*case, seeds) for case in cases]}
    if not options.quick:
        report |= {"foretold": foretold(max(1, seeds // 5)), "cost": costs()}
    how = record.method_in(__doc__)
    parts = [part for name, rows in report.items() for part in (f"## {TITLES[name]}", record.table_of(rows, ".3g"))]
    record.publish(options, "bench.interactions", "Rankings of pairs of features", how, parts, report)


if __name__ == "__main__":
    main()
