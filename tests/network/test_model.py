"""A network as a model f(x, θ): right at any weights, in any form of inputs, and nothing is left behind."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError
from bayescope.network import Network, NetworkModel
from bayescope.precision import DensePrecision, DiagonalPrecision
from tests.network.networks import built, jacobian, numbers


class Two(nn.Module):
    """Dropout, statistics of the batch, two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(7, 2)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.b(torch.cat([nn.functional.dropout(self.norm(self.a(x)), 0.5, self.training), z], 1))


INPUTS = {"x": numbers(6, 3), "z": numbers(6, 2, seed=3)}


def model(weights: Any = "all", dtype: torch.dtype = torch.float64) -> NetworkModel:
    module = built(Two).to(dtype)
    network = Network.trace(module, {name: value.to(dtype) for name, value in INPUTS.items()}, weights)
    return NetworkModel.of(network, INPUTS)


def precision(f: NetworkModel) -> DensePrecision:
    root = numbers(f.dim, f.dim, seed=5)
    return DensePrecision(root @ root.T + torch.eye(f.dim, dtype=torch.float64))


def at(f: NetworkModel, theta: Tensor) -> nn.Module:
    """The module with other weights, in eval mode."""
    module = copy.deepcopy(f.module).eval()
    with torch.no_grad():
        for name, value in f.weights.unflat(theta, f.module).items():
            module.get_parameter(name).copy_(value)
    return module


@pytest.mark.parametrize("weights", ["all", "last_layer", "*.bias"])
def test_values_covariances_and_products_at_any_weights(weights: str) -> None:
    f = model(weights)
    assert f.outputs == 2
    x, a, v = f.inputs(INPUTS), precision(f), numbers(3, f.dim, seed=7)
    for theta in (f.flat, f.flat + 0.3 * numbers(f.dim, seed=6)):
        module = at(f, theta)
        with torch.no_grad():
            torch.testing.assert_close(f.forward(x, theta), module(**INPUTS))
        j = jacobian(module, INPUTS, f.weights.names)
        want = j @ torch.linalg.solve(a.to_dense(), j.mT)
        torch.testing.assert_close(f.covariance(x, theta, a), want)
        torch.testing.assert_close(f.variance(x, theta, a), want.diagonal(dim1=1, dim2=2))
        torch.testing.assert_close(f.jacobian_product(x, theta, v), torch.einsum("ncp,rp->rnc", j, v))
    many = f.flat + numbers(2, 3, f.dim, seed=8)
    torch.testing.assert_close(f.forward(x, many)[1, 2], f.forward(x, many[1, 2]))


def test_any_number_of_rows_at_once_gives_the_same_answers() -> None:
    f = model()
    theta, a = f.flat + numbers(4, f.dim, seed=6), precision(f)
    ask = (
        lambda x: f.forward(x, f.flat), lambda x: f.forward(x, theta).movedim(1, 0),
        lambda x: f.covariance(x, f.flat, a), lambda x: f.jacobian_product(x, f.flat, theta).movedim(1, 0),
    )  # fmt: skip
    rows = [{name: value[n : n + 1] for name, value in INPUTS.items()} for n in range(6)]
    for question in ask:
        torch.testing.assert_close(torch.cat([question(f.inputs(row)) for row in rows]), question(f.inputs(INPUTS)))
    with pytest.raises(InputError, match="x: expected at least one row, got none"):
        f.inputs({name: value[:0] for name, value in INPUTS.items()})
    with pytest.raises(InputError, match="same number of rows"):
        f.inputs({"x": INPUTS["x"], "z": INPUTS["z"][:3]})


