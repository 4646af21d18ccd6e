from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.network import Network, ReadingLimits
from bayescope.precision import DiagonalPrecision
from bayescope.tape import block_limit
from tests.network.networks import Function, assert_exact, built, jacobian, numbers


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixing, self.decoder = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.mixing(torch.tanh(self.mixing(self.embedding(tokens)).mean(1)))
        return self.decoder(h)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y += x
        torch.relu_(y)
        return self.b(self.norm(y))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        y = self.layer(x)
        return y if scale is None else y * scale


def cnn() -> nn.Module:
    body = [nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Dropout(), nn.Linear(18, 3))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))


TOKENS = torch.tensor([[0, 1, 1], [4, 2, 0], [3, 4, 5], [0, 0, 0], [5, 1, 2]])
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mlp": (mlp, numbers(5, 4)),
    "mlp on tokens": (mlp, numbers(5, 3, 4)),
    "cnn": (cnn, numbers(5, 2, 4, 4)),
    "tied": (Tied, TOKENS),
    "residual": (Residual, numbers(5, 4)),
    "tuple": (Named, (numbers(5, 4), numbers(5, 1, seed=3))),
    "dict": (Named, {"x": numbers(5, 4), "scale": numbers(5, 3, seed=3)}),
    "dict of one": (Named, {"x": numbers(5, 4)}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_tape_is_the_jacobian(name: str) -> None:
    make, inputs = NETWORKS[name]
    network = assert_exact(built(make), inputs)
    covered = torch.cat(network.indices).sort().values
    assert torch.equal(covered, torch.arange(network.dim))
    for part, index, tape in zip(network.parts, network.indices, network.tape(inputs).parts, strict=True):
        assert part.dim == len(index) == tape.dim
        assert part.factored == (part.shape is not None)
        if part.shape is not None:
            assert torch.Size(part.shape).numel() == part.dim
            assert tape.shape == part.shape


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied"])
@pytest.mark.parametrize("seed", [0, 1])
def test_masks_keep_the_flat_order(name: str, seed: int) -> None:
    make, inputs = NETWORKS[name]
    module = built(make)
    total = sum(parameter.numel() for parameter in module.parameters())
    mask = numbers(total, seed=seed) > 0.3
    network = Network.trace(module, inputs, mask)
    want = jacobian(module, inputs, tuple(name for name, _ in module.named_parameters()))[..., mask]
    tape = network.tape(inputs)
    torch.testing.assert_close(tape.jacobian(slice(None)), want, rtol=1e-10, atol=1e-10)
    assert torch.equal(torch.cat(network.indices).sort().values, torch.arange(int(mask.sum())))
    assert not network.head


def test_a_mask_leaves_whole_layers_as_they_are() -> None:
    module = built(mlp)
    mask = torch.ones(sum(parameter.numel() for parameter in module.parameters()), dtype=torch.bool)
    mask[:25] = False  # all of the first layer
    mask[30] = False  # one weight of the second
    network = Network.trace(module, numbers(5, 4), mask)
    assert [(part.name, part.factored) for part in network.parts] == [("2", False), ("4", True)]


def test_a_last_layer_in_part_is_no_head() -> None:
    module, x = built(mlp), numbers(5, 4)
    mask = torch.arange(15).reshape(3, 5) % 2 == 0
    network = Network.trace(module, x, {"4.weight": mask, "4.bias": torch.ones(3, dtype=torch.bool)})
    want = jacobian(module, x, ("4.weight", "4.bias"))[..., torch.cat([mask.flatten(), torch.ones(3).bool()])]
    torch.testing.assert_close(network.tape(x).jacobian(slice(None)), want, rtol=1e-10, atol=1e-12)
    assert not network.head


def test_the_indices_are_the_very_tensors_of_every_tape() -> None:
    network = Network.trace(built(mlp), numbers(5, 4))
    tape = network.tape(numbers(5, 4))
    assert all(one is other for one, other in zip(tape.indices, network.indices, strict=True))
    assert all(tape.part(index) is part for index, part in zip(network.indices, tape.parts, strict=True))


def test_parts_are_named_by_their_modules() -> None:
    network = Network.trace(built(cnn), numbers(5, 2, 4, 4))
    assert [(part.name, part.kind, part.shape) for part in network.parts] == [
        ("0", "convolution", (2, 2, 10)),
        ("1", "elementwise", None),
        ("4.weight", "convolution", (1, 8, 4)),
        ("4.bias", "elementwise", None),
        ("7", "linear", (1, 3, 19)),
    ]


def test_it_is_told_why_a_part_is_read_row_by_row() -> None:
    module = built(lambda: Function(lambda m, x: x * m.w[(x > 0).long()] + m.b, w=(2,), b=(4,), c=(2,)))
    parts = Network.trace(module, numbers(5, 4)).parts
    assert [(part.name, part.kind) for part in parts] == [("w", "per-row"), ("b", "elementwise"), ("c", "unused")]
    assert "rows cannot be separated" in str(parts[0].reason)
    assert parts[1].reason is parts[2].reason is None


def test_a_last_layer_is_a_head() -> None:
    module = built(mlp)
    network = assert_exact(module, numbers(5, 4), "last_layer")
    assert network.weights.names == ("4.weight", "4.bias")
    assert network.head


def test_a_frozen_parameter_is_never_random() -> None:
    module = built(mlp)
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    network = assert_exact(module, numbers(5, 4))
    assert network.weights.names == ("2.weight", "4.weight", "4.bias")


def test_names_choose_the_weights() -> None:
    assert assert_exact(built(mlp), numbers(5, 4), "*.bias").dim == 13
    assert assert_exact(built(mlp), numbers(5, 4), ["0.weight", "4.*"]).dim == 38
    with pytest.raises(OptionError, match=r"0\.weight"):
        Network.trace(built(mlp), numbers(5, 4), "0.wieght")


@dataclass
class Output:
    logits: Tensor | None = None


class Wrapped(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


@pytest.mark.parametrize("wrap", [Output, lambda y: {"logits": y, "hidden": None}])
def test_outputs_may_have_logits(wrap: Callable[[Tensor], Any]) -> None:
    network = Network.trace(built(lambda: Wrapped(wrap)), numbers(5, 4))
    assert network.head
    assert network.record(numbers(5, 4)).outputs.shape == (5, 3)


def test_other_outputs_are_refused() -> None:
    with pytest.raises(InputTypeError, match="logits"):
        Network.trace(built(lambda: Wrapped(lambda y: [y])), numbers(5, 4))
    with pytest.raises(InputError, match=r"expected outputs of shape"):
        Network.trace(built(lambda: Wrapped(lambda y: y.sum())), numbers(5, 4))


def state(module: nn.Module) -> list[Any]:
    return [
        [part.training for part in module.modules()],
        [(p.grad, p.requires_grad, p._version, p.detach().clone()) for p in module.parameters()],
        [(id(b), b.clone()) for b in module.buffers()],
    ]


def assert_same(before: list[Any], after: list[Any]) -> None:
    assert before[0] == after[0]
    for one, other in zip(before[1], after[1], strict=True):
        assert one[:3] == other[:3]
        assert torch.equal(one[3], other[3])
    for (identity, value), (other_identity, other_value) in zip(before[2], after[2], strict=True):
        assert identity == other_identity
        assert torch.equal(value, other_value)


def test_the_module_is_left_as_found() -> None:
    module, x = built(cnn), numbers(5, 2, 4, 4)
    module.train()
    module[1].eval()
    before, generator = state(module), torch.get_rng_state()
    network = Network.trace(module, x)
    network.tape(x)
    network.record(x).tape(numbers(2, 5, 3))
    assert_same(before, state(module))
    assert torch.equal(generator, torch.get_rng_state())


def test_also_when_an_exception_passes_through() -> None:
    def fails(m: Any, x: Tensor) -> Tensor:
        if len(x) == 4:
            raise KeyError("from the network")
        return F.linear(x, m.w)

    module = built(lambda: nn.Sequential(nn.BatchNorm1d(4), Function(fails, w=(3, 4))))
    module.train()
    network = Network.trace(module, numbers(5, 4))
    before = state(module)
    with pytest.raises(KeyError, match="from the network"):
        network.record(numbers(4, 4))
    assert_same(before, state(module))
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", ["mlp", "cnn", "tied"])
def test_callers_may_have_turned_gradients_off(context: Callable[[], Any], name: str) -> None:
    make, inputs = NETWORKS[name]
    module = built(make)
    with context():
        inputs = inputs.clone()  # of inference mode, in inference mode
        network = Network.trace(module, inputs)
        got = network.tape(inputs).jacobian(slice(None))
    want = jacobian(module, inputs.clone(), network.weights.names)
    torch.testing.assert_close(got.clone(), want, rtol=1e-10, atol=1e-10)
    assert "per-row" not in {part.kind for part in network.parts}


@pytest.mark.parametrize("name", ["mlp", "mlp on tokens", "cnn", "residual"])
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
def test_single_precision_and_autocast(name: str, mixed: bool) -> None:
    make, inputs = NETWORKS[name]
    module = built(lambda: Spare(make(), 20_000))  # the products of few weights are in float64
    want = jacobian(module, inputs, tuple(name for name, _ in module.named_parameters()))
    module.float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        network = Network.trace(module, inputs.float())
        outputs = network.record(inputs.float()).outputs
        tape = network.tape(inputs.float())
    got = tape.jacobian(slice(None))
    assert got.dtype == outputs.dtype == torch.float32
    scale = 0.1 if mixed else 1e-5
    assert (got - want).norm() < scale * want.norm()


@pytest.mark.parametrize("rows", [1, 2])
def test_small_first_batches_are_enough(rows: int) -> None:
    assert_exact(built(cnn), numbers(6, 2, 4, 4), traced_on=numbers(rows, 2, 4, 4, seed=5))


def test_weights_are_read_as_they_are_at_the_time() -> None:
    module, x = built(mlp), numbers(5, 4)
    network = Network.trace(module, x)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    got = network.tape(x).jacobian(slice(None))
    torch.testing.assert_close(got, jacobian(module, x, network.weights.names), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("piece", [1, 10**9])
def test_the_latent_covariance_is_the_sandwich_however_few_rows_are_read_at_once(name: str, piece: int) -> None:
    make, inputs = NETWORKS[name]
    network = replace(Network.trace(built(make), inputs), limits=ReadingLimits(piece_bytes=piece))
    precision = DiagonalPrecision(1.0 + torch.arange(network.dim, dtype=torch.float64))
    j = network.tape(inputs).jacobian(slice(None))
    j = j.reshape(*network.record(inputs).outputs.shape, -1)  # each position of dense outputs by itself
    want = (j / precision.diagonal()) @ j.mT
    torch.testing.assert_close(network.latent_covariance(inputs, precision), want, rtol=1e-10, atol=1e-12)
    variance = network.latent_variance(inputs, precision)
    torch.testing.assert_close(variance, want.diagonal(dim1=-2, dim2=-1), rtol=1e-10, atol=1e-12)


class Standardised(nn.Module):
    """A linear layer with a standardised weight, which is derived."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight / self.weight.std(1, keepdim=True)).T


class Spare(nn.Module):
    """A network with weights that nothing depends on."""

    def __init__(self, used: nn.Module, spare: int) -> None:
        super().__init__()
        self.used, self.spare = used, nn.Linear(spare, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is written inside."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


def test_weights_that_nothing_depends_on_take_no_memory() -> None:
    network = Network.trace(built(lambda: Spare(nn.Linear(4, 3), 3000)), numbers(40, 4))
    precision = DiagonalPrecision(torch.full((network.dim,), 2.0, dtype=torch.float64))
    recording = network.record(numbers(40, 4))
    with Largest() as written:
        variance = network.latent_variance(numbers(40, 4), precision)
        network.latent_covariance(numbers(40, 4), precision)
        tape = recording.tape(numbers(3, 40, 3))
        tape.squares(), tape.transpose_multiply(tape.multiply(torch.ones(network.dim, 1)))
    assert (variance > 0).all()
    assert written.numel <= network.dim  # and not 40 rows of 3 outputs of that


def test_derived_weights_are_never_there_for_all_rows() -> None:
    module = built(lambda: Standardised(40, 3))
    x = numbers(30, 40)
    network = Network.trace(module, x)
    assert [part.kind for part in network.parts] == ["derived"]
    recording, seeds = network.record(x), numbers(3, 30, 3)
    with Largest() as written, block_limit(2 * 8 * 3 * 120):  # two rows of U
        tape = recording.tape(seeds)
        squares, product = tape.squares(), tape.multiply(torch.ones(network.dim, 1))
    assert written.numel <= 4 * 3 * 120  # and not 30 rows; backward passes have a few entries more
    j = torch.einsum("knc,ncp->nkp", seeds, jacobian(module, x, ("weight",)))
    torch.testing.assert_close(squares, j.square().sum((0, 1)), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(product, j.sum(-1, keepdim=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("context", [torch.inference_mode, torch.enable_grad])
def test_a_tape_is_of_the_state_that_it_was_recorded_in(context: Callable[[], Any]) -> None:
    def doubled(m: Any, x: Tensor) -> Tensor:
        x.mul_(2.0)
        return F.linear(x, m.w / m.w.std(1, keepdim=True))

    module = built(lambda: Function(doubled, w=(3, 4)))
    x = numbers(5, 4)
    pure = built(lambda: Function(lambda m, x: F.linear(2.0 * x, m.w / m.w.std(1, keepdim=True)), w=(3, 4)))
    want = jacobian(pure, x, ("w",))
    network = Network.trace(module, x.clone())
    tape = network.tape(x.clone())
    with context():  # asked twice, outside of the recording
        for _ in range(2):
            got = tape.jacobian(slice(None))
            assert not got.requires_grad
            torch.testing.assert_close(got.clone(), want, rtol=1e-10, atol=1e-12)


def test_a_part_that_is_read_row_by_row_is_read_in_the_autocast_of_its_recording() -> None:
    def f(m: Any, x: Tensor) -> Tensor:
        return F.linear(x, m.v) * m.w[(x[:, :3] > 0).long()]

    module, x = built(lambda: Function(f, w=(2,), v=(3, 40))).float(), numbers(5, 40).float()
    network = Network.trace(module, x, ["w"])
    assert [part.kind for part in network.parts] == ["per-row"]
    exact = network.tape(x).jacobian(slice(None))
    with torch.autocast("cpu", torch.bfloat16):
        tape = network.tape(x)
        inside = tape.jacobian(slice(None))
    assert torch.equal(tape.jacobian(slice(None)), inside)
    assert not torch.equal(exact, inside)


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied"])
def test_autocast_is_for_the_network_and_not_for_the_precision(name: str) -> None:
    make, inputs = NETWORKS[name]
    module = built(make).float()
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    network = Network.trace(module, inputs)
    precision = DiagonalPrecision(torch.full((network.dim,), 2.0, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        tape = network.tape(inputs)
        covariance = network.latent_covariance(inputs, precision)
        variance = network.latent_variance(inputs, precision)
    j = tape.jacobian(slice(None)).double()
    want = j @ j.mT / 2
    assert covariance.dtype == variance.dtype == torch.float64
    torch.testing.assert_close(covariance, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    torch.testing.assert_close(variance, want.diagonal(dim1=1, dim2=2), rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_inputs_are_placed_as_in_a_fit() -> None:
    x = numbers(5, 4).float()
    network = Network.trace(built(mlp), x.double())
    precision = DiagonalPrecision(torch.ones(network.dim, dtype=torch.float64))
    assert torch.equal(network.latent_covariance(x, precision), network.latent_covariance(x.double(), precision))
    assert torch.equal(network.latent_variance(x, precision), network.latent_variance(x.double(), precision))


def test_no_rows_and_a_precision_over_other_weights_are_refused() -> None:
    network = Network.trace(built(mlp), numbers(5, 4))
    for ask in (network.latent_covariance, network.latent_variance):
        with pytest.raises(InputError, match="inputs: expected at least one row"):
            ask(numbers(0, 4), DiagonalPrecision(torch.ones(network.dim)))
        with pytest.raises(InputError, match=f"precision: expected one over the {network.dim} random weights .* got 1"):
            ask(numbers(5, 4), DiagonalPrecision(torch.ones(1)))
