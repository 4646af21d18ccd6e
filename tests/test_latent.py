"""The three forms of a latent, against each other and against brute-force draws."""

import math

import pytest
import torch

from bayescope.errors import UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, MixtureLatent
from bayescope.latent.latent import CONDENSED, GROUPS
from bayescope.likelihoods import (
    Bernoulli,
    Beta,
    Categorical,
    Gamma,
    Gaussian,
    NegativeBinomial,
    StudentT,
    Tweedie,
    mixture_quantile,
    quantile_of_numbers,
)
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DiagonalPrecision
from bayescope.tape import block_limit
from tests.network.test_network import Largest

CASES = {
    "bernoulli": (Bernoulli(), 1),
    "probit": (Bernoulli(link="probit"), 1),
    "multilabel": (Bernoulli(), 3),
    "categorical": (Categorical(), 3),
    "gaussian": (Gaussian(noise_variance=0.3), 2),
}


def gaussian(outputs: int, rows: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    mean = torch.randn(rows, outputs, dtype=torch.float64, generator=source)
    root = torch.randn(rows, outputs, outputs + 1, dtype=torch.float64, generator=source)
    return mean, root @ root.mT


def targets(likelihood, outputs: int, rows: int = 4):
    if isinstance(likelihood, Gaussian):
        return likelihood.targets(torch.linspace(-1, 1, rows * outputs).reshape(rows, outputs), outputs)
    if isinstance(likelihood, Categorical) or outputs == 1:
        return likelihood.targets(torch.arange(rows) % max(2, outputs), outputs)
    return likelihood.targets(torch.arange(rows * outputs).reshape(rows, outputs) % 2, outputs)


@pytest.mark.parametrize("case", CASES)
def test_a_gaussian_agrees_with_its_own_draws(case):
    """200,000 draws: six standard errors of each average fail falsely about once in 10⁷."""
    likelihood, outputs = CASES[case]
    mean, cov = gaussian(outputs)
    latent = GaussianLatent(mean, cov, likelihood.integral(None, outputs))
    draws = DrawsLatent(latent.sample(200_000, torch.Generator().manual_seed(1)))
    error = 6 / math.sqrt(200_000)
    scale = cov.diagonal(dim1=-2, dim2=-1).amax().item()
    torch.testing.assert_close(draws.mean, mean, rtol=0, atol=error * math.sqrt(scale))
    torch.testing.assert_close(draws.cov, cov, rtol=0, atol=error * 1.5 * scale)
    exact, sampled = latent.moments(likelihood), draws.moments(likelihood)
    spread = 1.0 if likelihood.discrete else scale
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(sampled, name), getattr(exact, name), rtol=0, atol=2 * error * spread)
    y = targets(likelihood, outputs)
    torch.testing.assert_close(draws.log_prob(likelihood, y), latent.log_prob(likelihood, y), rtol=0, atol=0.05)


@pytest.mark.parametrize("case", CASES)
def test_the_mean_alone_is_that_of_the_moments_to_the_last_bit(case):
    likelihood, outputs = CASES[case]
    mean, cov = gaussian(outputs)
    part = GaussianLatent(mean, cov, likelihood.integral(None, outputs))
    drawn = part.with_draws(40, torch.Generator().manual_seed(0))
    latents = [part, drawn, drawn.draws, DrawsLatent(drawn.draws.values[:, :0])]
    latents.append(MixtureLatent(torch.tensor([0.25, 0.75], dtype=torch.float64).log(), [part, drawn]))
    if likelihood.discrete and case != "probit":
        latents.append(GaussianLatent(mean, part.variance, "mackay"))
    for bytes_at_once in (1, 2**20):  # rows of draws one by one, and all together
        for latent in latents:
            with block_limit(bytes_at_once):
                moments, expected = latent.moments(likelihood), latent.expected(likelihood)
            assert torch.equal(expected, moments.mean)


@pytest.mark.parametrize("case", CASES)
def test_quantiles_agree_with_draws(case):
    likelihood, outputs = CASES[case]
    mean, cov = gaussian(outputs)
    latent = GaussianLatent(mean, cov, likelihood.integral(None, outputs))
    draws = DrawsLatent(latent.sample(100_000, torch.Generator().manual_seed(1)))
    for level in (0.05, 0.5, 0.9):
        exact = latent.expected_quantile(likelihood, level)
        # Compare in level, not in value: the share of draws below the quantile has a known standard error.
        share = (likelihood.conditional(draws.values)[0] <= exact).double().mean(0)
        assert (share - level).abs().max() < 6 * math.sqrt(level * (1 - level) / 100_000) + 2e-3