def test_inputs_may_be_arrays_and_of_another_type() -> None:
    f = model(dtype=torch.float32)
    arrays = {name: value.numpy() for name, value in INPUTS.items()}
    want = f.forward(f.inputs(INPUTS), f.flat)
    assert want.dtype == torch.float64
    assert torch.equal(f.forward(f.inputs(arrays), f.flat), want)
    assert torch.equal(f.forward(f.inputs((INPUTS["x"], INPUTS["z"])), f.flat), want)
    with torch.no_grad():
        exact = at(f, f.flat)(**{name: value.float() for name, value in INPUTS.items()})
    assert torch.equal(want, exact.double())
    assert np.array_equal(arrays["x"], INPUTS["x"].numpy())


@pytest.mark.parametrize("training", [True, False])
def test_no_question_leaves_a_trace(training: bool) -> None:
    f = model()
    f.module.train(training)
    f.module.a.weight.grad = torch.ones_like(f.module.a.weight)
    x, theta, a = f.inputs(INPUTS), f.flat + numbers(3, f.dim, seed=6), precision(f)
    before = {name: value.clone() for name, value in f.module.state_dict().items()}
    leaf = {name: value.clone().requires_grad_() for name, value in x.items()}
    answers = [
        f.forward(leaf, f.flat), f.forward(leaf, theta), f.covariance(leaf, f.flat, a),
        f.variance(leaf, theta[0], a), f.jacobian_product(leaf, f.flat, theta),
        f.differentiable.covariance(leaf, theta[0], a).detach(),
    ]  # fmt: skip
    assert not any(answer.requires_grad for answer in answers)
    assert all(part.training == training for part in f.module.modules())
    assert all(torch.equal(value, before[name]) for name, value in f.module.state_dict().items())
    assert torch.equal(f.module.a.weight.grad, torch.ones_like(f.module.a.weight))
    assert all(parameter.requires_grad for parameter in f.module.parameters())


@pytest.mark.parametrize("context", ["inference", "autocast", "no_grad"])
def test_the_caller_s_context_changes_no_more_than_rounding(context: str) -> None:
    f = model(dtype=torch.float32)
    x, theta, a = f.inputs(INPUTS), f.flat + 0.1 * numbers(3, f.dim, seed=6), DiagonalPrecision(torch.ones(f.dim))

    def answers() -> list[Tensor]:
        return [
            f.forward(x, f.flat), f.forward(x, theta), f.covariance(x, f.flat, a), f.variance(x, f.flat, a),
            f.jacobian_product(x, f.flat, theta),
        ]  # fmt: skip

    contexts: dict[str, Any] = {
        "inference": torch.inference_mode(), "autocast": torch.autocast("cpu", torch.bfloat16),
        "no_grad": torch.no_grad(),
    }  # fmt: skip
    want = answers()
    with contexts[context]:
        got = answers()
    for one, exact in zip(got, want, strict=True):
        assert one.dtype == torch.float64
        error = 0.05 * float(exact.abs().max()) if context == "autocast" else 1e-5
        torch.testing.assert_close(one, exact, rtol=0, atol=error)


def test_the_module_that_it_shows_is_a_copy() -> None:
    f = model()
    want, shown = f.forward(f.inputs(INPUTS), f.flat), f.source
    with torch.no_grad():
        for parameter in shown.parameters():
            parameter.zero_()
    assert torch.equal(f.forward(f.inputs(INPUTS), f.flat), want)
    assert f.source is shown  # the user's from now on


def test_other_weights_are_another_model() -> None:
    f = model("last_layer")
    theta = f.flat + 1.0
    moved = f.at(theta)
    assert moved is not f
    assert f.at(f.flat) is f
    assert torch.equal(moved.flat, theta)
    torch.testing.assert_close(moved.forward(INPUTS, theta), f.forward(INPUTS, theta))
    torch.testing.assert_close(moved.forward(INPUTS, f.flat), f.forward(INPUTS, f.flat))


def test_a_module_that_was_never_traced_is_when_its_jacobian_is_asked_for() -> None:
    f = model()
    bare = NetworkModel(f.module, f.weights, 2)
    torch.testing.assert_close(bare.forward(INPUTS, f.flat + 1.0), f.forward(INPUTS, f.flat + 1.0))
    want = f.covariance(INPUTS, f.flat, precision(f))
    torch.testing.assert_close(bare.covariance(INPUTS, f.flat, precision(f)), want)


