"""The CRPS of a predictive: against its integral by brute force, its closed forms, and the laws that it obeys."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bayescope import metrics
from bayescope.errors import InputError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, Latent, MixtureLatent
from bayescope.likelihoods import Bernoulli, Gaussian, HeteroscedasticGaussian, Poisson, crps_of_numbers
from bayescope.predictive import Predictive

Y = torch.tensor([[-3.0], [0.2], [11.0]], dtype=torch.float64)


def gaussian(outputs: int = 1) -> GaussianLatent:
    source = torch.Generator().manual_seed(1)
    mean = torch.randn(3, outputs, dtype=torch.float64, generator=source)
    root = torch.randn(3, outputs, outputs + 1, dtype=torch.float64, generator=source)
    return GaussianLatent(mean, root @ root.mT, "exact")


def draws(outputs: int = 1, scale: float = 3.0) -> DrawsLatent:
    source = torch.Generator().manual_seed(2)
    return DrawsLatent(scale * torch.randn(40, 3, outputs, dtype=torch.float64, generator=source))


def mixture() -> MixtureLatent:
    return MixtureLatent(torch.tensor([0.2, 0.8], dtype=torch.float64).log(), [gaussian(), draws()])


FORMS: dict[str, tuple[Latent, Gaussian | HeteroscedasticGaussian]] = {
    "gaussian": (gaussian(), Gaussian(0.3)),
    "draws": (draws(), Gaussian(0.3)),
    "mixture": (mixture(), Gaussian(0.3)),
    "far apart": (draws(scale=1e3), Gaussian(1e-2)),
    "widths that differ": (draws(2), HeteroscedasticGaussian()),
}


def by_pairs(p: Predictive, y: Tensor) -> Tensor:
    """Σ w_i A(m_i − y, v_i) − ½ Σ w_i w_j A(m_i − m_j, v_i + v_j) of the Gaussians, with A = E∣N(m, v)∣."""
    log_weights, means, variances = p.latent.components(p.likelihood)
    weights = log_weights.exp()

    def size(mean: Tensor, variance: Tensor) -> Tensor:
        sd = variance.sqrt()
        return mean * torch.erf(mean / sd / math.sqrt(2)) + 2 * sd * torch.from_numpy(
            stats.norm.pdf((mean / sd).numpy())
        )

    near = torch.einsum("s,snk->nk", weights, size(means - y, variances))
    pairs = size(means[:, None] - means[None], variances[:, None] + variances[None])
    return (near - 0.5 * torch.einsum("s,t,stnk->nk", weights, weights, pairs)).mean(-1)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_closed_sum_over_pairs_of_gaussians(form: str) -> None:
    p = Predictive(*FORMS[form])
    sd = float(p.variance.sqrt().max())
    torch.testing.assert_close(p.crps(Y), by_pairs(p, Y), rtol=0, atol=1e-8 * sd)


@pytest.mark.parametrize("form", ["gaussian", "draws", "mixture"])
def test_it_is_the_integral_of_the_squared_distance_to_the_step_at_y(form: str) -> None:
    p = Predictive(*FORMS[form])
    log_weights, means, variances = p.latent.components(p.likelihood)
    x = np.linspace(-60.0, 60.0, 240_001)
    for row, y in enumerate(Y[:, 0].tolist()):
        below = sum(
            w * stats.norm.cdf(x, m, v**0.5)
            for w, m, v in zip(
                log_weights.exp().tolist(), means[:, row, 0].tolist(), variances[:, row, 0].tolist(), strict=True
            )
        )
        brute = np.trapezoid((below - (x >= y)) ** 2, x)
        assert float(p.crps(Y)[row]) == pytest.approx(brute, abs=1e-3)


def test_of_a_gaussian_it_is_the_closed_form_of_the_metrics_for_several_outputs_too() -> None:
    p, y = Predictive(gaussian(2), Gaussian(0.3), arrays=True), np.array([[0.1, -2.0], [3.0, 0.0], [-1.0, 1.0]])
    assert p.crps(y).shape == (3,)
    assert p.crps(y).mean() == pytest.approx(metrics.crps(p.mean, p.variance, y), rel=1e-12)


def test_many_equal_draws_are_one() -> None:
    one = DrawsLatent(draws().values[:1])
    many = DrawsLatent(one.values.repeat(50, 1, 1))
    apart = [Predictive(latent, Gaussian(0.3)).crps(Y) for latent in (one, many)]
    torch.testing.assert_close(apart[0], apart[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_it_has_the_unit_of_y(unit: float) -> None:
    p = Predictive(draws(), Gaussian(0.3))
    scaled = Predictive(DrawsLatent(unit * draws().values), Gaussian(0.3 * unit**2))
    torch.testing.assert_close(scaled.crps(unit * Y), unit * p.crps(Y), rtol=1e-7, atol=0)


NUMBERS = {
    "gaussian": stats.norm(2.0, 0.3),
    "heavy tails": stats.t(2.5, 1.0, 2.0),
    "positive": stats.gamma(0.7, scale=5.0),
    "skewed": stats.lognorm(1.5),
    "shares": stats.beta(0.8, 3.0),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("level", [1e-6, 0.2, 0.9, 1.0 - 1e-6])
def test_numbers_of_any_distribution_are_integrated(name: str, level: float) -> None:
    outcome = NUMBERS[name]
    y = float(outcome.ppf(level))
    exact = integrate.quad(
        lambda u: 2 * (float(level < u) - u) * (outcome.ppf(u) - y), 0, 1, points=[level], limit=500
    )[0]
    low, *quartiles, high = (torch.tensor([[value]]) for value in outcome.ppf([1e-13, 0.25, 0.75, 1 - 1e-13]))
    got = crps_of_numbers(
        lambda x: torch.from_numpy(outcome.cdf(x.numpy())), torch.tensor([[y]]).double(), low, high, tuple(quartiles)
    )
    assert float(got) == pytest.approx(exact, rel=1e-4, abs=1e-4 * outcome.std())


@pytest.mark.parametrize(("rate", "tolerance"), [(0.3, 1e-6), (40.0, 1e-6), (4e6, 1e-4)])
@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_counts_of_any_size_are_summed(rate: float, tolerance: float, level: float) -> None:
    low, high = stats.poisson(rate).ppf([1e-13, 1 - 1e-13])
    y = low + np.floor(level * (high + 20 - low))
    k = np.arange(low, high + 40)
    exact = ((stats.poisson(rate).cdf(k) - (k >= y)) ** 2).sum()
    p = Predictive(DrawsLatent(torch.tensor([[[math.log(rate)]]], dtype=torch.float64)), Poisson())
    assert float(p.crps([y])) == pytest.approx(exact, rel=tolerance, abs=tolerance * rate**0.5)


@pytest.mark.parametrize("form", ["gaussian", "draws", "mixture"])
def test_counts_under_an_uncertain_rate(form: str) -> None:
    """Against the draws of the predictive itself: E∣Y − y∣ − ½ E∣Y − Y'∣ over 20,000 pairs."""
    latent = {"gaussian": gaussian(), "draws": draws(scale=0.5), "mixture": mixture()}[form]
    p = Predictive(replace_integral(latent), Poisson(), arrays=True)
    y = np.array([0.0, 2.0, 9.0])
    one, other = (p.sample(20_000, generator=seed)[..., 0] for seed in (0, 1))
    each = np.abs(one - y) - 0.5 * np.abs(one - other)
    error = 5 * each.std(0) / 20_000**0.5
    assert (np.abs(p.crps(y) - each.mean(0)) < error).all()


