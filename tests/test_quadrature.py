"""Quadrature against mpmath's adaptive integration."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from torch import Tensor

from bayescope.errors import InputError
from bayescope.quadrature import (
    activation_nodes,
    gauss_hermite,
    gauss_legendre,
    log_expected_sigmoid,
    log_integral,
    normal_nodes,
)
from bayescope.special import inverse_mills, inverse_mills_slope, log_ndtr
from tests import reference


def _column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _sigmoid(a: Any) -> Any:
    return 1 / (1 + mpmath.exp(-a))


def _squared_probit(mean: float, sd: float) -> float:
    """E[Φ²] = Φ(k) − 2 T(k, 1/√(1 + 2sd²)) at k = mean/√(1 + sd²), with Owen's T (Owen 1980, 20,010.4)."""
    k = mean / math.hypot(1.0, sd)
    return float(special.ndtr(k) - 2 * special.owens_t(k, 1 / math.sqrt(1 + 2 * sd**2)))


# Each with its expectation under N(mean, sd²): integrated slowly, or known.
BOUNDED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float, float], Any]]] = {
    "σ": (torch.sigmoid, partial(reference.gaussian_expectation, _sigmoid)),
    "σ²": (lambda a: torch.sigmoid(a).square(), partial(reference.gaussian_expectation, lambda a: _sigmoid(a) ** 2)),
    "σ′": (
        lambda a: torch.sigmoid(a) * torch.sigmoid(-a),
        partial(reference.gaussian_expectation, lambda a: _sigmoid(a) * _sigmoid(-a)),
    ),
    "Φ": (torch.special.ndtr, lambda mean, sd: special.ndtr(mean / math.hypot(1.0, sd))),
    "Φ²": (lambda a: torch.special.ndtr(a).square(), _squared_probit),
}
# With the power of a that each grows like.
UNBOUNDED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "softplus": (torch.nn.functional.softplus, 1),
    "v": (inverse_mills, 1),
    "log Φ": (log_ndtr, 2),
}
SDS = [0.0, 0.1, 1.0, 4.0, 4.001, 10.0, 300.0, 1e4]
SCORES = [0.0, 0.013, -1.1, 5.0, -9.0]  # the mean in sds


def _expectation(h: Callable[[Tensor], Tensor], mean: float, sd: float) -> float:
    nodes, log_weights = activation_nodes(_column(mean), _column(sd**2))
    return float((log_weights.exp() * h(nodes)).sum())


@pytest.mark.parametrize("sd", SDS)
@pytest.mark.parametrize("name", BOUNDED)
def test_expectations_of_bounded_functions_are_right_to_1e_10(name: str, sd: float) -> None:
    h, expectation = BOUNDED[name]
    for score in SCORES:
        truth = expectation(score * max(sd, 1.0), sd)
        assert abs(_expectation(h, score * max(sd, 1.0), sd) - truth) < 1e-10


@pytest.mark.parametrize("sd", [0.1, 1.0, 4.0, 4.001, 10.0, 300.0, 1e4])
@pytest.mark.parametrize("name", UNBOUNDED)
def test_expectations_of_growing_functions_are_right_relative_to_their_growth(name: str, sd: float) -> None:
    h, power = UNBOUNDED[name]
    for score in (0.0, -1.1, 5.0):
        truth = _panels(h, score * sd, sd)
        assert abs(_expectation(h, score * sd, sd) - truth) < 1e-11 * (1 + abs(score * sd) + sd) ** power


@pytest.mark.parametrize("sd", [1.0, 30.0, 1e4])
def test_the_curvature_of_log_ndtr_is_integrated_to_3e_10(sd: float) -> None:
    for score in (0.0, -1.1):
        truth = _panels(inverse_mills_slope, score * sd, sd)
        assert _expectation(inverse_mills_slope, score * sd, sd) == pytest.approx(truth, abs=3e-10)


def _panels(h: Callable[[Tensor], Tensor], mean: float, sd: float) -> float:
    """Gauss–Legendre on 400 panels, graded around 0, for functions that mpmath takes too long over."""
    fractions, weights = gauss_legendre(20)
    far = torch.logspace(-1, math.log10(12 * sd + abs(mean)), 120, dtype=torch.float64)
    even = torch.linspace(mean - 9 * sd, mean + 9 * sd, 161, dtype=torch.float64)
    edges = torch.cat([-far, far, even, torch.zeros(1, dtype=torch.float64)]).sort().values
    a = edges[:-1, None] + edges.diff()[:, None] * fractions
    density = torch.exp(-0.5 * ((a - mean) / sd).square()) / (sd * math.sqrt(2 * math.pi))
    return float((edges.diff()[:, None] * weights * density * h(a)).sum())


