"""Sparse priors: their densities with the scales integrated out, against quadrature and mpmath."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad

from bayescope import Horseshoe, LaplacePrior
from bayescope.errors import InputError
from bayescope.sparse_priors import HalfCauchy, LocalScale, RootExponential, ScaleMixture, log_cauchy_transform

LOCAL: dict[str, LocalScale] = {"half-Cauchy": HalfCauchy(), "exponential": RootExponential()}


def normal(x: float, size: int, variance: float) -> float:
    return math.exp(-0.5 * x * x / variance) * (2.0 * math.pi * variance) ** (-0.5 * size)


@pytest.mark.parametrize("order", [0.5, 1.0, 1.5, 2.0, 3.5, 6.0])
def test_the_transform_equals_the_incomplete_gamma_function(order: float):
    g = 10.0 ** np.arange(-12.0, 10.0, 0.7)
    exact = [float(mpmath.log(mpmath.gamma(order) * mpmath.hyperu(order, order, each))) for each in g]
    np.testing.assert_allclose(log_cauchy_transform(order, g), exact, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", LOCAL)
def test_the_kernel_is_the_mixture_over_local_scales(name: str, size: int):
    local = LOCAL[name]
    for x in (1e-2, 0.7, 6.0):

        def density(u: float, power: int, x: float = x) -> float:
            weight = math.exp(float(local.log_density(np.array(u))[0]) - 2.0 * power * u)
            return weight * normal(x, size, math.exp(2.0 * u))

        total, inverse = (
            quad(density, -30.0, 30.0, args=(power,), points=[math.log(x)], limit=400)[0] for power in (0, 1)
        )
        log_kernel, expected = local.kernel(np.array([x]), size)
        assert float(log_kernel[0]) == pytest.approx(math.log(total), abs=1e-8)
        assert float(expected[0]) == pytest.approx(inverse / total, rel=1e-7)


def test_one_weight_under_an_exponential_scale_has_laplaces_density():
    x = np.array([1e-3, 0.5, 40.0, 1e9])
    np.testing.assert_allclose(RootExponential().kernel(x, 1)[0], -math.log(2.0) - x, rtol=1e-12)


@pytest.mark.parametrize("name", LOCAL)
def test_densities_of_local_scales_integrate_to_one_and_have_their_slopes(name: str):
    log_density = LOCAL[name].log_density
    assert quad(lambda u: math.exp(float(log_density(np.array(u))[0])), -40.0, 40.0)[0] == pytest.approx(1.0, abs=1e-7)
    u, h = np.array([-3.0, 0.2, 1.5]), 1e-5
    np.testing.assert_allclose(log_density(u)[1], (log_density(u + h)[0] - log_density(u - h)[0]) / (2 * h), atol=1e-8)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("ratio", [1e-3, 0.4, 5.0])
def test_the_slab_is_normalised_for_each_global_scale(ratio: float, size: int):
    """z(τ) = ∫ p(w∣τ) (2πc²)^{C/2} N(w; 0, c²) dw; for one weight it is 2/π arccos(τ/c)/√(1 − τ²/c²)."""
    mixture, at = ScaleMixture(HalfCauchy(), 1.0, slab=2.0), np.array([math.log(2.0 * ratio)])
    value, slope = mixture.log_normaliser(at, size)
    exact = mpmath.quad(
        lambda angle: (1 + ratio**2 * mpmath.tan(angle) ** 2) ** (-0.5 * size) * 2 / mpmath.pi,
        [0, mpmath.pi / 4, mpmath.pi / 2],
    )
    assert float(value[0]) == pytest.approx(float(mpmath.log(exact)), abs=1e-9)
    ahead, behind = (float(mixture.log_normaliser(at + h, size)[0][0]) for h in (1e-5, -1e-5))
    assert float(slope[0]) == pytest.approx((ahead - behind) / 2e-5, abs=1e-7)


MIXTURES = {
    "horseshoe": ScaleMixture(HalfCauchy(), 0.3, slab=1.5, cut=True),
    "half-Cauchy to infinity": ScaleMixture(HalfCauchy(), 0.3),
    "Laplace": ScaleMixture(RootExponential(), 0.3),
    "Laplace of a known scale": ScaleMixture(RootExponential(), 0.3, known=True),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_scales_are_integrated_out(name: str):
    """Φ against an integral over the coordinate of τ that the sampler has."""
    mixture, squares = MIXTURES[name], np.array([1e-3, 0.2, 4.0])

    def integrand(v: float) -> float:
        log_tau, _, density, _ = (float(each) for each in mixture.global_scale(np.array(v)))
        x = np.sqrt(squares) * math.exp(-log_tau)
        total = mixture.local.kernel(x, 1)[0].sum() - 3 * log_tau - 0.5 * squares.sum() / mixture.slab**2
        return math.exp(total - 3 * float(mixture.log_normaliser(np.array(log_tau), 1)[0]) + density)

    exact = integrand(0.0) if mixture.known else quad(integrand, -25.0, 25.0, epsabs=0.0, epsrel=1e-10, limit=400)[0]
    assert float(mixture.posterior(torch.from_numpy(squares), 1).log_prior) == pytest.approx(math.log(exact), abs=1e-7)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", MIXTURES)
def test_precisions_are_slopes_of_a_convex_function(name: str, size: int):
    mixture, generator = MIXTURES[name], torch.Generator().manual_seed(0)
    squares = torch.rand(5, dtype=torch.float64, generator=generator) ** 6 + 1e-6
    found, h = mixture.posterior(squares, size), 1e-4
    for at in range(5):
        step = h * squares[at] * torch.nn.functional.one_hot(torch.tensor(at), 5)
        rise = mixture.posterior(squares + step, size).log_prior - mixture.posterior(squares - step, size).log_prior
        assert float(-rise / (h * squares[at])) == pytest.approx(float(found.precision[at]), rel=2e-5)
    ahead, behind = (
        replace(mixture, scale=mixture.scale * math.exp(each)).posterior(squares, size).log_prior for each in (h, -h)
    )
    assert float(ahead - behind) / (2.0 * h) == pytest.approx(float(found.slope), rel=1e-4, abs=1e-5)
    other = squares.flip(0) * 3.0
    middle = mixture.posterior(0.5 * (squares + other), size).log_prior
    assert float(middle) <= 0.5 * float(found.log_prior + mixture.posterior(other, size).log_prior)


@pytest.mark.parametrize("name", MIXTURES)
def test_coordinates_of_the_global_scale(name: str):
    mixture, v, h = MIXTURES[name], np.array([-4.0, 0.1, 3.0]), 1e-5
    log_tau, rate, _, slope = mixture.global_scale(v)
    ahead, behind = mixture.global_scale(v + h), mixture.global_scale(v - h)
    np.testing.assert_allclose(rate, (ahead[0] - behind[0]) / (2 * h), atol=1e-8)
    np.testing.assert_allclose(slope, (ahead[2] - behind[2]) / (2 * h), atol=1e-8)
    if mixture.cut:
        assert (log_tau < math.log(mixture.scale)).all()
    if not mixture.known:
        total = quad(lambda at: math.exp(float(mixture.global_scale(np.array(at))[2])), -60.0, 60.0, limit=200)[0]
        assert total == pytest.approx(1.0, abs=1e-7)
        assert float(mixture.global_scale(np.array(mixture.coordinate(math.log(0.1))))[0]) == pytest.approx(
            math.log(0.1)
        )


@pytest.mark.parametrize("kind", [Horseshoe, LaplacePrior])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, "wide"], ids=str)
def test_scales_that_are_not_positive_are_refused(kind: type, scale: object):
    with pytest.raises(InputError, match="scale: expected a positive number"):
        kind(scale=scale)


def test_a_slab_may_be_infinite_and_not_negative():
    assert Horseshoe(slab=math.inf).mixture(2.0, 1.0, 100, 10).slab == math.inf
    assert Horseshoe().mixture(2.0, 1.0, 100, 10).slab == 4.0
    with pytest.raises(InputError, match="slab: expected a positive number"):
        Horseshoe(slab=-1.0)


@pytest.mark.parametrize("inputs", [1, 100, 10_000])
def test_at_most_half_of_the_inputs_or_half_as_many_as_rows_are_thought_to_matter(inputs: int):
    matter = 0.5 * inputs * 100 / (inputs + 100)
    scale = Horseshoe().mixture(2.0, 1.0, 100, inputs).scale
    assert scale == pytest.approx(matter / (inputs - matter) / 10.0)
    assert LaplacePrior().mixture(2.0, 1.0, 100, inputs).scale == 0.2
