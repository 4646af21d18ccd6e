"""Weighted rows: a whole weight is as many rows, for every quantity that a fit asks for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from bayescope.likelihoods import Bernoulli, BradleyTerry, Categorical, Gaussian, Likelihood, Weighted

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
