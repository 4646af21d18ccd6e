"""What a comparison measures: its columns, the distances to the reference, and leave-one-out prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bayescope.density import PARETO_K_LIMIT, pareto_smoothed
from bayescope.errors import UndefinedQuantityError
from bayescope.plots import style
from bayescope.posterior import DrawsPosterior, Posterior

# The columns of the table ---------------------------------------------------------------------------------------------
Best = Callable[[pd.Series], Hashable]
LOWEST: Best = pd.Series.idxmin
HIGHEST: Best = pd.Series.idxmax
LOWER_BOUND = "lower bound"
ESTIMATE = "estimate"


@final
@dataclass(frozen=True)
class Measure:
    """One measure of a comparison.

    Attributes:
        name: of the table's column.
        label: its heading for readers.
        digits: after the decimal point.
        best: the row of the best value; ``None`` where no value is better than another.
        meaning: what it measures, in one line.
    """

    name: str
    label: str
    digits: int
    best: Best | None
    meaning: str


def columns(reference: str) -> tuple[Measure, ...]:
    """All columns that hold numbers, in order.

    Args:
        reference: the posterior that the others are compared with.
    """
    against, tv = style.label(reference), f"tv_to_{reference}"
    return (
        Measure("nll", "NLL", 4, LOWEST, "mean −log p(y∣x) of the test rows, in nats"),
        Measure("brier", "Brier", 4, LOWEST, "mean squared error of the test rows' probabilities"),
        Measure("ece", "ECE", 4, LOWEST, "expected calibration error of the test rows"),
        Measure(
            "auroc", "AUROC", 4, HIGHEST, "of the test rows; for several classes the mean of each against the rest"
        ),
        Measure(tv, f"TV to {against}", 4, LOWEST, f"½ Σ∣p − p_{against}∣, averaged over the test rows"),
        Measure("sd_error", "sd error", 3, LOWEST, f"max ∣sd/sd_{against} − 1∣ over the weights' marginals"),
        Measure(
            "log_evidence", "log evidence", 2, None, "log p(training labels) in nats; ≥ marks a lower bound (ELBO)"
        ),
        Measure("loo", "LOO", 2, HIGHEST, "PSIS-LOO, Σ log p(y∣x, all other rows) over the training rows, in nats"),
        Measure("loo_warnings", "k̂ > 0.7", 0, None, "training rows whose PSIS-LOO estimate is unreliable"),
        Measure("fit_seconds", "fit s", 3, None, "wall-clock seconds of the fit"),
        Measure("predict_seconds", "predict s", 3, None, "wall-clock seconds for the test rows"),
    )


def written(table: pd.DataFrame, column: Measure) -> list[str]:
    """A column's cells as text; a blank where the quantity is undefined.

    Args:
        table: of a comparison.
        column: one of its columns.
    """
    bound = table["evidence_kind"] == LOWER_BOUND if column.name == "log_evidence" else [False] * len(table)
    return [
        "" if math.isnan(value) else ("≥ " if below else "") + f"{value:.{column.digits}f}".replace("-", "−")
        for value, below in zip(table[column.name], bound, strict=True)
    ]


def best_cells(table: pd.DataFrame, column: Measure, reference: str) -> list[bool]:
    """Which cells equal the best one as written. The reference does not compete in its distance to itself.

    Args:
        table: of a comparison.
        column: one of its columns.
        reference: the name of the reference's row.
    """
    distance = column.name in {f"tv_to_{reference}", "sd_error"}
    competing = table[column.name].drop(reference) if distance else table[column.name]
    if column.best is None or competing.notna().sum() < 2:
        return [False] * len(table)
    cells = dict(zip(table.index, written(table, column), strict=True))
    winner = cells[column.best(competing)]
    return [cell == winner and name in competing.index for name, cell in cells.items()]


# Distances to the reference -------------------------------------------------------------------------------------------
def total_variation(probs: np.ndarray, reference: np.ndarray) -> float:
    """The mean over N rows of ½ Σ_k ∣p_k − r_k∣, in [0, 1].

    Args:
        probs: class probabilities, shape (N, K).
        reference: the reference's for the same rows.
    """
    return float(0.5 * np.abs(probs - reference).sum(axis=1).mean())


def sd_error(posterior: Posterior, reference: Posterior) -> float:
    """The largest relative error of a marginal standard deviation, max_j ∣sd_j/sd_ref,j − 1∣.

    NaN where either is a point, which has no standard deviations to be wrong.

    Args:
        posterior: over P weights.
        reference: over the same weights.
    """
    if is_point(posterior) or is_point(reference):
        return math.nan
    sd, truth = (q.covariance.diagonal().sqrt() for q in (posterior, reference))
    return float((sd / truth - 1).abs().max())


def is_point(posterior: Posterior) -> bool:
    """Whether all mass lies on one value of the weights."""
    return bool(posterior.covariance.diagonal().max() == 0)


# Leave-one-out prediction ---------------------------------------------------------------------------------------------
DRAWS = 4000
EVEN = 0.9  # the share of effective draws above which weights differ too little for k̂ to matter
BLOCK_NUMBERS = 2**20  # log likelihoods held at a time


class Loo(NamedTuple):
    """The expected log predictive density of left-out rows.

    Attributes:
        elpd: Σ_n log p(y_n∣D_{−n}) over the training rows, in nats.
        warnings: how many rows have a Pareto k̂ above 0.7.
        harmless: how many of these weigh all draws nearly alike, with over 90 % of them effective: the tail of their
            weights is long and holds next to nothing, as in rows that are predicted with near certainty.
    """

    elpd: float
    warnings: int
    harmless: int


def psis_loo(posterior: Posterior, inputs: np.ndarray, y: np.ndarray, *, seed: int, held: int = BLOCK_NUMBERS) -> Loo:
    """PSIS-LOO of a posterior q over the weights (Vehtari, Gelman & Gabry 2017, equations 3 and 10).

    Row n is left out by the importance weights 1/p(y_n∣θ_s) of draws θ_s ~ q, Pareto-smoothed; so an approximate q
    is judged by its own leave-one-out predictions, and k̂ shows where a single row moves q too far for that.

    Args:
        posterior: with its model and likelihood.
        inputs: of the posterior's model, shape (N, D).
        y: classes of the rows it was fitted to.
        seed: of the draws from a posterior that is not draws itself.
        held: log likelihoods held at a time.

    Raises:
        UndefinedQuantityError: if the posterior is of a bare log density, which has no rows.
    """
    model, likelihood = posterior.function, posterior.likelihood
    if model is None or likelihood is None:
        raise UndefinedQuantityError("psis_loo: expected a posterior with a model, got one of a log density.")
    theta, efficiency = _draws(posterior, seed)
    x, targets = model.inputs(inputs), likelihood.targets(y, model.outputs)
    elpd, unreliable, harmless = 0.0, 0, 0
    for rows in torch.arange(len(y)).split(max(held // theta.shape[0], 1)):
        log_lik = likelihood.log_prob(model.forward(x[rows], theta), targets[rows]).mT
        log_weights, k_hat = pareto_smoothed(-log_lik, efficiency=efficiency)
        elpd += float(torch.logsumexp(log_weights + log_lik, 1).sum())
        warned = k_hat > PARETO_K_LIMIT
        even = (2.0 * log_weights).exp().sum(1) * log_lik.shape[1] < 1.0 / EVEN  # 1/Σ w² effective draws
        unreliable += int(warned.sum())
        harmless += int((warned & even).sum())
    return Loo(elpd, unreliable, harmless)


@singledispatch
def _draws(posterior: Posterior, seed: int) -> tuple[Tensor, float]:
    """Draws (S, P), and their efficiency relative to independent ones."""
    return posterior.sample(DRAWS, generator=seed), 1.0


@_draws.register
def _(posterior: DrawsPosterior, seed: int) -> tuple[Tensor, float]:  # noqa: ARG001
    draws = posterior.flat
    effective = posterior.effective_draws
    return draws, 1.0 if effective is None else min(float(effective.mean()) / draws.shape[0], 1.0)
