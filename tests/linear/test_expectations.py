from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.linear import expected_log_likelihood
from tests.reference import gaussian_expectation


def rows(outputs: int, count: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(outputs)
    root = torch.randn(count, outputs, outputs, dtype=torch.float64, generator=generator)
    mean = torch.randn(count, outputs, dtype=torch.float64, generator=generator)
    return mean, root @ root.mT + 0.1 * torch.eye(outputs, dtype=torch.float64)


@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize(("mean", "sd"), [(0.3, 0.5), (-3.0, 2.0), (5.0, 20.0), (1.0, 0.0)])
def test_one_output_by_mpmath(link: str, mean: float, sd: float) -> None:
    at = torch.tensor([[mean]], dtype=torch.float64)
    got = expected_log_likelihood(Bernoulli(link), at, torch.tensor([[[sd**2]]], dtype=torch.float64), torch.ones(1, 1))

    def log_link(a: mpmath.mpf) -> mpmath.mpf:
        return -mpmath.log1p(mpmath.exp(-a)) if link == "logit" else mpmath.log(mpmath.erfc(-a / mpmath.sqrt(2)) / 2)

    def slope(a: mpmath.mpf) -> mpmath.mpf:
        return 1 / (1 + mpmath.exp(a)) if link == "logit" else mpmath.npdf(a) * mpmath.exp(-log_link(a))

    def bend(a: mpmath.mpf) -> mpmath.mpf:
        return slope(a) * (1 - slope(a)) if link == "logit" else slope(a) * (a + slope(a))

    for value, function in zip(got, (log_link, slope, bend), strict=True):
        exact = gaussian_expectation(function, mean, sd)
        assert abs(float(value.squeeze()) - exact) < 1e-9 * max(1, abs(exact))


@pytest.mark.parametrize("outputs", [2, 3, 5])
def test_many_classes_against_many_draws(outputs: int) -> None:
    mean, cov = rows(outputs)
    y = torch.arange(5) % outputs
    got = expected_log_likelihood(Categorical(), mean, cov, y, nodes=4096)
    z = torch.randn(100_000, 1, outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    f = mean + (torch.linalg.cholesky(cov) @ torch.cat([z, -z])[..., None])[..., 0]
    probabilities = f.softmax(-1)
    log_prob = log_softmax(f, -1)[:, torch.arange(5), y].mean(0)
    gradient = torch.nn.functional.one_hot(y, outputs) - probabilities.mean(0)
    outer = torch.einsum("snc,snk->nck", probabilities, probabilities) / probabilities.shape[0]
    assert_close(got.log_prob, log_prob, rtol=0, atol=0.01)
    assert_close(got.gradient, gradient, rtol=0, atol=0.005)
    assert_close(got.curvature, torch.diag_embed(probabilities.mean(0)) - outer, rtol=0, atol=0.005)


@pytest.mark.parametrize("outputs", [2, 3, 5])
def test_derivatives_are_those_of_the_rule_itself(outputs: int) -> None:
    """So that its maximum can be found to working precision, whatever the number of nodes."""
    mean, cov = rows(outputs)
    y, step = torch.arange(5) % outputs, 1e-5

    def value(mean: Tensor, cov: Tensor) -> Tensor:
        return expected_log_likelihood(Categorical(), mean, cov, y, nodes=32).log_prob

    got = expected_log_likelihood(Categorical(), mean, cov, y, nodes=32)
    for a in range(outputs):
        move = step * torch.eye(outputs, dtype=torch.float64)[a]
        difference = (value(mean + move, cov) - value(mean - move, cov)) / (2 * step)
        assert_close(got.gradient[:, a], difference, rtol=0, atol=1e-8)
        for b in range(outputs):
            move = torch.zeros(outputs, outputs, dtype=torch.float64)
            move[a, b] += 0.5 * step
            move[b, a] += 0.5 * step
            difference = (value(mean, cov + move) - value(mean, cov - move)) / (2 * step)
            assert_close(got.curvature[:, a, b], -2.0 * difference, rtol=0, atol=1e-8)


def test_shifts_of_all_outputs_change_nothing() -> None:
    mean, cov = rows(4)
    y, shift = torch.arange(5) % 4, torch.randn(5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    direction = torch.ones(4, dtype=torch.float64)
    spread = cov + 3.0 * torch.outer(direction, direction)
    got = expected_log_likelihood(Categorical(), mean, cov, y, nodes=64)
    other = expected_log_likelihood(Categorical(), mean + shift, spread, y, nodes=64)
    assert_close(other, got, rtol=0, atol=1e-12)
    assert_close(got.curvature @ direction, torch.zeros(5, 4, dtype=torch.float64), rtol=0, atol=1e-12)


def test_two_classes_agree_with_one_output() -> None:
    mean, cov = rows(2)
    contrast = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    one = expected_log_likelihood(
        Bernoulli(), (mean @ contrast)[:, None], (contrast @ cov @ contrast)[:, None, None], torch.ones(5, 1)
    )
    two = expected_log_likelihood(Categorical(), mean, cov, torch.ones(5, dtype=torch.int64), nodes=4096)
    assert_close(two.log_prob, one.log_prob, rtol=0, atol=1e-3)
    assert_close(two.curvature[:, 1, 1], one.curvature[:, 0, 0], rtol=0, atol=1e-3)


def test_rows_without_variance_are_taken_at_their_mean() -> None:
    mean, cov = rows(3)
    y = torch.zeros(5, dtype=torch.int64)
    got = expected_log_likelihood(Categorical(), mean, torch.zeros_like(cov), y)
    assert_close(got.log_prob, Categorical().log_prob(mean, y))
    assert_close(got.gradient, Categorical().gradient(mean, y))
    assert all(torch.isfinite(part).all() for part in got)


def test_gaussian_outcomes_are_in_closed_form() -> None:
    mean, cov = rows(2)
    likelihood, y = Gaussian([0.5, 2.0]), torch.ones(5, 2, dtype=torch.float64)
    got = expected_log_likelihood(likelihood, mean, cov, y)
    noise = torch.tensor([0.5, 2.0], dtype=torch.float64)
    square = (y - mean).square() + cov.diagonal(dim1=-2, dim2=-1)
    assert_close(got.log_prob, (-0.5 * (2 * torch.pi * noise).log() - 0.5 * square / noise).sum(-1))


def test_blocks_of_rows_do_not_show() -> None:
    mean, cov = rows(3, 20)
    y = torch.arange(20) % 3
    few = expected_log_likelihood(Categorical(), mean, cov, y, nodes=64)
    many = expected_log_likelihood(Categorical(), mean.repeat(40, 1), cov.repeat(40, 1, 1), y.repeat(40), nodes=64)
    for part, whole in zip(few, many, strict=True):
        assert_close(whole.unflatten(0, (40, 20)), part.expand(40, *part.shape), rtol=0, atol=1e-14)


def test_several_labels_have_no_rule() -> None:
    mean, cov = rows(2)
    with pytest.raises(UnsupportedError, match="numbers that depend on an output each"):
        expected_log_likelihood(Bernoulli(), mean, cov, torch.zeros(5, 2))
