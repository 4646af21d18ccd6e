"""Likelihoods of one's own: those that the library has too, written anew, give the same answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, Latent, MixtureLatent
from bayescope.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood, LogNormal, Poisson, StudentT


def poisson(f: Tensor, y: Tensor) -> Tensor:
    return (y * f - f.exp() - torch.lgamma(y + 1)).sum(-1)


def log_normal(f: Tensor, y: Tensor) -> Tensor:
    score = (y.log() - f) / 0.5
    return (-0.5 * score.square() - 0.5 * math.log(2 * math.pi) - math.log(0.5) - y.log()).sum(-1)


def gaussian(f: Tensor, y: Tensor) -> Tensor:
    return (-0.5 * (y - f).square() / 0.3 - 0.5 * math.log(2 * math.pi * 0.3)).sum(-1)


def student(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.StudentT(9.0, f, 0.8, validate_args=False).log_prob(y).sum(-1)


PAIRS: dict[str, tuple[Likelihood, Likelihood, list[float]]] = {
    "poisson": (bs.likelihood(poisson, domain="count"), Poisson(), [0.0, 1.0, 7.0]),
    "log_normal": (bs.likelihood(log_normal, domain="positive"), LogNormal(0.5), [0.2, 1.0, 5.0]),
    "student_t": (bs.likelihood(student), StudentT(0.8, 9.0), [-2.0, 0.3, 6.0]),
}
everywhere = pytest.mark.parametrize("name", PAIRS)


@everywhere
def test_every_quantity_is_that_of_the_library(name: str) -> None:
    own, known, values = PAIRS[name]
    y, f = own.targets(values, 1), torch.tensor([[-0.6], [0.9], [1.4]], dtype=torch.float64)
    cov = torch.tensor([0.01, 0.04, 0.2], dtype=torch.float64)[:, None, None]
    draws = torch.stack([f - 0.3, f, f + 0.2])
    integral = own.integral(None, 1)

    def questions(of: Likelihood) -> dict[str, Tensor]:
        moments = of.predictive(f, cov, integral)
        return {
            "log_prob": of.log_prob(draws, y),
            "gradient": of.gradient(draws, y),
            "hessian": of.hessian(draws, y),
            "fisher": of.expected(draws).dense(),
            "conditional mean": of.conditional(draws)[0],
            "conditional variance": of.conditional(draws)[1],
            "entropy": of.entropy(draws),
            "cdf": of.cdf(draws, y),
            "median": of.quantile(f, 0.5),
            "quantile": of.quantile(f, 0.975),
            "mean": moments.mean,
            "aleatoric": moments.aleatoric,
            "epistemic": moments.epistemic,
            "predictive log_prob": of.predictive_log_prob(f, cov, y, integral),
            "predictive cdf": of.by(integral, f).cdf(f, cov, y),
            "mutual information": of.mutual_information(f, cov, integral),
        }

    ours, truth = questions(own), questions(known)
    for question, answer in ours.items():
        torch.testing.assert_close(
            answer, truth[question], rtol=1e-8, atol=1e-8, msg=lambda text, question=question: f"{question}: {text}"
        )
    if name != "student_t":  # there the observed Λ is negative in a row, and ours takes the Fisher in that row alone
        torch.testing.assert_close(own.ggn(f, y).dense(), known.ggn(f, y).dense(), rtol=1e-8, atol=1e-8)
    assert (own.ggn(f, y).dense() >= 0).all()


def test_large_counts_are_summed_over_fewer_of_them() -> None:
    own, f = bs.likelihood(poisson, domain="count"), torch.tensor([[14.0], [3.0]], dtype=torch.float64)
    for ours, truth in zip(own.conditional(f), Poisson().conditional(f), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-8, atol=0)
    assert ((own.quantile(f, 0.9) - Poisson().quantile(f, 0.9)).abs() <= 7.0).all()


@pytest.mark.parametrize("origin", [0.0, -30.0, 1e5])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_heavy_tails_have_no_unit_and_no_origin(origin: float, unit: float) -> None:
    def heavy(f: Tensor, y: Tensor) -> Tensor:
        return torch.distributions.StudentT(3.0, f, unit, validate_args=False).log_prob(y).sum(-1)

    own, f = bs.likelihood(heavy), torch.full((1, 1), origin, dtype=torch.float64)
    truth = stats.t(3.0, loc=origin, scale=unit)
    mean, variance = own.conditional(f)
    assert float(mean) == pytest.approx(origin, abs=1e-8 * (unit + abs(origin)))
    assert float(variance) == pytest.approx(truth.var(), rel=1e-5)
    assert float(own.entropy(f)) == pytest.approx(truth.entropy(), abs=1e-7)
    for level in (1e-6, 0.3, 0.999):
        assert truth.cdf(float(own.quantile(f, level))) == pytest.approx(level, rel=1e-5)
        assert float(own.cdf(f, torch.tensor([[truth.ppf(level)]]))) == pytest.approx(level, rel=1e-5)


def test_a_density_that_is_infinite_at_its_bounds_has_a_sum() -> None:
    def beta(f: Tensor, y: Tensor) -> Tensor:
        a, b = torch.sigmoid(f), torch.sigmoid(-f)
        return (-torch.lgamma(a) - torch.lgamma(b) + (a - 1.0) * y.log() + (b - 1.0) * torch.log1p(-y)).sum(-1)

    own, f = bs.likelihood(beta, domain="unit_interval"), torch.tensor([[-1.0], [0.0]], dtype=torch.float64)
    truth = bs.Beta(1.0)
    torch.testing.assert_close(own.conditional(f)[0], truth.conditional(f)[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(own.entropy(f), truth.entropy(f), rtol=0, atol=1e-5)


def test_an_interval_of_ones_own() -> None:
    """Uniform between −1 and 3 with a tilt f: p(y∣f) = f exp(f y)/(exp(3f) − exp(−f))."""

    def tilted(f: Tensor, y: Tensor) -> Tensor:
        return (f * y - (torch.exp(3 * f) - torch.exp(-f)).log() + f.log()).sum(-1)

    own, f = bs.likelihood(tilted, domain=(-1.0, 3.0)), torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    mean = 3 / (1 - torch.exp(-4 * f)) + torch.exp(-4 * f) / (1 - torch.exp(-4 * f)) - 1 / f
    torch.testing.assert_close(own.conditional(f)[0], mean, rtol=1e-8, atol=1e-8)
    y = own.quantile(f, 0.3)
    below = (torch.exp(f * y) - torch.exp(-f)) / (torch.exp(3 * f) - torch.exp(-f))
    torch.testing.assert_close(below, torch.full_like(f, 0.3), rtol=1e-8, atol=1e-8)
    with pytest.raises(InputError, match="strictly between -1 and 3"):
        own.targets([4.0], 1)


@pytest.mark.parametrize("given", [True, False])
def test_draws_have_the_conditional_moments(given: bool) -> None:
    def draw(f: Tensor, generator: torch.Generator) -> Tensor:
        return torch.poisson(f.double().exp(), generator=generator)

    own = bs.likelihood(poisson, domain="count", sample=draw if given else None)
    f = torch.tensor([[0.3], [2.0]], dtype=torch.float64).expand(4000, 2, 1)
    y = own.sample(f, torch.Generator().manual_seed(0))
    assert y.dtype == torch.float64
    assert ((y.mean(0) - f[0].exp()).abs() < 4.5 * (f[0].exp() / 4000).sqrt()).all()


@pytest.mark.global_rng  # torch draws the first weights
def test_a_network_is_fitted_and_predicts_as_with_the_library(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, dtype=torch.float64, generator=source)
    y = torch.poisson((0.5 + x[:, :1]).exp(), generator=source)
    module = nn.Linear(2, 1).double()
    answers: list[Any] = []
    for likelihood in (Poisson(), bs.likelihood(poisson, domain="count")):
        fitted = bs.fit_map(module, (x, y), likelihood=likelihood, prior_precision=1.0).model
        q = bs.laplace(fitted, (x, y), likelihood=likelihood, structure="full", prior_precision=1.0)
        p = q.predict(x[:7])
        answers.append((q.log_evidence(), p.mean, p.variance, p.log_prob(y[:7]), *p.interval(0.8)))
        if likelihood.name == "own":
            with pytest.raises(UnsupportedError, match=r"got one made by bs\.likelihood: files hold no functions"):
                q.save(tmp_path / "own.bayes")
    for ours, truth in zip(*answers, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-6, atol=1e-6)


def test_what_is_no_likelihood_is_refused() -> None:
    with pytest.raises(InputTypeError, match="log_prob: expected a function, got str"):
        bs.likelihood("poisson")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"domain: expected one of 'real', 'positive', 'count'.*got 'counts'"):
        bs.likelihood(poisson, domain="counts")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"domain: expected \(low, high\) with finite low < high"):
        bs.likelihood(poisson, domain=(1.0, 0.0))
    own = bs.likelihood(poisson, domain="count")
    with pytest.raises(InputError, match=r"whole numbers of at least 0, got 1\.5 in row 1"):
        own.targets([1.0, 1.5], 1)
    with pytest.raises(InputError, match=r"outputs: expected 1 .* got 2"):
        own.targets([[1.0, 1.0]], 2)
    with pytest.raises(InputError, match=r"log_prob: expected shape .*, one for each row, got .*\.sum\(-1\)"):
        bs.likelihood(lambda f, y: f * y)
    with pytest.raises(InputError, match=r"probabilities that sum to 1 over y, got 2\.718 at f = 0\.1\. Add"):
        bs.likelihood(lambda f, y: poisson(f, y) + 1.0, domain="count")
    with pytest.raises(InputError, match=r"sum to 1 over y, got 2\.507 at f = 0\.1"):
        bs.likelihood(lambda f, y: (-0.5 * (y - f).square()).sum(-1))
    assert Gaussian().domain == bs.likelihood(gaussian).domain


def heteroscedastic(f: Tensor, y: Tensor) -> Tensor:
    error = y[..., 0] - f[..., 0]
    return -0.5 * (error.square() * (-f[..., 1]).exp() + f[..., 1] + math.log(2.0 * math.pi))


TWO_OUTPUTS = bs.likelihood(heteroscedastic, outputs=2)


def test_a_number_that_depends_on_several_outputs_is_that_of_the_library() -> None:
    known = HeteroscedasticGaussian()
    y = TWO_OUTPUTS.targets([-1.0, 0.3, 4.0], 2)
    f = torch.tensor([[-0.6, 0.3], [0.9, -1.0], [1.4, 1.2]], dtype=torch.float64)
    draws = torch.stack([f - 0.3, f, f + 0.2])
    for name, ask in {
        "log_prob": lambda of: of.log_prob(draws, y),
        "gradient": lambda of: of.gradient(draws, y),
        "hessian": lambda of: of.hessian(draws, y),
        "expected": lambda of: of.expected(draws).dense(),
        "mean": lambda of: of.conditional(draws)[0],
        "variance": lambda of: of.conditional(draws)[1],
    }.items():
        torch.testing.assert_close(ask(TWO_OUTPUTS), ask(known), rtol=1e-8, atol=1e-8, msg=name)
    sd = (0.5 * draws[..., 1:]).exp()
    score = (y - draws[..., :1]) / sd
    torch.testing.assert_close(TWO_OUTPUTS.cdf(draws, y), torch.special.ndtr(score), rtol=1e-8, atol=1e-8)
    quantile = draws[..., :1] + float(torch.special.ndtri(torch.tensor(0.9, dtype=torch.float64))) * sd
    torch.testing.assert_close(TWO_OUTPUTS.quantile(draws, 0.9), quantile, rtol=1e-8, atol=1e-8)
    entropy = sd.log() + 0.5 * math.log(2.0 * math.pi * math.e)
    torch.testing.assert_close(TWO_OUTPUTS.entropy(draws), entropy, rtol=1e-8, atol=1e-8)


def test_the_ggn_of_several_outputs_is_the_observed_curvature_where_that_is_positive() -> None:
    f, y = torch.tensor([[0.0, 0.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor([[0.0], [3.0]]).double()
    ours, observed = TWO_OUTPUTS.ggn(f, y), TWO_OUTPUTS.hessian(f, y)
    torch.testing.assert_close(ours.dense()[0], observed[0], rtol=1e-8, atol=1e-8)
    assert torch.linalg.eigvalsh(observed[1])[0] < 0
    torch.testing.assert_close(ours.dense()[1], torch.diag(torch.tensor([1.0, 0.5])).double(), rtol=1e-8, atol=1e-8)
    root = ours.root()
    torch.testing.assert_close(root @ root.mT, ours.dense(), rtol=1e-8, atol=1e-8)
    weights = torch.tensor([2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(ours.times(weights).sum(), (weights[:, None, None] * ours.dense()).sum(0))
    torch.testing.assert_close(ours.diagonal(), ours.dense().diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("form", ["gaussian", "draws", "mixture"])
def test_integrals_over_several_outputs_are_near_the_librarys(form: str) -> None:
    mean = torch.tensor([[-0.6, 0.3], [0.9, -1.0]], dtype=torch.float64)
    cov = torch.tensor([[[0.3, 0.05], [0.05, 0.1]], [[0.1, -0.05], [-0.05, 0.2]]], dtype=torch.float64)
    latent: Latent = GaussianLatent(mean, cov, "quadrature")
    if form == "draws":
        latent = DrawsLatent(latent.sample(50, torch.Generator().manual_seed(0)))
    elif form == "mixture":
        weights = torch.tensor([0.4, 0.6]).double().log()
        latent = MixtureLatent(weights, [latent, GaussianLatent(mean + 0.5, 0.5 * cov, "quadrature")])
    y, known = torch.tensor([[0.5], [-2.0]], dtype=torch.float64), HeteroscedasticGaussian()
    for name, ask in {
        "log_prob": lambda of: latent.log_prob(of, y),
        "mean": lambda of: latent.moments(of).mean,
        "aleatoric": lambda of: latent.moments(of).aleatoric,
        "epistemic": lambda of: latent.moments(of).epistemic,
        "quantile": lambda of: latent.outcome_quantile(of, 0.95),
        "cdf": lambda of: latent.outcome_cdf(of, y),
        "entropy": latent.entropy,
        "crps": lambda of: latent.crps(of, y),
        "information": latent.mutual_information,
    }.items():
        found, truth = ask(TWO_OUTPUTS), ask(known)
        torch.testing.assert_close(found, truth, rtol=0.02, atol=5e-3, msg=lambda m, n=name: f"{n}: {m}")


def student_with_scale(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.StudentT(4.0, f[..., 0], f[..., 1].exp(), validate_args=False).log_prob(y[..., 0])


def gamma_with_shape(f: Tensor, y: Tensor) -> Tensor:
    shape, y = f[..., 1].exp(), y[..., 0]
    constant = shape * (shape.log() - f[..., 0]) - torch.lgamma(shape)
    return constant + (shape - 1.0) * y.log() - shape * y * (-f[..., 0]).exp()


@pytest.mark.parametrize(
    ("sd", "mean_error", "spread_error", "log_error", "level_error"),
    [(0.1, 5e-4, 8e-4, 3e-4, 3e-4), (0.3, 1.5e-3, 4e-3, 1e-3, 5e-4), (1.0, 0.01, 0.15, 0.04, 0.007)],
)
@pytest.mark.parametrize("log_prob", [heteroscedastic, student_with_scale, gamma_with_shape])
def test_integrals_over_several_outputs_have_the_error_that_is_stated(
    log_prob: Any, sd: float, mean_error: float, spread_error: float, log_error: float, level_error: float
) -> None:
    likelihood = bs.likelihood(log_prob, outputs=2, domain="positive" if log_prob is gamma_with_shape else "real")
    mean = torch.tensor([[0.5, 0.2]], dtype=torch.float64)
    cov = sd**2 * torch.tensor([[[1.0, 0.8], [0.8, 1.0]]], dtype=torch.float64)
    nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(32))
    grid, both = torch.cartesian_prod(nodes, nodes), torch.outer(weights, weights).flatten() / (2.0 * math.pi)
    f, both = (mean + grid @ torch.linalg.cholesky(cov[0]).mT)[both > 1e-10, None], both[both > 1e-10]
    centre, scatter = (both @ each[:, 0, 0] for each in likelihood.conditional(f))
    epistemic = both @ (likelihood.conditional(f)[0][:, 0, 0] - centre).square()
    latent = GaussianLatent(mean, cov, "quadrature")
    found = latent.moments(likelihood)
    assert abs(float(found.mean - centre)) < mean_error * float(scatter + epistemic) ** 0.5
    assert abs(float(found.aleatoric - scatter)) < spread_error * float(scatter)
    assert abs(float(found.epistemic - epistemic)) < spread_error * float(scatter + epistemic)
    for level in (0.01, 0.5, 0.95):
        y = latent.outcome_quantile(likelihood, level)
        assert abs(float(both @ likelihood.cdf(f, y)[:, 0, 0]) - level) < level_error
        truth = torch.logsumexp(likelihood.log_prob(f, y)[:, 0] + both.log(), 0)
        assert abs(float(latent.log_prob(likelihood, y) - truth)) < log_error


@pytest.mark.global_rng
@pytest.mark.parametrize("structure", ["full", "kfac"])
def test_a_network_with_two_outputs_learns_where_y_spreads(structure: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 1, dtype=torch.float64, generator=generator)
    y = x + (0.5 * x).exp() * torch.randn(200, 1, dtype=torch.float64, generator=generator)
    options: dict[str, Any] = {"epochs": 30, "optimizer": "lbfgs", "generator": 0, "progress": False}
    start = bs.fit_map(nn.Linear(1, 2).double(), (x, y), likelihood=TWO_OUTPUTS, **options)
    torch.testing.assert_close(start.model.weight.detach()[:, 0], torch.ones(2).double(), rtol=0, atol=0.3)
    q = bs.laplace(start.model, (x, y), likelihood=TWO_OUTPUTS, structure=structure, prior_precision=1.0)
    p = q.predict(x[:20])
    low, high = p.interval(0.9)
    assert (low < p.mean).all()
    assert (p.mean < high).all()
    assert p.log_prob(y[:20]).isfinite().all()
    assert p.sample(2, generator=0).shape == (2, 20, 1)


@pytest.mark.global_rng
def test_several_outputs_are_refused_where_there_is_one() -> None:
    x, y = torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.float64)
    with pytest.raises(InputError, match=r"outputs: expected 2 for this likelihood made by bs.likelihood, got 1"):
        bs.laplace(nn.Linear(1, 1).double(), (x, y), likelihood=TWO_OUTPUTS)
    with pytest.raises(UnsupportedError, match="expected one with an output for each outcome, got 'own'"):
        bs.BayesianGeneralizedLinearModel(likelihood=TWO_OUTPUTS).fit(x, y[:, 0])
    with pytest.raises(UnsupportedError, match="one number with one output, got 'own'"):
        bs.Joint(["poisson", TWO_OUTPUTS])


def kinked(f: Tensor, y: Tensor) -> Tensor:
    return (-(y - f).abs() / 0.3 - math.log(0.6)).sum(-1)


def test_what_bends_and_what_has_a_kink_is_found() -> None:
    narrow = bs.likelihood(lambda f, y: torch.distributions.StudentT(3.0, f, 0.05).log_prob(y).sum(-1))
    for own, concave, kink in (
        (bs.likelihood(poisson, domain="count"), True, False), (bs.likelihood(gaussian), True, False),
        (bs.likelihood(log_normal, domain="positive"), True, False), (bs.likelihood(student), False, False),
        (narrow, False, False), (bs.likelihood(kinked), True, True),
    ):  # fmt: skip
        assert (own.log_concave, own.kinked) == (concave, kink)


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore")  # these weights are no mode
def test_a_kink_has_the_fisher_information_in_networks_and_is_refused_for_linear_models() -> None:
    x = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([[0.7], [-0.4]], dtype=torch.float64) + 0.1
    module = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.69, -0.41]]))
    options: dict[str, Any] = {"structure": "full", "prior_precision": 1.0}
    ours, theirs = (
        bs.laplace(module, (x, y), likelihood=each, **options) for each in (bs.likelihood(kinked), bs.LaplaceNoise(0.3))
    )
    torch.testing.assert_close(ours.precision.to_dense(), theirs.precision.to_dense(), rtol=1e-4, atol=1e-2)
    with pytest.raises(UnsupportedError, match=r"second derivative in f, got 'own', whose.*make it smooth"):
        bs.BayesianGeneralizedLinearModel(likelihood=bs.likelihood(kinked)).fit(x.numpy(), y.numpy()[:, 0])


def test_expectation_propagation_refuses_densities_that_are_not_log_concave() -> None:
    x, y = np.linspace(-1.0, 1.0, 20)[:, None], np.linspace(-2.0, 2.0, 20)
    options: dict[str, Any] = {"likelihood": bs.likelihood(student), "prior_precision": 1.0}
    with pytest.raises(UnsupportedError, match="log-concave"):
        bs.BayesianGeneralizedLinearModel(posterior="ep", **options).fit(x, y)
    assert bs.BayesianGeneralizedLinearModel(**options).fit(x, y).coef_.shape == (1,)
