from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bayescope.network import pull_back


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


line, image = randn(2, 3, 8), randn(2, 3, 7, 8)


def test_points_that_the_output_does_not_depend_on_have_no_gradient() -> None:
    a, b = line.clone().requires_grad_(), image.clone().requires_grad_()
    output = a.square()
    got = pull_back(output, [b, a], randn(3, *output.shape))
    assert got[0] is None
    assert got[1] is not None
    torch.testing.assert_close(got[1], randn(3, *output.shape) * 2 * line)


def test_points_may_be_edges_of_tensors_since_written_over() -> None:
    leaf = line.clone().requires_grad_()
    middle = leaf * 2
    edge = torch.autograd.graph.get_gradient_edge(middle)
    output = functional.relu(middle, inplace=True)
    (got,) = pull_back(output, [edge], torch.ones(1, *output.shape, dtype=torch.float64))
    assert got is not None
    torch.testing.assert_close(got[0], (line > 0).double())


def test_the_graph_stays() -> None:
    leaf = line.clone().requires_grad_()
    output = leaf.sin()
    seeds = randn(2, *output.shape)
    (first,), (second,) = pull_back(output, [leaf], seeds), pull_back(output, [leaf], seeds)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


def test_an_operation_without_a_batching_rule_is_exact_and_silent() -> None:
    leaf = line.clone().requires_grad_()
    output = functional.mish(leaf)
    (got,) = pull_back(output, [leaf], torch.ones(2, *output.shape, dtype=torch.float64))
    (expected,) = torch.autograd.grad(output.sum(), leaf)
    assert got is not None
    torch.testing.assert_close(got, expected.expand_as(got))
