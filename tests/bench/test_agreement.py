"""The yardsticks of the table of agreement: what is right is near them, and planted errors are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bayescope.likelihoods import Categorical
from bench.agreement_draws import FAR, distance
from bench.agreement_networks import (
    BARE,
    CHANCE,
    definition,
    deviation,
    drawn_labels,
    error,
    last_layer,
    law,
    ours,
)
from bench.agreement_peers import Dense, Packed, questions
from tests.curvature import reference
from tests.curvature.cases import MODELS, case, take


def test_the_mean_of_draws_is_one_standard_error_from_their_expectation() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = list(torch.randn(16, 12, 12, generator=generator, dtype=torch.float64))
    assert 0.7 < deviation(draws, torch.zeros(12, 12, dtype=torch.float64)) < 1.3
    assert deviation(draws, torch.full((12, 12), 2.0, dtype=torch.float64)) > CHANCE


@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac"])
def test_drawn_labels_keep_the_law_and_others_break_it(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = case("dense outputs")
    found = law(entry, "dense outputs", structure, peers=False)
    assert found["law"] < CHANCE
    assert found["repeated"] < 1e-12
    draw = Categorical.sample
    monkeypatch.setattr(Categorical, "sample", lambda self, f, generator: draw(self, 0 * f, generator))
    assert law(entry, "dense outputs", structure, peers=False)["law"] > CHANCE


@pytest.mark.parametrize("model", ["mlp", "dense outputs"])
def test_the_fisher_is_that_of_the_labels_that_are_read(model: str) -> None:
    entry = case(model)
    got = ours(entry, "full", "fisher")()
    assert error(got, definition(entry, model, "fisher").full) < 1e-12
    other = replace(entry, targets=(drawn_labels(entry) + 1) % 3)
    assert error(got, replace(definition(entry, model, "fisher"), entry=other).full) > 0.1


def test_draws_of_another_covariance_are_far() -> None:
    root = torch.randn(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    precision = root @ root.mT + torch.eye(12, dtype=torch.float64)
    z = torch.randn(1000, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    factor = torch.linalg.cholesky(precision)
    assert distance(torch.linalg.solve_triangular(factor.mT, z.mT, upper=True).mT, precision) < FAR
    assert distance(torch.linalg.solve_triangular(factor, z.mT, upper=False).mT, precision) > FAR


@pytest.mark.global_rng  # a loader draws a seed
@pytest.mark.parametrize("model", ["cross-attention", "dict", "tuple", "dense outputs", "tied embedding"])
def test_peers_are_asked_about_the_same_function(model: str) -> None:
    entry = case(model, outputs=MODELS[model].outputs[-1])
    want = reference.outputs(entry)
    for question in questions(entry, 3).values():
        with torch.no_grad():
            got = question.module(question.x)
        turned: Tensor = want
        if isinstance(question.module, Dense):
            turned = want.flatten(0, 1) if question.flat else want.movedim(-1, 1)
        assert isinstance(question.module, Packed | Dense) or isinstance(entry.inputs, Tensor)
        torch.testing.assert_close(got, turned)
        _, y = next(iter(question.loader()))
        assert y.shape == (entry.targets[:3].flatten() if question.flat else entry.targets[:3]).shape


@pytest.mark.parametrize("model", [name for name in MODELS if name not in BARE])
def test_the_last_layer_is_that_without_which_outputs_are_a_bias(model: str) -> None:
    entry = case(model, outputs=MODELS[model].outputs[-1])
    inputs = take(entry.inputs, slice(0, 2))
    with torch.no_grad():
        for name, weight in entry.module.named_parameters():
            if name in last_layer(entry.module, inputs):
                weight.zero_()
    assert float(reference.outputs(entry).abs().max()) == 0
