"""Pareto smoothing: known tails, ratios that are all alike, and independence of the problems from each other."""

import math

import pytest
import torch

from bayescope.density import pareto_smoothed


def ratios(rows: int = 8, draws: int = 4000) -> torch.Tensor:
    noise = torch.randn(rows, draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return noise * torch.linspace(0.1, 3.0, rows, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_finds_the_shape_of_a_pareto_tail(shape):
    """Ratios u^(−k) have a Pareto tail of shape k; the estimate's sd at these sizes is about 0.1 a problem."""
    uniform = torch.rand(100, 4000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, k_hat = pareto_smoothed(-shape * uniform.log())
    assert abs(float(k_hat.mean()) - shape) < 0.05


def test_weights_are_normalised_keep_their_order_and_do_not_depend_on_the_unit():
    log_ratios = ratios()
    log_weights, k_hat = pareto_smoothed(log_ratios)
    torch.testing.assert_close(torch.logsumexp(log_weights, 1), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-12)
    ordered = log_weights.gather(1, log_ratios.argsort(1))
    assert (ordered.diff(dim=1) >= -1e-12).all()
    shifted, shifted_k = pareto_smoothed(log_ratios + 700.0)
    torch.testing.assert_close(shifted, log_weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(shifted_k, k_hat, rtol=0, atol=1e-8)


def test_equal_ratios_have_no_tail_and_do_not_disturb_their_neighbours():
    alone, alone_k = pareto_smoothed(ratios())
    flat = torch.full((1, 4000), -3.0, dtype=torch.float64)
    log_weights, k_hat = pareto_smoothed(torch.cat([flat + 1e-12 * ratios(1), ratios()]))
    assert k_hat[0] == -math.inf
    torch.testing.assert_close(log_weights[0], torch.full_like(log_weights[0], -math.log(4000)), rtol=0, atol=1e-10)
    torch.testing.assert_close(log_weights[1:], alone)
    torch.testing.assert_close(k_hat[1:], alone_k)


def test_few_ratios_above_equal_ones_are_too_few_for_a_fit():
    log_ratios = torch.zeros(1, 4000, dtype=torch.float64)
    log_ratios[0, :5] = 1.0
    log_weights, k_hat = pareto_smoothed(log_ratios)
    assert k_hat[0] == math.inf
    torch.testing.assert_close(log_weights, torch.log_softmax(log_ratios, 1))


def test_a_ratio_of_zero_keeps_weight_zero():
    log_ratios = ratios(1)
    log_ratios[0, :7] = -math.inf
    log_weights, k_hat = pareto_smoothed(log_ratios)
    assert (log_weights[0, :7] == -math.inf).all()
    assert torch.isfinite(k_hat).all()
