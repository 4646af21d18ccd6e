"""Amounts that may be exactly 0: the Tweedie series against mpmath, its limits and units, and its two kinds of mass."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate
from torch import Tensor

import bayescope as bs
from bayescope.errors import InputError, OptionError
from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Gamma, Tweedie
from bayescope.predictive import Predictive

FEW, MANY = 1.0, 60.0


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def truth(y: float, f: float, power: float, dispersion: float) -> float:
    """The sum over the number of Gamma variables at 40 digits, and its log."""
    with mpmath.workdps(40):
        y, p, phi = mpmath.mpf(y), mpmath.mpf(power), mpmath.mpf(dispersion)
        mean = mpmath.exp(f)
        rate, scale = mean ** (2 - p) / (phi * (2 - p)), phi * (p - 1) * mean ** (p - 1)
        if y == 0:
            return float(-rate)
        shape, peak = (2 - p) / (p - 1), y ** (2 - p) / (phi * (2 - p))
        reach = 14 * mpmath.sqrt(peak * (p - 1)) + 60
        logs = [
            j * mpmath.log(rate)
            - mpmath.loggamma(j + 1)
            + j * shape * mpmath.log(y / scale)
            - mpmath.loggamma(j * shape)
            for j in range(max(1, int(peak - reach)), int(peak + reach))
        ]
        top = max(logs)
        total = top + mpmath.log(mpmath.fsum(mpmath.exp(each - top) for each in logs))
        return float(total - rate - y / scale - mpmath.log(y))


@pytest.mark.parametrize("power", [1.01, 1.2, 1.5, 1.9, 1.99])
@pytest.mark.parametrize("dispersion", [9e-4, 0.7, 300.0])
def test_log_densities_are_those_of_the_series_in_the_tails(power: float, dispersion: float) -> None:
    """From one number of amounts to thousands, on both sides of where the asymptotic series takes over."""
    ys = [0.0, 1e-9, 0.02, 0.9, 3.3, 70.0]
    kept = [y for y in ys if y ** (2.0 - power) / dispersion / (2.0 - power) < 1e4]
    for f in (-3.0, -0.1, 4.0):
        got = Tweedie(power, dispersion).log_density(torch.full((len(kept), 1), f, dtype=torch.float64), column(*kept))
        expected = [truth(y, f, power, dispersion) for y in kept]
        np.testing.assert_allclose(got[:, 0].numpy(), expected, rtol=1e-10, atol=1e-10)


def test_hyperparameters_have_the_slopes_and_curvatures_of_finite_differences() -> None:
    f, y = column(0.3, -1.0, 2.0, 0.5), column(0.0, 1e-4, 2.0, 900.0)
    for power, dispersion in ((1.1, 0.3), (1.5, 1e-2), (1.8, 4.0)):
        point = torch.tensor([power, dispersion], dtype=torch.float64)

        def value(at: Tensor) -> Tensor:
            return Tweedie(at[0], at[1]).log_prob(f, y)

        found = torch.autograd.functional.jacobian(value, point)
        for place in range(2):
            step = torch.zeros(2, dtype=torch.float64)
            step[place] = 1e-4 * (float(point[place]) - (place == 0))
            differences = [value(point + k * step) - value(point - k * step) for k in (1, 2, 3)]
            slope = (45 * differences[0] - 9 * differences[1] + differences[2]) / (60 * step[place])
            torch.testing.assert_close(found[:, place], slope, rtol=1e-6, atol=1e-6)
            ends = [torch.autograd.functional.jacobian(value, point + side * step) for side in (-1, 1)]
            second = torch.stack(
                [torch.autograd.functional.hessian(lambda at, n=n: value(at)[n], point) for n in range(4)]
            )
            curve = (ends[1] - ends[0]) / (2 * step[place])
            torch.testing.assert_close(second[:, place], curve, rtol=1e-4, atol=1e-4)


def test_a_power_near_2_is_a_gamma_and_in_another_unit_it_is_the_same() -> None:
    f, y = column(-1.0, 0.5, 2.0), column(0.2, 1.7, 3.0)
    torch.testing.assert_close(Tweedie(2.0 - 1e-7, 0.4).log_prob(f, y), Gamma(2.5).log_prob(f, y), rtol=1e-5, atol=1e-5)
    likelihood, unit = Tweedie(1.3, 0.7), 1e6
    other = Tweedie(1.3, 0.7 * unit**0.7)
    shift = math.log(unit)
    torch.testing.assert_close(other.log_prob(f + shift, unit * y) + shift, likelihood.log_prob(f, y))
    torch.testing.assert_close(other.log_prob(f + shift, 0.0 * y), likelihood.log_prob(f, 0.0 * y))
    torch.testing.assert_close(other.quantile(f + shift, 0.8), unit * likelihood.quantile(f, 0.8), rtol=1e-8, atol=0)
    above = 1.0 - likelihood.log_prob(f, 0.0 * y)[:, None].exp()
    torch.testing.assert_close(other.entropy(f + shift), likelihood.entropy(f) + shift * above, rtol=1e-9, atol=1e-9)


CASES = [(1.1, 0.5, FEW), (1.5, 1.0, FEW), (1.5, 0.05, FEW), (1.8, 2.0, FEW), (1.5, 1e-3, MANY)]


@pytest.mark.parametrize(("power", "dispersion", "mean"), CASES)
def test_the_distribution_function_and_the_entropy_are_integrals_of_the_density(
    power: float, dispersion: float, mean: float
) -> None:
    likelihood, f = Tweedie(power, dispersion), column(math.log(mean))
    zero = math.exp(likelihood.log_prob(f, column(0.0)).item())

    def density(t: float) -> float:
        return math.exp(likelihood.log_prob(f, column(math.exp(t))).item() + t)

    def term(t: float) -> float:
        log_p = likelihood.log_prob(f, column(math.exp(t))).item()
        return -log_p * math.exp(log_p + t)

    high = float(likelihood.quantile(f, 1.0 - 1e-14).log())
    low = high - 200.0 if zero > 1e-12 else float(likelihood.quantile(f, 1e-14).log())
    y = 1.3 * mean
    below = zero + integrate.quad(density, low, math.log(y), limit=400, epsabs=1e-11, epsrel=1e-11)[0]
    assert likelihood.cdf(f, column(y)).item() == pytest.approx(below, abs=1e-9)
    assert likelihood.cdf(f, column(0.0)).item() == pytest.approx(zero, rel=1e-12)
    assert likelihood.cdf(f, column(-1.0)).item() == 0.0
    whole = -zero * math.log(zero) if zero else 0.0
    whole += integrate.quad(term, low, high, limit=400, epsabs=1e-10, epsrel=1e-10)[0]
    assert likelihood.entropy(f).item() == pytest.approx(whole, abs=1e-8)


def test_quantiles_are_zero_up_to_the_mass_there_and_invert_the_distribution_function_above() -> None:
    for power, dispersion in ((1.05, 0.7), (1.5, 1.0), (1.9, 3.0), (1.5, 1e-6)):
        likelihood, f = Tweedie(power, dispersion), column(-4.0, -1.0, 0.0, 3.0, 9.0)
        zero = likelihood.log_prob(f, torch.zeros_like(f)).exp()[:, None]
        for level in (1e-6, 0.3, 0.97, 1.0 - 1e-9):
            q = likelihood.quantile(f, level)
            assert torch.equal(q == 0.0, zero >= level)
            torch.testing.assert_close(likelihood.cdf(f, q)[q > 0], torch.full_like(q[q > 0], level), rtol=0, atol=1e-8)


def test_entropies_of_many_outputs_are_those_of_each() -> None:
    likelihood = Tweedie([1.5, 1.8], [0.4, 2.0])
    f = torch.linspace(-3.0, 1.0, 200, dtype=torch.float64)[:, None].expand(-1, 2)
    some = [0, 57, 199]
    torch.testing.assert_close(likelihood.entropy(f)[some], likelihood.entropy(f[some]), rtol=1e-8, atol=1e-8)


def test_crps_is_that_of_draws_also_where_most_of_the_mass_is_at_zero() -> None:
    mean, y = column(-2.0, 0.5, 2.0), column(0.0, 3.0, 4.0)
    latent = GaussianLatent(mean, torch.full((3, 1, 1), 0.3, dtype=torch.float64), "quadrature")
    likelihood = Tweedie(1.5, 1.5)
    generator = torch.Generator().manual_seed(0)
    draws = likelihood.sample(latent.sample(50_000, generator), generator)
    half = draws.chunk(2)
    brute = (draws - y).abs().mean(0) - 0.5 * (half[0] - half[1]).abs().mean(0)
    p = Predictive(latent, likelihood)
    torch.testing.assert_close(torch.as_tensor(p.crps(y)).reshape(-1, 1), brute, rtol=0.04, atol=0.004)
    zero = likelihood.predictive_log_prob(mean, latent.covariance, torch.zeros_like(y), "quadrature").exp()
    torch.testing.assert_close(zero, (draws == 0).double().mean(0)[:, 0], rtol=0, atol=0.01)
    low, high = p.interval(0.9)
    assert low[:2].tolist() == [[0.0], [0.0]]
    inside = ((torch.as_tensor(low) <= draws) & (draws <= torch.as_tensor(high))).double().mean(0)
    assert (inside > 0.89).all()


def amounts(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, amounts of power 1.6 and dispersion 3, and their exposure."""
    rng = np.random.default_rng(0)
    X, exposure = rng.standard_normal((rows, 2)), rng.uniform(0.3, 1.0, rows)
    f = torch.from_numpy(1.0 + X @ [0.5, 0.0] + np.log(exposure))[:, None]
    return X, Tweedie(1.6, 3.0).sample(f, torch.Generator().manual_seed(0))[:, 0].numpy(), exposure


