"""Whether all processes have the same network: its weights, the calls that it makes, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayescope.errors import InputError
from bayescope.network.forward import reading
from bayescope.network.inputs import call, explained, map_tensors, placed, tensors
from bayescope.network.interception import Args, Function, Kwargs, observed
from bayescope.network.shards import with_same_draws
from bayescope.processes import present

# Sums over the same weights differ by rounding where processes use other numbers of threads, which is far below this.
SAME = 1e-9
# Outputs differ by rounding, more so between kinds of processors: by less than this power of the coarsest type's
# precision, relative to the largest output. That is 1.7e-3 in float32, also where a GPU multiplies in TF32.
POWER = 0.4
# Rows of the first process that every process runs its network on.
ROWS = 8
# Calls that may name a device by its number.
MOVES = ("to", "cuda")


def require_same_shapes(module: nn.Module) -> None:
    """Checks that the parameters and buffers have the same names, shapes and types on all processes.

    Raises:
        InputError: on all processes, with the first one that differs.
    """
    processes = present()
    if processes.count > 1:
        forms = {name: f"{tuple(tensor.shape)} {_dtype(tensor)}" for name, tensor in _held(module).items()}
        _require_alike("parameters and buffers", processes.gather(forms))


def require_same_weights(module: nn.Module, *, private: bool = False) -> None:
    """Checks that all processes have the same weights and buffers; of a single one there is nothing to check.

    Args:
        module: the network.
        private: whether it is a copy that nobody else holds. Buffers are then rank 0's everywhere, as they are with
            `DistributedDataParallel`, under which the statistics of batch norm differ between processes.

    Raises:
        InputError: on all processes, with the first parameter or buffer that differs.
    """
    processes = present()
    if processes.count == 1:
        return
    require_same_shapes(module)
    buffers = dict(module.named_buffers())
    everyone = processes.gather({name: _sums(tensor) for name, tensor in _held(module).items()})
    for rank, sums in enumerate(everyone):
        for name, theirs in sums.items():
            if not (private and name in buffers) and not _alike(everyone[0][name], theirs):
                raise InputError(
                    f"model: expected the same weights and buffers on all {processes.count} processes, got others in "
                    f"{name!r} on rank {rank} than on rank 0. Load the same state_dict everywhere, or let "
                    "DistributedDataParallel share them; its buffers, such as the statistics of batch norm, differ "
                    "after a training until rank 0's are broadcast."
                )
    if private:
        processes.share(list(buffers.values()))


def require_same_function(module: nn.Module, inputs: Any) -> None:
    """Checks that all processes make the same calls to torch on rank 0's first rows, and get the same outputs.

    Outputs are not compared where the network draws random numbers of its own.

    Args:
        module: the network, with the same weights on all processes.
        inputs: some rows of this process.

    Raises:
        InputError: on all processes, with the first call that differs, or the outputs.
    """
    processes = present()
    if processes.count == 1:
        return
    lent = processes.gather([tensor[:ROWS].detach().cpu() for tensor in tensors(inputs)])
    _require_alike("inputs", [{"number of tensors": str(len(each))} for each in lent])
    first = iter(lent[0])
    common = placed(map_tensors(lambda _: next(first), inputs), module)
    made: dict[str, str] = {}
    coarsest = [0.0]

    def note(func: Function, args: Args, kwargs: Kwargs, result: object) -> None:
        """Notes a call that returns a tensor: its name, and the shapes and options that it was given.

        Numbers with a fraction are left out: computed from rows, they differ by rounding, and the outputs show them.
        Devices are left out: each process may have another one.
        """
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if found:
            name = getattr(func, "__name__", type(func).__name__)
            given = [_described(leaf) for leaf in tree_leaves((args, kwargs))]
            made[f"call {len(made) + 1}"] = f"{name}({', '.join(given[: 1 if name in MOVES else None])})"
        coarsest.extend(torch.finfo(leaf.dtype).eps for leaf in found if leaf.is_floating_point())

    def answer() -> Tensor:
        return call(module, common).detach().cpu().double()

    def answer_observed() -> Tensor:
        made.clear()
        with observed(note):
            return answer()

    with reading(module), torch.no_grad(), explained(module, common):
        answers = [with_same_draws(answer), with_same_draws(answer_observed)]
    random = not torch.equal(*answers) and not answers[0].isnan().any()
    digests = processes.gather(sha256(str(made).encode()).hexdigest())
    if len(set(digests)) > 1:
        _require_alike("calls to torch", processes.gather(made))
    everyone = processes.gather((bool(random), max(coarsest), answers[0]))
    if any(drawn for drawn, _, _ in everyone):
        return
    outputs = [each for *_, each in everyone]
    _require_alike("outputs", [{"shape": str(tuple(each.shape))} for each in outputs])
    tolerance = max(eps for _, eps, _ in everyone) ** POWER
    largest = max(outputs[0][outputs[0].isfinite()].abs().tolist(), default=0.0)
    for rank, each in enumerate(outputs):
        if not torch.allclose(each, outputs[0], rtol=tolerance, atol=tolerance * largest, equal_nan=True):
            raise InputError(
                f"model: expected the same outputs for the same rows on all {processes.count} processes, got others on "
                f"rank {rank} than on rank 0, by up to {float((each - outputs[0]).abs().max()):.3g}. Run the same code "
                "with the same constants on every rank."
            )


def _require_alike(what: str, everyone: list[Mapping[str, str]]) -> None:
    """Checks that texts by name are the same on all processes."""
    for rank, theirs in enumerate(everyone):
        for ours, other in zip_longest(everyone[0].items(), theirs.items(), fillvalue=("", "")):
            if ours != other:
                one, another = (" ".join(each) or "none" for each in (ours, other))
                raise InputError(
                    f"model: expected the same {what} on all {len(everyone)} processes, got {one} on rank 0 and "
                    f"{another} on rank {rank}. Make the same network by the same code on every rank."
                )


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {_dtype(value)}"
    if isinstance(value, str):
        return repr(value.partition(":")[0])  # of "cuda:1" the type
    return repr(value) if value is None or isinstance(value, bool | int) else type(value).__name__


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _held(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _sums(tensor: Tensor) -> list[float]:
    """Σ θ, Σ |θ| and Σ θ²."""
    values = tensor if tensor.is_floating_point() else tensor.to(torch.float64)
    sums = [part.sum(dtype=torch.float64) for part in (values, values.abs(), values.square())]
    return torch.stack(sums).tolist()


def _alike(one: list[float], other: list[float]) -> bool:
    """Whether sums differ by no more than rounding. A NaN among them is for the pass over the data to report."""
    scales = one[1:2] + one[1:]  # Σ |θ| for Σ θ
    return not any(abs(a - b) > SAME * scale for a, b, scale in zip(one, other, scales, strict=True))
