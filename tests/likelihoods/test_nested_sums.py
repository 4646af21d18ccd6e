"""Three and four classes: right to 1e-5 and as stated, from narrow Gaussians to very wide ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.signal import fftconvolve
from scipy.stats import norm
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope.likelihoods import Categorical
from bayescope.quadrature import log_expected_sigmoid, normal_nodes

SDS = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]


def _problem(rows: int, outputs: int, sd: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Means as far apart as the Gaussian is wide, covariances of random correlations."""
    generator = torch.Generator().manual_seed(100 * outputs + seed)
    mean = 1.5 * max(1.0, sd) * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    root = torch.randn(rows, outputs, outputs + 1, dtype=torch.float64, generator=generator)
    return mean, sd**2 * root @ root.mT / (outputs + 1)


def _three(mean: Tensor, cov: Tensor) -> Tensor:
    """E[softmax(f)] of three classes by a fine plain sum over f₁ − f₀, in which f₂ − f₀ is integrated to 1e-10."""
    classes = []
    for k in range(3):
        others = [j for j in range(3) if j != k]
        contrast = torch.zeros(2, 3, dtype=torch.float64)
        contrast[:, k] = -1.0
        contrast[torch.arange(2), others] = 1.0
        centre, joint = mean @ contrast.mT, contrast @ cov @ contrast.mT
        sd, cross = joint[:, 0, 0].sqrt(), joint[:, 0, 1]
        steps = 500 + 25 * math.ceil(float(sd.max()))  # of 0.72 in d, where σ is resolved to 1e-11 by steps of 0.8
        z = torch.linspace(-9.0, 9.0, steps + 1, dtype=torch.float64)
        d = centre[:, :1] + sd[:, None] * z
        given = centre[:, 1:] + (cross / sd)[:, None] * z
        rest = (joint[:, 1, 1] - (cross / sd).square())[:, None].expand_as(d)
        log_terms = logsigmoid(-d) + log_expected_sigmoid(-logsigmoid(-d) - given, rest) - 0.5 * z.square()
        classes.append(torch.logsumexp(log_terms, -1) + math.log(18.0 / steps / math.sqrt(2 * math.pi)))
    return torch.stack(classes, -1).exp()


@pytest.mark.parametrize("sd", SDS)
def test_three_classes_are_right_to_1e_5_and_as_the_error_says(sd: float) -> None:
    mean, cov = _problem(40, 3, sd)
    truth = _three(mean, cov)
    error = Categorical().predictive_mean(mean, cov, "quadrature") - truth
    score = error / Categorical().integration_error(mean, cov, "quadrature")
    assert error.abs().max() < 1e-5
    assert 0.7 < score.square().mean().sqrt() < 1.3
    log_prob = Categorical().predictive_log_prob(mean, cov, torch.arange(40) % 3, "quadrature")
    rows = truth[torch.arange(40), torch.arange(40) % 3]
    assert ((log_prob - rows.log()).abs() < 0.02)[rows > 1e-12].all()


@pytest.mark.parametrize("sd", SDS)
def test_four_classes_integrated_each_for_itself_sum_to_one(sd: float) -> None:
    mean, cov = _problem(12, 4, sd)
    logs = [Categorical().predictive_log_prob(mean, cov, torch.full((12,), k), "quadrature") for k in range(4)]
    assert (torch.stack(logs).exp().sum(0) - 1.0).abs().max() < 1e-5
    root, each = torch.linalg.cholesky(cov), []
    for seed in range(8):
        f = mean + torch.einsum("nck,sk->snc", root, normal_nodes(4, 2**13, seed=700 + seed))
        each.append(torch.softmax(f, -1).mean(0))
    spread = torch.stack(each).std(0) / math.sqrt(8)
    error = Categorical().predictive_mean(mean, cov, "quadrature") - torch.stack(each).mean(0)
    assert (error.abs() < 6 * spread + 1e-5).all()


def _on_a_line(mean: Tensor, load: Tensor) -> Tensor:
    """E[softmax(mean + load z)], z ~ N(0, 1), by a plain sum in z."""
    z = torch.linspace(-9.0, 9.0, 40_001, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square()) * 18.0 / 40_000 / math.sqrt(2 * math.pi)
    return torch.stack([density @ torch.softmax(m + z[:, None] * a, -1) for m, a in zip(mean, load, strict=True)])


