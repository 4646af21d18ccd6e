"""Modules that call dropout in train mode alone, and so have to be in it where dropout is to stay on.

Most code calls ``F.dropout(x, p, training=self.training)``, which is seen in either mode. Attention is often given
``dropout_p=self.p if self.training else 0.0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayescope.errors import BayescopeError, UnsupportedError
from bayescope.network.dropout import stacked
from bayescope.network.dropout_calls import Call, DropoutCalls
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import call, take_rows


def switched_modules(module: nn.Module, x: Any) -> list[nn.Module]:
    """The modules that have to be in train mode for all dropout to be called, found on two rows; none as a rule.

    Raises:
        UnsupportedError: if some of it is not called even so.
    """
    candidates = [part for part in module.modules() if not type(part).__module__.startswith("torch.nn.")]
    if not candidates:
        return []
    rows = stacked(take_rows(x, slice(0, 1)), take_rows(x, slice(-1, None)))
    in_eval = _counts(module, rows, [])
    try:
        in_train = _counts(module, rows, [part for part in module.modules() if not isinstance(part, _NormBase)])
    except (BayescopeError, RuntimeError, ValueError, TypeError):  # what only training can do, such as other outputs
        return []
    switched = [part for part in candidates if in_train[id(part)] > in_eval[id(part)]]
    missing = in_train - _counts(module, rows, switched)
    if missing:
        raise UnsupportedError(
            "model: expected dropout that is called in eval mode too, or by a module that asks for its own mode, got "
            f"{missing.total()} calls in train mode alone. Call F.dropout(x, p, training=self.training)."
        )
    return switched


@contextmanager
def switched_on(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Modules in train mode by themselves, without those that they hold, inside of a reading, which puts it back."""
    for part in modules:
        part.training = True
    yield


def _counts(module: nn.Module, rows: Any, switched: Sequence[nn.Module]) -> Counter[int]:
    """How often each module, by its id, calls dropout in its own code."""
    running: list[nn.Module] = []
    found: Counter[int] = Counter()

    def note(one: Call) -> Tensor:
        found[id(running[-1])] += 1
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
