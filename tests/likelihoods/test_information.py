"""Mutual information of outcomes and Gaussian outputs: against mpmath, plain sums, closed forms and draws."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bayescope.errors import OptionError, UnsupportedError
from bayescope.likelihoods import (
    Bernoulli,
    BradleyTerry,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Moments,
    entropy,
    entropy_of_mixture,
    information_of_dirichlet,
    information_of_draws,
    information_of_mixture,
)
from tests.reference import (
    bernoulli_information,
    density_entropy,
    heteroscedastic_log_density,
    heteroscedastic_outcome,
    softmax_information,
)

POINTS = [(0.0, 0.0), (0.5, 2.0), (-2.0, 0.5), (8.0, 1.0), (30.0, 10.0), (-3.0, 300.0)]
LINKS = {"logit": lambda a: 1 / (1 + mpmath.exp(-a)), "probit": mpmath.ncdf}


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def spread(*shape: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    mean = torch.randn(*shape, dtype=torch.float64, generator=source)
    root = scale * torch.randn(*shape, shape[-1] + 1, dtype=torch.float64, generator=source)
    return mean, root @ root.mT


@pytest.mark.parametrize("link", LINKS)
def test_two_classes_are_right_to_1e_10(link: str) -> None:
    mean, sd = (column(*values) for values in zip(*POINTS, strict=True))
    likelihood = Bernoulli(link)
    got = likelihood.mutual_information(mean, (sd**2)[..., None], likelihood.integral(None, 1))
    assert got.shape == (len(POINTS),)
    assert (got >= 0).all()
    for value, (m, s) in list(zip(got.tolist(), POINTS, strict=True))[:: 1 if link == "logit" else 2]:
        assert value == pytest.approx(float(bernoulli_information(LINKS[link], m, s)), abs=1e-10, rel=1e-6)


def test_a_row_by_itself_is_what_it_is_among_others() -> None:
    mean, sd = (column(*values) for values in zip(*POINTS, strict=True))
    together = Bernoulli().mutual_information(mean, (sd**2)[..., None], "quadrature")
    alone = [
        Bernoulli().mutual_information(m[None], (s**2)[None, :, None], "quadrature")
        for m, s in zip(mean, sd, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=2e-10)


def test_little_uncertainty_tells_half_its_relative_variance() -> None:
    """I → Var[p]/(2 p (1 − p)) = ½ p (1 − p) v for the logit link: no digits are lost to a difference of entropies."""
    mean, variance = column(0.4, -1.0), torch.full((2, 1, 1), 1e-16, dtype=torch.float64)
    p = torch.sigmoid(mean[:, 0])
    got = Bernoulli().mutual_information(mean, variance, "quadrature")
    torch.testing.assert_close(got, 0.5 * p * (1 - p) * 1e-16, rtol=1e-6, atol=0)


def test_several_labels_are_summed() -> None:
    mean, cov = spread(5, 3)
    got = Bernoulli().mutual_information(mean, cov, "quadrature")
    each = [Bernoulli().mutual_information(mean[:, [c]], cov[:, [c]][..., [c]], "quadrature") for c in range(3)]
    torch.testing.assert_close(got, torch.stack(each).sum(0))


def test_three_classes_against_a_sum_over_space() -> None:
    mean, cov = spread(6, 3)
    truth = torch.tensor([softmax_information(m, c) for m, c in zip(mean, cov, strict=True)], dtype=torch.float64)
    got = Categorical().mutual_information(mean, cov, "quadrature")
    torch.testing.assert_close(got, truth, rtol=2e-3, atol=0)
    small = Categorical().mutual_information(mean, 1e-8 * cov, "quadrature")
    p = torch.softmax(mean, 1)
    slope = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    told = 0.5 * (slope @ (1e-8 * cov) @ slope).diagonal(dim1=1, dim2=2)  # ½ Σ Var[p_k]/p_k
    torch.testing.assert_close(small, (told / p).sum(1), rtol=5e-3, atol=0)


def test_two_classes_are_the_same_under_each_likelihood() -> None:
    mean, cov = spread(6, 2)
    difference = mean[:, 1:] - mean[:, :1]
    variance = (cov[:, 1, 1] + cov[:, 0, 0] - 2 * cov[:, 0, 1])[:, None, None]
    expected = Bernoulli().mutual_information(difference, variance, "quadrature")
    for likelihood in (Categorical(), BradleyTerry()):
        torch.testing.assert_close(likelihood.mutual_information(mean, cov, "quadrature"), expected)


def test_a_dirichlet_against_its_draws() -> None:
    count = torch.tensor([0.7, 3.0, 1.6], dtype=torch.float64)
    p = count / count.sum()
    share = 1 / (count.sum() + 1)
    moments = Moments(p, (1 - share) * p * (1 - p), share * p * (1 - p))
    source = torch.Generator().manual_seed(0)
    gammas = torch._standard_gamma(count.expand(400_000, 3), generator=source)
    sampled = information_of_draws(gammas / gammas.sum(1, keepdim=True), torch.full((400_000,), 1 / 400_000).double())
    assert information_of_dirichlet(moments).item() == pytest.approx(sampled.item(), rel=5e-3)


@pytest.mark.parametrize("integral", ["mackay", "laplace_bridge"])
@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()], ids=["bernoulli", "categorical"])
def test_closed_forms_are_those_of_the_dirichlet_with_their_moments(likelihood, integral: str) -> None:
    """H[p̄] − (ψ(A + 1) − Σ p̄ ψ(A p̄ + 1)), A from the variance p̄(1 − p̄)/(A + 1) of a class."""
    outputs = 1 if isinstance(likelihood, Bernoulli) else 2
    mean, cov = spread(8, outputs)
    cov = cov + 0.1 * torch.eye(outputs, dtype=torch.float64)
    if outputs == 2:  # two outputs whose variances are alike: then all classes have the same A by "mackay" too
        cov = cov.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] * torch.eye(2, dtype=torch.float64)
    moments = likelihood.predictive(mean, cov, integral)
    p, count = moments.mean, (moments.mean * (1 - moments.mean) / moments.epistemic)[:, :1] - 1
    inner = torch.digamma(count + 1) - (p * torch.digamma(count * p + 1)).sum(1, keepdim=True)
    expected = -(p * p.log()).sum(1) - inner[:, 0]
    torch.testing.assert_close(likelihood.mutual_information(mean, cov, integral), expected, rtol=1e-9, atol=1e-14)
    if integral == "mackay" or outputs == 1:
        assert (likelihood.mutual_information(mean, torch.zeros_like(cov), integral) == 0).all()


def test_little_uncertainty_tells_the_laplace_bridge_as_much_as_the_integral() -> None:
    mean, cov = spread(8, 1)
    exact = Bernoulli().mutual_information(mean, 1e-4 * cov, "quadrature")
    bridge = Bernoulli().mutual_information(mean, 1e-4 * cov, "laplace_bridge")
    torch.testing.assert_close(bridge, exact, rtol=1e-2, atol=0)


def test_gaussian_noise_has_its_closed_form() -> None:
    mean, cov = spread(4, 2)
    noise = torch.tensor([0.5, 3.0], dtype=torch.float64)
    expected = 0.5 * torch.log((cov.diagonal(dim1=1, dim2=2) + noise) / noise).sum(1)
    torch.testing.assert_close(Gaussian(noise).mutual_information(mean, cov, "exact"), expected)


@pytest.mark.parametrize("parametrization", ["mean_log_variance", "natural"])
def test_unknown_noise_against_a_plain_sum(parametrization: str) -> None:
    mean = torch.tensor([0.7, -0.4], dtype=torch.float64)
    cov = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
    likelihood = HeteroscedasticGaussian(parametrization)
    sign = -1.0 if parametrization == "natural" else 1.0
    normal, log_density, _ = heteroscedastic_outcome(parametrization, mean, cov)
    counted = log_density > -30
    low = (normal.mean - 8 * normal.stddev)[counted].min()
    high = (normal.mean + 8 * normal.stddev)[counted].max()

    def log_p(y: Tensor) -> Tensor:
        values = [heteroscedastic_log_density(parametrization, mean, cov, each) for each in y.tolist()]
        return torch.tensor(values, dtype=torch.float64)

    total = density_entropy(log_p, max(float(low), -60.0), min(float(high), 60.0), 601)
    given = 0.5 * (math.log(2 * math.pi * math.e) + sign * mean[1].item())
    got = likelihood.mutual_information(mean[None], cov[None], "quadrature").item()
    assert got == pytest.approx(total - given, abs=1e-6)
    both = HeteroscedasticGaussian(parametrization).mutual_information(
        mean.repeat_interleave(2)[None], torch.kron(cov, torch.eye(2, dtype=torch.float64))[None], "quadrature"
    )
    assert both.item() == pytest.approx(2 * got, rel=1e-9)
    point = likelihood.mutual_information(mean[None], 0 * cov[None], "quadrature").item()
    assert point == pytest.approx(0.0, abs=1e-12)


MIXTURES = {
    "apart": ([0.3, 0.7], [0.0, 30.0], [1.0, 1.0]),
    "together": ([0.3, 0.7], [0.0, 0.01], [1.0, 1.0]),
    "narrow in wide": ([0.01, 0.99], [0.37, 0.0], [1e-4, 2.0]),
    "unlike widths": ([0.2, 0.5, 0.3], [0.0, 5.0, -3.0], [0.01, 3.0, 0.5]),
    "a weight of nothing": ([0.5, 0.5, 0.0], [0.0, 2.0, 50.0], [1.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("case", MIXTURES)
def test_a_mixture_against_a_plain_sum(case: str) -> None:
    weights, means, sds = (torch.tensor(part, dtype=torch.float64) for part in MIXTURES[case])
    normal = torch.distributions.Normal(means, sds)

    def log_p(y: Tensor) -> Tensor:
        parts = [normal.log_prob(part[:, None]) + weights.log() for part in y.split(10_000)]
        return torch.cat([part.logsumexp(1) for part in parts])

    total = density_entropy(log_p, -40.0, 70.0, 4_400_001 if sds.min() < 1e-3 else 220_001)
    given = float(weights @ (0.5 * torch.log(2 * math.pi * math.e * sds**2)))
    args = (weights.log(), means[:, None, None], (sds**2)[:, None, None])
    assert entropy_of_mixture(*args).item() == pytest.approx(total, abs=1e-8)
    assert information_of_mixture(*args).item() == pytest.approx(total - given, abs=1e-8)


def test_groups_tell_what_the_chain_rule_leaves() -> None:
    """I(y; s) = I(y; group) + Σ_g w_g I_g(y; s)."""
    source = torch.Generator().manual_seed(0)
    log_weights = torch.log_softmax(torch.randn(5, dtype=torch.float64, generator=source), 0)
    means = 2 * torch.randn(5, 3, 2, dtype=torch.float64, generator=source)
    variances = torch.rand(5, 3, 2, dtype=torch.float64, generator=source) + 0.1
    sizes = (2, 3)
    within = torch.zeros(3, dtype=torch.float64)
    for part in (slice(0, 2), slice(2, 5)):
        total = torch.logsumexp(log_weights[part], 0)
        within += total.exp() * information_of_mixture(log_weights[part] - total, means[part], variances[part])
    between = information_of_mixture(log_weights, means, variances, sizes)
    torch.testing.assert_close(
        between + within, information_of_mixture(log_weights, means, variances), rtol=0, atol=1e-9
    )
    assert (information_of_mixture(log_weights, means, variances, (5,)) == 0).all()


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda row: sum(row) > 0), min_size=1, max_size=6)
)
def test_draws_tell_no_less_than_nothing_and_no_more_than_the_entropy_or_which_they_are(rows) -> None:
    p = torch.tensor(rows, dtype=torch.float64)
    p = p / p.sum(1, keepdim=True)
    weights = torch.full((len(p),), 1 / len(p), dtype=torch.float64)
    got = information_of_draws(p, weights)
    difference = entropy(weights @ p) - weights @ entropy(p)
    assert got.item() == pytest.approx(difference.item(), abs=1e-12)
    assert -1e-30 <= got <= min(math.log(len(p)), entropy(weights @ p)) + 1e-12


def test_draws_that_are_alike_tell_nothing() -> None:
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).expand(4, 3)
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    assert information_of_draws(p, weights) == 0
    log_weights, same = weights.log(), torch.ones(4, 2, 1, dtype=torch.float64)
    assert (information_of_mixture(log_weights, same, same).abs() < 1e-14).all()


DIFFERENTIABLE = {
    "logit": (Bernoulli(), 1, "quadrature"),
    "mackay": (Bernoulli(), 2, "mackay"),
    "probit": (Bernoulli("probit"), 1, "exact"),
    "three classes": (Categorical(), 3, "quadrature"),
    "gaussian": (Gaussian(0.4), 2, "exact"),
    "unknown noise": (HeteroscedasticGaussian(), 2, "quadrature"),
}


@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_it_can_be_differentiated(case: str) -> None:
    """For Bayesian optimisation and the like: in the mean and along the covariance, by central differences."""
    likelihood, outputs, integral = DIFFERENTIABLE[case]
    mean, cov = spread(3, outputs, scale=0.7)

    def value(step: Tensor) -> Tensor:
        return likelihood.mutual_information(mean + step, cov * torch.exp(step), integral).sum()

    step = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(step), step)
    h = 1e-4
    difference = (value(torch.tensor(h).double()) - value(torch.tensor(-h).double())) / (2 * h)
    assert slope.item() == pytest.approx(difference.item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("sizes", [None, (1, 2)])
def test_a_mixture_can_be_differentiated_however_far_apart_its_parts_are(sizes) -> None:
    """Between them the density is 0 in floating point. The width of a part far from the others tells nothing."""
    log_weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    means = torch.tensor([0.0, 500.0, 501.0], dtype=torch.float64)[:, None, None]
    sd = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)[:, None, None].requires_grad_()
    (slope,) = torch.autograd.grad(information_of_mixture(log_weights, means, sd.square(), sizes).sum(), sd)
    assert slope.isfinite().all()
    assert abs(slope[0].item()) < 1e-8
    if sizes is None:
        assert slope[1].item() < -0.01  # narrower is easier to tell


def test_what_makes_no_sense_is_refused() -> None:
    mean, cov = spread(2, 2)
    for likelihood in (Gaussian(), HeteroscedasticGaussian()):
        with pytest.raises(UnsupportedError, match="expected labels, got the continuous outcome"):
            likelihood.distributions(mean, 2)
    for likelihood in (Bernoulli(), Categorical(), Gaussian(), BradleyTerry()):
        with pytest.raises(OptionError):
            likelihood.mutual_information(mean, cov, "monte_carlo")
