"""Jacobians that leave out what is zero, against the same written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.additive import Jacobian, TermFamily
from tests.additive.problems import FIRST, MIXED, PAIR, SECOND, labels, nets, normal, steps, table, valued

FAMILIES = {
    "nets": lambda outputs: nets(FIRST, SECOND, outputs=outputs),
    "pairs": lambda outputs: nets(PAIR, MIXED, hidden=4, outputs=outputs),
    "values": valued,
    "steps": steps,
    "labels": labels,
}


@pytest.fixture(params=[1, 2, 3, 5])
def outputs(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request: pytest.FixtureRequest, outputs: int) -> TermFamily:
    return request.param(outputs)


@pytest.fixture
def jacobian(family: TermFamily) -> Jacobian:
    """At rows of which some are missing."""
    return family.jacobian(normal(len(family.terms), family.weights), family.points(table(17)))


def assert_same(answer: Tensor, expected: Tensor) -> None:
    assert answer.shape == expected.shape
    assert float((answer - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


def test_each_weight_is_in_one_place(family: TermFamily, jacobian: Jacobian) -> None:
    places = torch.cat([jacobian.of_shared, jacobian.of_separate.flatten()])
    assert places.sort().values.tolist() == list(range(family.weights))


def test_written_out_it_is_the_derivative_of_the_values(family: TermFamily, jacobian: Jacobian) -> None:
    points = family.points(table(17))
    whole = torch.func.jacrev(lambda at: family.values(at, points))(normal(len(family.terms), family.weights))
    assert_same(jacobian.dense(), torch.stack([whole[term, :, :, term] for term in range(len(family.terms))]))


def test_products_are_those_of_the_dense_one(family: TermFamily, jacobian: Jacobian) -> None:
    dense = jacobian.dense()
    v, u = normal(len(family.terms), family.weights, seed=1), normal(*dense.shape[:3], seed=2)
    assert_same(jacobian.multiply(v), torch.einsum("gucp,gp->guc", dense, v))
    assert_same(jacobian.transpose_multiply(u), torch.einsum("gucp,guc->gp", dense, u))


def test_the_curvature_is_that_of_the_dense_one(jacobian: Jacobian) -> None:
    dense = jacobian.dense()
    root = normal(*dense.shape[:3], dense.shape[2], seed=3)
    middle = root @ root.mT
    expected = torch.einsum("gucp,gucd,gudq->gpq", dense, middle, dense)
    assert_same(jacobian.curvature(middle), expected)


def test_with_one_output_nothing_is_apart(outputs: int, jacobian: Jacobian) -> None:
    assert (jacobian.separate.shape[-1] == 0) == (outputs == 1)
