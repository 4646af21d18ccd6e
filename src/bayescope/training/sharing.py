"""What processes have to have in common before they train together: weights, and where random numbers come from."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bayescope.module_copies import module_copy
from bayescope.network.shards import require_same_shapes
from bayescope.private_draws import RandomSource, present_source
from bayescope.processes import Processes, present


def share_start(module: nn.Module, generator: torch.Generator) -> torch.Generator:
    """Gives the module on every process rank 0's parameters and buffers, and the generator the state of rank 0's.

    Raises:
        InputError: on all processes, if their modules have other ones.
    """
    require_same_shapes(module)
    present().share(held(module))
    return present().common_generator(generator)


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy of the module with rank 0's weights; the module itself where there is one process."""
    if present().count == 1:
        return module
    copied = module_copy(module)
    share_start(copied, torch.Generator())
    return copied


def same_generator(generator: torch.Generator) -> torch.Generator:
    """The generator itself, which continues from the state of rank 0's on every process."""
    return present().common_generator(generator)


def own_source(module: nn.Module) -> RandomSource | None:
    """Random numbers for the rows of this process; ``None`` where one process reads all of them."""
    source, processes = present_source(), present()
    if processes.count == 1 or source is None:
        return None
    return RandomSource(source.seed + 1 + processes.rank, gpus_of(module))


def share_random_states(processes: Processes, source: int = 0) -> None:
    """Gives the fit's random numbers one rank's states on every process."""
    draws = present_source()
    if processes.count == 1 or draws is None:
        return
    states = draws.states()
    processes.share(list(states.values()), source)
    draws.restore(states)


def mean_square(values: Tensor, *, about_mean: bool) -> Tensor:
    """The mean square of the values that all processes have, a scalar.

    Args:
        values: this process's, with rows on the first axis.
        about_mean: whether the mean over all rows is taken off first.
    """
    processes = present()
    if processes.count == 1:
        return (values - values.mean(0) if about_mean else values).square().mean()
    if about_mean:
        total, rows = processes.sum([values.sum(0), torch.tensor(float(len(values)), dtype=torch.float64)])
        values = values - total / rows.to(total)
    squares, numbers = processes.sum_numbers(float(values.square().sum()), values.numel())
    return values.new_tensor(squares / numbers)


def mean_of(values: Tensor) -> float:
    """The mean of the numbers that all processes have."""
    processes = present()
    if processes.count == 1:
        return float(values.mean())
    total, numbers = processes.sum_numbers(float(values.sum()), values.numel())
    return total / numbers


def held(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers of a module, detached."""
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]


def gpus_of(module: nn.Module) -> list[int]:
    """The GPUs that the parameters lie on."""
    return _distinct(parameter.device for parameter in module.parameters())


def _distinct(devices: Iterable[torch.device]) -> list[int]:
    return sorted({device.index for device in devices if device.type == "cuda"})
