from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayescope.network import REWRITES

# Every use that a rewrite may make of a weight: what the recorder has rules for, or what is a view of the weight.
PRIMITIVES = {"linear", "mul", "add", "matmul", "__matmul__", "chunk", "split", "flatten", "__get__", "numel", "view"}


class Rewriting(TorchFunctionMode):
    """Puts the rewrites in place as a recorder does, and notes what the parameters take part in."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.parameters = {id(parameter) for parameter in module.parameters()}
        self.used: set[str] = set()
        self.rewritten: list[Any] = []
        self.refused: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in REWRITES:
            with self:
                result = REWRITES[func](*args, **kwargs)
            if result is not NotImplemented:
                self.rewritten.append(func)
                return result
            self.refused.append(func)
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if any(id(leaf) in self.parameters for leaf in leaves):
            self.used.add(func.__name__)
        return func(*args, **kwargs)


class Attention(nn.Module):
    """A multi-head attention with its keywords, on one, two or three inputs."""

    def __init__(self, attention: nn.MultiheadAttention, **keywords: Any) -> None:
        super().__init__()
        self.attention, self.keywords = attention, keywords

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Any:
        key = query if key is None else key
        return self.attention(query, key, key if value is None else value, **self.keywords)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(), dtype=torch.float64)


def attention(**keywords: Any) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(4, 2, **{"batch_first": True, **keywords})


causal = torch.ones(3, 3).triu(1).bool()
padding = torch.tensor([[False, False, True], [False, False, False]])
x, shorter = randn(2, 3, 4), randn(2, 2, 4) + 1
image, volume = randn(2, 4, 3, 3), randn(2, 4, 2, 2, 2)
statistics = nn.BatchNorm2d(4)
statistics.running_mean, statistics.running_var = randn(4), randn(4).square() + 0.5
running = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
running.running_mean, running.running_var = randn(4), randn(4).square() + 0.5

CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "attention": (Attention(attention()), (x,)),
    "attention-sequence-first": (Attention(attention(batch_first=False)), (x,)),
    "attention-unbatched": (Attention(attention()), (x[0],)),
    "attention-no-weights": (Attention(attention(), need_weights=False), (x,)),
    "attention-each-head": (Attention(attention(), average_attn_weights=False), (x,)),
    "attention-no-bias": (Attention(attention(bias=False)), (x,)),
    "attention-cross": (Attention(attention()), (x, shorter)),
    "attention-cross-no-bias": (Attention(attention(bias=False)), (x, shorter)),
    "attention-three-inputs": (Attention(attention()), (x, shorter, shorter * 2)),
    "attention-other-widths": (Attention(attention(kdim=5, vdim=3)), (x, randn(2, 6, 5), randn(2, 6, 3))),
    "attention-mask": (Attention(attention(), attn_mask=causal), (x,)),
    "attention-mask-no-weights": (Attention(attention(), attn_mask=causal, need_weights=False), (x,)),
    "attention-float-mask": (Attention(attention(), attn_mask=randn(3, 3)), (x,)),
    "attention-mask-by-head": (Attention(attention(), attn_mask=randn(4, 3, 3)), (x,)),
    "attention-padding": (Attention(attention(), key_padding_mask=padding), (x,)),
    "attention-both-masks": (
        Attention(attention(), key_padding_mask=padding, attn_mask=causal, need_weights=False),
        (x,),
    ),
    "attention-causal": (
        Attention(attention(), attn_mask=causal, is_causal=True, need_weights=False),
        (x,),
    ),
    "attention-appended": (
        Attention(attention(add_bias_kv=True, add_zero_attn=True), attn_mask=causal, key_padding_mask=padding),
        (x,),
    ),
    "attention-unbatched-padding": (Attention(attention(), key_padding_mask=padding[0]), (x[0],)),
    "encoder-layer": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (x,)),
    "encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2), (x,)),
    "decoder-layer": (nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), (x, shorter)),
    "lstm": (nn.LSTM(4, 5), (x,)),
    "lstm-batch-first": (nn.LSTM(4, 5, batch_first=True), (x,)),
    "lstm-deep-both-ways": (nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), (x,)),
    "lstm-projected": (nn.LSTM(4, 5, num_layers=2, proj_size=3, bidirectional=True), (x,)),
    "lstm-projected-no-bias": (nn.LSTM(4, 5, proj_size=3, bias=False), (x,)),
    "lstm-no-bias": (nn.LSTM(4, 5, bias=False), (x,)),
    "lstm-dropout-in-eval": (nn.LSTM(4, 5, num_layers=2, dropout=0.5), (x,)),
    "lstm-started": (nn.LSTM(4, 5), (x, (randn(1, 3, 5), randn(1, 3, 5) + 1))),
    "lstm-unbatched": (nn.LSTM(4, 5, batch_first=True), (x[0],)),
    "gru": (nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True), (x,)),
    "gru-started": (nn.GRU(4, 5, bias=False), (x, randn(1, 3, 5))),
    "rnn-tanh": (nn.RNN(4, 5, bidirectional=True), (x,)),
    "rnn-relu": (nn.RNN(4, 5, nonlinearity="relu"), (x,)),
    "lstm-cell": (nn.LSTMCell(4, 5), (x[0], (randn(3, 5), randn(3, 5) + 1))),
    "gru-cell": (nn.GRUCell(4, 5), (x[0],)),
    "rnn-tanh-cell": (nn.RNNCell(4, 5), (x[0],)),
    "rnn-relu-cell": (nn.RNNCell(4, 5, bias=False, nonlinearity="relu"), (x[0],)),
    "layer-norm": (nn.LayerNorm(4), (x,)),
    "layer-norm-two-axes": (nn.LayerNorm((3, 4), eps=0.1), (x,)),
    "layer-norm-no-bias": (nn.LayerNorm(4, bias=False), (x,)),
    "rms-norm": (nn.RMSNorm(4), (x,)),
    "rms-norm-eps": (nn.RMSNorm((3, 4), eps=0.1), (x,)),
    "group-norm": (nn.GroupNorm(2, 4), (image,)),
    "batch-norm-1d": (nn.BatchNorm1d(3), (x,)),
    "batch-norm-2d": (statistics, (image,)),
    "batch-norm-rows": (nn.BatchNorm1d(4), (x[0],)),
    "instance-norm": (nn.InstanceNorm2d(4, affine=True), (image,)),
    "instance-norm-3d": (nn.InstanceNorm3d(4, affine=True, eps=0.1), (volume,)),
    "instance-norm-running": (running, (image,)),
    "prelu": (nn.PReLU(), (x,)),
    "prelu-by-channel": (nn.PReLU(4), (image,)),
    "bilinear": (nn.Bilinear(4, 4, 2), (x, x + 1)),
    "bilinear-no-bias": (nn.Bilinear(4, 3, 2, bias=False), (x, randn(2, 3, 3))),
}


def prepared(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    module, inputs = CASES[name]
    module = copy.deepcopy(module).double().eval()
    generator = seeded()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module, inputs


def tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_rewritten_layers_give_the_same_values_and_gradients(name: str) -> None:
    module, inputs = prepared(name)
    expected = tensors(module(*inputs))
    with Rewriting(module) as mode:
        got = tensors(module(*inputs))
    assert mode.rewritten
    assert not mode.refused
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    parameters = list(module.parameters())
    ours, theirs = (
        torch.autograd.grad(sum((output * (1 + index)).sin().sum() for index, output in enumerate(outputs)), parameters)
        for outputs in (got, expected)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_rewritten_layers_use_their_weights_in_primitives_alone(name: str) -> None:
    module, inputs = prepared(name)
    with Rewriting(module) as mode:
        module(*inputs)
    assert mode.used <= PRIMITIVES
    assert mode.used


def test_self_attention_uses_its_stacked_matrix_whole() -> None:
    module, inputs = prepared("attention")
    with Rewriting(module) as mode:
        module(*inputs)
    assert not mode.used & {"chunk", "split"}


@pytest.mark.parametrize(
    ("module", "make"),
    [
        (nn.LSTM(4, 5), lambda: nn.utils.rnn.pack_padded_sequence(x.float(), torch.tensor([2, 2, 1]))),
        (nn.GRU(4, 5), lambda: nn.utils.rnn.pack_padded_sequence(x.float(), torch.tensor([2, 2, 1]))),
        (nn.BatchNorm1d(3, track_running_stats=False), x.float),
    ],
)
def test_what_keeps_no_row_by_itself_is_left_as_it_is(module: nn.Module, make: Any) -> None:
    module, inputs = copy.deepcopy(module).eval(), make()
    expected = module(inputs)
    with Rewriting(module) as mode:
        got = module(inputs)
    assert mode.refused
    for a, b in zip(tensors(got), tensors(expected), strict=True):
        assert torch.equal(a, b)


@pytest.mark.global_rng
def test_what_training_adds_is_refused() -> None:
    with Rewriting(nn.Identity()) as mode:
        nn.LSTM(4, 5, num_layers=2, dropout=0.5)(x.float())
        functional.batch_norm(x, torch.zeros(3).double(), torch.ones(3).double(), training=True)
    assert len(mode.refused) == 2


@pytest.mark.global_rng
@pytest.mark.parametrize("average", [True, False])
def test_attention_with_dropout_drops_what_torch_drops(average: bool) -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.5).double()
    torch.manual_seed(0)
    expected, expected_weights = layer(x, x, x, average_attn_weights=average)
    torch.manual_seed(0)
    with Rewriting(layer) as mode:
        output, weights = layer(x, x, x, average_attn_weights=average)
    assert mode.rewritten
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, expected_weights)


def test_positions_hidden_from_everyone_stay_out_of_the_gradient() -> None:
    module, inputs = prepared("attention-padding")
    with Rewriting(module):
        inputs[0].requires_grad_()
        output, _ = module(inputs[0])
        (gradient,) = torch.autograd.grad(output[0, 1].sum(), inputs[0])
        inputs[0].requires_grad_(False)
    assert not gradient[0, 2].any()
    assert gradient[0, 0].all()


@pytest.mark.parametrize("name", ["layer-norm-two-axes", "rms-norm", "group-norm", "instance-norm"])
def test_norms_in_half_precision_are_computed_in_single(name: str) -> None:
    module, inputs = prepared(name)
    module, inputs = module.bfloat16(), tuple(value.bfloat16() for value in inputs)
    expected = module(*inputs)
    with Rewriting(module):
        got = module(*inputs)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "name",
    ["layer-norm", "rms-norm", "group-norm", "instance-norm", "batch-norm-2d", "lstm", "gru", "attention", "prelu"],
)
def test_products_with_the_second_derivative_take_several_vectors_at_once(name: str) -> None:
    module, inputs = prepared(name)
    x = inputs[0].clone().requires_grad_()
    with Rewriting(module):
        loss = sum(output.sin().sum() for output in tensors(module(x, *inputs[1:])))
    assert isinstance(loss, Tensor)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    vectors = torch.randn(3, *x.shape, generator=seeded(), dtype=torch.float64)
    each = [torch.autograd.grad(gradient, x, vector, retain_graph=True)[0] for vector in vectors]
    got = torch.func.vmap(lambda vector: torch.autograd.grad(gradient, x, vector, retain_graph=True)[0])(vectors)
    torch.testing.assert_close(got, torch.stack(each), rtol=1e-10, atol=1e-10)
