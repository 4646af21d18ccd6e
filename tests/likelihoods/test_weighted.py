"""Rows with a weight or an offset: a whole weight is as many rows, an offset moves the outputs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from bayescope.likelihoods import (
    Bernoulli,
    BradleyTerry,
    Categorical,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    Weighted,
    WithOffset,
)

WEIGHTS = torch.tensor([1, 3, 0, 2, 1])
CASES: dict[str, tuple[Likelihood, int, Tensor]] = {
    "bernoulli": (Bernoulli(), 1, torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])),
    "several labels": (Bernoulli(), 2, torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])),
    "categorical": (Categorical(), 3, torch.tensor([0, 2, 1, 1, 0])),
    "bradley_terry": (BradleyTerry(), 2, torch.tensor([0, 1, 1, 0, 1])),
    "gaussian": (Gaussian([0.5, 2.0]), 2, torch.arange(10.0).reshape(5, 2)),
}


def outputs(count: int) -> Tensor:
    return torch.randn(5, count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_sums_over_weighted_rows_are_those_over_repeated_ones(name: str):
    likelihood, count, y = CASES[name]
    f, weighted = outputs(count), Weighted(likelihood)
    targets = weighted.targets(Weighted.join(y, WEIGHTS), count)
    rows = torch.repeat_interleave(torch.arange(5), WEIGHTS)
    g, z = f[rows], likelihood.targets(y, count)[rows]
    sums: dict[str, tuple[Tensor, Tensor]] = {
        "log_prob": (weighted.log_prob(f, targets).sum(0), likelihood.log_prob(g, z).sum(0)),
        "hessian": (weighted.hessian(f, targets).sum(0), likelihood.hessian(g, z).sum(0)),
        "ggn_diagonal": (weighted.ggn(f, targets).diagonal().sum(0), likelihood.ggn(g, z).diagonal().sum(0)),
        "ggn_sum": (weighted.ggn(f, targets).sum(), likelihood.ggn(g, z).sum()),
        "gradient": (weighted.gradient(f, targets).sum(0), likelihood.gradient(g, z).sum(0)),
    }
    for quantity, (one, other) in sums.items():
        torch.testing.assert_close(one, other, msg=lambda told, quantity=quantity: f"{quantity}: {told}")
    roots = weighted.ggn_sqrt(f, targets)
    torch.testing.assert_close((roots @ roots.mT).sum(0), likelihood.ggn(g, z).sum())


@pytest.mark.global_rng  # torch draws the first weights
@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_the_evidence_of_another_noise_counts_rows_by_their_weights(noise: float):
    source = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=source)
    x, y = (torch.randn(5, size, dtype=torch.float64, generator=source) for size in (2, 1))
    rows = torch.repeat_interleave(torch.arange(5), WEIGHTS)
    weighted = Weighted(Gaussian(1.0), float(WEIGHTS.double().mean()))
    common: dict[str, Any] = {"structure": "full", "prior_precision": 50.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one = bs.laplace(network, (x, Weighted.join(y, WEIGHTS)), likelihood=weighted, **common)
        other = bs.laplace(network, (x[rows], y[rows]), likelihood=Gaussian(1.0), **common)
    torch.testing.assert_close(one.log_evidence(noise_variance=noise), other.log_evidence(noise_variance=noise))


def test_what_cannot_be_weighted_is_told():
    weighted = Weighted(Bernoulli())
    with pytest.raises(InputError, match="last column of weights"):
        weighted.targets(torch.zeros(3), 1)
    with pytest.raises(InputError, match="at least 0"):
        weighted.targets(torch.tensor([[1.0, -1.0]]), 1)
    with pytest.raises(UnsupportedError, match="curvature"):
        weighted.fisher_sqrt(torch.zeros(1, 1))
    with pytest.raises(UnsupportedError, match="Gaussian"):
        weighted.with_noise_variance(1.0)


OFFSETS = torch.tensor([0.0, 0.7, -1.2, 2.0, 0.1], dtype=torch.float64)
COUNTS = torch.tensor([[0.0, 4.0], [2.0, 1.0], [0.0, 0.0], [7.0, 3.0], [1.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_an_offset_moves_the_outputs(weighted: bool):
    likelihood, f = NegativeBinomial([0.7, 0.2]), outputs(2)
    inner = WithOffset(likelihood)
    rows, weights = inner.join(COUNTS, OFFSETS), WEIGHTS.double() if weighted else torch.ones(5, dtype=torch.float64)
    moved: Likelihood = Weighted(inner) if weighted else inner
    y = moved.targets(Weighted.join(rows, WEIGHTS) if weighted else rows, 2)
    g, cov = f + OFFSETS[:, None], torch.eye(2, dtype=torch.float64).expand(5, 2, 2)
    for one, other in [
        (moved.log_prob(f, y), likelihood.log_prob(g, COUNTS) * weights),
        (moved.gradient(f, y), likelihood.gradient(g, COUNTS) * weights[:, None]),
        (moved.hessian(f, y), likelihood.hessian(g, COUNTS) * weights[:, None, None]),
        (moved.ggn(f, y).diagonal(), likelihood.ggn(g, COUNTS).diagonal() * weights[:, None]),
        (
            moved.predictive_log_prob(f, cov, y, "quadrature"),
            likelihood.predictive_log_prob(g, cov, COUNTS, "quadrature") * weights,
        ),
    ]:
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(moved.constant(y), likelihood.constant(COUNTS) - OFFSETS.mean())


def test_hyperparameters_are_learnt_through_weights_and_offsets():
    moved = Weighted(WithOffset(NegativeBinomial()), 1.4)
    y = Weighted.join(WithOffset.join(COUNTS[:, :1], OFFSETS), WEIGHTS)
    assert moved.learnable == ("dispersion",)
    assert moved.hyperparameters == {"dispersion": "positive"}
    started = moved.starting(y)
    assert not started.learnable
    assert started.mean_weight == 1.4
    torch.testing.assert_close(
        started.log_prob(torch.zeros(5, 1), y),
        moved.with_hyperparameters(dispersion=NegativeBinomial().starting(COUNTS[:, :1]).dispersion).log_prob(
            torch.zeros(5, 1), y
        ),
    )


def test_offsets_that_are_not_finite_are_refused():
    moved = WithOffset(Poisson())
    with pytest.raises(InputError, match="last column of offsets"):
        moved.targets(torch.zeros(3), 1)
    with pytest.raises(InputError, match=r"finite offsets in the last column, got -inf in row 1\. An exposure"):
        moved.targets(torch.tensor([[1.0, 0.0], [1.0, -torch.inf]]), 1)
    with pytest.raises(UnsupportedError, match="drawn outcomes, which have no offsets"):
        moved.sample(torch.zeros(1, 1), torch.Generator())
