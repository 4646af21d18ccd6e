"""Random numbers for a minibatch that several processes share, each with a part of its rows.

What is drawn for each row, as the noise of outputs and the masks of dropout are, is drawn for the whole minibatch from
random states that are alike on all processes, and each keeps its own rows' part: these are the numbers that a single
process would draw. What cannot be drawn so comes from generators of the process's own, and has the same law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor

from bayescope.private_draws.sources import RandomSource, RecomputedError, in_checkpoint

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
    return None if _settled.get() else _present()


def _present() -> Drawing | None:
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
    drawing = _present()
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
    drawing = _present()
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