def test_a_generalised_linear_model_learns_the_power_and_the_dispersion_in_any_unit() -> None:
    X, y, exposure = amounts(500)
    model = bs.BayesianGeneralizedLinearModel(likelihood="tweedie").fit(X, y, exposure=exposure)
    found = model.hyperparameters_
    assert found["power"] == pytest.approx(1.6, abs=0.1)
    assert found["dispersion"] == pytest.approx(3.0, rel=0.3)
    np.testing.assert_allclose(model.coef_, [0.5, 0.0], atol=0.25)
    other = bs.BayesianGeneralizedLinearModel(likelihood="tweedie").fit(X, 1e5 * y, exposure=exposure)
    assert other.hyperparameters_["power"] == pytest.approx(found["power"], abs=1e-5)
    np.testing.assert_allclose(
        other.predict(X, exposure=exposure), 1e5 * model.predict(X, exposure=exposure), rtol=1e-5
    )


@pytest.mark.parametrize("kind", [bs.NeuralAdditiveRegressor, bs.BayesianMLPRegressor])
def test_additive_models_and_networks_learn_them_too(kind: type) -> None:
    X, y, exposure = amounts(250)
    options = {"hidden": (4,), "epochs": 10} if kind is bs.BayesianMLPRegressor else {}
    model = kind(likelihood="tweedie", random_state=0, **options).fit(X, y / exposure)
    assert float(model.likelihood_.power) == pytest.approx(1.6, abs=0.2)
    X, rate = X[:150], (y / exposure)[:150]
    low, high = model.predict_distribution(X).interval(0.8)
    inside = ((low[:, 0] <= rate) & (rate <= high[:, 0])).mean()
    assert 0.78 < inside < 0.95
    assert (low >= 0.0).all()