@pytest.mark.parametrize("outputs", [3, 4])
@pytest.mark.parametrize("sd", [*SDS, 300.0])
def test_singular_covariances_give_probabilities_with_errors_as_stated(outputs: int, sd: float) -> None:
    """Covariances of rank 1; in the first row a class lies between two others, which are larger on either side."""
    generator = torch.Generator().manual_seed(outputs)
    mean = torch.randn(12, outputs, dtype=torch.float64, generator=generator)
    mean[6:] *= 1.5 * max(1.0, sd)
    load = sd * torch.randn(12, outputs, dtype=torch.float64, generator=generator)
    mean[0] = torch.tensor([0.0, 0.5, 0.0, -1.0])[:outputs]
    load[0] = sd * torch.tensor([-1.0, 0.0, 1.0, 0.3])[:outputs]
    cov = load[:, :, None] * load[:, None, :]
    p, stated = (
        getattr(Categorical(), name)(mean, cov, "quadrature") for name in ("predictive_mean", "integration_error")
    )
    torch.testing.assert_close(p.sum(-1), torch.ones(12, dtype=torch.float64), rtol=0, atol=1e-12)
    assert ((p - _on_a_line(mean, load)).abs() < 4 * stated + 1e-7).all()
    assert stated.max() < (1e-5 if outputs == 3 or sd <= 10 else 2e-3)


@pytest.mark.parametrize("outputs", [3, 4])
@pytest.mark.parametrize("sd", [*SDS, 300.0, 1e6])
def test_stated_errors_are_below_1e_5_for_covariances_of_full_rank(outputs: int, sd: float) -> None:
    """As they are in the last row, whose first output is known and whose others sum to 0."""
    mean, cov = _problem(20, outputs, sd, seed=1)
    mean[:10] /= 1.5 * max(1.0, sd)
    first = torch.eye(outputs, dtype=torch.float64)[:1]
    known = torch.zeros(1, outputs, outputs, dtype=torch.float64)
    known[0, 1:, 1:] = sd**2 * (torch.eye(outputs - 1) - 1.0 / (outputs - 1))
    mean, cov = torch.cat([mean, first]), torch.cat([cov, known])
    assert Categorical().integration_error(mean, cov, "quadrature").max() < 1e-5
    log_prob = Categorical().predictive_log_prob(mean, cov, torch.arange(21) % outputs, "quadrature")
    assert not log_prob.isnan().any()


def test_a_rare_class_of_a_wide_gaussian_has_its_probability() -> None:
    """The region where the last class is the largest lies 4.3 sds out, where 2,048 plain nodes see none of it."""
    mean = torch.tensor([[0.0, 0.0, -430.0]], dtype=torch.float64)
    cov = torch.diag_embed(torch.tensor([[1.0, 1.0, 100.0**2]], dtype=torch.float64))
    truth = _three(mean, cov)
    assert 5e-6 < truth[0, 2] < 1e-5
    p, stated = (
        getattr(Categorical(), name)(mean, cov, "quadrature") for name in ("predictive_mean", "integration_error")
    )
    assert (p - truth).abs()[0, 2] < 0.01 * truth[0, 2]
    assert stated[0, 2] < 0.02 * truth[0, 2]
    moments = Categorical().predictive(mean, cov, "quadrature")
    assert torch.equal(moments.mean, p)
    torch.testing.assert_close(moments.aleatoric + moments.epistemic, p * (1 - p), rtol=1e-9, atol=0)


@pytest.mark.parametrize("correlation", [-1.0, -0.999, 0.999, 1.0])
def test_differences_that_nearly_determine_each_other(correlation: float) -> None:
    """Where d₂ follows from d₁ the integrand over d₁ has a second step, which no node is near by itself."""
    mean = torch.tensor([[-40.0, -60.0], [20.0, -90.0], [-70.0, 10.0]], dtype=torch.float64)
    sd = torch.tensor([60.0, 90.0], dtype=torch.float64)
    cov = torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64) * sd[:, None] * sd
    # of three classes the first has f = 0, and p = 1/(1 + exp d₁ + exp d₂)
    of_classes = torch.block_diag(torch.zeros(1, 1, dtype=torch.float64), cov).expand(3, 3, 3)
    found = Categorical().predictive_mean(torch.nn.functional.pad(mean, (1, 0)), of_classes, "quadrature")[:, 0]
    z = torch.linspace(-9.0, 9.0, 20_001, dtype=torch.float64)
    d = mean[:, :1] + sd[0] * z
    rest = ((1 - correlation**2) * sd[1] ** 2).expand(d.shape)
    given = mean[:, 1:] + correlation * sd[1] * z
    inner = (log_expected_sigmoid(-logsigmoid(-d) - given, rest) + logsigmoid(-d) - 0.5 * z.square()).exp()
    truth = inner.sum(-1) * 18.0 / 20_000 / math.sqrt(2 * math.pi)
    assert (found - truth).abs().max() < 1e-5


