"""A stack of networks: each answers, and moves its buffers, as it does by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayescope.network import call, map_tensors
from bayescope.training import Stack, obstacle
from tests.training.members import MEMBERS, made, plain, rows_of_each


class Two(nn.Module):
    """Takes two inputs, by position or by name, and returns dense outputs under `logits`."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.table(tokens) * scale[:, None, None])}


class Held(nn.Module):
    """One matrix used twice, of which one use holds it where no module registers it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.again = [self.first.weight]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.first(x).tanh(), self.again[0])


class Residual(nn.Module):
    """Linear layers and an activation, and what means something else where networks are on the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last, self.scale = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x + self.inner(x).tanh() * self.scale.exp()).softmax(0)).flatten(1)


class Recurrent(nn.Module):
    """An LSTM, which vmap has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x[:, None])[0][:, -1])


class Calls(TorchFunctionMode):
    """Notes which functions of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "activations": lambda: nn.Sequential(
        nn.Linear(2, 5),
        nn.SiLU(),
        nn.Linear(5, 4, bias=False),
        nn.LeakyReLU(0.2),
        nn.Linear(4, 5),
        nn.Softplus(),
        nn.Linear(5, 2),
        nn.GELU(),
    ),
    "beside linear layers": Residual,
    "batch norm": lambda: nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
    "layer norm": lambda: nn.Sequential(nn.Linear(2, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)
    ),
    "held": Held,
}
BY_ITSELF: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (lambda: nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.2), nn.Linear(5, 2)), "random"),
    "lstm": (Recurrent, "vmap"),
}


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_answers_and_moves_its_buffers_as_by_itself(name: str, *, vectorized: bool) -> None:
    modules, x = made(NETWORKS[name]), rows_of_each()
    stack = Stack(modules, vectorized=vectorized)
    f = stack(x)
    stack.write_to(read := [copy.deepcopy(module) for module in modules])
    for m, module in enumerate(modules):
        torch.testing.assert_close(f[:, m], module.train()(x[:, m]))
        for found, buffer in zip(read[m].buffers(), module.buffers(), strict=True):
            torch.testing.assert_close(found, buffer)
    assert obstacle(modules, x[:, 0]) == ""


@pytest.mark.parametrize("name", ["plain", "activations"])
def test_linear_layers_and_activations_are_batched_products(name: str) -> None:
    """Without the overhead of vmap: a product of all networks takes the place of each linear layer."""
    modules = made(NETWORKS[name])
    with Calls() as calls:
        assert Stack(modules, vectorized=True)(rows_of_each()).shape == (6, MEMBERS, 2)
    products = [function for function in calls.functions if function in (torch.baddbmm, Tensor.bmm)]
    assert len(products) == sum(isinstance(layer, nn.Linear) for layer in modules[0])
    assert nn.functional.linear not in calls.functions


@pytest.mark.parametrize("name", BY_ITSELF)
def test_what_has_to_be_run_by_itself_is_told_and_run_in_passes_of_its_own(name: str) -> None:
    make, reason = BY_ITSELF[name]
    modules, x = made(make), rows_of_each()
    assert reason in obstacle(modules, x[:, 0])
    f = Stack(modules, vectorized=False).eval()(x)
    for m, module in enumerate(modules):
        torch.testing.assert_close(f[:, m], module.eval()(x[:, m]))


def test_unlike_shapes_are_an_obstacle() -> None:
    modules = [*made(plain, 1), *made(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), 1)]
    assert "shape" in obstacle(modules, rows_of_each()[:, 0])


def test_unlike_functions_are_an_obstacle() -> None:
    """The same parameters, and another activation: one pass for all would give all of them the first one's."""
    modules = made(plain, 2)
    modules[1] = nn.Sequential(modules[1][0], nn.ReLU(), modules[1][2])
    assert "other answers" in obstacle(modules, rows_of_each()[:, 0])


def test_the_probe_leaves_the_networks_as_they_were() -> None:
    modules = made(NETWORKS["batch norm"])
    before = [copy.deepcopy(module.state_dict()) for module in modules]
    obstacle(modules, rows_of_each()[:, 0])
    for module, state in zip(modules, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("form", [tuple, dict])
def test_several_inputs_and_dense_outputs(form: type) -> None:
    modules = made(Two)
    source = torch.Generator().manual_seed(2)
    tokens = torch.randint(7, (5, MEMBERS, 3), generator=source)
    scale = torch.rand(5, MEMBERS, dtype=torch.float64, generator=source)
    inputs: Any = (tokens, scale) if form is tuple else {"scale": scale, "tokens": tokens}
    f = call(Stack(modules, vectorized=True), inputs)
    assert f.shape == (5, MEMBERS, 3, 2)
    for m, module in enumerate(modules):
        own = map_tensors(lambda tensor, m=m: tensor[:, m], inputs)
        torch.testing.assert_close(f[:, m], call(module, own))


def test_linear_layers_over_positions() -> None:
    modules = made(plain)
    x = torch.randn(5, MEMBERS, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    f = Stack(modules, vectorized=True)(x)
    assert f.shape == (5, MEMBERS, 4, 2)
    for m, module in enumerate(modules):
        torch.testing.assert_close(f[:, m], module(x[:, m]))


def test_a_stack_is_read_in_the_mode_it_is_in() -> None:
    modules, x = made(NETWORKS["batch norm"]), rows_of_each()
    evaluated = Stack(modules, vectorized=True, evaluated=True)
    before = [buffer.clone() for buffer in evaluated.buffers()]
    f = evaluated.train()(x)
    for m, module in enumerate(modules):
        torch.testing.assert_close(f[:, m], module.eval()(x[:, m]))
    assert all(torch.equal(now, then) for now, then in zip(evaluated.buffers(), before, strict=True))
    assert not torch.equal(Stack(modules, vectorized=True).train()(x), f)
    torch.testing.assert_close(Stack(modules, vectorized=True).eval()(x), f)
