"""Successes of several trials, proportions, and counts with additional zeros: what the shared laws do not ask."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayescope.errors import InputError
from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Bernoulli, Beta, Binomial, Poisson, ZeroInflatedPoisson, entropy_of_numbers
from bayescope.predictive import Predictive


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_trials_of_each_row_are_as_many_bernoulli_rows() -> None:
    likelihood, f = Binomial(), column(-1.2, 0.4, 3.0)
    y = likelihood.targets([[2, 5], [0, 3], [7, 7]], 1)
    assert y.shape == (3, 2)
    ways = torch.tensor([10.0, 1.0, 1.0]).double().log()
    for row, (successes, trials) in enumerate(y.tolist()):
        labels = column(*([1.0] * int(successes) + [0.0] * int(trials - successes)))
        at = f[row].expand(len(labels), 1)
        single = Bernoulli()
        assert float(likelihood.log_prob(f, y)[row] - ways[row]) == pytest.approx(
            float(single.log_prob(at, labels).sum())
        )
        assert float(likelihood.gradient(f, y)[row]) == pytest.approx(float(single.gradient(at, labels).sum()))
        assert float(likelihood.hessian(f, y)[row]) == pytest.approx(float(single.hessian(at, labels).sum()))
    torch.testing.assert_close(likelihood.conditional(f)[0], torch.sigmoid(f))
    cov = torch.full((3, 1, 1), 0.7, dtype=torch.float64)
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None, None]
    draws = likelihood.log_prob(f + math.sqrt(0.7) * z, y)
    truth = torch.logsumexp(draws + torch.log_softmax(-0.5 * z[..., 0].square(), 0), 0)
    torch.testing.assert_close(likelihood.predictive_log_prob(f, cov, y, "quadrature"), truth, rtol=1e-8, atol=1e-8)
    assert torch.isfinite(likelihood.place(y)).all()
    assert torch.isfinite(likelihood.constant(y)).all()


def test_log_densities_are_those_of_scipy_in_the_tails() -> None:
    f = column(-30.0, -2.0, 0.3, 8.0)
    mean = torch.sigmoid(f).numpy()  # near 1 it would be rounded
    for y in (0.0, 3.0, 400.0, 1000.0):
        np.testing.assert_allclose(
            Binomial(1000).log_density(f, column(y)).numpy(), stats.binom(1000, mean).logpmf(y), rtol=1e-10, atol=1e-9
        )
    for y in (1e-12, 0.3, 1 - 1e-9):
        at = f[1:4]
        shapes = (7.5 * torch.sigmoid(at)).numpy(), (7.5 * torch.sigmoid(-at)).numpy()
        np.testing.assert_allclose(
            Beta(7.5).log_density(at, column(y)).numpy(), stats.beta(*shapes).logpdf(y), rtol=1e-10
        )
    for y in (0.0, 1.0, 500.0):
        poisson = stats.poisson(np.exp(f[1:3].numpy()))
        truth = np.log(0.2 * (y == 0) + 0.8 * poisson.pmf(y)) if y < 10 else math.log(0.8) + poisson.logpmf(y)
        np.testing.assert_allclose(ZeroInflatedPoisson(0.2).log_density(f[1:3], column(y)).numpy(), truth, rtol=1e-10)


def test_no_more_zeros_than_a_poisson_is_a_poisson() -> None:
    f, y = column(-1.0, 2.0), column(0.0, 3.0)
    for question in ("log_prob", "gradient", "hessian"):
        nearly = getattr(ZeroInflatedPoisson(1e-13), question)(f, y)
        torch.testing.assert_close(nearly, getattr(Poisson(), question)(f, y), rtol=1e-9, atol=1e-11)
    likelihood = ZeroInflatedPoisson(0.3)
    below = likelihood.cdf(f, y)
    terms = [likelihood.log_density(f, torch.full_like(f, float(k))).exp() * (k <= y) for k in range(4)]
    torch.testing.assert_close(below, torch.stack(terms).sum(0))
    assert likelihood.quantile(f, 0.3).tolist()[0] == [0.0]


@pytest.mark.parametrize("f", [-3.0, 0.0, math.log(100.0), 12.0, 40.0, 400.0])
def test_zeros_beyond_a_poissons_are_in_quantiles_draws_and_scores(f: float) -> None:
    at, likelihood = torch.full((20_000, 1), f, dtype=torch.float64), ZeroInflatedPoisson(0.4)
    for level in (0.1, 0.39, 0.4):
        assert likelihood.quantile(at[:1], level).tolist() == [[0.0]]
    beyond = likelihood.quantile(at[:1], 0.7)
    torch.testing.assert_close(beyond, Poisson().quantile(at[:1], 0.5))
    draws = likelihood.sample(at, torch.Generator().manual_seed(0))
    none = 0.4 + 0.6 * math.exp(-math.exp(min(f, 20.0)))
    assert float((draws == 0).double().mean()) == pytest.approx(none, abs=0.02)
    mean, variance = (each.item() for each in likelihood.conditional(at[:1]))
    assert float(draws.mean()) == pytest.approx(mean, abs=5.0 * math.sqrt(variance / len(at)))
    y = torch.tensor([[0.0], [2.0], [math.exp(f)]], dtype=torch.float64).round()
    q = GaussianLatent(at[:3], torch.zeros_like(at[:3]), "quadrature")
    spread = (draws - draws.flip(0)).abs().mean()
    crps = [float((draws - each).abs().mean() - 0.5 * spread) for each in y]
    torch.testing.assert_close(q.crps(likelihood, y).flatten().tolist(), crps, rtol=0.05, atol=0.02)


def test_entropies_are_integrals_over_the_outcome() -> None:
    f, likelihood = column(-1.0, 0.7), Beta(6.0)
    ends = [likelihood.quantile(f, level) for level in (1e-15, 1 - 1e-13)]
    truth = entropy_of_numbers(likelihood.domain, lambda y: likelihood.log_density(f, y), *ends)
    torch.testing.assert_close(likelihood.entropy(f), truth, rtol=1e-7, atol=1e-8)
    y = torch.arange(60, dtype=torch.float64).reshape(-1, 1, 1)
    log_p = ZeroInflatedPoisson(0.4).log_density(f, y)
    torch.testing.assert_close(
        ZeroInflatedPoisson(0.4).entropy(f), -(log_p.exp() * log_p).sum(0), rtol=1e-9, atol=1e-10
    )


def test_the_entropy_of_large_counts_is_that_of_a_gaussian() -> None:
    f = column(13.999, 14.001, 50.0, 100.0, 300.0)
    gaussian = 0.5 * (math.log(2.0 * math.pi) + 1.0 + f)
    torch.testing.assert_close(Poisson().entropy(f), gaussian - (-f).exp() / 12.0, rtol=1e-9, atol=1e-9)


def test_first_values_are_near_the_truth() -> None:
    source = torch.Generator().manual_seed(0)
    f = torch.full((4000, 1), 0.5, dtype=torch.float64)
    beta, zeros = Beta(9.0), ZeroInflatedPoisson(0.35)
    assert float(Beta().starting(beta.sample(f, source)).precision) == pytest.approx(9.0, rel=0.1)
    y = zeros.sample(f, source)
    assert float(ZeroInflatedPoisson().starting(y).zero_probability) == pytest.approx(0.35, abs=0.2)
    assert float(ZeroInflatedPoisson().constant(y)) == pytest.approx(0.5, abs=0.3)


def test_what_is_no_count_or_proportion_is_refused() -> None:
    with pytest.raises(InputError, match=r"whole numbers from 0 to 5, got 6 in row 1\. Give more trials"):
        Binomial(5).targets([1.0, 6.0], 1)
    with pytest.raises(InputError, match=r"no more successes than trials, got 4 in row 1, column 0\. The columns"):
        Binomial().targets([[1.0, 2.0], [4.0, 3.0]], 1)
    with pytest.raises(InputError, match=r"whole numbers of at least 0, got 2\.5 in row 0, column 1"):
        Binomial().targets([[1.0, 2.5]], 1)
    with pytest.raises(InputError, match=r"strictly between 0 and 1, got 1 in row 1.*move 0 and 1 inside"):
        Beta(2.0).targets([0.5, 1.0], 1)
    with pytest.raises(InputError, match="zero_probability: expected a probability below 1, got 1"):
        ZeroInflatedPoisson(1.0)
    with pytest.raises(InputError, match="trials: expected"):
        Binomial(0)


def test_the_quantiles_of_a_mixture_of_binomials_are_never_below_zero() -> None:
    """Rows whose quantile is found early are searched on with the others."""
    mean = torch.tensor([[-9.9], [-2.3], [0.0], [3.0]], dtype=torch.float64)
    latent = GaussianLatent(mean, torch.full((4, 1, 1), 1.7, dtype=torch.float64), "quadrature")
    p = Predictive(latent, Binomial(10))
    for level in (0.05, 0.5, 0.95):
        q = p.quantile(level)
        assert ((q >= 0.0) & (q <= 10.0)).all()
        assert (p.cdf(q) >= level).all()
        assert (p.cdf((q - 1.0).clamp_min(0.0))[q > 0.0] < level).all()


@pytest.mark.parametrize("trials", [10, 10**6, 10**9])
def test_log_probabilities_of_many_trials_are_right_to_1e_11(trials: int) -> None:
    f = torch.tensor([[-3.0], [0.3], [2.0]], dtype=torch.float64)
    for share in (0.0, 1e-3, 0.4, 1.0):
        count = round(share * trials)
        found = Binomial(trials).log_density(f, torch.full_like(f, float(count)))
        for row, at in enumerate(f[:, 0].tolist()):
            with mpmath.workdps(40):
                ways = mpmath.loggamma(trials + 1) - mpmath.loggamma(count + 1) - mpmath.loggamma(trials - count + 1)
                p = 1 / (1 + mpmath.exp(-mpmath.mpf(at)))
                expected = ways + count * mpmath.log(p) + (trials - count) * mpmath.log1p(-p)
            assert float(found[row]) == pytest.approx(float(expected), rel=1e-11, abs=1e-10)


@pytest.mark.parametrize("precision", [0.5, 30.0, 1e6, 1e10])
def test_log_densities_of_precise_shares_lose_no_digits(precision: float) -> None:
    f = torch.tensor([[-3.0], [0.3], [2.0]], dtype=torch.float64)
    for move in (0.0, 0.7 / precision**0.5):
        y = torch.sigmoid(f + move)
        found = Beta(precision).log_density(f, y)
        for row, (at, share) in enumerate(zip(f[:, 0].tolist(), y[:, 0].tolist(), strict=True)):
            with mpmath.workdps(40):
                a = precision / (1 + mpmath.exp(-mpmath.mpf(at)))
                b, z = precision - a, mpmath.mpf(share)
                expected = mpmath.loggamma(precision) - mpmath.loggamma(a) - mpmath.loggamma(b)
                expected += (a - 1) * mpmath.log(z) + (b - 1) * mpmath.log1p(-z)
            assert float(found[row]) == pytest.approx(float(expected), abs=1e-16 * precision**0.5 * 1e3 + 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_information_of_a_share_tends_to_1_far_out(dtype: torch.dtype) -> None:
    """φ²μ²ψ'(φμ) tends to 1 as μ tends to 0, where it is 0 · ∞ by its factors."""
    likelihood = Beta(3.0)
    f = torch.tensor([[-800.0], [-400.0], [-50.0], [50.0], [400.0]], dtype=dtype)
    y = torch.full_like(f, 0.3)
    torch.testing.assert_close(likelihood.fisher(f), torch.ones_like(f))
    torch.testing.assert_close(likelihood.ggn(f, y).dense()[:, 0], torch.ones_like(f))
    torch.testing.assert_close(likelihood.slope(f, y), -torch.sign(f))
    torch.testing.assert_close(likelihood.bend(f, y), torch.zeros_like(f), atol=1e-6, rtol=0)
