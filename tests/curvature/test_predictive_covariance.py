"""J A⁻¹ Jᵀ for new inputs, in every structure, against the dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.curvature import reference
from tests.curvature.cases import NAMES, Case, assert_close, case, fit

STRUCTURES = ["full", "block", "diagonal", "kfac", "ekfac", "low_rank"]
PRIOR = 0.7


def expected(entry: Case, precision: Tensor) -> Tensor:
    """Per row J A⁻¹ Jᵀ over all outputs of the row, dense."""
    return torch.stack([row @ torch.linalg.solve(precision, row.T) for row in reference.jacobian(entry)])


# Kronecker factors read each kind of layer in its own way; the other structures ask the same of every tape.
SEVERAL = [(model, outputs) for model, outputs in NAMES if outputs != 1]
WITH_STRUCTURES = [
    (model, outputs, structure)
    for row, (model, outputs) in enumerate(SEVERAL)
    for structure in ("kfac", "ekfac", ("full", "block", "diagonal", "low_rank")[row % 4])
]


@pytest.mark.parametrize(("model", "outputs", "structure"), WITH_STRUCTURES)
def test_covariance_of_new_rows(model: str, outputs: int, structure: str) -> None:
    entry = case(model, outputs=outputs)
    new = entry.rows(torch.tensor([6, 2, 2, 0, 5]))
    curvature = fit(entry, structure, **({"rank": 5, "generator": 0} if structure == "low_rank" else {}))
    precision = curvature.with_prior(PRIOR)
    assert_close(
        precision.to_dense(),
        curvature.precision.to_dense() + PRIOR * torch.eye(precision.dim, dtype=torch.float64),
        1e-12,
    )
    want = expected(new, precision.to_dense())
    tape = curvature.network.tape(new.inputs)
    assert_close(precision.covariance_of(tape).to(want), want)
    assert_close(precision.variance_of(tape).to(want), want.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_last_layer_alone(structure: str) -> None:
    entry = case("mlp")
    curvature = fit(entry, structure, weights="last_layer", **({"rank": 4} if structure == "low_rank" else {}))
    precision = curvature.with_prior(PRIOR)
    places = reference.positions(entry.module)
    kept = torch.cat([places["2.weight"].reshape(-1), places["2.bias"]])
    J = reference.jacobian(entry)[..., kept]
    want = torch.stack([row @ torch.linalg.solve(precision.to_dense(), row.T) for row in J])
    tape = curvature.network.tape(entry.inputs)
    assert_close(precision.covariance_of(tape), want)
    assert_close(precision.variance_of(tape), want.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_row_at_a_time_or_all_at_once(structure: str) -> None:
    entry = case("conv2d groups")
    curvature = fit(entry, structure, **({"rank": 5} if structure == "low_rank" else {}))
    precision = curvature.with_prior(PRIOR)
    want = precision.covariance_of(curvature.network.tape(entry.inputs))
    single = [precision.covariance_of(curvature.network.tape(entry.inputs[n : n + 1])) for n in range(7)]
    assert_close(torch.cat(single), want, 1e-10)


def test_a_single_row_in_a_batch_of_its_own_shape() -> None:
    """The row dimension is found even where other dimensions have the same size."""
    entry = case("self-attention, time first")
    curvature = fit(entry, "kfac")
    precision = curvature.with_prior(PRIOR)
    want = expected(entry, precision.to_dense())
    for size in (1, 3, 4):
        got = precision.covariance_of(curvature.network.tape(entry.inputs[:size]))
        assert_close(got, want[:size])
