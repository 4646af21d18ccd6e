"""Where the random numbers of a fit or a query come from: generators of our own, and never torch's global ones.

The global generators belong to the whole process: while one thread has them forked, another one sees numbers twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from bayescope.errors import BayescopeError


class RecomputedError(BayescopeError):
    """Random numbers were asked for inside of torch.utils.checkpoint.

    The checkpoint runs a part of the network again in the backward pass, maybe in another thread, and restores torch's
    global random states for it. Numbers from other generators would be different ones then.
    """


def in_checkpoint() -> bool:
    """Whether the caller is run by torch.utils.checkpoint, in a network that we call or in its backward pass."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (name := frame.f_globals.get("__name__")) != "bayescope.network.inputs":
        if name == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


@final
class RandomSource:
    """A generator for each device, all begun at one seed: the source of the random numbers of a fit or a query.

    Two things draw from torch's global generators and from no others: fused kernels on a GPU, and the backward pass of
    torch.utils.checkpoint. For them the state of a global generator is exchanged for one that is kept here, while the
    block of `inside` lasts.

    Args:
        seed: of all generators.
        gpus: whose global generators take part.
        globally: whether the CPU's global generator does.
        fit: whether a backward pass may follow, so that numbers that it would draw again are refused.
    """

    def __init__(self, seed: int, gpus: Sequence[int] = (), *, globally: bool = False, fit: bool = False) -> None:
        self.seed, self.fit = seed, fit
        self._generators: dict[torch.device, torch.Generator] = {}
        self._kept: dict[torch.Generator, Tensor] = {}
        for index in gpus:
            self._exchange_for(torch.device("cuda", index), torch.cuda.default_generators[index])
        if globally:
            self._exchange_for(torch.device("cpu"), torch.default_generator)

    @property
    def globally(self) -> bool:
        """Whether numbers on the CPU come from torch's global generator."""
        return torch.default_generator in self._kept

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator of a device."""
        found = self._generators.get(device)
        if found is None:
            found = self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return found

    @contextmanager
    def inside(self) -> Iterator[Self]:
        """Random numbers of this library, of the networks that it calls and of data come from here inside."""
        token = _present.set(self)
        self._exchange(self._kept)
        try:
            yield self
        finally:
            self._exchange(self._kept)
            _present.reset(token)

    def hand_over(self) -> None:
        """Has the numbers on the CPU come from torch's global generator until the block of `inside` ends."""
        if not self.globally:
            self._exchange_for(torch.device("cpu"), torch.default_generator)
            self._exchange([torch.default_generator])

    def states(self) -> dict[str, Tensor]:
        """The states of the generators, the CPU's first."""
        self.generator(torch.device("cpu"))
        return {str(device): self._generators[device].get_state() for device in sorted(self._generators, key=str)}

    def restore(self, states: Mapping[str, Tensor]) -> None:
        """Sets the generators to given states."""
        for device, state in states.items():
            self.generator(torch.device(device)).set_state(state)

    def _exchange_for(self, device: torch.device, other: torch.Generator) -> None:
        self._kept[other] = self.generator(device).get_state()
        self._generators[device] = other

    def _exchange(self, generators: Iterable[torch.Generator]) -> None:
        for generator in generators:
            state = generator.get_state()
            generator.set_state(self._kept[generator])
            self._kept[generator] = state


_present: ContextVar[RandomSource | None] = ContextVar("the source of random numbers", default=None)
differentiated: ContextVar[bool] = ContextVar("a backward pass may follow the present call", default=False)


def present_source() -> RandomSource | None:
    """The source of random numbers of the present fit or query; ``None`` outside of them."""
    return _present.get()


def generator_on(device: torch.device) -> torch.Generator | None:
    """The generator that this library draws from on a device; ``None``, torch's global one, outside of fits."""
    present = _present.get()
    return None if present is None else present.generator(device)


