"""One forward pass under the recorder, and the cotangents of its sites."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.network.guard import untouched
from bayescope.network.inputs import call, map_tensors
from bayescope.network.notes import Notes
from bayescope.network.pullback import pull_back
from bayescope.network.recorder import Recorder
from bayescope.network.sites import Site, Target


@contextmanager
def reading(module: nn.Module) -> Iterator[None]:
    """The state in which a network is read, whatever the caller's: eval mode, no inference mode, left as found."""
    with torch.inference_mode(False), untouched(module):
        yield


def forward(
    module: nn.Module, names: frozenset[str], inputs: Any, overwritten: frozenset[Hashable] = frozenset()
) -> tuple[Tensor, list[Site]]:
    """Runs a network with some parameters random.

    Args:
        module: the network.
        names: the random parameters that sites are noted for; all others count as fixed.
        inputs: a batch.
        overwritten: the sites whose inputs the network writes over afterwards.

    Returns:
        f with its graph, and the sites in the order of execution.
    """
    named = list(module.named_parameters())
    random = {id(parameter): (name, parameter) for name, parameter in named if name in names}
    notes = Notes(random, {id(parameter): parameter for name, parameter in named if name not in names}, overwritten)
    with torch.enable_grad(), Recorder(notes):
        f = call(module, inputs)
    return f, notes.sites


def owned(inputs: Any, *, copy: bool) -> Any:
    """The inputs without gradients; as copies where the network writes over them or they belong to inference mode."""

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if copy or tensor.is_inference() else tensor.detach()

    return map_tensors(own, inputs)


def cotangents(f: Tensor, targets: Sequence[Target], seeds: Tensor) -> list[Tensor | None]:
    """The gradients of Σ s_k · f at each target, (K, *shape), or ``None`` where f does not depend on it."""
    if not targets or not f.requires_grad:
        return [None] * len(targets)
    if len(seeds) > 1:
        try:
            return pull_back(f, targets, seeds)
        except RuntimeError:  # a backward pass that takes one cotangent at a time
            pass
    each = [torch.autograd.grad(f, list(targets), s, retain_graph=True, allow_unused=True) for s in seeds]
    return [None if of_one[0] is None else torch.stack(of_one) for of_one in zip(*each, strict=True)]
