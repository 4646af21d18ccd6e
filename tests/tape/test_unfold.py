"""Convolutions read as linear maps, against automatic differentiation."""

import math

import pytest
import torch
from torch.nn import functional

from bayescope.tape import Convolution, StreamedTape
from tests.tape.autograd import draw, rows_of

PLAIN = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
# name: (input without rows, weight, options)
CONVOLUTIONS = {
    "1d": ((3, 7), (4, 3, 3), {}),
    "1d, list of one": ((3, 7), (4, 3, 3), {"stride": [2], "padding": [1], "dilation": [2]}),
    "1d, same, even kernel": ((2, 6), (3, 2, 4), {"padding": "same"}),
    "1d, valid": ((2, 6), (3, 2, 2), {"padding": "valid"}),
    "2d": ((3, 5, 6), (2, 3, 3, 2), {"padding": 1}),
    "2d, stride leaves a rest": ((3, 6, 7), (2, 3, 2, 3), {"stride": (2, 3), "padding": (1, 2)}),
    "2d, dilation": ((2, 7, 6), (2, 2, 2, 3), {"dilation": (3, 1), "padding": 2}),
    "2d, same, dilation": ((2, 5, 4), (3, 2, 2, 3), {"padding": "same", "dilation": 2}),
    "2d, groups": ((4, 5, 4), (6, 2, 2, 2), {"groups": 2, "stride": 2}),
    "2d, depthwise": ((3, 5, 5), (6, 1, 3, 3), {"groups": 3, "padding": "same"}),
    "2d, one by one": ((3, 4, 4), (5, 3, 1, 1), {}),
    "3d": ((2, 4, 3, 5), (3, 2, 2, 3, 2), {"padding": (0, 1, 1), "stride": (2, 1, 2)}),
    "3d, groups": ((4, 3, 3, 3), (2, 2, 2, 2, 2), {"groups": 2, "dilation": (1, 2, 1)}),
}
TRANSPOSES = {
    "1d": ((3, 5), (3, 2, 3), {}),
    "1d, padding beyond the output padding": ((3, 5), (3, 2, 4), {"stride": 3, "padding": 2, "output_padding": 2}),
    "2d": ((2, 4, 3), (2, 3, 2, 3), {"stride": 2, "padding": (0, 1), "output_padding": 1}),
    "2d, dilation": ((2, 3, 3), (2, 3, 2, 3), {"dilation": (2, 3), "stride": (1, 2)}),
    "2d, groups": ((4, 3, 4), (4, 3, 2, 2), {"groups": 2, "stride": 3}),
    "2d, depthwise": ((3, 4, 4), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    "3d": ((2, 3, 2, 3), (2, 2, 2, 2, 3), {"stride": 2, "output_padding": (1, 0, 1)}),
}


def geometry_of(weight, options, *, transposed):
    return Convolution.of(weight, **{k: v for k, v in options.items() if k != "output_padding"}, transposed=transposed)


def in_weight_order(geometry, tape, weight, *, bias):
    """The tape's Jacobian, its columns put back where the entries of the weight and of the bias lie."""
    count = weight.numel()
    positions = geometry.canonical(torch.arange(count).view(weight.shape))
    if bias:
        positions = torch.cat([positions, count + torch.arange(weight.shape[0]).view(*positions.shape[:2], 1)], -1)
    assert positions.shape == tape.shape
    return torch.empty_like(u := tape.jacobian(slice(None))).index_copy_(-1, positions.flatten(), u)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch, of its own padded copy
@pytest.mark.parametrize("rows", [3, 1, 0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_its_derivative(name, bias, rows):
    inputs, weight, options = CONVOLUTIONS[name]
    x, w, b = draw(rows, *inputs), draw(*weight), draw(weight[0])
    layer = PLAIN[len(inputs) - 1]
    g = draw(2, *layer(x, w, **options).shape)
    expected = rows_of(lambda x, w, b: layer(x, w, b, **options), x, g, w, b)
    geometry = geometry_of(w, options, transposed=False)
    actual = in_weight_order(geometry, geometry.tape(x, g, bias=bias), w, bias=bias)
    assert torch.allclose(actual, torch.cat(expected[: 1 + bias], -1), rtol=1e-12, atol=1e-12)
    assert geometry.tape(x, g).positions == math.prod(g.shape[3:])


@pytest.mark.parametrize("rows", [3, 1, 0])
@pytest.mark.parametrize("name", TRANSPOSES)
def test_a_transposed_convolution_is_its_derivative(name, rows):
    inputs, weight, options = TRANSPOSES[name]
    x, w = draw(rows, *inputs), draw(*weight)
    layer = TRANSPOSED[len(inputs) - 1]
    g = draw(2, *layer(x, w, **options).shape)
    expected = rows_of(lambda x, w: layer(x, w, **options), x, g, w)[0]
    geometry = geometry_of(w, options, transposed=True)
    actual = in_weight_order(geometry, geometry.tape(x, g), w, bias=False)
    assert torch.allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_factors_are_those_of_the_unfolded_input(memory_format):
    x, g = draw(3, 4, 6, 5).to(memory_format=memory_format), draw(2, 3, 6, 6, 5)
    w = draw(6, 4, 3, 3)
    tape = Convolution.of(w, padding="same").tape(x, g.contiguous(), bias=True)
    unfolded = functional.unfold(x, 3, padding=1).mT  # (N, T, D), by another road
    a = torch.cat([unfolded, torch.ones_like(unfolded[..., :1])], -1)
    assert torch.allclose(tape.input_gram(), torch.einsum("ntd,nte->de", a, a)[None])
    assert torch.allclose(tape.output_gram(), torch.einsum("knohw,knphw->op", g, g)[None])
    reduced = tape.reduced()
    assert torch.allclose(reduced.input_gram()[0], a.mean(1).mT @ a.mean(1))
    assert torch.allclose(reduced.output_gram()[0], torch.einsum("kno,knp->op", g.sum((3, 4)), g.sum((3, 4))))


def test_groups_have_factors_of_their_own():
    x, g, w = draw(3, 4, 5), draw(2, 3, 6, 3), draw(6, 2, 3)
    tape = Convolution.of(w, groups=2).tape(x, g)
    for group in range(2):
        alone = Convolution.of(w[:3]).tape(x[:, 2 * group : 2 * group + 2], g[:, :, 3 * group : 3 * group + 3])
        assert torch.allclose(tape.input_gram()[group], alone.input_gram()[0])
        assert torch.allclose(tape.output_gram()[group], alone.output_gram()[0])


def test_uses_of_one_weight_join_their_positions():
    w = draw(2, 3, 2)
    x, z, g, h = draw(4, 3, 5), draw(4, 3, 3), draw(3, 4, 2, 4), draw(3, 4, 2, 2)
    geometry = Convolution.of(w)
    first, second = geometry.tape(x, g, bias=True), geometry.tape(z, h, bias=True)
    both = StreamedTape.join([first, second])
    assert both.positions == 6
    assert torch.allclose(both.jacobian(slice(None)), first.jacobian(slice(None)) + second.jacobian(slice(None)))
    assert torch.allclose(both.input_gram(), first.input_gram() + second.input_gram())
    assert torch.allclose(both.output_gram(), first.output_gram() + second.output_gram())
