"""The nets as a plain PyTorch module: one function in two modes, differentiated by hand in one of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import bayescope as bs
from bayescope.additive import AdditiveNetwork, EncodedRows, FeatureInput, Term
from bayescope.errors import InputError
from tests.additive.problems import nets, normal, seeded

SHAPES = [(1, 1, 3), (4, 1, 8), (3, 2, 5)]


def network(features: int, outputs: int, hidden: int) -> AdditiveNetwork:
    """With weights of order 1, none of them 0."""
    module = AdditiveNetwork(features, outputs, hidden=hidden, generator=0).double()
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=place))
    return module


def gappy(n: int, features: int) -> Tensor:
    return normal(n, features).masked_fill(torch.rand(n, features, generator=seeded()) < 0.2, torch.nan)


@pytest.fixture(params=SHAPES, ids=str)
def module(request: pytest.FixtureRequest) -> AdditiveNetwork:
    return network(*request.param)


def features_of(module: AdditiveNetwork) -> int:
    return module.inner_weight.shape[0]


def test_it_is_the_nets_of_the_library(module: AdditiveNetwork) -> None:
    outputs, features, hidden = module.outer_weight.shape
    x = gappy(20, features)
    family = nets(*[Term(f"x{j}", (FeatureInput(j),)) for j in range(features)], hidden=hidden, outputs=outputs)
    theta = torch.cat(
        [module.inner_weight, module.inner_bias, module.outer_weight.transpose(0, 1).flatten(1), module.missing.T], 1
    )
    rows = EncodedRows(torch.where(x.isnan(), 0.0, x), torch.where(x.isnan(), 0, -1))
    expected = family.values(theta, family.points(rows)).transpose(0, 1)
    torch.testing.assert_close(module.effects(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_effects_and_the_bias_are_f(module: AdditiveNetwork, training: bool) -> None:
    x = gappy(25, features_of(module))
    f = module.train(training)(x)
    assert f.shape == (25, len(module.bias))
    torch.testing.assert_close(f, module.effects(x).sum(1) + module.bias, rtol=1e-12, atol=1e-12)


def both(module: AdditiveNetwork, x: Tensor, order: int) -> list[list[Tensor]]:
    """Derivatives of a loss by all weights and the numbers, in eval and in training mode."""
    found = []
    for training in (False, True):
        at = [*module.train(training).parameters(), x]
        loss = module(x).sin().sum()
        for _ in range(order - 1):
            slopes = torch.autograd.grad(loss, at, create_graph=True)
            loss = torch.stack([slope.square().sum() for slope in slopes]).sum()
        found.append([slope.detach() for slope in torch.autograd.grad(loss, at)])
    return found


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_are_autograds(module: AdditiveNetwork, order: int) -> None:
    x = normal(15, features_of(module)).requires_grad_()
    plain, by_hand = both(module, x, order)
    for expected, slope in zip(plain, by_hand, strict=True):
        torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9)


def test_derivatives_beside_missing_values_are_autograds(module: AdditiveNetwork) -> None:
    x = gappy(15, features_of(module))
    slopes = [
        torch.autograd.grad(module.train(training)(x).sin().sum(), list(module.parameters()))
        for training in (False, True)
    ]
    for expected, slope in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, expected, rtol=1e-11, atol=1e-11)


def test_a_second_derivative_of_f_itself(module: AdditiveNetwork) -> None:
    """The loss is linear in f: its curvature comes from the hidden units alone."""
    x = normal(6, features_of(module))
    found = []
    for training in (False, True):
        weights = {name: value.detach() for name, value in module.train(training).named_parameters()}

        def loss(bias: Tensor, weights: dict[str, Tensor] = weights) -> Tensor:
            return functional_call(module, weights | {"inner_bias": bias}, (x,)).sum()

        found.append(torch.func.jacrev(torch.func.grad(loss))(weights["inner_bias"]))
    torch.testing.assert_close(*found)
    assert float(found[0].abs().max()) > 0.1


def test_members_and_their_batches_side_by_side(module: AdditiveNetwork) -> None:
    module.train()
    x = torch.stack([gappy(9, features_of(module)), normal(9, features_of(module), seed=5)])
    weights = {name: value.detach() for name, value in module.named_parameters()}
    stacked = {name: torch.stack([value, -0.5 * value]) for name, value in weights.items()}
    slope = torch.func.grad(lambda some, rows: functional_call(module, some, (rows,)).square().sum())
    together = torch.func.vmap(slope)(stacked, x)
    for member in range(2):
        alone = slope({name: value[member] for name, value in stacked.items()}, x[member])
        for name, value in alone.items():
            torch.testing.assert_close(together[name][member], value)


def test_single_precision_is_as_good_as_it_can_be() -> None:
    module = network(5, 1, 16).train()
    x = gappy(200, 5)
    exact = module(x)
    expected = torch.autograd.grad(exact.square().sum(), list(module.parameters()))
    single = AdditiveNetwork(5, hidden=16, generator=0).train()
    single.load_state_dict({name: value.float() for name, value in module.state_dict().items()})
    f = single(x.float())
    assert f.dtype == torch.float32
    torch.testing.assert_close(f.double(), exact, rtol=0.0, atol=2e-5)
    for mine, theirs in zip(torch.autograd.grad(f.square().sum(), list(single.parameters())), expected, strict=True):
        assert float((mine - theirs).norm()) < 1e-5 * float(theirs.norm())


def test_first_weights_are_the_seeds_and_of_the_librarys_slopes() -> None:
    first, again, other = (AdditiveNetwork(20, hidden=32, generator=seed) for seed in (0, 0, 1))
    for here, there in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(here, there)
    assert not torch.equal(first.inner_weight, other.inner_weight)
    slopes = first.inner_weight.detach().abs()
    assert 0.3 <= float(slopes.min()) < 1.0 < 2.5 < float(slopes.max()) <= 3.0
    kinks = (-first.inner_bias / first.inner_weight).detach().flatten()
    assert abs(float(kinks.mean())) < 0.15
    assert 0.9 < float(kinks.std()) < 1.1
    assert 0.2 < float(first(torch.randn(500, 20, generator=seeded())).detach().std()) < 2.0


def test_other_shapes_are_refused() -> None:
    module = AdditiveNetwork(3, generator=0)
    for shape in ((4, 2), (4,), (2, 4, 3)):
        with pytest.raises(InputError, match=r"x: expected shape \(N, 3\)"):
            module(torch.zeros(*shape))
    with pytest.raises(InputError, match="features"):
        AdditiveNetwork(0)
    assert repr(module) == "AdditiveNetwork(features=3, outputs=1, hidden=32)"


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained to its mode
def test_laplace_reads_every_weight() -> None:
    """At the mode of a small fit the dense curvature is that of the Jacobian in eval mode."""
    module, x = network(2, 1, 3), gappy(30, 2)
    y = module(x).detach() + 0.1 * normal(30, 1)
    posterior = bs.fit_map(module, (x, y), likelihood=bs.Gaussian(0.1), epochs=3, generator=0)
    fitted = posterior.model.eval()
    laplace = bs.laplace(fitted, (x, y), likelihood=bs.Gaussian(0.1), structure="full", prior_precision=1.0)
    weights = dict(fitted.named_parameters())
    jacobian = torch.func.jacrev(lambda some: functional_call(fitted, some, (x,)))(
        {name: value.detach() for name, value in weights.items()}
    )
    rows = torch.cat([jacobian[name].reshape(30, -1) for name in weights], 1)
    expected = rows.T @ rows / 0.1 + torch.eye(rows.shape[1], dtype=torch.float64)
    torch.testing.assert_close(laplace.precision.to_dense(), expected, rtol=1e-8, atol=1e-8)