def test_what_is_no_amount_is_refused() -> None:
    with pytest.raises(InputError, match=r"y: expected numbers of at least 0, got -3 in row 1\. Leave such rows out"):
        Tweedie(1.5, 1.0).targets([0.0, -3.0], 1)
    with pytest.raises(InputError, match=r"power: expected numbers strictly between 1 and 2, got 2\. Take 'poisson'"):
        Tweedie(2.0)
    with pytest.raises(OptionError, match="dispersion: expected one of 'evidence'"):
        Tweedie(1.5, "learn")
    with pytest.raises(InputError, match=r"got 0 in row 0\. Leave such rows out, or use 'tweedie' for amounts"):
        Gamma(2.0).targets([0.0], 1)
    frame, paid = pd.DataFrame({"a": [0, 1]}), pd.Series([1, -3], name="paid")
    with pytest.raises(InputError, match=r"-3 in row 1 of column 'paid'"):
        bs.NeuralAdditiveRegressor(likelihood="tweedie").fit(frame, paid)


@pytest.mark.parametrize("f", [-60.0, -80.0, -300.0])
def test_the_entropy_of_next_to_nothing_is_0(f: float) -> None:
    found = Tweedie(1.5, 1.0).entropy(torch.tensor([[f], [0.0]], dtype=torch.float64))
    assert 0 <= float(found[0]) < 1e-6
    alone = Tweedie(1.5, 1.0).entropy(torch.zeros(1, 1, dtype=torch.float64))
    assert float(found[1]) == pytest.approx(float(alone), rel=1e-9)