@pytest.mark.parametrize("case", CASES)
def test_a_mixture_of_equal_parts_is_the_part(case):
    likelihood, outputs = CASES[case]
    mean, cov = gaussian(outputs)
    part = GaussianLatent(mean, cov, likelihood.integral(None, outputs))
    mixture = MixtureLatent(torch.tensor([0.25, 0.75], dtype=torch.float64).log(), [part, part])
    torch.testing.assert_close(mixture.mean, part.mean)
    torch.testing.assert_close(mixture.cov, part.cov)
    torch.testing.assert_close(mixture.quantile(0.1), part.quantile(0.1), rtol=1e-9, atol=1e-9)
    y = targets(likelihood, outputs)
    torch.testing.assert_close(mixture.log_prob(likelihood, y), part.log_prob(likelihood, y))
    for a, b in zip(vars(mixture.moments(likelihood)).values(), vars(part.moments(likelihood)).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_mixture_obeys_the_law_of_total_variance():
    likelihood = Gaussian(noise_variance=0.5)
    a, b = (GaussianLatent(*gaussian(2, seed=s), "exact") for s in (1, 2))
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    mixture = MixtureLatent(weights.log(), [a, b])
    draws = DrawsLatent(mixture.sample(200_000, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(mixture.cov, draws.cov, rtol=0.03, atol=0.05)
    moments = mixture.moments(likelihood)
    torch.testing.assert_close(moments.epistemic, mixture.cov.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(moments.aleatoric, torch.full_like(moments.aleatoric, 0.5))


@pytest.mark.parametrize("apart", [0.0, 1.0, 1e3])
def test_mixture_quantile_inverts_the_mixture_s_distribution(apart):
    source = torch.Generator().manual_seed(0)
    means = apart * torch.randn(5, 3, 2, dtype=torch.float64, generator=source)
    variances = torch.rand(5, 3, 2, dtype=torch.float64, generator=source)
    log_weights = torch.log_softmax(torch.randn(5, dtype=torch.float64, generator=source), 0)
    for level in (0.001, 0.3, 0.975):
        q = mixture_quantile(log_weights, means, variances, level)
        reached = (log_weights.exp()[:, None, None] * torch.special.ndtr((q - means) / variances.sqrt())).sum(0)
        torch.testing.assert_close(reached, torch.full_like(reached, level), rtol=0, atol=1e-12)


def test_mixture_quantile_of_points_is_a_step():
    means = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).reshape(3, 1, 1)
    log_weights = torch.full((3,), -math.log(3), dtype=torch.float64)
    assert mixture_quantile(log_weights, means, torch.zeros_like(means), 0.5).item() == pytest.approx(1.0)


def test_a_singular_covariance_samples_its_line():
    cov = torch.tensor([[[1.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    latent = GaussianLatent(torch.zeros(1, 2, dtype=torch.float64), cov, "quadrature")
    draws = latent.sample(100, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws[..., 0], draws[..., 1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", ["bernoulli", "multilabel", "categorical"])
def test_marginals_answer_as_the_gaussian_where_no_covariance_counts(case):
    likelihood, outputs = CASES[case]
    mean, cov = gaussian(outputs)
    assert likelihood.needs_covariance("quadrature")
    assert not likelihood.needs_covariance("mackay")
    full = GaussianLatent(mean, cov, "mackay")
    alone = GaussianLatent(mean, full.variance, "mackay")
    for a, b in zip(vars(alone.moments(likelihood)).values(), vars(full.moments(likelihood)).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0)
    y = targets(likelihood, outputs)
    torch.testing.assert_close(alone.log_prob(likelihood, y), full.log_prob(likelihood, y), rtol=1e-14, atol=0)
    torch.testing.assert_close(alone.quantile(0.9), full.quantile(0.9))
    if likelihood.domain.elementwise:
        torch.testing.assert_close(alone.expected_quantile(likelihood, 0.1), full.expected_quantile(likelihood, 0.1))
    mixture = MixtureLatent(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), [alone, alone])
    torch.testing.assert_close(mixture.variance, full.variance)
    torch.testing.assert_close(mixture.quantile(0.9), full.quantile(0.9), rtol=1e-9, atol=1e-9)


def test_marginals_refuse_what_covariances_decide():
    mean, cov = gaussian(3)
    alone = GaussianLatent(mean, cov.diagonal(dim1=-2, dim2=-1), "mackay")
    questions = {
        "latent_cov": lambda: alone.cov,
        "sample": lambda: alone.sample(2, torch.Generator()),
        "interval": lambda: alone.expected_quantile(Categorical(), 0.1),
    }
    for name, question in questions.items():
        match = rf"{name}: .* variances alone: 4 rows of 3 x 3 .* Predict fewer rows at once"
        with pytest.raises(UnsupportedError, match=match):
            question()


@pytest.mark.parametrize("form", [GaussianLatent, DrawsLatent, MixtureLatent])
def test_variances_are_the_diagonals_of_covariances(form):
    mean, cov = gaussian(3)
    parts = [GaussianLatent(mean, cov, "quadrature"), GaussianLatent(2 * mean, cov, "quadrature")]
    latent = {
        GaussianLatent: parts[0],
        DrawsLatent: DrawsLatent(parts[0].sample(50, torch.Generator().manual_seed(0))),
        MixtureLatent: MixtureLatent(torch.tensor([0.3, 0.7], dtype=torch.float64).log(), parts),
    }[form]
    torch.testing.assert_close(latent.variance, latent.cov.diagonal(dim1=-2, dim2=-1))


def test_integration_errors_are_those_that_repetition_shows():
    """Of 40 sets of 500 draws, the means spread as each set says; a mixture's bound is that of equal parts."""
    likelihood, (mean, cov) = Categorical(), gaussian(3)
    latent = GaussianLatent(mean, cov, "monte_carlo")
    sets = [latent.with_draws(500, torch.Generator().manual_seed(seed)) for seed in range(40)]
    spread = torch.stack([each.moments(likelihood).mean for each in sets]).std(0)
    stated = torch.stack([each.integration_error(likelihood) for each in sets]).mean(0)
    torch.testing.assert_close(stated, spread, rtol=0.35, atol=0)  # a standard deviation of 40 is right to 11 %
    mixture = MixtureLatent(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), sets[:1] * 2)
    torch.testing.assert_close(mixture.integration_error(likelihood), sets[0].integration_error(likelihood))
    point = DrawsLatent(mean[None])
    assert (point.integration_error(likelihood) == 0).all()


def many_classes(outputs, rows):
    """A linear model of many classes with a diagonal posterior, and inputs."""
    source = torch.Generator().manual_seed(0)
    model = LinearModel(3, outputs)
    location = torch.randn(model.dim, dtype=torch.float64, generator=source)
    precision = DiagonalPrecision(torch.rand(model.dim, dtype=torch.float64, generator=source) + 0.5)
    q = GaussianPosterior(location, precision, Record("laplace"), model, Categorical())
    return q, torch.randn(rows, 3, dtype=torch.float64, generator=source)


def test_a_thousand_classes_need_no_covariances():
    q, x = many_classes(1000, 256)
    with Largest() as written:
        p = q.predict(x, integral="mackay")
    assert written.numel < 256 * 1000**2
    assert p.latent.covariance.shape == (256, 1000)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(256, dtype=torch.float64))
    assert p.log_prob(torch.arange(256)).isfinite().all()
    with pytest.raises(UnsupportedError, match=r"latent_cov: .* would have taken 2\.0 GB"):
        _ = p.latent_cov


def test_with_and_without_covariances_the_answer_is_the_same():
    q, x = many_classes(400, 220)  # 282 MB of covariances
    whole, few = (q.predict(some, integral="mackay") for some in (x, x[:5]))
    assert whole.latent.covariance.shape == (220, 400)
    torch.testing.assert_close(whole.probs[:5], few.probs, rtol=1e-12, atol=0)
    assert few.latent_cov.shape == (5, 400, 400)


@pytest.mark.parametrize("sd", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("likelihood", [Tweedie(1.5, 2.0), Gamma(5.0), StudentT(1.0, 4.0), NegativeBinomial(0.5)])
def test_groups_of_draws_have_the_moments_of_the_draws_and_their_distribution(likelihood, sd):
    source = torch.Generator().manual_seed(0)
    f = torch.randn(6, 1, dtype=torch.float64, generator=source)
    draws = DrawsLatent(f + sd * torch.randn(1003, 6, 1, dtype=torch.float64, generator=source))
    few = draws.condensed(likelihood)
    assert sd > 0.05 or len(few.values) == 2 * GROUPS
    assert sd < 2.0 or few is draws
    torch.testing.assert_close(few.mean, draws.mean)
    torch.testing.assert_close(few.variance, draws.variance)
    for level in (0.02, 0.5, 0.98):
        y = likelihood.quantile(f, level)
        torch.testing.assert_close(few.cdf(likelihood, y), draws.cdf(likelihood, y), atol=2.0 * CONDENSED, rtol=0.0)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.975])
@pytest.mark.parametrize("likelihood", [Tweedie(1.5, 2.0), Gamma(0.3), StudentT(1.0, 2.0), Beta(3.0)])
def test_a_quantile_is_found_in_few_questions(likelihood, level):
    f = torch.linspace(-2.0, 2.2, 9, dtype=torch.float64)[:, None]
    latent, asked = GaussianLatent(f, torch.full((9, 1, 1), 0.1, dtype=torch.float64), "quadrature"), []

    def cdf(y):
        asked.append(y)
        return latent.cdf(likelihood, y)

    low, high = latent._outcome_ends(likelihood, level)
    y = quantile_of_numbers(cdf, low, high, level, integer=False)
    assert len(asked) <= 25
    above = y > 1e-280
    torch.testing.assert_close(latent.cdf(likelihood, y)[above], torch.full_like(y, level)[above], atol=1e-7, rtol=0.0)
