"""Bradley–Terry: a Bernoulli of the difference of two rewards, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.likelihoods import Bernoulli, BradleyTerry, Categorical


def rewards(rows: int = 20, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(rows, 2, dtype=torch.float64, generator=generator)
    root = torch.randn(rows, 2, 2, dtype=torch.float64, generator=generator)
    return mean, scale * root @ root.mT


def test_the_item_with_the_larger_reward_is_preferred() -> None:
    f = torch.tensor([[1.0, 3.0], [1.0, 3.0], [900.0, -900.0]], dtype=torch.float64)
    got = BradleyTerry().log_prob(f, torch.tensor([1, 0, 1]))
    torch.testing.assert_close(got[:2].exp(), torch.tensor([0.8807970779778824, 0.11920292202211755]).double())
    assert got[2].item() == -1800.0
    torch.testing.assert_close(BradleyTerry().conditional(f)[0][0, 1], got[0].exp())


def test_it_is_a_softmax_of_two() -> None:
    f, y = rewards()[0], torch.arange(20) % 2
    for name in ("log_prob", "gradient", "hessian"):
        got, truth = (getattr(likelihood, name)(f, y) for likelihood in (BradleyTerry(), Categorical()))
        torch.testing.assert_close(got, truth, rtol=1e-12, atol=1e-15)
    assert BradleyTerry().ggn_sqrt(f, y).shape == (20, 2, 1)


@pytest.mark.parametrize("integral", ["quadrature", "mackay", "laplace_bridge"])
def test_what_both_rewards_share_does_not_matter(integral: str) -> None:
    (mean, cov), y = rewards(), torch.arange(20) % 2
    here, there = (
        (likelihood.predictive(m, c, integral), likelihood.predictive_log_prob(m, c, y, integral))
        for likelihood, m, c in ((BradleyTerry(), mean, cov), (BradleyTerry(), mean + 5.0, cov + 1e4))
    )
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(there[0], name), getattr(here[0], name), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(there[1], here[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("integral", ["quadrature", "mackay", "laplace_bridge"])
def test_integrals_are_those_of_the_difference(integral: str) -> None:
    (mean, cov), y = rewards(), torch.arange(20) % 2
    contrast = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    difference, variance = (mean @ contrast)[:, None], (contrast @ cov @ contrast)[:, None, None]
    moments = BradleyTerry().predictive(mean, cov, integral)
    truth = Bernoulli().predictive(difference, variance, integral)
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(moments, name), getattr(truth, name), rtol=1e-10, atol=1e-14)
    log_prob = BradleyTerry().predictive_log_prob(mean, cov, y, integral)
    torch.testing.assert_close(log_prob.exp(), moments.mean[torch.arange(20), y], rtol=1e-9, atol=0)


def test_equal_rewards_are_undecided_however_uncertain() -> None:
    cov = torch.full((1, 2, 2), 1e6, dtype=torch.float64)
    cov[0, 0, 1] += 1e-9  # rounding makes the variance of the difference negative
    cov[0, 1, 0] += 1e-9
    moments = BradleyTerry().predictive(torch.zeros(1, 2, dtype=torch.float64), cov, "quadrature")
    assert moments.mean.tolist() == [[0.5, 0.5]]
    assert moments.epistemic.abs().max() < 1e-15
    with pytest.raises(NotPositiveDefiniteError, match="in row 0"):
        BradleyTerry().predictive(torch.zeros(1, 2), torch.tensor([[[1.0, 2.0], [2.0, 1.0]]]), "quadrature")


def test_labels() -> None:
    for labels in ([0, 1, 1], np.array([[0], [1], [1]], dtype=np.int8), torch.tensor([False, True, True])):
        targets = BradleyTerry().targets(labels, 2)
        assert targets.dtype == torch.int64
        assert targets.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match=r"outputs: expected the rewards of two items, got 1\. .*Pairwise"):
        BradleyTerry().targets([0, 1], 1)
    with pytest.raises(InputError, match="expected labels 0 and 1, got 2 in row 1"):
        BradleyTerry().targets([0, 2], 2)
    with pytest.raises(InputError, match=r"shape \(N,\), got \(1, 2\)"):
        BradleyTerry().targets([[0, 1]], 2)


def test_labels_are_drawn_with_their_probability() -> None:
    f = torch.tensor([0.0, math.log(3)], dtype=torch.float64).expand(40_000, 2)
    share = BradleyTerry().sample(f, torch.Generator().manual_seed(0)).double().mean().item()
    assert share == pytest.approx(0.75, abs=5 * math.sqrt(0.75 * 0.25 / 40_000))
