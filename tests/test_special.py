"""log Φ and its ratios against mpmath, down to s = −10⁴ and up to 40."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayescope.special import inverse_mills, inverse_mills_slope, log_ndtr
from tests.reference import log_ndtr_chain, relative_error

FUNCTIONS = {"log_ndtr": log_ndtr, "inverse_mills": inverse_mills, "inverse_mills_slope": inverse_mills_slope}
# Around the branches at −7 (here), −1 (torch) and 0, far out on both sides, and where exp(−s²/2) is still normal.
POINTS = [
    -1e4,
    -3e3,
    -200.0,
    -40.0,
    -38.5,
    -20.0,
    -7.0001,
    -7.0,
    -6.9999,
    -3.0,
    -1.0,
    -1e-8,
    0.0,
    1e-8,
    1.0,
    5.0,
    8.3,
    20.0,
    37.0,
]


def _float64(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("s", POINTS)
def test_values_equal_mpmath_to_1e_12_relative(s: float) -> None:
    for function, truth in zip(FUNCTIONS.values(), log_ndtr_chain(s), strict=True):
        assert relative_error(function(_float64(s)).item(), truth) < 1e-12


@given(st.floats(-1e4, 37.0))
def test_values_equal_mpmath_anywhere(s: float) -> None:
    for function, truth in zip(FUNCTIONS.values(), log_ndtr_chain(s), strict=True):
        assert relative_error(function(_float64(s)).item(), truth) < 1e-12


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_upper_tail_runs_out_of_numbers_without_nan(name: str) -> None:
    value = FUNCTIONS[name](_float64(40.0)).item()
    assert abs(value) < 1e-300  # the truth is 1e-346


@pytest.mark.parametrize("s", [-1e4, -40.0, -7.0001, -6.9999, 0.0, 5.0])
def test_automatic_differentiation_keeps_the_accuracy(s: float) -> None:
    at = _float64(s).requires_grad_()
    (slope,) = torch.autograd.grad(log_ndtr(at), at, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, at)
    _, ratio, ratio_slope = log_ndtr_chain(s)
    assert relative_error(slope.item(), ratio) < 1e-12
    assert relative_error(-curvature.item(), ratio_slope) < 1e-12


@pytest.mark.parametrize("s", [-1e3, -40.0, -7.0001, -6.9999, 0.0, 5.0])
def test_the_third_derivative_is_the_slope_of_the_second(s: float) -> None:
    at = _float64(s).requires_grad_()
    (third,) = torch.autograd.grad(inverse_mills_slope(at), at)
    _, v, w = log_ndtr_chain(s)
    with mpmath.workdps(60):
        truth = -w * (w / v) + v * (1 - w)  # w' = v' (s + v) + v (1 + v')
    assert relative_error(third.item(), truth) < 1e-9


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, at its first forward mode
def test_function_transforms_agree_with_plain_autograd() -> None:
    s = torch.linspace(-12, 6, 7, dtype=torch.float64)
    slope = torch.func.vmap(torch.func.grad(log_ndtr))(s)
    torch.testing.assert_close(slope, inverse_mills(s), rtol=1e-14, atol=0)
    hessian = torch.func.hessian(lambda x: log_ndtr(x).sum())(s)
    torch.testing.assert_close(hessian, torch.diag(-inverse_mills_slope(s)), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dtype_and_shape_are_kept(name: str) -> None:
    s = torch.tensor([[-50.0, -8.0, 0.5]])
    assert FUNCTIONS[name](s).dtype == torch.float32
    torch.testing.assert_close(FUNCTIONS[name](s).double(), FUNCTIONS[name](s.double()), rtol=2e-5, atol=0)
    assert FUNCTIONS[name](s[:0]).shape == (0, 3)
