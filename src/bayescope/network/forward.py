"""One forward pass under the recorder, and the cotangents of its sites."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network.guard import check_readable, lent, untouched
from bayescope.network.inputs import Inputs, call, map_tensors
from bayescope.network.notes import Computing, Notes
from bayescope.network.recorder import recorder
from bayescope.network.sites import Target
from bayescope.network.vectorising import pull_back
from bayescope.process_state import WhileAnyone

_Inputs = TypeVar("_Inputs", bound=Inputs)


@contextmanager
def reading(module: nn.Module) -> Iterator[None]:
    """The state in which a network is read, whatever the caller's: eval mode, no inference mode, left as found.

    What has been compiled runs as it was written, so that its calls to torch are seen.

    Raises:
        BayescopeError: as `check_readable`.
    """
    written = lent(module)
    if written is None:
        check_readable(module)
    with nullcontext() if written is False else eager(), torch.inference_mode(False), untouched(module):
        yield


def eager() -> AbstractContextManager[None]:
    """What has been compiled runs as it was written."""
    compiled = "torch._dynamo" in sys.modules  # else nothing can have been compiled, and importing it takes seconds
    return _EAGER.inside() if compiled else nullcontext()


_EAGER: WhileAnyone[Any] = WhileAnyone(lambda: torch.compiler.set_stance("force_eager"))


def compiled(module: nn.Module) -> bool:
    """Whether a part of a network has been compiled, so that its calls to torch are not seen."""
    if "torch._dynamo" not in sys.modules:  # importing it takes seconds
        return False
    parts = list(module.modules())
    return any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None for part in parts)


def forward(
    module: nn.Module,
    names: frozenset[str],
    inputs: Inputs,
    overwritten: frozenset[Hashable] = frozenset(),
    computing: Computing | None = None,
) -> tuple[Tensor, Notes]:
    """Runs a network with some parameters random.

    Args:
        module: the network.
        names: the random parameters that sites are noted for; all others count as fixed.
        inputs: a batch.
        overwritten: the sites whose inputs the network writes over afterwards.
        computing: what is noted of calls that take weights alone.

    Returns:
        f with its graph, and the notes of the sites.
    """
    named = list(module.named_parameters())
    random = {id(parameter): (name, parameter) for name, parameter in named if name in names}
    fixed = {id(parameter): parameter for name, parameter in named if name not in names}
    notes = Notes(random, fixed, overwritten, computing, module.buffers())
    with torch.enable_grad(), recorder(notes):
        f = call(module, inputs)
    return f, notes


def owned(inputs: _Inputs, *, copy: bool) -> _Inputs:
    """The inputs without gradients; as copies where the network writes over them or they belong to inference mode."""

    def detached(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if copy or tensor.is_inference() else tensor.detach()

    return map_tensors(detached, inputs)


def cotangents(f: Target, targets: Sequence[Target], seeds: Tensor) -> list[Tensor | None]:
    """The gradients of Σ s_k · f at each target, (K, *shape), or ``None`` where f does not depend on it.

    Args:
        f: the outputs, or the node behind something inside the network.
        targets: the nodes or leaves.
        seeds: s, shape (K, *f).

    Raises:
        UnsupportedError: if torch cannot differentiate the network from the recorded pass alone.
    """
    if not targets or (isinstance(f, Tensor) and not f.requires_grad):
        return [None] * len(targets)
    try:
        return pull_back(f, targets, seeds)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnsupportedError(
            f"model: expected a network whose backward pass runs by itself, got: {error} Turn activation checkpointing "
            "off (`gradient_checkpointing_disable()`), and change no activations in place that a gradient needs."
        ) from error
