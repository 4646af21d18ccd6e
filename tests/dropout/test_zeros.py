"""Zeros are followed from one tensor to the next by which mask variable they hang on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayescope.dropout.weight_decay import Dropped, Zeros
from tests.network.networks import numbers


def dropped(shape: tuple[int, ...], rate: float = 0.3, kept: int | None = None) -> tuple[Zeros, Tensor]:
    """A tensor whose numbers have masks of their own on so many of its first axes."""
    zeros, tensor = Zeros(), numbers(*shape)
    zeros.drop(numbers(*shape), tensor, rate, len(shape) if kept is None else kept)
    return zeros, tensor


def after(zeros: Zeros, function: Callable[..., Tensor], *args: Tensor) -> Dropped | None:
    result = function(*args)
    zeros.follow(result, function, args, {})
    return zeros.of(result)


def test_each_number_keeps_the_variable_that_it_hangs_on() -> None:
    zeros, x = dropped((2, 3, 4), kept=2)
    begun = zeros.of(x)
    assert begun is not None
    assert len(begun.pattern.unique()) == 6
    moved = after(zeros, lambda t: torch.tanh(t).permute(2, 0, 1).flip(0), x)
    assert moved is not None
    assert torch.equal(moved.pattern, begun.pattern.permute(2, 0, 1))
    pooled = after(zeros, lambda t: t.amax(-1), x)
    assert pooled is not None
    assert torch.equal(pooled.pattern, begun.pattern[..., 0])
    assert pooled.rate() == begun.rate() == 0.3


@pytest.mark.parametrize(
    "function", [lambda t: t.sum(0), lambda t: t.amax(0), lambda t: t.cumsum(0)[1:], torch.sigmoid]
)
def test_what_hangs_on_several_or_on_none_is_not_dropped(function: Callable[..., Tensor]) -> None:
    zeros, x = dropped((3, 4))
    assert after(zeros, function, x) is None


def test_what_is_partly_dropped_has_no_rate() -> None:
    zeros, x = dropped((3, 4))
    joined = after(zeros, lambda one, other: torch.cat([one, other]), x, numbers(1, 4))
    assert joined is not None
    assert joined.rate() == 0.0
    assert joined.rates.tolist() == [[0.3] * 4] * 3 + [[0.0] * 4]


def test_zeros_that_are_always_there_do_not_count() -> None:
    zeros, x = dropped((3, 4))
    padded = after(zeros, lambda t: torch.nn.functional.pad(t, (1, 1)), x)
    assert padded is not None
    assert padded.rate() == 0.3
    twice = torch.zeros(3, 6, dtype=torch.float64)
    zeros.drop(padded.tensor, twice, 0.5, 2)
    found = zeros.of(twice)
    assert found is not None
    assert found.rate() == pytest.approx(0.65)
    nothing = after(zeros, torch.zeros_like, x)
    assert nothing is None or nothing.rate() == 0.0


def test_a_function_that_fails_on_other_numbers_tells_nothing() -> None:
    def picky(t: Tensor) -> Tensor:
        if float(t[0, 0]) != float(x[0, 0]):
            raise ValueError("not my number")
        return t * 1.0

    zeros, x = dropped((3, 4))
    assert after(zeros, picky, x) is None
