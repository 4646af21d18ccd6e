"""The log joint and its gradient against the module itself."""

import threading

import pytest
import torch
from torch import nn

from bayescope.linear import LinearDensity
from bayescope.log_density import LogDensity
from bayescope.network import network_prior
from bayescope.sampling import NetworkDensity
from tests.network.networks import numbers
from tests.sampling.networks import CASES, REAL, Case, X, compiled, written_out

EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
class TestEveryNetwork:
    def test_value_and_gradient(self, case):
        density, _, chosen = compiled(case)
        theta = 0.8 * numbers(chosen.dim, seed=7)
        for mine, expected in zip(density.value_and_gradient(theta), written_out(case, theta), strict=True):
            torch.testing.assert_close(mine, expected, **EXACT)

    def test_values_of_many_points(self, case):
        density, _, chosen = compiled(case)
        theta = 0.8 * numbers(3, chosen.dim, seed=8)
        expected = torch.stack([written_out(case, each)[0] for each in theta])
        torch.testing.assert_close(density.log_prob(theta).detach(), expected, **EXACT)

    def test_by_hand_where_it_can_be(self, case):
        density, _, _ = compiled(case)
        assert isinstance(density, LogDensity)
        assert isinstance(density, NetworkDensity)
        assert (density.layers is not None) == case.by_hand

    def test_the_module_is_not_written(self, case):
        density, module, chosen = compiled(case)
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        density.value_and_gradient(0.8 * numbers(chosen.dim, seed=7))
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
        assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_blocks_of_rows_change_nothing(name):
    case = CASES[name]
    times = 1 + 2000 // len(case.x)  # more rows than are read at once
    many, _, chosen = compiled(case._replace(x=torch.cat([case.x] * times), y=torch.cat([case.y] * times)))
    theta, prior = numbers(chosen.dim, seed=7), network_prior(case.prior_precision, chosen)
    of_prior = prior.log_prob(theta), prior.gradient(theta)
    found = many.value_and_gradient(theta)
    for mine, once, other in zip(found, written_out(CASES[name], theta), of_prior, strict=True):
        torch.testing.assert_close(mine - other, times * (once - other), **EXACT)


@pytest.mark.parametrize("name", ["tanh", "gelu", "last layer"])
def test_hessian(name):
    density, _, chosen = compiled(CASES[name])
    theta = 0.5 * numbers(chosen.dim, seed=7)
    slope = torch.func.jacrev(torch.func.grad(density.log_prob))(theta)
    torch.testing.assert_close(density.hessian(theta), slope, **EXACT)


def test_several_threads_at_once():
    density, _, chosen = compiled(CASES["gelu"])
    points = numbers(4, chosen.dim, seed=7)
    expected = [density.value_and_gradient(point)[1] for point in points]
    found: dict[int, bool] = {}

    def ask(place: int) -> None:
        same = [torch.equal(density.value_and_gradient(points[place])[1], expected[place]) for _ in range(20)]
        found[place] = all(same)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_a_linear_model(bias):
    case = Case(lambda: nn.Linear(2, 1, bias=bias), X, REAL, "gaussian", True)
    density, _, chosen = compiled(case)
    assert isinstance(density, LinearDensity)
    theta = numbers(chosen.dim, seed=7)
    for mine, expected in zip(density.value_and_gradient(theta), written_out(case, theta), strict=True):
        torch.testing.assert_close(mine, expected, **EXACT)
