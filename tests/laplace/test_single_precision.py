"""What single precision costs: a small network's posterior is as good in float32 as in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import bayescope as bs
from bayescope.errors import ConvergenceWarning

STRUCTURES = {"full": {}, "block": {}, "diagonal": {}, "kfac": {}, "ekfac": {}, "low_rank": {"rank": 40}}


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.{ConvergenceWarning.__name__}")
@pytest.mark.global_rng
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_small_network_in_single_precision_loses_nothing_that_counts(structure: str) -> None:
    """An ill-conditioned problem: noise variance 1e-3 beside a prior precision of 0.1."""
    source = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, generator=source, dtype=torch.float64) * 4 - 2
    y = torch.sin(2 * x) + 0.03 * torch.randn(200, 1, generator=source, dtype=torch.float64)
    single = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    with torch.no_grad():
        for parameter in single.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source))
    double = copy.deepcopy(single).double()
    options = {"likelihood": bs.Gaussian(1e-3), "prior_precision": 0.1, "structure": structure, "generator": 0}
    rough = bs.laplace(single, (x.float(), y.float()), **options, **STRUCTURES[structure])
    exact = bs.laplace(double, (x.float().double(), y.float().double()), **options, **STRUCTURES[structure])
    at = torch.linspace(-3, 3, 50, dtype=torch.float64)[:, None]
    ratio = rough.predict(at.float()).epistemic / exact.predict(at.float().double()).epistemic
    assert (ratio - 1).abs().max() < 2e-3
    log_likelihoods = [q.fit.curvature.log_likelihood for q in (rough, exact)]
    gap = (rough.log_evidence() - log_likelihoods[0]) - (exact.log_evidence() - log_likelihoods[1])
    assert abs(gap) < 1e-2
