"""Heteroscedastic Gaussian: two parametrisations of one density, closed-form moments, log densities and quantiles."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, OptionError
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import HeteroscedasticGaussian
from bayescope.predictive import Predictive
from tests.reference import dense_derivatives, heteroscedastic_log_density, heteroscedastic_probability

FORMS = ["mean_log_variance", "natural"]
forms = pytest.mark.parametrize("form", FORMS)


def outputs(form: str, m: Tensor, log_variance: Tensor) -> Tensor:
    """f of a given mean and log variance."""
    pair = (m * torch.exp(-log_variance), -log_variance) if form == "natural" else (m, log_variance)
    return torch.cat(pair, -1)


def gaussian(sd: float, rows: int = 4, count: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(rows, 2 * count, dtype=torch.float64, generator=generator)
    root = torch.randn(rows, 2 * count, 2 * count + 1, dtype=torch.float64, generator=generator)
    return mean, sd**2 * root @ root.mT / (2 * count + 1)


@forms
def test_the_density_is_normal_with_means_first(form: str) -> None:
    m = torch.tensor([[0.5, -2.0], [30.0, 0.0]], dtype=torch.float64)
    t = torch.tensor([[-3.0, 1.0], [0.0, 8.0]], dtype=torch.float64)
    y = torch.tensor([[0.4, 2.0], [25.0, -60.0]], dtype=torch.float64)
    likelihood, f = HeteroscedasticGaussian(form), outputs(form, m, t)
    normal = torch.distributions.Normal(m, (0.5 * t).exp())
    torch.testing.assert_close(likelihood.log_prob(f, y), normal.log_prob(y).sum(-1), rtol=1e-12, atol=0)
    for got, truth in zip(likelihood.conditional(f), (m, t.exp()), strict=True):
        torch.testing.assert_close(got, truth, rtol=1e-12, atol=1e-15)


@forms
@pytest.mark.parametrize("log_variance", [-40.0, -12.0, 0.0, 12.0, 40.0])
@pytest.mark.parametrize("score", [0.0, 1e-3, -3.0, 50.0])
def test_derivatives_keep_the_tails(form: str, log_variance: float, score: float) -> None:
    """Noise from 2e-9 to 5e8 in sd, and labels up to 50 sds away."""
    likelihood, m = HeteroscedasticGaussian(form), torch.tensor([0.7], dtype=torch.float64)
    t = torch.tensor([log_variance], dtype=torch.float64)
    f, y = outputs(form, m, t), m + score * (0.5 * t).exp()
    slope, curvature = dense_derivatives(lambda x: likelihood.log_prob(x[None], y[None])[0], f)
    # The residual y − m is right to the rounding of y and m alone
    residual = 1e-15 * (m.abs() + y.abs()) * (-0.5 * t).exp()
    tolerance = {"rtol": 1e-9 + float(residual), "atol": 1e-9 + 100 * float(residual) * (1 + float(slope.abs().max()))}
    torch.testing.assert_close(likelihood.gradient(f[None], y[None])[0], slope, **tolerance)
    torch.testing.assert_close(likelihood.hessian(f[None], y[None])[0], curvature, **tolerance)
    assert (torch.linalg.eigvalsh(likelihood.ggn_sqrt(f[None], y[None])[0].square().sum(-1).diag()) > 0).all()


@forms
def test_the_ggn_is_positive_definite_where_the_hessian_is_not(form: str) -> None:
    f = outputs(form, torch.tensor([[0.5]]).double(), torch.tensor([[-1.0]]).double())
    y, likelihood = torch.tensor([[3.0]], dtype=torch.float64), HeteroscedasticGaussian(form)
    root = likelihood.ggn_sqrt(f, y)
    assert (torch.linalg.eigvalsh(root @ root.mT) > 0).all()
    if form == "mean_log_variance":
        assert torch.linalg.eigvalsh(likelihood.hessian(f, y)).min() < -1.0


@forms
def test_moments_are_those_of_plain_draws(form: str) -> None:
    """Within six standard errors."""
    likelihood, n = HeteroscedasticGaussian(form), 400_000
    mean, cov = gaussian(0.5, rows=3, count=2)
    moments = likelihood.predictive(mean, cov, "quadrature")
    draws = GaussianLatent(mean, cov, "quadrature").sample(n, torch.Generator().manual_seed(1))
    m, variance = likelihood.conditional(draws)
    for got, each in (
        (moments.mean, m),
        (moments.aleatoric, variance),
        (moments.epistemic, (m - moments.mean).square()),
    ):
        error = each.std(0) / math.sqrt(n)
        assert ((each.mean(0) - got).abs() < 6 * error).all()
    assert (moments.epistemic > 0).all()


def test_moments_of_the_mean_and_log_variance_are_the_formulas() -> None:
    mean = torch.tensor([[0.3, -1.0]], dtype=torch.float64)
    cov = torch.tensor([[[4.0, 0.5], [0.5, 2.25]]], dtype=torch.float64)
    moments = HeteroscedasticGaussian().predictive(mean, cov, "quadrature")
    assert moments.mean.item() == 0.3
    assert moments.aleatoric.item() == pytest.approx(math.exp(-1.0 + 0.5 * 2.25), rel=1e-14)
    assert moments.epistemic.item() == 4.0


@forms
@pytest.mark.parametrize("sd", [1e-3, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("correlation", [0.0, 0.7, -0.95, 0.9999])
def test_log_densities_equal_a_fine_sum(form: str, sd: float, correlation: float) -> None:
    likelihood = HeteroscedasticGaussian(form)
    mean = torch.tensor([0.5, -1.0], dtype=torch.float64)
    for width in (0.01, 1.0, 4.0):
        cross = correlation * width * sd
        cov = torch.tensor([[width**2, cross], [cross, sd**2]], dtype=torch.float64)
        for y in (0.3, 5.0, -40.0):
            target = torch.tensor([[y]], dtype=torch.float64)
            got = likelihood.predictive_log_prob(mean[None], cov[None], target, "quadrature").item()
            assert got == pytest.approx(heteroscedastic_log_density(form, mean, cov, y), rel=1e-8, abs=1e-8)


@forms
def test_a_sure_f_gives_its_own_density(form: str) -> None:
    likelihood, (mean, cov) = HeteroscedasticGaussian(form), gaussian(0.0, count=2)
    y = torch.linspace(-2, 2, 8, dtype=torch.float64).reshape(4, 2)
    got = likelihood.predictive_log_prob(mean, cov, y, "quadrature")
    torch.testing.assert_close(got, likelihood.log_prob(mean, y), rtol=1e-10, atol=1e-10)


@forms
def test_an_outlier_s_density_is_that_of_the_largest_noise(form: str) -> None:
    """10⁴ sds away, where the mass of the integral lies dozens of sds from the centre of the log variance."""
    likelihood = HeteroscedasticGaussian(form)
    mean, cov = torch.zeros(1, 2, dtype=torch.float64), torch.diag(torch.tensor([1e-4, 0.09]).double())
    for y in (100.0, 1e4):
        got = likelihood.predictive_log_prob(mean, cov[None], torch.tensor([[y]]).double(), "quadrature").item()
        assert got == pytest.approx(heteroscedastic_log_density(form, mean[0], cov, y), rel=1e-8)
        assert got > -0.05 * y**2  # by the mean noise it would be −½y²


@forms
def test_targets_are_independent_where_nothing_correlates_them(form: str) -> None:
    likelihood, (mean, cov) = HeteroscedasticGaussian(form), gaussian(0.6, rows=3, count=2)
    own = torch.eye(2, dtype=torch.float64).repeat(2, 2)
    y = torch.tensor([[0.3, -1.0]] * 3, dtype=torch.float64)
    joint = likelihood.predictive_log_prob(mean, cov * own, y, "quadrature")
    alone = [
        likelihood.predictive_log_prob(mean[:, d::2], (cov * own)[:, d::2, d::2], y[:, d : d + 1], "quadrature")
        for d in range(2)
    ]
    torch.testing.assert_close(joint, sum(alone), rtol=1e-10, atol=1e-10)
    # So little correlation changes nothing but the rule: nodes over both log variances agree with the products
    almost = likelihood.predictive_log_prob(mean, cov * (own + 1e-9 * (1 - own)), y, "quadrature")
    torch.testing.assert_close(almost, joint, rtol=0, atol=5e-3)


@forms
def test_correlated_targets_have_a_joint_density(form: str) -> None:
    """Against 4·10⁵ plain draws, within five standard errors."""
    likelihood, (mean, cov) = HeteroscedasticGaussian(form), gaussian(0.5, rows=3, count=2, seed=4)
    y = likelihood.sample(mean, torch.Generator().manual_seed(0))
    got = likelihood.predictive_log_prob(mean, cov, y, "quadrature").exp()
    draws = GaussianLatent(mean, cov, "quadrature").sample(400_000, torch.Generator().manual_seed(1))
    each = likelihood.log_prob(draws, y).exp()
    assert ((each.mean(0) - got).abs() < 5 * each.std(0) / math.sqrt(len(each)) + 1e-3 * got).all()


@forms
def test_intervals_hold_what_they_say(form: str) -> None:
    """Of 200,000 outcomes drawn through f, as many lie in the interval of the outcome as its level, in six errors."""
    mean, cov = gaussian(0.8, rows=5, count=2)
    predictive = Predictive(GaussianLatent(mean, cov, "quadrature"), HeteroscedasticGaussian(form))
    drawn = predictive.sample(200_000, generator=0)
    for level in (0.5, 0.95):
        low, high = predictive.interval(level)
        share = ((drawn > low) & (drawn < high)).double().mean(0)
        assert (share - level).abs().max() < 6 * math.sqrt(level * (1 - level) / 200_000)
        low, high = predictive.interval(level, of="mean")
        m = HeteroscedasticGaussian(form).conditional(predictive.latent.sample(200_000, torch.Generator()))[0]
        share = ((m > low) & (m < high)).double().mean(0)
        assert (share - level).abs().max() < 6 * math.sqrt(level * (1 - level) / 200_000) + 2e-3
    assert predictive.interval(0.9, of="latent")[0].shape == (5, 4)
    assert predictive.mean.shape == predictive.variance.shape == (5, 2)


@forms
def test_intervals_end_at_the_quantiles(form: str) -> None:
    mean, cov = gaussian(0.6, rows=6)
    predictive = Predictive(GaussianLatent(mean, cov, "quadrature"), HeteroscedasticGaussian(form))
    for ends, level in zip(predictive.interval(0.95), (0.025, 0.975), strict=True):
        for row, end in enumerate(ends[:, 0].tolist()):
            assert heteroscedastic_probability(form, mean[row], cov[row], end) == pytest.approx(level, abs=1e-8)


@forms
def test_draws_of_f_answer_like_their_gaussian(form: str) -> None:
    likelihood, (mean, cov) = HeteroscedasticGaussian(form), gaussian(0.4, rows=3)
    exact = GaussianLatent(mean, cov, "quadrature")
    draws = DrawsLatent(exact.sample(200_000, torch.Generator().manual_seed(0)))
    y = torch.tensor([[0.2], [1.0], [-3.0]], dtype=torch.float64)
    torch.testing.assert_close(draws.log_prob(likelihood, y), exact.log_prob(likelihood, y), rtol=0, atol=0.05)
    sampled, closed = (Predictive(latent, likelihood) for latent in (draws, exact))
    torch.testing.assert_close(sampled.variance, closed.variance, rtol=0.05, atol=0)
    torch.testing.assert_close(sampled.interval(0.9)[0], closed.interval(0.9)[0], rtol=0, atol=0.05)


@forms
def test_log_densities_differentiate_in_the_mean_and_the_covariance(form: str) -> None:
    likelihood, (mean, cov) = HeteroscedasticGaussian(form), gaussian(0.7, rows=2)
    y = torch.tensor([[0.2], [4.0]], dtype=torch.float64)

    def log_prob(mean: Tensor, root: Tensor) -> Tensor:
        return likelihood.predictive_log_prob(mean, root @ root.mT, y, "quadrature")

    inputs = (mean.requires_grad_(), torch.linalg.cholesky(cov).requires_grad_())
    assert torch.autograd.gradcheck(log_prob, inputs, atol=1e-6)


def test_targets_and_options() -> None:
    likelihood = HeteroscedasticGaussian()
    assert likelihood.targets([1, 2], 2).tolist() == [[1.0], [2.0]]
    assert likelihood.targets([[1, 2]], 4).tolist() == [[1.0, 2.0]]
    with pytest.raises(InputError, match=r"outputs: expected two for each target .* got 3"):
        likelihood.targets([1.0], 3)
    with pytest.raises(InputError, match=r"y: expected shape \(N, 2\) for 4 outputs"):
        likelihood.targets([1.0, 2.0], 4)
    with pytest.raises(OptionError, match="parametrization: expected one of 'mean_log_variance', 'natural', got 'nat"):
        HeteroscedasticGaussian("natur")
    with pytest.raises(OptionError, match="integral: expected one of 'quadrature', got 'mackay'"):
        likelihood.predictive(torch.zeros(1, 2), torch.eye(2)[None], "mackay")
