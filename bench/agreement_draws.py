"""Posteriors that are drawn: the structure "samples" on every network, against the exact covariance."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor

import bayescope as bs
from bench.agreement_networks import Definition, Record, best, measured
from bench.agreement_peers import Answer, Question, fair, laplace_backends, laplace_fit, questions
from tests.curvature import reference
from tests.curvature.cases import BATCH, MODELS, Case, case

PRIOR, PAIRS = 0.1, 1000
FAR = 1.5  # above it the draws have another covariance: for P weights the distance is 1 ± 1/P


def distance(draws: Tensor, precision: Tensor) -> float:
    """How far S draws z of N(0, A⁻¹) are from their covariance, in standard errors, about 1.

    With A = LLᵀ the rows w = zᵀL have the covariance I, and E‖Σ w wᵀ/S − I‖² = (P² + P)/S.
    """
    white = draws.to(precision) @ torch.linalg.cholesky(precision)
    dim = len(precision)
    apart = white.mT @ white / len(draws) - torch.eye(dim, dtype=precision.dtype)
    return float(apart.norm() * (len(draws) / (dim**2 + dim)) ** 0.5)


def ours(entry: Case, seed: int = 0) -> Tensor:
    """θ − θ* of all draws, shape (2 S, P), the second half the first turned round."""
    q = bs.laplace(
        copy.deepcopy(entry.module), (entry.inputs, entry.targets), likelihood=entry.likelihood, structure="samples",
        samples=2 * PAIRS, prior_precision=PRIOR, batch_size=BATCH, generator=seed,
    )  # fmt: skip
    return q.draws[0] - reference.flat_weights(entry.module)


def theirs(entry: Case) -> dict[str, Answer]:
    """laplace-torch's draws from its posterior with a full matrix, by the way of asking."""

    def draw(question: Question, backend: object) -> Tensor:
        posterior = laplace_fit(question, "full", backend, {})
        posterior.prior_precision = PRIOR
        return posterior.sample(2 * PAIRS, generator=torch.Generator().manual_seed(0)) - posterior.mean

    return {
        ", ".join(filter(None, (name, turned))): fair()(partial(draw, question, backend))
        for turned, question in questions(entry, BATCH).items()
        for name, (backend, _) in laplace_backends("ggn").items()
    }


def drawn(model: str, *, peers: bool) -> Record:
    """One network: the distance of the draws' covariance, how far pairs are from their middle, and one seed twice."""
    entry = case(model, outputs=MODELS[model].outputs[-1])
    exact = Definition(entry, model, "ggn").full
    precision = exact + PRIOR * torch.eye(len(exact), dtype=exact.dtype)
    kept: list[Tensor] = []

    def run() -> Tensor:
        kept[:] = [*kept[-1:], ours(entry)]
        return kept[-1]

    answer = measured(run, lambda z: distance(z[:PAIRS], precision))
    found: Record = {"model": model, "ours": answer}
    if kept:
        found["middle"] = float((kept[-1][:PAIRS] + kept[-1][PAIRS:]).abs().max())
        found["repeated"] = float((kept[0] - kept[-1]).abs().max())
    if peers:
        found["peers"] = {"laplace-torch": best(theirs(entry), lambda z: distance(z[:PAIRS], precision), FAR)}
    return found