def test_weights_are_comparable_where_they_mean_the_same() -> None:
    assert model().space == model().space
    assert model().space != model("last_layer").space
    masks = [torch.zeros(model().dim, dtype=torch.bool) for _ in range(2)]
    masks[0][3], masks[1][4] = True, True
    assert model(masks[0]).space == model(masks[0]).space != model(masks[1]).space


@pytest.mark.parametrize("drawn", [False, True])
def test_inputs_that_do_not_fit_are_described(drawn: bool) -> None:
    module = built(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))).float()
    f = NetworkModel.of(Network.trace(module, numbers(6, 4).float()), numbers(6, 4))
    theta = f.flat.expand(3, -1) if drawn else f.flat
    with pytest.raises(InputError, match=r"run on inputs of shape \(6, 3\) and dtype float32: mat1") as caught:
        f.forward(f.inputs(numbers(6, 3)), theta)
    assert isinstance(caught.value.__cause__, RuntimeError)
    for row in (numbers(4), np.zeros(4)):
        with pytest.raises(InputError, match=r"shape \(N, …\).* shape \(4,\)|shape \(4,\) .*shape \(N, …\)") as caught:
            f.forward(f.inputs(row), theta)
        assert "one row is X[:1]" in str(caught.value)
    with pytest.raises(InputError, match=r"dtype int64: .* give X\.astype\(float\)"):
        f.forward(f.inputs(np.arange(8).reshape(2, 4)), theta)
    with pytest.raises(InputError, match=r"run on inputs of shape \(6, 3\)"):
        f.jacobian_product(f.inputs(numbers(6, 3)), f.flat, f.flat[None])
    with pytest.raises(InputTypeError, match="got a TensorDataset"):
        f.inputs(torch.utils.data.TensorDataset(numbers(6, 4)))


def test_inputs_that_do_not_fit_are_described_where_answers_are_differentiated() -> None:
    f = model().differentiable
    with pytest.raises(InputError, match=r"x: shape \(6, 2\) and dtype float64, z: shape \(6, 2\)"):
        f.forward(f.inputs({"x": numbers(6, 2), "z": INPUTS["z"]}), model().flat)


def test_an_opened_last_layer_runs_its_body_once_and_answers_alike() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)))
    x = numbers(7, 3)
    model = NetworkModel.of(Network.trace(module, x, "last_layer"), x)
    precision = DiagonalPrecision(torch.linspace(1.0, 2.0, model.dim, dtype=torch.float64))
    classes = torch.arange(14).reshape(7, 2) % 5
    calls: list[int] = []
    hook = model.module.register_forward_hook(lambda *_: calls.append(1))
    opened = model.opened(x, model.flat)
    answers = [
        opened.forward(x, model.flat),
        opened.variance(x, model.flat, precision),
        opened.covariance(x, model.flat, precision, classes),
    ]
    assert len(calls) == 1
    hook.remove()
    wanted = [
        model.forward(x, model.flat),
        model.variance(x, model.flat, precision),
        model.covariance(x, model.flat, precision, classes),
    ]
    for found, other in zip(answers, wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=0.0)
    elsewhere = model.flat + 1.0
    torch.testing.assert_close(opened.forward(x, elsewhere), model.forward(x, elsewhere), rtol=1e-12, atol=0.0)
    moved = opened.covariance(x, elsewhere, precision)
    torch.testing.assert_close(moved, model.covariance(x, elsewhere, precision), rtol=1e-12, atol=0.0)


def test_a_whole_network_keeps_nothing_between_questions() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)))
    x = numbers(7, 3)
    model = NetworkModel.of(Network.trace(module, x), x)
    assert model.opened(x, model.flat) is model
