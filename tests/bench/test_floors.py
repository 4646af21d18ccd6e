"""Counted operations: layers as they are met in a pass, and floors that hold what they must."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.floors import Layer, floor_of
from bench.networks import cnn, layers_of, mlp

pytestmark = pytest.mark.global_rng  # a module's weights are drawn as users draw them


def test_layers_are_counted_where_they_stand() -> None:
    model, x, _ = cnn(1)
    assert layers_of(model, x)[:2] == [Layer(3 * 9 + 1, 16, 32 * 32), Layer(16 * 9 + 1, 16, 32 * 32)]
    assert layers_of(model, x)[-1] == Layer(1025, 10)
    assert layers_of(nn.Linear(3, 2, bias=False), torch.ones(1, 3)) == [Layer(3, 2)]


def test_a_convolution_at_one_place_is_a_dense_layer_whose_squares_each_class_sums_itself() -> None:
    dense, moved = [Layer(5, 4), Layer(5, 3)], [Layer(5, 4, 2), Layer(5, 3)]
    for method in ("forward + backward", "forward", "Kronecker"):
        assert floor_of(method, 7, moved).flops > floor_of(method, 7, dense).flops
    assert floor_of("forward", 7, dense).flops == 2 * 7 * (20 + 15)
    assert floor_of("diagonal", 7, moved).flops - floor_of("diagonal", 7, dense).flops == pytest.approx(
        7 * 20 * (6 + 2 * (2 * 3 - 1))  # one more place in an epoch; squares
    )


def test_a_sampled_label_costs_less_than_all_classes() -> None:
    model, x, _ = mlp(1)
    layers = layers_of(model, x)
    assert floor_of("Kronecker", 10, layers, labels=1).flops < floor_of("Kronecker", 10, layers).flops
    assert floor_of("eigenvalue-corrected", 10, layers).flops > floor_of("Kronecker", 10, layers).flops
