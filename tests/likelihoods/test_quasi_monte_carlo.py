"""Integrals at fixed nodes, a block of rows at a time."""

from __future__ import annotations

import torch

from bayescope.likelihoods.quasi_monte_carlo import by_rows


def test_blocks_of_rows_are_written_where_they_belong() -> None:
    mean = torch.randn(5_000, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    twice, sums = by_rows(lambda rows: (2 * mean[rows], mean[rows].sum(1)), *mean.shape)
    assert torch.equal(twice, 2 * mean)
    assert torch.equal(sums, mean.sum(1))
    (gradient,) = torch.autograd.grad(twice.sum() + sums.sum(), mean)
    assert torch.equal(gradient, torch.full_like(mean, 3.0))
    assert by_rows(lambda rows: (mean[rows],), 0, 70)[0].shape == (0, 70)
