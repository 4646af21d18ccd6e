"""How right Laplace, variational inference and expectation propagation are on logistic and probit regression.

One input and an intercept: two weights, whose posterior is integrated over the plane. For tables of 4 to 1,000 rows, of
classes that overlap and classes that a threshold separates, under a prior of sd 1 and one of sd 10, it says by how much
each approximation misses, the worst of several tables. Small and separable tables miss by most; they are shown too.

    python -m bench.linear_faithfulness [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayescope.likelihoods import Bernoulli
from bayescope.linear import compile_density, expectation_propagation, laplace, variational
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior
from bayescope.priors import Prior
from bench import record
from tests.reference import Plane, binary_log_joint, integrate_plane

ROWS = (4, 10, 30, 60, 200, 1000)
TABLES = 6
INTERCEPT_PRECISION = 0.01
METHODS: dict[str, Callable[..., GaussianPosterior]] = {
    "laplace": laplace,
    "mean_field": partial(variational, family="mean_field"),
    "variational": variational,
    "ep": expectation_propagation,
}
MEASURES = {
    "log_evidence": "log evidence: estimate − truth, in nats (for variational and mean_field: of the bound)",
    "predictive": "predictive probability: largest error over inputs from −6 to 6 (their sd is 1.5)",
    "sd": "posterior standard deviation: largest relative error of the two weights",
}


def table(rows: int, seed: int, separable: bool) -> tuple[Tensor, Tensor]:
    """Inputs of sd 1.5 with labels by a logistic model, or by a threshold; always of both classes."""
    generator = torch.Generator().manual_seed(1000 * rows + seed)
    while True:
        x = 1.5 * torch.randn(rows, 1, dtype=torch.float64, generator=generator)
        chance = torch.sigmoid(1.5 * x[:, 0] + 0.3)
        y = x[:, 0] > 0.2 if separable else torch.rand(rows, dtype=torch.float64, generator=generator) < chance
        if 0 < int(y.sum()) < rows:
            return x, y.to(torch.float64)


def errors(link: str, q: GaussianPosterior, plane: Plane) -> dict[str, float]:
    """What an approximation misses by."""
    estimate = q.record.evidence if q.record.evidence is not None else q.elbo
    grid = torch.linspace(-6, 6, 97, dtype=torch.float64)[:, None]
    activation = plane.nodes @ torch.cat([grid, torch.ones_like(grid)], 1).mT
    truth = plane.expect(torch.special.ndtr(activation) if link == "probit" else torch.sigmoid(activation))
    sds = (q.covariance.diagonal() / plane.covariance.diagonal()).sqrt()
    return {
        "log_evidence": float(estimate - plane.log_evidence),
        "predictive": float((q.predict(grid).probs[:, 1] - truth).abs().max()),
        "sd": float((sds - 1.0)[(sds - 1.0).abs().argmax()]),
    }


def compare(link: str, rows: int, precision: float, separable: bool) -> dict[str, Any]:
    """The worst errors of every method over the tables of one kind."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    weights = torch.tensor([precision, INTERCEPT_PRECISION], dtype=torch.float64)
    for seed in range(TABLES):
        x, y = table(rows, seed, separable)
        zeros = torch.zeros(2, dtype=torch.float64)
        jacobian = torch.cat([x, torch.ones_like(x)], 1)
        plane = integrate_plane(binary_log_joint(link, jacobian, y, torch.diag(weights), zeros), zeros, size=181)
        for name, infer in METHODS.items():
            start = time.perf_counter()
            q = infer(compile_density(LinearModel(1), Bernoulli(link), Prior(weights), x, y))
            seconds[name] += (time.perf_counter() - start) / TABLES
            found[name].append(errors(link, q, plane))
    return {
        "link": link,
        "classes": "separable" if separable else "overlapping",
        "prior_precision": precision,
        "rows": rows,
        "worst": {
            name: {measure: max((e[measure] for e in each), key=abs) for measure in MEASURES}
            for name, each in found.items()
        },
        "seconds": seconds,
    }


def markdown(results: list[dict[str, Any]]) -> list[str]:
    """One table a measure."""
    parts: list[str] = []
    keys = ("link", "classes", "prior_precision", "rows")
    for measure, meaning in MEASURES.items():
        rows = [
            [*(each[key] for key in keys), *(f"{each['worst'][name][measure]:.4f}" for name in METHODS)]
            for each in results
        ]
        header = ["link", "classes", "prior precision", "rows", *METHODS]
        parts += [f"## {meaning[0].upper()}{meaning[1:]}", record.table(header, rows)]
    return parts


def main() -> None:
    """Runs everything, prints the tables and saves them."""
    options = record.arguments(__doc__).parse_args()
    results = [
        compare(link, rows, precision, separable)
        for link in ("logit", "probit")
        for separable in (False, True)
        for precision in (1.0, 0.01)
        for rows in (ROWS[:1] if options.quick else ROWS)
    ]
    how = f"One input of sd 1.5 and an intercept (prior precision {INTERCEPT_PRECISION}); the worst of {TABLES} tables."
    title = "Linear models: each approximation against numerical integration"
    record.publish(options, "bench.linear_faithfulness", title, how, markdown(results), {"cases": results})


if __name__ == "__main__":
    main()
