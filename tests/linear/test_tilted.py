from __future__ import annotations

import mpmath
import pytest
import torch
from torch.testing import assert_close

from bayescope.linear import logit_tilted, probit_tilted
from tests.reference import gaussian_expectation, tilted_moments

BOTH = pytest.mark.parametrize("link", ["logit", "probit"])
MEANS, SDS, POWERS = (-400.0, -30.0, -6.0, 0.0, 2.5, 40.0), (1e-3, 0.3, 2.0, 5.0, 30.0, 1e3), (0.97, 0.3, 0.01)
# Every cavity with the whole likelihood and with one of its powers, each power with every mean and every sd.
FAR_OUT = [
    (mean, sd, power)
    for row, mean in enumerate(MEANS)
    for column, sd in enumerate(SDS)
    for power in (None, POWERS[(row + column) % 3])
]


@BOTH
@pytest.mark.parametrize(("mean", "sd", "power"), FAR_OUT)
def test_tilted_moments_far_out(link: str, mean: float, sd: float, power: float | None) -> None:
    at, spread = torch.tensor([mean], dtype=torch.float64), torch.tensor([sd**2], dtype=torch.float64)
    some = None if power is None else torch.tensor([power], dtype=torch.float64)
    tilted = (logit_tilted if link == "logit" else probit_tilted)(at, spread, some)
    truth = tilted_moments(link, torch.tensor(1.0), at[0], spread[0], 1.0 if power is None else power)
    log_normaliser, tilted_mean, tilted_variance = truth
    assert_close(tilted.log_normaliser[0], log_normaliser, rtol=1e-9, atol=1e-9)
    error = abs(mean + sd**2 * tilted.slope[0] - tilted_mean)
    assert error < (1e-8 if power is None else 1e-7) * tilted_variance.sqrt() + 1e-13 * sd**2 * abs(mean)
    assert_close(tilted.shrinkage[0] * sd**2, tilted_variance, rtol=1e-7, atol=0)
    assert_close(1.0 - sd**2 * tilted.bend, tilted.shrinkage, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mean", [-3.0, 0.0, 1.0, 3.0])
def test_tilted_bend_in_the_limits_of_narrow_and_wide_cavities(mean: float) -> None:
    """A narrow one has the likelihood's own Λ; a wide one sees σ as a step, and is a truncated normal."""
    at = torch.tensor([mean], dtype=torch.float64)
    narrow = logit_tilted(at, torch.tensor([1e-10], dtype=torch.float64))
    assert_close(narrow.bend, torch.sigmoid(at) * torch.sigmoid(-at), rtol=1e-8, atol=0)
    variance = torch.tensor([1e14], dtype=torch.float64)
    wide = logit_tilted(at * variance.sqrt(), variance)
    ratio = (-0.5 * at.square()).exp() / (2 * torch.pi) ** 0.5 / torch.special.ndtr(at)
    assert_close(wide.bend * variance, ratio * (at + ratio), rtol=1e-3, atol=0)


def test_log_normaliser_agrees_with_the_gaussian_expectation() -> None:
    tilted = logit_tilted(
        torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([4.0, 100.0], dtype=torch.float64)
    )
    for log_normaliser, (mean, sd) in zip(tilted.log_normaliser, [(1.0, 2.0), (-2.0, 10.0)], strict=True):
        exact = mpmath.log(gaussian_expectation(lambda a: 1 / (1 + mpmath.exp(-a)), mean, sd))
        assert abs(float(log_normaliser) - exact) < 1e-9


def test_rows_of_whole_and_broken_powers_stand_side_by_side() -> None:
    mean = torch.tensor([-3.0, 0.5, -3.0, 0.5], dtype=torch.float64)
    variance = torch.tensor([2.0, 9.0, 2.0, 9.0], dtype=torch.float64)
    power = torch.tensor([1.0, 1.0, 0.4, 0.4], dtype=torch.float64)
    for tilted in (logit_tilted, probit_tilted):
        together, whole = tilted(mean, variance, power), tilted(mean, variance)
        for name in whole._fields:
            assert_close(getattr(together, name)[:2], getattr(whole, name)[:2], rtol=1e-14, atol=0)
            assert (getattr(together, name)[2:] != getattr(whole, name)[2:]).all()
