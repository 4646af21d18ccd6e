"""The linear model and its tape, against autograd."""

import numpy as np
import pytest
import torch

from bayescope.errors import InputError
from bayescope.models import LinearizedModel, LinearModel
from bayescope.precision import DensePrecision

SHAPES = [(1, 1, True), (4, 1, False), (3, 3, True), (2, 5, False)]


@pytest.mark.parametrize(("features", "outputs", "bias"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_jacobian_is_autograd_s(features, outputs, bias, rows):
    model = LinearModel(features, outputs, bias)
    source = torch.Generator().manual_seed(0)
    x = torch.randn(rows, features, dtype=torch.float64, generator=source)
    theta = torch.randn(model.dim, dtype=torch.float64, generator=source)
    expected = torch.func.jacrev(lambda t: model.forward(x, t))(theta)
    torch.testing.assert_close(model.tape(x).jacobian(slice(None)), expected)


@pytest.mark.parametrize(("features", "outputs", "bias"), SHAPES)
def test_forward_is_nn_linear_in_its_parameter_order(features, outputs, bias):
    with torch.random.fork_rng():
        layer = torch.nn.Linear(features, outputs, bias=bias, dtype=torch.float64)
    theta = torch.nn.utils.parameters_to_vector(layer.parameters()).detach()
    model = LinearModel(features, outputs, bias)
    x = torch.linspace(-1, 1, 4 * features, dtype=torch.float64).reshape(4, features)
    torch.testing.assert_close(model.forward(x, theta), layer(x).detach())
    torch.testing.assert_close(model.flat(*model.unflat(theta)), theta)
    many = theta + torch.arange(6, dtype=torch.float64).reshape(2, 3, 1)
    torch.testing.assert_close(model.forward(x, many)[1, 2], model.forward(x, many[1, 2]))


def test_variances_are_those_of_the_covariance():
    model = LinearModel(3, 4)
    source = torch.Generator().manual_seed(0)
    x, root = (torch.randn(n, k, dtype=torch.float64, generator=source) for n, k in [(5, 3), (16, 16)])
    precision = DensePrecision(root @ root.T + torch.eye(16, dtype=torch.float64))
    covariance = model.covariance(x, root[0], precision)
    torch.testing.assert_close(model.variance(x, root[0], precision), covariance.diagonal(dim1=1, dim2=2))
    tangent = LinearizedModel(model, root[1])
    torch.testing.assert_close(tangent.variance(x, root[0], precision), covariance.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(tangent.covariance(x, root[0], precision), covariance)
    torch.testing.assert_close(tangent.forward(x, root), model.forward(x, root))


def test_the_graph_of_x_is_kept_on_request_alone():
    model, x = LinearModel(3, 4), torch.ones(5, 3, dtype=torch.float32, requires_grad=True)
    assert not model.inputs(x).requires_grad
    kept = model.differentiable.inputs(x)
    assert kept.requires_grad
    assert kept.dtype == torch.float64
    assert model.differentiable.space == model.space != LinearModel(3, 4, bias=False).space
    with pytest.raises(InputError, match=r"X: expected shape"):
        model.differentiable.inputs(x[:, :2])


def test_inputs_are_checked():
    model = LinearModel(3)
    assert model.inputs(np.ones((2, 3), dtype=np.float32)).dtype == torch.float64
    for bad in (np.ones((2, 4)), np.ones(3), np.ones((1, 2, 3))):
        with pytest.raises(InputError, match=r"X: expected shape \(N, 3\)"):
            model.inputs(bad)
