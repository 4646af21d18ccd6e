from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.network.rowwise import rowwise
from bayescope.tape.tape import BLOCK_BYTES


class Branching(nn.Module):
    """Control flow that depends on values: nothing that vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        f = self.linear(x)
        return torch.cat([row.unsqueeze(0) ** (2 if row.sum() > 0 else 3) for row in f])


class Hidden(nn.Module):
    """A parameter that is used through an alias in a plain list, which swapping attributes does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.1, 2.0]]))
        self.aliases = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.aliases[0].T) + torch.linalg.norm(self.weight)


class Twice(torch.autograd.Function):
    """2x, with a backward pass that only takes plain numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(2 * g.numpy())


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Twice.apply(self.linear(x))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.linear(x).tanh() * scale


class Clip(nn.Module):
    """A parameter that is one number, as the temperature of contrastive losses is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.logit_scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.logit_scale.exp() * F.normalize(self.linear(x), dim=-1)


class BranchingClip(Clip):
    """The same where no operation can be vectorised."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if bool(x.sum() > -1e9) else x


class Overwriting(nn.Module):
    """Writes over what it is given, and then fails under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0)
        return self.linear(x) if bool(x.sum() > -1e9) else x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that draws nothing from the global generator."""
    layer = torch.nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(randn(outputs, inputs))
        layer.bias.copy_(randn(outputs))
    return layer


tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
tied[2].weight = tied[0].weight
x = randn(5, 3)
CASES: dict[str, tuple[nn.Module, Any]] = {
    "plain": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.ReLU(), nn.Linear(4, 2)), x),
    "branching": (Branching(), x),
    "hidden": (Hidden(), x),
    "custom": (Custom(), x),
    "tied": (tied, x),
    "recurrent": (Recurrent(), randn(5, 4, 3)),
    "tuple": (TwoInputs(), (x, randn(5, 1))),
    "dict": (TwoInputs(), {"x": x, "scale": randn(5, 1)}),
    "number": (Clip(), x),
    "number, looped over": (BranchingClip(), x),
    "dense-outputs": (nn.Linear(3, 2), randn(5, 4, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_gradients_of_each_seeded_output(name: str) -> None:
    module, inputs = CASES[name]
    module.double().train()
    names = [key for key, _ in module.named_parameters()]
    module.eval()
    outputs = (
        module(**inputs)
        if isinstance(inputs, dict)
        else module(*inputs)
        if isinstance(inputs, tuple)
        else module(inputs)
    )
    module.train()
    seeds = randn(3, *outputs.shape)
    got = rowwise(module, names, inputs, seeds)
    assert module.training
    for n in range(5):
        for k in range(3):
            gradients = torch.autograd.grad(
                (outputs[n] * seeds[k, n]).sum(), list(module.parameters()), retain_graph=True
            )
            expected = torch.cat([gradient.flatten() for gradient in gradients])
            torch.testing.assert_close(got[n, k], expected, rtol=1e-10, atol=1e-12)


def test_names_choose_and_order_the_parameters() -> None:
    module = linear(3, 2)
    seeds = randn(2, 5, 2)
    whole = rowwise(module, ["weight", "bias"], x, seeds)
    assert torch.equal(rowwise(module, ["bias"], x, seeds), whole[..., 6:])
    assert torch.equal(rowwise(module, ["bias", "weight"], x, seeds), torch.cat([whole[..., 6:], whole[..., :6]], -1))


def test_a_parameter_without_effect_has_zero_rows() -> None:
    module = nn.ModuleDict({"used": linear(3, 2), "idle": linear(2, 1)})
    module.forward = module["used"].forward  # type: ignore[method-assign]
    rows = rowwise(module, ["idle.weight", "used.bias"], x, randn(2, 5, 2))
    assert not rows[..., :2].any()
    assert rows[..., 2:].all()


@pytest.mark.parametrize("name", ["plain", "branching"])
def test_blocks_of_rows_change_nothing(name: str) -> None:
    module, inputs = CASES[name]
    module.double()
    names = [key for key, _ in module.named_parameters()]
    width = sum(parameter.numel() for parameter in module.parameters())
    seeds = randn(BLOCK_BYTES // (2 * 8 * width), 5, 2)  # of which two rows are read at once
    each = [rowwise(module, names, inputs[n : n + 1], seeds[:, n : n + 1]) for n in range(5)]
    torch.testing.assert_close(rowwise(module, names, inputs, seeds), torch.cat(each))


def test_it_works_under_callers_without_gradients_and_leaves_none() -> None:
    module, _ = CASES["branching"]
    module.double()
    seeds = randn(2, 5, 2)
    with torch.no_grad():
        rows = rowwise(module, ["linear.bias"], x, seeds)
    assert not rows.requires_grad
    assert all(parameter.grad is None for parameter in module.parameters())


def test_inputs_are_not_written_over() -> None:
    module, inputs, seeds = Overwriting(), x.clone(), randn(2, 5, 2)
    rows = rowwise(module, ["linear.weight"], inputs, seeds)
    assert torch.equal(inputs, x)
    torch.testing.assert_close(rows, torch.einsum("knc,nd->nkcd", seeds, 2 * x).flatten(2))


def test_a_failure_of_the_network_itself_is_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rowwise(linear(4, 2), ["weight"], x, randn(1, 5, 2))
