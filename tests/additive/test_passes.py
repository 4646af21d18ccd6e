"""A problem whose rows are read block by block is the problem of all rows at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayescope.additive import AdditiveOptions, Computed, RowPasses, TrainingValues, climb
from tests.additive.problems import CASES, Case, hyperparameters, state_of

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def in_blocks(case: Case, size: int = 5) -> Case:
    count = len(case.problem.weights)
    blocks = tuple(slice(at, min(at + size, count)) for at in range(0, count, size))
    return replace(case, problem=replace(case.problem, passes=RowPasses(blocks, in_files=True)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sums_over_blocks_are_those_over_all_rows(case: Case) -> None:
    streamed = in_blocks(case)
    state = state_of(case.problem, case.outputs)
    here, there = (each.problem.linearized(state, each.likelihood) for each in (case, streamed))
    assert isinstance(there.curvature, Computed)
    torch.testing.assert_close(there.f[0:5], here.f[0:5], **CLOSE)
    at = hyperparameters(case.problem, case.likelihood)
    torch.testing.assert_close(streamed.problem.log_joint(state, at), case.problem.log_joint(state, at), **CLOSE)
    torch.testing.assert_close(there.transposed(there.slope), here.transposed(here.slope), **CLOSE)
    v = here.transposed(here.slope)
    torch.testing.assert_close(there.product(v), here.product(v), **CLOSE)
    for one, other in zip(there.blocks, here.blocks, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    assert streamed.problem.rows() == pytest.approx(case.problem.rows(), rel=1e-12)


@pytest.mark.parametrize("name", ["gaussian, two outputs", "categorical"])
def test_a_climb_over_blocks_ends_where_one_over_all_rows_does(name: str) -> None:
    case = next(each for each in CASES if each.name == name)
    options = AdditiveOptions(epochs=6, burn_in=2)
    here, there = (
        climb(each.problem, each.problem.centre, hyperparameters(each.problem, each.likelihood), options)
        for each in (case, in_blocks(case))
    )
    assert there.log_evidence == pytest.approx(here.log_evidence, rel=1e-8)
    torch.testing.assert_close(there.theta, here.theta, rtol=1e-6, atol=1e-6)


def test_what_was_seen_in_blocks() -> None:
    case = next(each for each in CASES if each.name == "bernoulli")
    here, there = (TrainingValues.of(each.problem, 3) for each in (case, in_blocks(case)))
    for one, other in zip((*here.features, *here.pairs), (*there.features, *there.pairs), strict=True):
        assert torch.equal(one.numbers, other.numbers)
        assert torch.equal(one.levels, other.levels)
        torch.testing.assert_close(one.weights, other.weights, **CLOSE)


def test_rows_evenly_among_all_are_the_same_in_blocks() -> None:
    numbers = torch.arange(23.0)
    blocks = tuple(slice(at, min(at + 5, 23)) for at in range(0, 23, 5))
    passes = RowPasses(blocks, in_files=True)
    assert passes.evenly(lambda rows: numbers[rows], 8).tolist() == numbers[::3].tolist()
