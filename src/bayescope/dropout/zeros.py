"""What dropout sets to zero, followed through the functions of a network by trying them out.

Each mask variable gets a random pattern of `BITS` bits, and each number of a tensor behind dropout the pattern of the
variable that it hangs on. A function is called once a bit, with all numbers whose pattern has the bit set to zero: the
zeros that come out, bit by bit, are the pattern of each output. It is that of a known variable if the output is zero
exactly where this variable is; a sum, or a maximum, of several has a pattern that nobody knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from bayescope.network.inputs import map_tensors, tensors

# Two patterns of a million are alike, or make a third one together, with a probability of 1e-3 and less.
BITS = 48
_ALL = (1 << BITS) - 1


class Dropped(NamedTuple):
    """A tensor behind dropout.

    Attributes:
        tensor: itself, whose id no other may get meanwhile.
        pattern: of each number, int64: that of its mask variable, 0 where it is never dropped, all bits where it is
            zero whatever is dropped.
        rates: the probability that each is dropped; infinite where it is always zero.
    """

    tensor: Tensor
    pattern: Tensor
    rates: Tensor

    def rate(self) -> float:
        """The least rate at which its numbers are dropped, those that are always zero aside."""
        least = float(self.rates.min())
        return least if math.isfinite(least) else 0.0


def _has(pattern: Tensor, bit: int) -> Tensor:
    return ((pattern >> bit) & 1).bool()


@final
class Zeros:
    """Which tensors of one forward pass are behind dropout."""

    def __init__(self) -> None:
        self._found: dict[int, Dropped] = {}
        self._source = torch.Generator().manual_seed(0)

    def of(self, tensor: Any) -> Dropped | None:
        """What is known of a tensor; ``None`` where it is not behind dropout."""
        return self._found.get(id(tensor))

    def forget(self, tensor: Any) -> None:
        """A tensor that was written over."""
        self._found.pop(id(tensor), None)

    def drop(self, before: Tensor, after: Tensor, rate: float, kept: int) -> None:
        """Notes the result of a call of dropout.

        Args:
            before: its input, which may be behind dropout already: both have to keep a number.
            after: its result.
            rate: r.
            kept: on how many of the first axes a mask has entries of its own.
        """
        shape = [*after.shape[:kept], *[1] * (after.ndim - kept)]
        own = self._patterns(torch.Size(shape).numel()).reshape(shape).expand(after.shape)
        pattern, rates = own, torch.full(after.shape, rate, dtype=torch.float64)
        earlier = self.of(before)
        if earlier is not None:
            pairs = torch.stack([own.flatten(), earlier.pattern.flatten()], 1)
            _, place = pairs.unique(dim=0, return_inverse=True)
            pattern = self._patterns(int(place.max()) + 1)[place].reshape(after.shape)
            pattern = torch.where(earlier.pattern == _ALL, _ALL, pattern)
            rates = torch.where(earlier.rates.isfinite(), rate + earlier.rates - rate * earlier.rates, math.inf)
        self._found[id(after)] = Dropped(after, pattern, rates)

    def follow(self, result: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Notes the result of a function some of whose arguments are behind dropout."""
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        behind = [found for tensor in tensors((args, kwargs)) if (found := self.of(tensor)) is not None]
        pattern = self._zeros(result.shape, func, args, kwargs) if behind and result.numel() else None
        self.forget(result)  # which may be an argument that was written over
        if pattern is None:
            return
        known = torch.cat([torch.tensor([0, _ALL]), *[found.pattern.flatten() for found in behind]])
        ends = torch.tensor([0.0, math.inf], dtype=torch.float64)
        rates = torch.cat([ends, *[found.rates.flatten() for found in behind]])
        known, order = known.sort(stable=True)
        place = torch.searchsorted(known, pattern.flatten()).clamp(max=len(known) - 1)
        same = known[place] == pattern.flatten()
        of_each = torch.where(same, rates[order[place]], 0.0).reshape(pattern.shape)
        if bool((of_each > 0).any()):
            pattern = torch.where(same.reshape(pattern.shape), pattern, 0)
            self._found[id(result)] = Dropped(result, pattern, of_each)

    def _patterns(self, count: int) -> Tensor:
        return torch.randint(1, _ALL, (count,), generator=self._source)

    def _zeros(self, shape: torch.Size, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
        """The pattern of each output, or ``None`` where none is ever zero.

        All tensors but those behind dropout are random, so that a bias that happens to be zero is not taken for one
        that stays so; and each trial is made with both signs, so that what is below zero is not taken for dropped.
        """
        numbers = {id(t): self._numbers(t) for t in tensors((args, kwargs)) if t.is_floating_point()}

        def zero(dropped: Callable[[Tensor], Tensor]) -> Tensor:
            outputs = []
            for sign in (1.0, -1.0):

                def tried(tensor: Tensor, sign: float = sign) -> Tensor:
                    found = self.of(tensor)
                    if found is None:
                        return numbers.get(id(tensor), tensor).clone()
                    away = dropped(found.pattern).to(tensor.device)
                    return torch.where(away, 0.0, sign * numbers[id(tensor)]).to(tensor.dtype)

                outputs.append(func(*map_tensors(tried, tuple(args)), **map_tensors(tried, kwargs)) == 0)
            return (outputs[0] & outputs[1]).cpu()

        try:
            ever = zero(lambda pattern: pattern != 0)
            if ever.shape != shape or not ever.any():
                return None
            found = torch.zeros(shape, dtype=torch.int64)
            for bit in range(BITS):
                found |= zero(partial(_has, bit=bit)).to(torch.int64) << bit
        except (RuntimeError, ValueError, TypeError, IndexError):  # a function that random numbers are no input of
            return None
        return found

    def _numbers(self, like: Tensor) -> Tensor:
        """Random numbers of either sign, none of them near zero."""
        size = 1.0 + torch.rand(like.shape, dtype=torch.float64, generator=self._source)
        signs = 1.0 - 2.0 * torch.randint(2, like.shape, generator=self._source)
        return (size * signs).to(like)