def test_rows_of_different_widths_share_a_call() -> None:
    mean, sd = _column(0.3, -2.0, 40.0, 5e4), _column(0.0, 0.7, 25.0, 1e4)
    nodes, log_weights = activation_nodes(mean, sd.square())
    together = (log_weights.exp() * torch.sigmoid(nodes)).sum(-1)
    alone = [_expectation(torch.sigmoid, m, s) for m, s in zip(mean.tolist(), sd.tolist(), strict=True)]
    torch.testing.assert_close(together, _column(*alone), rtol=0, atol=1e-10)
    torch.testing.assert_close(log_weights.exp().sum(-1), torch.ones(4, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (nodes[0] == 0.3).all()


def test_plain_gauss_hermite_is_what_the_rule_is_for() -> None:
    nodes, log_weights = gauss_hermite(32)
    truth = reference.gaussian_expectation(_sigmoid, 4.0, 10.0)
    assert abs(float((log_weights.exp() * torch.sigmoid(4.0 + 10.0 * nodes)).sum()) - truth) > 1e-4
    assert abs(_expectation(torch.sigmoid, 4.0, 10.0) - truth) < 1e-12


@pytest.mark.parametrize(("sd", "most"), [(0.0, 22), (0.5, 22), (1.0, 28), (4.0, 100), (1e4, 112)])
def test_the_number_of_nodes_stays_small(sd: float, most: int) -> None:
    assert activation_nodes(_column(0.0), _column(sd**2))[0].shape[-1] <= most


def test_shapes_are_those_of_the_mean_with_the_nodes_last() -> None:
    for sd in (0.5, 50.0):
        for shape in [(), (0,), (1,), (2, 3)]:
            mean = torch.zeros(shape, dtype=torch.float64)
            nodes, log_weights = activation_nodes(mean, torch.full_like(mean, sd**2))
            assert nodes.shape == log_weights.shape == (*shape, nodes.shape[-1])
            assert log_expected_sigmoid(mean, torch.full_like(mean, sd**2)).shape == shape


# A pair is (mean, sd). The mean −1000 at sd 20 has its integrand's mode at −600, twenty sds from the mean.
TAILS = [
    (-1000.0, 20.0),
    (-200.0, 20.0),
    (-199.0, 20.0),
    (-60.0, 20.0),
    (-30.0, 1.0),
    (-0.5, 1.0),
    (-8.1, 4.0),
    (-100.0, 4.1),
    (3.0, 4.1),
    (-1e6, 300.0),
    (-45000.0, 300.0),
    (-5e7, 1e4),
    (-1e5, 1e4),
    (-3e4, 1e4),
    (0.0, 1e4),
    (2e4, 1e4),
    (-1e7, 0.1),
]


@pytest.mark.parametrize(("mean", "sd"), TAILS)
def test_log_expected_sigmoid_is_right_to_1e_10_relative_in_the_probability(mean: float, sd: float) -> None:
    got = log_expected_sigmoid(_column(mean), _column(sd**2)).item()
    truth = reference.log_expected_sigmoid(mean, sd)
    assert abs(got - truth) < 1e-10 + 4e-16 * abs(float(truth))  # beyond that, the logarithm cannot be told in float64


@given(st.floats(-50, 50), st.floats(-4, 4))
def test_log_expected_sigmoid_anywhere(score: float, log_sd: float) -> None:
    sd = 10.0**log_sd
    mean, variance = _column(score * sd), _column(sd**2)
    p, q = log_expected_sigmoid(mean, variance).exp(), log_expected_sigmoid(-mean, variance).exp()
    assert (p + q).item() == pytest.approx(1.0, abs=1e-11)
    if score * sd > -30 and score > -7:
        assert p.item() == pytest.approx(_panels(torch.sigmoid, score * sd, sd), rel=1e-8)


def test_log_expected_sigmoid_of_a_point_is_log_sigmoid() -> None:
    mean = _column(-800.0, -1.0, 0.0, 2.0, 50.0)
    expected = torch.nn.functional.logsigmoid(mean)
    torch.testing.assert_close(log_expected_sigmoid(mean, torch.zeros_like(mean)), expected, rtol=1e-15, atol=0)
    torch.testing.assert_close(log_expected_sigmoid(mean, torch.full_like(mean, 1e-300)), expected, rtol=1e-13, atol=0)


def test_the_sure_side_keeps_the_distance_to_one() -> None:
    got = log_expected_sigmoid(_column(60.0), _column(4.0)).item()
    with mpmath.workdps(60):
        truth = mpmath.log1p(-mpmath.exp(reference.log_expected_sigmoid(-60.0, 2.0)))
    assert got == pytest.approx(float(truth), rel=1e-10)  # −6e-26


def test_gradients_of_log_expected_sigmoid_follow_stein() -> None:
    mean, variance = _column(-3.0, 0.5, -40.0), _column(0.25, 9.0, 400.0)
    slope = torch.autograd.functional.jacobian(lambda m: log_expected_sigmoid(m, variance).exp().sum(), mean)
    nodes, log_weights = activation_nodes(mean, variance)
    expected = (log_weights.exp() * torch.sigmoid(nodes) * torch.sigmoid(-nodes)).sum(-1)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-9)


def test_a_million_rows_need_little_memory() -> None:
    rows = 10**6
    mean = torch.zeros(1, dtype=torch.float64).expand(rows)
    answer = log_expected_sigmoid(mean, torch.ones(1, dtype=torch.float64).expand(rows))
    torch.testing.assert_close(answer, torch.full_like(answer, math.log(0.5)), rtol=1e-11, atol=0)


@pytest.mark.parametrize("rule", [activation_nodes, log_expected_sigmoid])
def test_negative_variances_and_other_shapes_are_refused(rule: Callable[[Tensor, Tensor], Any]) -> None:
    with pytest.raises(InputError, match=r"variance: expected no negative entries, got -0\.1"):
        rule(_column(0.0, 0.0), _column(1.0, -0.1))
    with pytest.raises(InputError, match="variance: expected the mean's shape"):
        rule(_column(0.0, 0.0), _column(1.0))


def test_gauss_rules_are_exact_for_their_polynomials() -> None:
    nodes, log_weights = gauss_hermite(8)
    for power, moment in ((0, 1), (2, 1), (7, 0), (14, 135135)):
        assert float((log_weights.exp() * nodes**power).sum()) == pytest.approx(moment, rel=1e-12, abs=1e-9)
    fractions, weights = gauss_legendre(8)
    assert float((weights * fractions**15).sum()) == pytest.approx(1 / 16, rel=1e-13)


@pytest.mark.global_rng
def test_normal_nodes_are_normal_fixed_and_apart_from_the_global_generators() -> None:
    nodes = normal_nodes(3, 1024)
    torch.manual_seed(1)
    assert torch.equal(nodes, normal_nodes.__wrapped__(3, 1024))
    assert not torch.equal(nodes, normal_nodes(3, 1024, seed=1))
    assert nodes.shape == (1024, 3)
    # Means of plain draws would be off by 1/32.
    assert nodes.mean(0).abs().max() < 2e-3
    assert (nodes.mT @ nodes / 1024 - torch.eye(3)).abs().max() < 2e-2


def test_normal_nodes_ask_for_a_power_of_two() -> None:
    with pytest.raises(InputError, match="n: expected a power of two, got 100"):
        normal_nodes(2, 100)


def _log_normal(z: Tensor, centre: float, sd: float) -> Tensor:
    return -0.5 * ((z - centre) / sd).square() - math.log(sd * math.sqrt(2 * math.pi))


def _log_gumbel(z: Tensor, centre: float, scale: float) -> Tensor:
    score = (z - centre) / scale
    return -score - torch.exp(-score) - math.log(scale)


# Normalised densities, by name: with where their interval begins and ends.
PEAKS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "normal": (lambda z: _log_normal(z, 0.0, 1.0), -12.0, 12.0),
    "far": (lambda z: _log_normal(z, 70.0, 0.5), -100.0, 100.0),
    "needle": (lambda z: _log_normal(z, 1234.5, 1e-3), -1e5, 1e6),
    "skewed": (lambda z: _log_gumbel(z, 2.0, 0.1), -40.0, 40.0),
    "two peaks": (
        lambda z: torch.logaddexp(_log_normal(z, -4.0, 0.5), _log_normal(z, 4.0, 1.0)) - math.log(2),
        -30.0,
        30.0,
    ),
}


