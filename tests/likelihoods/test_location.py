"""Numbers and lifetimes with errors of a fixed shape: tails, censoring and truncation, integrals, first values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import bayescope as bs
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.likelihoods import Exponential, Gamma, LaplaceNoise, LogNormal, StudentT, Weibull, entropy_of_numbers
from bayescope.likelihoods.elementwise import Elementwise
from bayescope.likelihoods.location import Location
from bayescope.quadrature import gauss_legendre

CASES: dict[str, Location] = {
    "student_t": StudentT(0.8, 3.0),
    "student_t, nearly Gaussian": StudentT(0.8, 1e6),
    "student_t, heavy": StudentT(1.3, 0.6),
    "laplace_noise": LaplaceNoise(0.7),
    "log_normal": LogNormal(0.5),
    "weibull": Weibull(1.6),
    "exponential": Exponential(),
    "gamma": Gamma(2.5),
    "gamma, small": Gamma(0.1),
    "gamma, large": Gamma(3e4),
}
everywhere = pytest.mark.parametrize("name", CASES)
inf = math.inf


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def error_cdf(likelihood: Location) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """P(R ≤ r) and P(R > r) of the error at 40 digits."""
    normal = LogNormal

    def both(above: Callable[[Any], Any], below: Callable[[Any], Any]) -> tuple[Any, Any]:
        return below, above

    if isinstance(likelihood, StudentT):
        nu = mpmath.mpf(float(likelihood.degrees_of_freedom))

        def above(r: Any) -> Any:
            tail = mpmath.betainc(nu / 2, mpmath.mpf(1) / 2, 0, nu / (nu + r * r), regularized=True) / 2
            return tail if r >= 0 else 1 - tail

        return both(above, lambda r: above(-r))
    if isinstance(likelihood, LaplaceNoise):

        def laplace(r: Any) -> Any:
            return mpmath.exp(-r) / 2 if r >= 0 else 1 - mpmath.exp(r) / 2

        return both(laplace, lambda r: laplace(-r))
    if isinstance(likelihood, normal):
        return both(lambda r: mpmath.ncdf(-r), mpmath.ncdf)
    if isinstance(likelihood, Gamma):
        a = mpmath.mpf(float(likelihood.shape))
        return both(
            lambda r: mpmath.gammainc(a, a * mpmath.exp(r), mpmath.inf, regularized=True),
            lambda r: mpmath.gammainc(a, 0, a * mpmath.exp(r), regularized=True),
        )
    return both(lambda r: mpmath.exp(-mpmath.exp(r)), lambda r: -mpmath.expm1(-mpmath.exp(r)))


REACH = {"student_t, nearly Gaussian": 30.0, "log_normal": 30.0, "gamma, large": 0.3, "gamma": 3.0, "gamma, small": 5.0}


@everywhere
def test_tails_are_right_to_1e_10_however_far(name: str) -> None:
    likelihood = CASES[name]
    below, above = error_cdf(likelihood)
    edge = REACH.get(name, 5.0)
    r = edge * torch.tensor([-1.0, -0.3, -0.01, 0.0, 0.004, 0.3, 1.0], dtype=torch.float64)
    with mpmath.workdps(60):
        for tail, truth, sign in ((likelihood.upper(r), above, -1), (likelihood.lower(r), below, 1)):
            for place, at in enumerate(r.tolist()):
                x = mpmath.mpf(at)
                exact = mpmath.log(truth(x))
                assert float(tail.log_mass[place]) == pytest.approx(float(exact), rel=1e-10, abs=1e-13)
                if name == "laplace_noise" and at == 0.0:
                    continue
                hazard = sign * mpmath.diff(lambda u: mpmath.log(truth(u)), x, h=mpmath.mpf(10) ** -15)  # noqa: B023
                assert float(tail.hazard[place]) == pytest.approx(float(hazard), rel=1e-9, abs=1e-13)


INTERVALS = {
    "exact": (0.7, 0.7, -inf, inf),
    "right-censored": (0.7, inf, -inf, inf),
    "left-censored": (-inf, 0.7, -inf, inf),
    "interval": (0.7, 1.9, -inf, inf),
    "delayed entry": (0.7, 0.7, 0.4, inf),
    "delayed entry, censored": (0.7, inf, 0.4, inf),
    "right-truncated": (0.7, 0.7, -inf, 2.2),
    "both": (0.7, 1.9, 0.2, 5.0),
}


@everywhere
@pytest.mark.parametrize("interval", INTERVALS)
def test_intervals_have_the_probability_and_the_derivatives_of_their_definition(name: str, interval: str) -> None:
    likelihood = CASES[name]
    y = torch.tensor([INTERVALS[interval]], dtype=torch.float64)
    assert torch.equal(likelihood.targets(y, 1), y)
    width = 0.05 if name == "gamma, large" else 2.0
    f = column(-0.3 - width, -0.3, -0.3 + width).requires_grad_()
    at, rows = f.detach(), y.expand(len(f), -1)
    frozen = likelihood.distribution(at.numpy())
    lower, upper, entry, exit_ = y.numpy()[0]
    exact = lower == upper
    mass = frozen.logpdf(lower) if exact else np.log(_between(frozen, lower, upper))
    truth = (mass - np.log(_between(frozen, entry, exit_)))[:, 0]
    got = likelihood.log_prob(f, rows)
    sure = np.isfinite(truth) & (truth > -200)
    np.testing.assert_allclose(got.detach().numpy()[sure], truth[sure], rtol=1e-8, atol=1e-10)
    (slope,) = torch.autograd.grad(got.sum(), f, create_graph=True)  # rows do not depend on each other
    (change,) = torch.autograd.grad(slope.sum(), f)
    size = 1.0 + likelihood.fisher(at)
    torch.testing.assert_close(likelihood.gradient(at, rows) / size, slope.detach() / size, rtol=1e-8, atol=1e-11)
    hessian = likelihood.hessian(at, rows)[:, :, 0]
    torch.testing.assert_close(hessian / size, -change / size, rtol=1e-7, atol=1e-10)
    assert (likelihood.ggn(at, rows).entries >= 0).all()


def _between(frozen: Any, low: float, high: float) -> np.ndarray:
    """By the distribution function or by the survival function, whichever is the smaller."""
    below, above = frozen.cdf(high) - frozen.cdf(low), frozen.sf(low) - frozen.sf(high)
    return np.where(frozen.cdf(low) < 0.5, below, above)


@everywhere
def test_derivatives_by_hyperparameters_are_those_of_finite_differences(name: str) -> None:
    likelihood = CASES[name]
    y = torch.tensor(list(INTERVALS.values()), dtype=torch.float64)
    f = torch.full((len(y), 1), -0.3, dtype=torch.float64)

    def total(values: dict[str, Tensor]) -> Tensor:
        return likelihood.with_hyperparameters(**values).log_prob(f, y)

    start = {key: getattr(likelihood, key).clone() for key in likelihood.hyperparameters}
    for key, value in start.items():
        moving = value.clone().requires_grad_()
        weights = torch.arange(1.0, 1.0 + len(y), dtype=torch.float64)
        (slope,) = torch.autograd.grad(total(start | {key: moving}) @ weights, moving)
        step = 1e-4 * value
        differences = [
            (total(start | {key: value + k * step}) - total(start | {key: value - k * step})) @ weights for k in (1, 2)
        ]
        truth = (8.0 * differences[0] - differences[1]) / (12.0 * step)
        torch.testing.assert_close(slope, truth, rtol=1e-6, atol=1e-5 / float(value))


def test_a_censored_lifetime_far_above_its_scale_has_finite_slopes() -> None:
    """A network in its first epochs may say so: the tail that is not taken must not overflow."""
    shape = torch.tensor(1.6, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[753.0, inf, -inf, inf]], dtype=torch.float64)
    value = Weibull(shape).log_prob(column(-6.0), y)
    (slope,) = torch.autograd.grad(value.sum(), shape)
    assert value.item() == pytest.approx(-((753.0 * math.exp(6.0)) ** 1.6), rel=1e-12)
    assert slope.item() == pytest.approx(value.item() * math.log(753.0 * math.exp(6.0)), rel=1e-12)


@everywhere
def test_the_entropy_is_the_integral_over_the_outcome(name: str) -> None:
    likelihood, f = CASES[name], column(0.4, -1.0)
    if name == "gamma, small" or name == "student_t, heavy":
        return  # their reach is beyond float64 or the grid
    ends = [likelihood.quantile(f, level) for level in (1e-13, 1.0 - 1e-13)]
    truth = entropy_of_numbers(likelihood.domain, lambda y: likelihood.log_density(f, y), *ends)
    tolerance = 1e-4 if name == "laplace_noise" else 1e-8
    torch.testing.assert_close(likelihood.entropy(f), truth, rtol=tolerance, atol=tolerance)


@everywhere
@pytest.mark.parametrize("sd", [0.0, 0.3, 4.0])
def test_the_marginal_is_the_integral_over_f(name: str, sd: float) -> None:
    likelihood = CASES[name]
    mean, variance = column(0.2, 0.2, 0.2), column(sd, sd, sd).square()
    y = column(0.05, 1.1, 30.0)
    log_p, below = likelihood.log_marginal(mean, variance, y), likelihood.marginal_cdf(mean, variance, y)
    if sd == 0.0:
        torch.testing.assert_close(log_p, likelihood.log_density(mean, y), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(below, likelihood.cdf(mean, y), rtol=1e-10, atol=1e-12)
        return
    # A plain sum over f: the error's own width decides the step
    width = min(sd, 0.01 if name == "gamma, large" else 0.5)
    low, high = -12 * sd, 12 * sd + 10.0
    z = torch.linspace(low, high, int((high - low) / width * 100) | 1, dtype=torch.float64).reshape(-1, 1, 1)
    log_weights = -0.5 * (z / sd).square() - math.log(sd * math.sqrt(2 * math.pi)) + (z[1, 0, 0] - z[0, 0, 0]).log()
    truth = torch.logsumexp(likelihood.log_density(mean + z, y) + log_weights, 0)
    tolerance = 1e-5 if name == "laplace_noise" else 1e-8
    torch.testing.assert_close(log_p, truth, rtol=tolerance, atol=tolerance)
    step = max(1, len(z) // 40_000)
    coarse = (likelihood.cdf(mean + z[::step], y) * log_weights[::step].exp()).sum(0) * step
    torch.testing.assert_close(below, coarse, rtol=1e-7, atol=1e-6)


def test_a_student_t_far_from_a_wide_f_has_both_its_peaks() -> None:
    likelihood, mean, variance = StudentT(0.01, 4.0), column(0.0), column(25.0)
    for y in (0.3, 20.0, 60.0):

        def integrand(f: float, y: float = y) -> float:
            return stats.t(4.0, f, 0.01).pdf(y) * stats.norm(0, 5.0).pdf(f)

        truth = integrate.quad(
            integrand, -80, 80, points=[0.0, y - 0.05, y, y + 0.05], limit=500, epsabs=0, epsrel=1e-8
        )[0]
        assert float(likelihood.log_marginal(mean, variance, column(y))) == pytest.approx(math.log(truth), abs=1e-7)


def test_laplace_marginals_are_right_far_out() -> None:
    likelihood = LaplaceNoise(0.5)
    for sd, y in ((1.0, 40.0), (100.0, 3.0), (1e-3, 2.0), (5.0, -300.0)):
        with mpmath.workdps(40):
            s, v, d = mpmath.mpf(0.5), mpmath.mpf(sd) ** 2, mpmath.mpf(y)
            sides = [
                mpmath.exp(v / (2 * s * s) - k * d / s) * mpmath.ncdf((k * d - v / s) / mpmath.sqrt(v)) for k in (1, -1)
            ]
            truth = float(mpmath.log(sum(sides) / (2 * s)))
        got = likelihood.log_marginal(column(0.0), column(sd**2), column(y))
        assert float(got) == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("power", [1.0, 0.3])
@pytest.mark.parametrize("sd", [1e-4, 0.5, 5.0, 100.0])
def test_tilted_moments_of_laplace_noise_are_derivatives_of_the_normaliser(sd: float, power: float) -> None:
    away = torch.tensor([0.0, 0.6, -3.0, 40.0], dtype=torch.float64) * max(min(sd, 1.0), 0.01)
    found = LaplaceNoise(0.7).tilted(
        torch.full((4,), 0.3, dtype=torch.float64), away * 0 + sd**2, away * 0 + power, (0.3 + away)[:, None]
    )
    assert found is not None
    with mpmath.workdps(80):
        s, v, step = mpmath.mpf(0.7) / mpmath.mpf(power), mpmath.mpf(sd) ** 2, mpmath.mpf(sd) / 10**20

        def log_normaliser(d: mpmath.mpf) -> mpmath.mpf:
            sides = [
                mpmath.exp(v / (2 * s * s) - k * d / s) * mpmath.ncdf((k * d - v / s) / mpmath.sqrt(v)) for k in (1, -1)
            ]
            return mpmath.log(sum(sides)) - mpmath.mpf(power) * mpmath.log(2 * mpmath.mpf(0.7))

        for got, y in zip(zip(*found, strict=True), (0.3 + away).tolist(), strict=True):
            low, here, high = (log_normaliser(mpmath.mpf(y) - mpmath.mpf(0.3) - k * step) for k in (-1, 0, 1))
            bend = (2 * here - low - high) / step**2
            truths = [here, (high - low) / (2 * step), bend, 1 - v * bend]
            scales = [1 + abs(here), 1 / s, 1 / v, truths[3]]  # the bend beside that of N(μ, v)
            for one, truth, scale in zip(got, truths, scales, strict=True):
                assert abs(float(one) - truth) < 1e-11 * scale


LAPLACE_ROWS = {
    "exact": [0.5, 0.5, -inf, inf],
    "exact, far": [-4.0, -4.0, -inf, inf],
    "right-censored": [0.6, inf, -inf, inf],
    "left-censored": [-inf, -1.0, -inf, inf],
    "interval": [0.1, 0.3, -inf, inf],
    "truncated": [0.5, 0.5, 0.0, 2.0],
    "truncated interval": [0.1, 0.9, -1.0, 2.0],
}


@pytest.mark.parametrize("row", LAPLACE_ROWS)
@pytest.mark.parametrize("sd", [0.0, 1e-3, 0.8, 4.0])
def test_expectations_of_laplace_noise_are_integrals(row: str, sd: float) -> None:
    likelihood, mean, variance = LaplaceNoise(0.7), column(0.2), column(sd).square()
    y = torch.tensor([LAPLACE_ROWS[row]], dtype=torch.float64)
    value, slope, bend = likelihood.expected_log_density(mean, variance, y)
    if sd == 0.0:
        torch.testing.assert_close(value, likelihood.log_density(mean, y))
        torch.testing.assert_close(slope, likelihood.slope(mean, y))
        return
    ends = torch.cat([((y - mean) / sd).clamp(-12.0, 12.0)[0], torch.tensor([-12.0, 12.0])]).unique()
    nodes, weights = gauss_legendre(400)
    z = (ends[:-1, None] + ends.diff()[:, None] * nodes).flatten()
    weight = (ends.diff()[:, None] * weights).flatten() * (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    for found, part in ((value, likelihood.log_density), (slope, likelihood.slope)):
        truth = weight @ part((mean + sd * z)[0, :, None, None], y)[:, 0]
        torch.testing.assert_close(found[0], truth, rtol=1e-8, atol=1e-8)
    # −∂ E[slope]/∂ mean, of which a kink is a part
    step = 1e-4 * sd
    ahead, behind = (likelihood.expected_log_density(mean + side * step, variance, y)[1] for side in (1, -1))
    torch.testing.assert_close(bend, (behind - ahead) / (2 * step), rtol=1e-6, atol=1e-7)


@everywhere
def test_first_values_and_constants_are_near_the_truth(name: str) -> None:
    likelihood = CASES[name]
    if "heavy" in name or "large" in name or "small" in name:
        return
    f = torch.full((4000, 1), 0.8, dtype=torch.float64)
    y = likelihood.sample(f, torch.Generator().manual_seed(0))
    start = type(likelihood)() if likelihood.hyperparameters else likelihood
    assert start.learnable == tuple(start.hyperparameters)
    found = start.starting(y)
    assert not found.learnable
    for key in likelihood.hyperparameters:
        if key != "degrees_of_freedom":
            assert 0.6 < float(getattr(found, key) / getattr(likelihood, key)) < 1.6
    assert abs(float(start.constant(y)) - 0.8) < 0.5
    seen = y < y.quantile(0.6)
    rows = torch.from_numpy(bs.Censored(torch.minimum(y, y.quantile(0.6))[:, 0], seen[:, 0].double()))
    assert abs(float(start.constant(likelihood.targets(rows, 1))) - 0.8) < 1.0
    assert not start.starting(likelihood.targets(rows, 1)).learnable


@everywhere
def test_first_values_and_constants_of_four_outputs_are_those_of_each(name: str) -> None:
    likelihood = CASES[name]
    start = type(likelihood)() if likelihood.hyperparameters else likelihood
    f = torch.full((50, 4), 0.8, dtype=torch.float64)
    y = likelihood.sample(f, torch.Generator().manual_seed(1)).sort(-1).values[:, [1, 2, 0, 3]]
    together, each = start.starting(y), [start.starting(column) for column in y.split(1, 1)]
    for key in likelihood.hyperparameters:
        torch.testing.assert_close(together.known(key), torch.stack([one.known(key) for one in each]))
    torch.testing.assert_close(start.constant(y), torch.cat([start.constant(column) for column in y.split(1, 1)]))


def test_censored_times_are_rows_of_intervals() -> None:
    y = bs.Censored(
        [2.0, 3.0, 4.0], [1, 0, 0], side=["right", "right", "left"], entry=[1.0, 2.0, 0.5], exit=[9.0, 9.0, 8.0]
    )
    np.testing.assert_array_equal(y, [[2, 2, 1, 9], [3, 9, 2, 9], [0.5, 4, 0.5, 8]])
    np.testing.assert_array_equal(bs.Censored([2.0, 3.0], [1, 0]), [[2, 2, -inf, inf], [3, inf, -inf, inf]])
    likelihood = Weibull(1.5)
    plain = likelihood.targets(bs.Censored([2.0, 3.0], [1, 0]), 1)
    assert torch.equal(likelihood.targets(torch.tensor([[2.0, 1.0], [3.0, 0.0]]), 1), plain)
    assert likelihood.targets([2.0, 3.0], 1).shape == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], [1, 2]), r"event: expected 1 \(seen\) or 0 \(censored\), got 2 in row 1\. Recode"),
        (([1.0, 2.0], [1]), "event: expected one for each of 2 times, got 1"),
        (([[1.0, 2.0]], [1]), r"time: expected shape \(N,\), got \(1, 2\)"),
        (([1.0, math.nan], [1, 0]), "time: expected finite numbers, got nan"),
    ],
)
def test_times_and_events_that_do_not_go_together_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bs.Censored(*arguments)


def test_intervals_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"entry: expected it before the time, got 3 in row 1\. Leave out rows"):
        bs.Censored([2.0, 3.0], [1, 1], entry=[1.0, 3.0])
    with pytest.raises(InputError, match="exit: expected it at or after the time, got 1 in row 0"):
        bs.Censored([2.0, 3.0], [1, 1], exit=[1.0, 3.0])
    with pytest.raises(OptionError, match="side: expected one of 'right', 'left'"):
        bs.Censored([2.0], [1], side="above")  # type: ignore[arg-type]
    for likelihood in (Weibull(1.0), Gamma(2.0)):
        with pytest.raises(InputError, match=r"y: expected numbers above 0, got 0 in row 1, column 'time'\. Leave"):
            likelihood.targets(bs.Censored([2.0, 0.0], [1, 1]), 1)
        with pytest.raises(InputError, match=r"y: expected numbers above 0, got -1 in row 1"):
            likelihood.targets([2.0, -1.0], 1)
    with pytest.raises(InputError, match=r"entry ≤ lower ≤ upper ≤ exit.*row 1.*bs\.Censored\(time, event\) makes"):
        StudentT(1.0, 4.0).targets(torch.tensor([[1.0, 1.0, -inf, inf], [2.0, 1.0, -inf, inf]]), 1)
    with pytest.raises(InputError, match=r"\(N, 2\) for times and events"):
        Weibull(1.0).targets(torch.zeros(3, 5), 1)


def test_censored_lifetimes_equal_the_likelihood_of_their_definition() -> None:
    """A Weibull with half of its times censored: the mode by Newton against scipy's own fit."""
    source = np.random.default_rng(0)
    times = 3.0 * source.weibull(1.7, 400)
    watched = source.uniform(1.0, 5.0, 400)
    seen = times <= watched
    frame = np.minimum(times, watched)
    data = stats.CensoredData(uncensored=frame[seen], right=frame[~seen])
    shape, _, scale = stats.weibull_min.fit(data, floc=0)
    y = Weibull(shape).targets(bs.Censored(frame, seen), 1)
    likelihood, f = Weibull(torch.tensor(shape, dtype=torch.float64).requires_grad_()), column(math.log(scale))
    assert abs(float(likelihood.gradient(f, y).sum().detach())) < 0.05
    (slope,) = torch.autograd.grad(likelihood.log_prob(f, y).sum(), likelihood.shape)
    assert abs(float(slope)) < 0.05


