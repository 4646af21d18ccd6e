from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from bayescope.network import pull_back
from bayescope.network.vectorising import POINTWISE


class Replacing(TorchFunctionMode):
    """Puts the replacements in place as a recorder does."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.replaced += func in POINTWISE
        return POINTWISE.get(func, func)(*args, **(kwargs or {}))


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


line, image, volume = randn(2, 3, 8), randn(2, 3, 7, 8), randn(2, 3, 4, 5, 4)
REPLACED: dict[str, tuple[nn.Module, Tensor]] = {
    "mish": (nn.Mish(), line),
    "mish-inplace": (nn.Mish(inplace=True), line),
    "rrelu": (nn.RReLU(), line),
    "rrelu-inplace": (nn.RReLU(inplace=True), line),
}
# Left to torch, whose batching rules under ``torch.func.vmap`` do not loop.
OTHERS: dict[str, tuple[nn.Module, Tensor]] = {
    "logsigmoid": (nn.LogSigmoid(), line),
    "celu": (nn.CELU(0.7), line),
    "elu": (nn.ELU(0.7), line),
    "elu-inplace": (nn.ELU(0.7, inplace=True), line),
    "gelu": (nn.GELU(), line),
    "gelu-tanh": (nn.GELU("tanh"), line),
    "hardswish": (nn.Hardswish(), 3 * line),
    "hardswish-inplace": (nn.Hardswish(inplace=True), 3 * line),
    "leaky-relu": (nn.LeakyReLU(0.2), line),
    "leaky-relu-inplace": (nn.LeakyReLU(0.2, inplace=True), line),
    "selu": (nn.SELU(), line),
    "silu": (nn.SiLU(), line),
    "silu-inplace": (nn.SiLU(inplace=True), line),
    "softplus": (nn.Softplus(beta=2.0, threshold=1.0), line),
    "tanh": (nn.Tanh(), line),
    "sigmoid": (nn.Sigmoid(), line),
    "relu": (nn.ReLU(), line),
    "relu-inplace": (nn.ReLU(inplace=True), line),
    "relu6": (nn.ReLU6(), 3 * line),
    "hardtanh": (nn.Hardtanh(), line),
    "hardsigmoid": (nn.Hardsigmoid(), line),
    "softsign": (nn.Softsign(), line),
    "tanhshrink": (nn.Tanhshrink(), line),
    "softshrink": (nn.Softshrink(), line),
    "threshold": (nn.Threshold(0.1, 0.0), line),
    "glu": (nn.GLU(), line),
    "softmax": (nn.Softmax(-1), line),
    "log-softmax": (nn.LogSoftmax(-1), line),
    "layer-norm": (nn.LayerNorm(8, elementwise_affine=False), line),
    "group-norm": (nn.GroupNorm(3, 3, affine=False), image),
    "avg-pool-2d": (nn.AvgPool2d(2), image),
    "max-pool-1d": (nn.MaxPool1d(2), line),
    "max-pool-1d-overlapping": (nn.MaxPool1d(3, stride=1, padding=1), line),
    "max-pool-2d": (nn.MaxPool2d(2), image),
    "max-pool-2d-overlapping": (nn.MaxPool2d(3, stride=1, dilation=2, ceil_mode=True), image),
    "max-pool-2d-single-image": (nn.MaxPool2d((2, 3)), image[0]),
    "max-pool-3d": (nn.MaxPool3d(2, stride=1), volume),
    "adaptive-avg-pool-2d": (nn.AdaptiveAvgPool2d(2), image),
    "adaptive-max-pool-2d": (nn.AdaptiveMaxPool2d(2), image),
    "upsample": (nn.Upsample(scale_factor=2, mode="bilinear"), image),
    "pixel-shuffle": (nn.PixelShuffle(2), image.reshape(2, 4, 6, 7)),
    "convolution": (nn.Conv2d(3, 4, 3, padding=1, groups=1).double(), image),
    "transposed-convolution": (nn.ConvTranspose2d(3, 4, 3, stride=2).double(), image),
    "grouped-convolution": (nn.Conv1d(3, 6, 3, groups=3).double(), line),
    "linear": (nn.Linear(8, 4).double(), line),
}
CASES = REPLACED | OTHERS


def read(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The input as a leaf, what an in-place function writes to, and the output, under the replacements."""
    leaf = x.clone().requires_grad_()
    between = leaf * 1.0
    with Replacing():
        output = module.eval()(between)
    return leaf, between, output


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    module, x = CASES[name]
    leaf, _, output = read(module, x)
    plain = x.clone().requires_grad_()
    expected = module(plain * 1.0)
    torch.testing.assert_close(output, expected, rtol=1e-14, atol=1e-14)

    seeds = randn(3, *output.shape)
    (got,) = pull_back(output, [leaf], seeds)
    assert got is not None
    each = [torch.autograd.grad(expected, plain, seed, retain_graph=True)[0] for seed in seeds]
    torch.testing.assert_close(got, torch.stack(each), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_work_for_many_cotangents_is_not_a_loop_over_them(name: str) -> None:
    module, x = CASES[name]
    module, calls = copy.deepcopy(module).float(), []
    for count in (4, 8):
        leaf, _, output = read(module, x.float())
        with profile(activities=[ProfilerActivity.CPU]) as recorded, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pull_back(output, [leaf], randn(count, *output.shape).float())
        calls.append(sum(event.count for event in recorded.key_averages() if event.key.startswith("aten::")))
    assert calls[1] == calls[0]


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("inplace")])
def test_an_in_place_function_writes_to_its_argument(name: str) -> None:
    module, x = CASES[name]
    _, between, output = read(module, x)
    assert torch.equal(between, output)
    assert not torch.equal(between, x)


def test_an_in_place_function_on_a_view_reaches_what_it_is_a_view_of() -> None:
    leaf = line.clone().requires_grad_()
    whole = leaf * 1.0
    with Replacing():
        functional.mish(whole[:, 1], inplace=True)
    (got,) = pull_back(whole, [leaf], torch.ones(1, *whole.shape, dtype=torch.float64))
    plain = line.clone().requires_grad_()
    other = plain * 1.0
    functional.mish(other[:, 1], inplace=True)
    (expected,) = torch.autograd.grad(other.sum(), plain)
    torch.testing.assert_close(whole, other)
    assert got is not None
    torch.testing.assert_close(got[0], expected)


@pytest.mark.parametrize("name", REPLACED)
def test_every_replacement_is_in_use(name: str) -> None:
    module, x = REPLACED[name]
    with Replacing() as mode:
        module.eval()(x.clone())
    assert mode.replaced == 1


@pytest.mark.parametrize("name", REPLACED)
def test_without_gradients_nothing_is_recorded(name: str) -> None:
    module, x = REPLACED[name]
    with Replacing():
        output = module.eval()(x.clone())
    assert output.grad_fn is None
