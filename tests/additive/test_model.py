"""The fitted model: the training model in centred coordinates, first and zeroth order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayescope.additive import AdditiveModel, Centre
from bayescope.errors import InputTypeError
from bayescope.precision import BlockPrecision, DensePrecision, Precision
from tests.additive.problems import CASES, Case, normal, seeded, state_of, table


def model_of(case: Case, state: torch.Tensor, *, unit: bool = False) -> AdditiveModel:
    problem = case.problem
    linear = problem.linearized(state, case.likelihood)
    centres = tuple(
        Centre(design.mean(family.values(theta, design.points)), mean, theta)
        for family, design, theta, mean in zip(
            problem.families, problem.designs, problem.split(state)[0], linear.means, strict=True
        )
    )
    scale, shift = torch.ones(case.outputs).double(), torch.zeros(case.outputs).double()
    if unit:
        scale, shift = 2.0 + torch.arange(case.outputs).double(), 5.0 - torch.arange(case.outputs).double()
    return AdditiveModel(problem.families, centres, scale, shift)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def state(case: Case) -> torch.Tensor:
    return state_of(case.problem, case.outputs)


def spread(dim: int, seed: int = 40) -> torch.Tensor:
    root = normal(dim, dim, seed=seed)
    return root @ root.T / dim + torch.eye(dim, dtype=torch.float64)


def test_at_the_mode_it_is_the_training_model(case: Case, state: torch.Tensor) -> None:
    f = model_of(case, state).forward(case.rows, state)
    torch.testing.assert_close(f, case.problem.outputs(state), rtol=1e-10, atol=1e-10)


def test_its_jacobian_there_is_the_training_models(case: Case, state: torch.Tensor) -> None:
    model, theta = model_of(case, state), state
    expected = case.plain.jacobian(theta)
    torch.testing.assert_close(model.tape(case.rows, theta).jacobian(slice(None)), expected, rtol=1e-10, atol=1e-10)
    by_autograd = torch.func.jacrev(lambda at: model.forward(case.rows, at))(theta)
    torch.testing.assert_close(by_autograd, expected, rtol=1e-10, atol=1e-10)


def test_away_from_the_mode_its_jacobian_is_its_own(case: Case, state: torch.Tensor) -> None:
    model, theta = model_of(case, state), state_of(case.problem, case.outputs, seed=20)
    by_autograd = torch.func.jacrev(lambda at: model.forward(case.rows, at))(theta)
    torch.testing.assert_close(model.tape(case.rows, theta).jacobian(slice(None)), by_autograd)


def test_centring_is_linear_in_the_weights(case: Case, state: torch.Tensor) -> None:
    """So it is a shear, whose determinant is 1: the model is the sum of terms as they are, in other coordinates."""
    model, theta = model_of(case, state), state_of(case.problem, case.outputs, seed=20)
    for family, centre, weights in model._by_family(theta):
        there = family.centred(family.points(case.rows))
        straight = centre.of(weights, there) + centre.of(-weights, there) - 2.0 * centre.of(0.0 * weights, there)
        assert float(straight.abs().max()) < 1e-9
        raw = family.values(weights, family.points(case.rows))
        moved = raw - centre.of(weights, there)
        torch.testing.assert_close(moved + centre.of(weights, there), raw)


def test_effects_have_mean_zero_over_the_data_for_all_weights_to_first_order(case: Case, state: torch.Tensor) -> None:
    model, theta = model_of(case, state), state
    share = case.problem.weights / case.problem.rows()
    at_mode = torch.einsum("n,tnc->tc", share, model.contributions(case.rows, theta))
    assert float(at_mode.abs().max()) < 1e-12
    for jacobian in model.jacobians(case.rows, theta):
        assert float(torch.einsum("n,ncp->cp", share, jacobian).abs().max()) < 1e-12


def test_contributions_intercept_and_offset_are_f(case: Case, state: torch.Tensor) -> None:
    model = model_of(case, state, unit=True)
    for theta in (state, state_of(case.problem, case.outputs, seed=21)):
        parts = model.contributions(case.rows, theta)
        assert parts.shape == (len(model.terms), len(case.rows), case.outputs)
        offset = 0.0 if case.rows.offset is None else case.rows.offset
        whole = parts.sum(0) + model.shift + model.scale * theta[-case.outputs :] + offset
        torch.testing.assert_close(model.forward(case.rows, theta), whole, rtol=0.0, atol=1e-12)


def test_another_unit_scales_f_and_its_jacobian(case: Case, state: torch.Tensor) -> None:
    plain, scaled, theta = model_of(case, state), model_of(case, state, unit=True), state
    offset = 0.0 if case.rows.offset is None else case.rows.offset
    expected = scaled.shift + scaled.scale * (plain.forward(case.rows, theta) - offset) + offset
    torch.testing.assert_close(scaled.forward(case.rows, theta), expected)
    jacobian = plain.tape(case.rows, theta).jacobian(slice(None))
    torch.testing.assert_close(scaled.tape(case.rows, theta).jacobian(slice(None)), scaled.scale[:, None] * jacobian)


def precisions(model: AdditiveModel) -> list[tuple[Precision, torch.Tensor]]:
    """A full one, and its blocks, each with its dense inverse."""
    full = spread(model.dim)
    blocks = torch.zeros_like(full)
    for place in model.indices:
        blocks[place[:, None], place] = full[place][:, place]
    parts = [DensePrecision(full[place][:, place]) for place in model.indices]
    by_block = BlockPrecision(parts, model.indices, model.dim)
    return [(DensePrecision(full), torch.linalg.inv(full)), (by_block, torch.linalg.inv(blocks))]


def test_covariances_are_those_of_the_dense_inverse(case: Case, state: torch.Tensor) -> None:
    model, theta = model_of(case, state, unit=True), state
    jacobian = model.tape(case.rows, theta).jacobian(slice(None))
    for precision, inverse in precisions(model):
        covariance = jacobian @ inverse @ jacobian.mT
        torch.testing.assert_close(model.covariance(case.rows, theta, precision), covariance)
        torch.testing.assert_close(model.variance(case.rows, theta, precision), covariance.diagonal(dim1=-2, dim2=-1))
    v = normal(3, model.dim, seed=41)
    expected = torch.einsum("ncp,rp->rnc", jacobian, v)
    torch.testing.assert_close(model.jacobian_product(case.rows, theta, v), expected)


def test_equal_rows_have_the_same_variance_and_each_its_own_derivative(case: Case, state: torch.Tensor) -> None:
    model, theta = model_of(case, state), state
    precision = precisions(model)[1][0]
    alone = torch.cat([model.variance(case.rows[n : n + 1], theta, precision) for n in range(4)])
    again = case.rows[torch.tensor([0, 1, 2, 3, 0, 2])]
    torch.testing.assert_close(model.variance(again, theta, precision), alone[[0, 1, 2, 3, 0, 2]])
    values = again.values.clone().requires_grad_()
    model.variance(replace(again, values=values), theta, precision)[4:].sum().backward()
    assert values.grad is not None
    assert values.grad[4:].any()
    assert not values.grad[:4].any()


def test_draws_have_the_models_own_spread() -> None:
    """Where the weights are told closely f is as good as linear in them."""
    case = CASES[0]
    state = state_of(case.problem, 1)
    model, theta = model_of(case, state), state
    precision = DensePrecision(1e4 * spread(model.dim))
    drawn = model.sampled(case.rows, theta, precision, 4000, seeded())
    assert drawn.shape == (4000, len(case.rows), 1)
    expected = model.variance(case.rows, theta, precision)
    torch.testing.assert_close(drawn.var(0), expected, rtol=0.15, atol=1e-9)


def test_many_weights_are_read_at_once(case: Case, state: torch.Tensor) -> None:
    model = model_of(case, state, unit=True)
    draws = torch.stack([state_of(case.problem, case.outputs, seed=seed) for seed in range(3)])
    f = model.forward(case.rows, draws)
    assert f.shape == (3, len(case.rows), case.outputs)
    torch.testing.assert_close(f[1], model.forward(case.rows, draws[1]))


def test_no_rows(case: Case, state: torch.Tensor) -> None:
    model, none, theta = model_of(case, state), case.rows[:0], state
    precision = DensePrecision(torch.eye(model.dim, dtype=torch.float64))
    assert model.forward(none, theta).shape == (0, case.outputs)
    assert model.covariance(none, theta, precision).shape == (0, case.outputs, case.outputs)
    assert model.variance(none, theta, precision).shape == (0, case.outputs)
    assert model.jacobian_product(none, theta, theta[None]).shape == (1, 0, case.outputs)


def test_it_is_a_model_of_its_own_weights(case: Case, state: torch.Tensor) -> None:
    model, other = model_of(case, state), model_of(case, state)
    assert model.source is model
    assert model.space == other.space
    another = CASES[(CASES.index(case) + 1) % len(CASES)]
    assert model.space != model_of(another, state_of(another.problem, another.outputs)).space
    assert model.dim == len(state)
    assert [len(place) for place in model.indices] == [len(place) for place in case.plain.places]
    with pytest.raises(InputTypeError, match="encoded rows, got Tensor"):
        model.inputs(torch.zeros(2, 3))
    assert len(model.inputs(table(4))) == 4