def standard_normal(shape: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers on the device and in the dtype of a tensor."""
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator_on(like.device))


def source_of_numbers() -> RandomSource:
    """The present source, for numbers that are drawn once.

    Raises:
        RecomputedError: if a backward pass may draw them again.
    """
    source = _present.get()
    assert source is not None
    if differentiated.get() and in_checkpoint():
        raise RecomputedError("expected random numbers outside of torch.utils.checkpoint, got some inside.")
    return source


# Random numbers for a minibatch that several processes share, each with a part of its rows.
#
# What is drawn for each row, as the noise of outputs and the masks of dropout are, is drawn for the whole minibatch
# from random states that are alike on all processes, and each keeps its rows' part: these are the numbers that a single
# process would draw. What cannot be drawn so comes from generators of the process's own, and has the same law.

Draw = Callable[[Sequence[int]], Tensor]


@final
@dataclass(frozen=True)
class Cut:
    """A minibatch that is cut into the parts of several processes.

    Attributes:
        rows: B, of the whole minibatch.
        local: which of them this process has.
    """

    rows: int
    local: slice

    @property
    def count(self) -> int:
        """How many rows this process has."""
        return self.local.stop - self.local.start


class Drawing(NamedTuple):
    """How random numbers are drawn at present.

    Attributes:
        cut: of the minibatch.
        local: the generators for what cannot be drawn for the whole minibatch.
        backward: whether a backward pass follows.
    """

    cut: Cut
    local: RandomSource
    backward: bool


_drawing: ContextVar[Drawing | None] = ContextVar("a minibatch that processes share", default=None)
_settled: ContextVar[bool] = ContextVar("how the numbers that are being drawn are shared is settled", default=False)


@contextmanager
def drawing(cut: Cut | None, local: RandomSource | None, *, backward: bool = True) -> Iterator[None]:
    """How the rows of a process get their random numbers inside.

    Args:
        cut: where they are in a minibatch of all processes, for numbers that are those of a single process; ``None``
            where they are no part of one.
        local: this process's generators; ``None`` for a single process.
        backward: whether a backward pass follows.

    Raises:
        RecomputedError: from inside, if there is a cut, and a backward pass that would draw other numbers.
    """
    if local is None or cut is None:
        with nullcontext() if local is None else local.inside():
            yield
        return
    token = _drawing.set(Drawing(cut, local, backward))
    try:
        yield
    finally:
        _drawing.reset(token)


def unsettled() -> Drawing | None:
    """How numbers are to be drawn for a part of a minibatch; ``None`` for a whole one.

    ``None`` too while a function of this file draws: it has settled how its numbers are shared.
    """
    return None if _settled.get() else _shared()


def _shared() -> Drawing | None:
    drawing = _drawing.get()
    if drawing is not None and drawing.backward and in_checkpoint():
        raise RecomputedError("expected random numbers outside of torch.utils.checkpoint, got some inside.")
    return drawing


def for_all(draw: Callable[[], Tensor]) -> Tensor:
    """Numbers that all rows have in common, such as a draw of the weights: alike on all processes."""
    if _drawing.get() is None:
        return draw()
    with _settling():
        return draw()


def by_row(draw: Draw, shape: Sequence[int], axis: int) -> Tensor:
    """Numbers of which each row has its own, in the given shape.

    Args:
        draw: from a shape to numbers.
        shape: of what is wanted.
        axis: that of the rows. Where it has another length than this process has rows, it is no axis of rows, and each
            process draws for itself.
    """
    drawing = _shared()
    if drawing is None:
        return draw(shape)
    cut = drawing.cut
    if shape[axis] != cut.count:
        return by_process(lambda: draw(shape))
    with _settling():
        whole = draw([*shape[:axis], cut.rows, *shape[axis + 1 :]])
    return whole.narrow(axis, cut.local.start, cut.count)


def by_process(draw: Callable[[], Tensor]) -> Tensor:
    """Numbers that each process draws for itself."""
    drawing = _shared()
    if drawing is None:
        return draw()
    with _settling(), drawing.local.inside():
        return draw()


@contextmanager
def _settling() -> Iterator[None]:
    token = _settled.set(True)
    try:
        yield
    finally:
        _settled.reset(token)
