"""Networks of one architecture as one: their parameters stacked, one pass for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from bayescope.errors import BayescopeError
from bayescope.module_copies import module_copy
from bayescope.network import Inputs, Weights, call, map_tensors
from bayescope.network.substitution import RecomputedWeightsError, substituted

# One pass for all saves calls to torch. Where the rows of a minibatch times the weights of a member are more than this,
# products take most of the time, and on a CPU those of one member at a time are the faster ones.
MOST_PRODUCTS = 2**23
# Letters of torch's own words that are quoted.
REASON = 120


@final
class Stack(nn.Module):
    """M networks as one: each parameter and buffer has a leading axis over them.

    Called with inputs (B, M, …), the second axis over the networks, it returns f (B, M, *positions, C): rows stay on
    the first axis, where a training loop counts them.

    Args:
        modules: of one architecture; copies of their parameters and buffers are stacked.
        vectorized: whether one pass by ``vmap`` serves all networks, which nothing random in them allows; else each has
            its own.
        evaluated: whether they are run in eval mode whatever the stack's own mode.
    """

    def __init__(self, modules: Sequence[nn.Module], *, vectorized: bool, evaluated: bool = False) -> None:
        super().__init__()
        form = module_copy(modules[0]).train(not evaluated)
        self._form = [form]  # in a list, so that its parameters are not the stack's
        self._vectorized, self._evaluated = vectorized, evaluated
        self._batched = vectorized  # until a call is met that cannot be
        self.members = len(modules)
        self.names = [name for name, _ in form.named_parameters()]
        self.buffer_names = [name for name, _ in form.named_buffers()]
        self.values = nn.ParameterList()
        for name in self.names:
            each = [module.get_parameter(name) for module in modules]
            stacked = torch.stack([parameter.detach() for parameter in each])
            self.values.append(nn.Parameter(stacked, requires_grad=each[0].requires_grad))
        for place, name in enumerate(self.buffer_names):
            self.register_buffer(f"buffer_{place}", torch.stack([module.get_buffer(name) for module in modules]))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """f of each network at its own inputs."""
        form = self._form[0]
        if form.training != (self.training and not self._evaluated):
            form.train(not form.training)
        inputs: Inputs = kwargs or args
        tensors = [*self.values, *self.buffers()]
        if self._batched:
            try:
                return self._in_batches(inputs)
            except _NotBatchedError:
                self._batched = False
        if self._vectorized:
            return vmap(self._one, in_dims=(0, 1), out_dims=1, randomness="error")(tensors, inputs)
        each = zip(*(tensor.unbind() for tensor in tensors), strict=True)
        return torch.stack([self._one(of_one, _member(inputs, m)) for m, of_one in enumerate(each)], 1)

    def extra_repr(self) -> str:
        """The architecture, by which checkpoints differ."""
        return f"{self.members} of {self._form[0]!r}"

    def parameters_of(self, weights: Weights) -> dict[str, nn.Parameter]:
        """The stacked parameters that hold random weights, (M, *shape), by the name that each network has for them."""
        return {name: self.values[self.names.index(name)] for name in weights.names}

    def flat(self, weights: Weights) -> Tensor:
        """The random weights of each network, shape (M, P), float64, detached."""
        values = {name: value.detach() for name, value in self.parameters_of(weights).items()}
        return weights.flatten(values).to(torch.float64)

    def write_to(self, modules: Sequence[nn.Module]) -> None:
        """Gives each network its parameters and buffers."""
        with torch.no_grad():
            for m, module in enumerate(modules):
                for name, value in zip(self.names, self.values, strict=True):
                    module.get_parameter(name).copy_(value[m])
                for name, value in zip(self.buffer_names, self.buffers(), strict=True):
                    module.get_buffer(name).copy_(value[m])

    def _in_batches(self, inputs: Inputs) -> Tensor:
        """f by batched products, for networks of linear layers and activations: half of the time that vmap takes."""
        form, swapped = self._form[0], map_tensors(lambda tensor: tensor.transpose(0, 1), inputs)
        with _Batched(dict(zip(map(id, form.parameters()), self.values, strict=True))):
            f = call(form, swapped)
        return f.transpose(0, 1)

    def _one(self, tensors: Sequence[Tensor], inputs: Inputs) -> Tensor:
        """f of one network, whose buffers are written in place where it writes its own."""
        form = self._form[0]
        with substituted(form, [*form.parameters(), *form.buffers()], tensors):
            return call(form, inputs)


class _NotBatchedError(Exception):
    """A call to torch that means something else where the networks are on the first axis."""


@final
class _Batched(TorchFunctionMode):
    """Runs a network on (M, B, I) with the stacked parameters of M: linear layers and activations, nothing else.

    Args:
        values: what takes the place of each parameter, by its id.
    """

    def __init__(self, values: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ACTIVATIONS | _SIZES and id(args[0]) not in self._values:
            return func(*args, **(kwargs or {}))
        if func is not nn.functional.linear or kwargs or args[0].ndim != 3 or id(args[1]) not in self._values:
            raise _NotBatchedError
        x, weight, bias = (*args, None)[:3]
        stacked = self._values[id(weight)].mT
        if bias is None:
            return x.bmm(stacked)
        if id(bias) not in self._values:
            raise _NotBatchedError
        return torch.baddbmm(self._values[id(bias)].unsqueeze(1), x, stacked)


# What the choice of an output reads of it: f (M, B, C) stays as it is by default, and other choices are not batched.
_SIZES = frozenset({Tensor.ndim.__get__, Tensor.shape.__get__})  # type: ignore[attr-defined]
# Functions of one tensor that act on each number by itself.
_ACTIVATIONS = frozenset(
    {
        torch.relu, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.exp, Tensor.relu, Tensor.tanh,
        Tensor.sigmoid, Tensor.sin, Tensor.cos, Tensor.exp, nn.functional.relu, nn.functional.gelu, nn.functional.silu,
        nn.functional.elu, nn.functional.selu, nn.functional.celu, nn.functional.leaky_relu, nn.functional.softplus,
        nn.functional.hardtanh, nn.functional.relu6, nn.functional.mish, nn.functional.logsigmoid,
    }
)  # fmt: skip


def obstacle(modules: Sequence[nn.Module], inputs: Inputs, *, evaluated: bool = False) -> str:
    """Why networks cannot be trained in one pass for all, or nothing where they can.

    They have to have the same parameters and buffers, and to answer and change their buffers in one pass as each does
    by itself, on some rows. What is random in a network, such as dropout, is an obstacle: each network by itself would
    draw other numbers.

    Args:
        modules: the networks, which are left unchanged.
        inputs: a few rows.
        evaluated: whether they are run in eval mode.
    """
    if len({_shapes(module) for module in modules}) > 1:
        return "their parameters or buffers differ in shape"
    stack = Stack(modules, vectorized=True, evaluated=evaluated)
    alone = [module_copy(module).train(not evaluated) for module in modules]
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop", category=UserWarning)
            outputs = call(stack, for_each(inputs, len(modules)))
            if outputs.requires_grad:
                outputs.sum().backward()
    except RecomputedWeightsError:
        return "torch.utils.checkpoint runs parts of them again"
    except (BayescopeError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, UserWarning) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        random = "random operation" in reason
        return "they draw random numbers, each its own" if random else f"vmap cannot run them: {reason[:REASON]}"
    with torch.no_grad():
        same = all(close(outputs[:, m], call(module, inputs)) for m, module in enumerate(alone))
        for name, buffer in zip(stack.buffer_names, stack.buffers(), strict=True):
            same = same and all(close(buffer[m], module.get_buffer(name)) for m, module in enumerate(alone))
    return "" if same else "one pass for all gives other answers than each network by itself"


def for_each(inputs: Inputs, members: int) -> Any:
    """The same rows for each of M networks, (N, M, …), without a copy."""
    return map_tensors(lambda tensor: tensor.unsqueeze(1).expand(-1, members, *tensor.shape[1:]), inputs)


def _member(inputs: Inputs, m: int) -> Any:
    return map_tensors(lambda tensor: tensor.select(1, m), inputs)


def _shapes(module: nn.Module) -> tuple[Any, ...]:
    parameters = [(name, p.shape, p.dtype, p.device, p.requires_grad) for name, p in module.named_parameters()]
    return *parameters, *((name, b.shape, b.dtype, b.device) for name, b in module.named_buffers())


def close(value: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same up to rounding."""
    if value.shape != other.shape:
        return False
    if not value.is_floating_point():
        return torch.equal(value, other)
    tolerance = torch.finfo(value.dtype).eps ** 0.5
    largest = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(value, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