def test_every_law_of_elementwise_likelihoods_is_asked_of_these() -> None:
    assert all(isinstance(each, Elementwise) for each in CASES.values())


@pytest.mark.global_rng  # torch draws the first weights
def test_a_network_learns_from_censored_times() -> None:
    """Times of which half are censored: the shape of the fit is that of all of them."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, dtype=torch.float64, generator=source)
    likelihood = Weibull(1.5)
    times = likelihood.sample(0.5 + 0.7 * x, source)[:, 0]
    watched = 3.0 * torch.rand(300, dtype=torch.float64, generator=source)
    y = torch.from_numpy(bs.Censored(torch.minimum(times, watched), times <= watched))
    pairs = torch.stack([torch.minimum(times, watched), (times <= watched).double()], 1)
    answers = []
    for targets in (y, pairs):
        module = torch.nn.Linear(1, 1).double()
        torch.nn.init.zeros_(module.weight)
        torch.nn.init.zeros_(module.bias)
        fitted = bs.fit_map(module, (x, targets), likelihood=likelihood, prior_precision=1e-3).model
        q = bs.laplace(fitted, (x, targets), likelihood=likelihood, structure="full")
        answers.append(q.predict(x).log_prob(targets))
        weights = [float(each.detach()) for each in fitted.parameters()]
        assert weights == pytest.approx([0.7, 0.5], abs=0.2)
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedError, match="crps: expected exact numbers"):
        q.predict(x).crps(y)


@pytest.mark.parametrize("shape", [0.7, 49.0, 51.0, 1e4, 1e6, 1e8])
def test_the_variance_of_nearly_certain_lifetimes_keeps_its_digits(shape: float) -> None:
    with mpmath.workdps(60):
        s = 1 / mpmath.mpf(shape)
        expected = float(mpmath.gamma(1 + 2 * s) - mpmath.gamma(1 + s) ** 2)
    for dtype, close in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        found = Weibull(shape).conditional(torch.zeros(1, 1, dtype=dtype))[1]
        assert float(found) == pytest.approx(expected, rel=close)