@pytest.mark.parametrize("name", PEAKS)
def test_a_peak_is_found_and_integrated(name: str) -> None:
    log_density, low, high = PEAKS[name]
    got = log_integral(log_density, _column(low), _column(high)).item()
    assert got == pytest.approx(0.0, abs=1e-9)


def test_each_integral_has_its_own_interval_and_an_empty_one_is_zero() -> None:
    centre, log_size = _column(-1000.0, 0.0, 3.0), _column(-2000.0, 0.0, 700.0)
    got = log_integral(
        lambda z: log_size[:, None] - 0.5 * (z - centre[:, None]).square(), centre - 500.0, centre + 30.0
    )
    torch.testing.assert_close(got, log_size + 0.5 * math.log(2 * math.pi), rtol=0, atol=1e-9)
    nothing = log_integral(lambda z: torch.full_like(z, -math.inf), _column(0.0), _column(1.0))
    assert nothing.item() == -math.inf


def test_the_nodes_are_no_part_of_the_derivative() -> None:
    centre = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    value = log_integral(lambda z: -0.5 * (z - centre).square() + z, centre - 30.0, centre + 30.0)
    (slope,) = torch.autograd.grad(value.sum(), centre)
    assert slope.item() == pytest.approx(1.0, abs=1e-9)  # log ∫ is centre + ½ and a constant