def _independent(mean: Tensor, sd: Tensor) -> Tensor:
    """E[softmax(f)_k] of independent outputs: the probability that f_k + g_k is the largest, for Gumbel variables g."""
    step = min(0.05, float(sd.min()) / 3)
    gumbel = np.arange(-5.0, 40.0, step)
    density = np.exp(-gumbel - np.exp(-gumbel)) * step
    low, high = float((mean - 9 * sd).min()) - 5.0, float((mean + 9 * sd).max()) + 40.0
    f = np.arange(low - 45.0, high, step)
    scores = [(f - m) / s for m, s in zip(mean.tolist(), sd.tolist(), strict=True)]
    below = np.stack([fftconvolve(norm.cdf(z), density, mode="valid") for z in scores])
    at = np.stack(
        [fftconvolve(norm.pdf(z) / s, density, mode="valid") for z, s in zip(scores, sd.tolist(), strict=True)]
    )
    others = [np.delete(below, k, 0).prod(0) for k in range(len(mean))]
    return torch.tensor([(pdf * rest).sum() * step for pdf, rest in zip(at, others, strict=True)])


@pytest.mark.parametrize("sd", [0.3, 3.0, 30.0, 100.0])
def test_many_classes_are_as_the_error_says_rare_ones_too(sd: float) -> None:
    scores = []
    for outputs in (5, 8, 20):
        generator = torch.Generator().manual_seed(outputs)
        mean = 1.5 * max(1.0, sd) * torch.randn(3, outputs, dtype=torch.float64, generator=generator)
        width = sd * (0.3 + torch.rand(3, outputs, dtype=torch.float64, generator=generator))
        truth = torch.stack([_independent(*row) for row in zip(mean, width, strict=True)])
        assert (truth.sum(-1) - 1.0).abs().max() < 1e-7
        cov = torch.diag_embed(width.square())
        p, stated = (
            getattr(Categorical(), name)(mean, cov, "quadrature") for name in ("predictive_mean", "integration_error")
        )
        kept = truth > 1e-9
        scores.append(((p - truth) / stated)[kept])
        assert ((p / truth - 1.0).abs() < 0.5)[truth > 1e-6].all()
    assert 0.6 < torch.cat(scores).square().mean().sqrt() < 1.5


@pytest.mark.parametrize("sd", [0.3, 3.0, 30.0])
def test_errors_of_very_many_classes_are_no_larger_than_stated_and_the_label_is_right(sd: float) -> None:
    """Rare ones of more than 32 classes are integrated singly for their log probability alone."""
    generator = torch.Generator().manual_seed(1)
    mean = 1.5 * max(1.0, sd) * torch.randn(3, 40, dtype=torch.float64, generator=generator)
    width = sd * (0.3 + torch.rand(3, 40, dtype=torch.float64, generator=generator))
    truth = torch.stack([_independent(*row) for row in zip(mean, width, strict=True)])
    cov = torch.diag_embed(width.square())
    p, stated = (
        getattr(Categorical(), name)(mean, cov, "quadrature") for name in ("predictive_mean", "integration_error")
    )
    assert (((p - truth) / stated).abs() < 6.0).all()
    places = torch.arange(0, 40, 3)  # of each row
    rows, labels = torch.arange(3).repeat_interleave(len(places)), places.repeat(3)
    log_prob = Categorical().predictive_log_prob(mean[rows], cov[rows], labels, "quadrature")
    wanted = truth[rows, labels]
    assert ((log_prob - wanted.log()).abs() < 0.6)[wanted > 1e-9].all()


def test_gradients_follow_stein() -> None:
    """∂E/∂mean against central differences, and ∂E/∂cov = ½ ∂²E/∂mean²."""
    mean, cov = _problem(3, 3, 2.0)
    mean.requires_grad_()
    cov.requires_grad_()
    y = torch.tensor([0, 1, 2])

    def expected(centre: Tensor) -> Tensor:
        return Categorical().predictive_log_prob(centre, cov, y, "quadrature").exp()

    slope, spread = torch.autograd.grad(expected(mean).sum(), (mean, cov))
    step = torch.zeros_like(mean)
    step[:, 1] = 0.05
    with torch.no_grad():
        up, down, at = expected(mean + step), expected(mean - step), expected(mean)
    torch.testing.assert_close(slope[:, 1], (up - down) / 0.1, rtol=0, atol=1e-4)
    torch.testing.assert_close(spread[:, 1, 1], 0.5 * (up + down - 2 * at) / 0.05**2, rtol=0, atol=1e-3)
