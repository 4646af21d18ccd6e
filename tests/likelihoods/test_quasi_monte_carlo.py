"""Integrals over many rows, which are taken in blocks."""

from __future__ import annotations

import torch

from bayescope.likelihoods import Categorical


def test_blocks_of_rows_are_written_where_they_belong() -> None:
    """Of 70 classes seven rows are integrated at once: each row gets its own value and derivative."""
    mean = torch.randn(17, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    cov = 0.3 * torch.eye(70, dtype=torch.float64).expand(17, 70, 70)
    whole = Categorical().mutual_information(mean, cov, "quadrature")
    alone = torch.cat([Categorical().mutual_information(mean[n : n + 1], cov[:1], "quadrature") for n in range(17)])
    torch.testing.assert_close(whole, alone, rtol=0, atol=1e-12)
    slopes = (torch.autograd.grad(found.sum(), mean)[0] for found in (whole, alone))
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-12)
    assert Categorical().mutual_information(mean[:0], cov[:0], "quadrature").shape == (0,)
