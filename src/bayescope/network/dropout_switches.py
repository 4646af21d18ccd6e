"""Modules that call dropout in train mode alone, and so have to be in it where dropout is to stay on.

Most code calls ``F.dropout(x, p, training=self.training)``, which is seen in either mode. Attention is often given
``dropout_p=self.p if self.training else 0.0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayescope.errors import BayescopeError, UnsupportedError
from bayescope.network.dropout import stacked
from bayescope.network.dropout_calls import Call, DropoutCalls
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import call, take_rows


class Switches(NamedTuple):
    """What it takes to have all of a network's dropout on, and nothing else.

    Attributes:
        modules: those that have to be in train mode for it to be called.
        off: the calls, by their place in a pass, that drop nothing in train mode either.
    """

    modules: list[nn.Module]
    off: frozenset[int]


def switches_of(module: nn.Module, x: Any) -> Switches:
    """The modules that have to be in train mode for all dropout to be called, found on two rows; none as a rule.

    Raises:
        UnsupportedError: if some of it is not called even so.
    """
    candidates = [part for part in module.modules() if not type(part).__module__.startswith("torch.nn.")]
    if not candidates:
        return Switches([], frozenset())
    rows = stacked(take_rows(x, slice(0, 1)), take_rows(x, slice(-1, None)))
    in_eval = _counts(_own_calls(module, rows, []))
    try:
        train = [part for part in module.modules() if not isinstance(part, _NormBase)]
        called = _own_calls(module, rows, train)
    except (BayescopeError, RuntimeError, ValueError, TypeError):  # what only training can do, such as other outputs
        return Switches([], frozenset())
    in_train = _counts(called)
    switched = [part for part in candidates if in_train[id(part)] > in_eval[id(part)]]
    read = _own_calls(module, rows, switched)
    missing = in_train - _counts(read)
    if missing:
        raise UnsupportedError(
            "model: expected dropout that is called in eval mode too, or by a module that asks for its own mode, got "
            f"{missing.total()} calls in train mode alone. Call F.dropout(x, p, training=self.training)."
        )
    return Switches(switched, _off(called, read))


def _off(called: Sequence[tuple[int, bool]], read: Sequence[tuple[int, bool]]) -> frozenset[int]:
    """The places of those calls that the same module makes in train mode without dropping anything."""
    flags: dict[int, list[bool]] = {}
    for owner, training in called:
        flags.setdefault(owner, []).append(training)
    alike = {owner for owner, count in _counts(read).items() if count == len(flags.get(owner, []))}
    left = {owner: iter(flags[owner]) for owner in alike}
    return frozenset(place for place, (owner, _) in enumerate(read) if owner in left and not next(left[owner]))


def _counts(calls: Sequence[tuple[int, bool]]) -> Counter[int]:
    return Counter(owner for owner, _ in calls)


@contextmanager
def switched_on(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Modules in train mode by themselves, without those that they hold, inside of a reading, which puts it back."""
    for part in modules:
        part.training = True
    yield


def _own_calls(module: nn.Module, rows: Any, switched: Sequence[nn.Module]) -> list[tuple[int, bool]]:
    """The calls of dropout in order: the id of the module whose own code makes it, and whether it is to drop."""
    running: list[nn.Module] = []
    found: list[tuple[int, bool]] = []

    def note(one: Call) -> Tensor:
        found.append((id(running[-1]), one.training))
        return one.input

    def leave(*_: Any) -> None:
        running.pop()

    handles = []
    for part in module.modules():
        handles.append(part.register_forward_pre_hook(lambda part, _: running.append(part)))
        handles.append(part.register_forward_hook(leave, always_call=True))
    try:
        # A reading of its own: what train mode writes into buffers is put back before anything else is read.
        with reading(module), torch.no_grad(), switched_on(switched), DropoutCalls(note):
            call(module, owned(rows, copy=True))
    finally:
        for handle in handles:
            handle.remove()
    return found
