"""Concrete masks say what Bernoulli masks do where they are rounded, and nothing in eval mode."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bayescope.dropout.concrete import START, TEMPERATURE, ConcreteDropout


def layer(
    kind: type[nn.Module] = nn.Dropout, rate: float = 0.3, *, dtype: torch.dtype = torch.float64
) -> ConcreteDropout:
    made = ConcreteDropout(kind, 4, torch.zeros(1, dtype=dtype))
    with torch.no_grad():
        made.logit.fill_(math.log(rate / (1 - rate)))
    return made


@pytest.mark.global_rng
def test_masks_are_on_the_side_of_0_with_the_probability_of_the_rate() -> None:
    torch.manual_seed(0)
    n = 40_000
    kept = layer()(torch.ones(n, 4, dtype=torch.float64)) * 0.7
    assert ((kept >= 0) & (kept <= 1)).all()
    share = (kept < 0.5).double().mean(0)
    assert ((share - 0.3).abs() < 5 * math.sqrt(0.21 / n)).all()


@pytest.mark.global_rng
def test_masks_are_those_of_the_definition() -> None:
    torch.manual_seed(1)
    found = layer()(torch.ones(50, 4, dtype=torch.float64))
    torch.manual_seed(1)
    u = torch.rand(50, 4, dtype=torch.float64)
    z = torch.sigmoid((math.log(0.3) - math.log(0.7) + u.log() - (1 - u).log()) / TEMPERATURE)
    torch.testing.assert_close(found, (1 - z) / 0.7, rtol=1e-9, atol=1e-12)


@pytest.mark.global_rng
def test_channels_share_a_mask() -> None:
    torch.manual_seed(0)
    found = layer(nn.Dropout2d)(torch.ones(7, 4, 3, 2, dtype=torch.float64))
    assert torch.equal(found, found[..., :1, :1].expand_as(found))
    assert found[..., 0, 0].unique().numel() == 28


@pytest.mark.global_rng
def test_gradients_are_finite_at_the_ends_of_the_noise() -> None:
    """In half precision one in 256 uniform numbers is 0."""
    made, ones = layer(dtype=torch.bfloat16), torch.ones(3000, 4, dtype=torch.bfloat16)
    torch.manual_seed(0)
    assert bool((torch.rand(3000, 4, dtype=torch.bfloat16) == 0.0).any())
    torch.manual_seed(0)
    made(ones).sum().backward()
    assert made.logit.grad.isfinite()


def test_it_does_nothing_in_eval_mode_and_settles_as_its_kind() -> None:
    made, x = layer(nn.Dropout3d, 0.2).eval(), torch.ones(2, 4)
    assert made(x) is x
    settled = made.settled()
    assert isinstance(settled, nn.Dropout3d)
    assert settled.p == pytest.approx(0.2)
    assert ConcreteDropout(nn.Dropout, 4, torch.zeros(1)).rate() == pytest.approx(START)
    assert float(made.entropy().detach()) == pytest.approx(-4 * (0.2 * math.log(0.2) + 0.8 * math.log(0.8)))
    assert float(made.odds().detach()) == pytest.approx(0.25)