def replace_integral(latent: Latent) -> Latent:
    """Gaussians integrated as counts are."""
    if isinstance(latent, GaussianLatent):
        return dataclasses.replace(latent, integral="quadrature", covariance=0.1 * latent.covariance)
    if isinstance(latent, MixtureLatent):
        return MixtureLatent(latent.log_weights, [replace_integral(part) for part in (gaussian(), draws(scale=0.5))])
    return latent


def test_answers_follow_what_went_in_and_keep_dense_positions() -> None:
    p = Predictive(DrawsLatent(draws().values.repeat(1, 2, 1)), Gaussian(0.3), arrays=True, shape=(2, 3))
    dense = p.crps(torch.stack([Y, Y]))
    assert isinstance(dense, np.ndarray)
    assert dense.shape == (2, 3)
    flat = dataclasses.replace(p, shape=None).crps(torch.cat([Y, Y]))
    np.testing.assert_array_equal(dense.ravel(), flat)


def test_what_has_no_distances_or_no_rows_is_refused() -> None:
    labels = Predictive(GaussianLatent(gaussian().mean, gaussian().cov, "quadrature"), Bernoulli())
    with pytest.raises(UnsupportedError, match="no distances"):
        labels.crps([0, 1, 1])
    with pytest.raises(InputError, match="expected 3 rows, got 2"):
        Predictive(gaussian(), Gaussian(0.3)).crps([0.0, 1.0])


def test_small_counts_beside_large_ones_are_summed_as_alone() -> None:
    mean = torch.tensor([[0.5, 9.0]], dtype=torch.float64)
    cov, y = 0.01 * torch.eye(2, dtype=torch.float64)[None], torch.tensor([[1.0, 8000.0]], dtype=torch.float64)
    both = GaussianLatent(mean, cov, "quadrature").crps(Poisson(), y)
    alone = GaussianLatent(mean[:, :1], cov[:, :1, :1], "quadrature").crps(Poisson(), y[:, :1])
    torch.testing.assert_close(both[:, :1], alone, rtol=1e-10, atol=0)
