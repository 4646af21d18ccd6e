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
    chosen,
    definition,
    deviation,
    drawn_labels,
    error,
    last_layer,
    law,
    ours,
)
from bench.agreement_peers import ClassesSecond, Packed, fair, of_known_modules, questions
from tests.curvature import reference
from tests.curvature.cases import MODELS, ChannelMean, Mean, case, take


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
    asked = questions(entry, 3)
    assert ("positions as rows" in asked) == (entry.targets.ndim > 1)
    for way, question in asked.items():
        with torch.no_grad():
            got = question.module(question.x)
        rows = way == "positions as rows"
        turned: Tensor = want.flatten(0, 1) if rows else want
        if isinstance(question.module, ClassesSecond):
            turned = want.movedim(-1, 1)
        assert isinstance(question.module, Packed) or isinstance(entry.inputs, Tensor)
        torch.testing.assert_close(got, turned)
        loader = question.loader()
        assert len(loader.dataset) == len(got) == len(question.y)  # type: ignore[arg-type]
        _, y = next(iter(loader))
        torch.testing.assert_close(y, entry.targets[:3].flatten() if rows else entry.targets[:3])


@pytest.mark.parametrize("model", list(MODELS))
def test_peers_are_asked_for_the_weights_of_the_last_layer_and_no_others(model: str) -> None:
    entry = case(model, outputs=MODELS[model].outputs[-1])
    names = BARE.get(model) or last_layer(entry.module, entry.inputs)
    weights = dict(entry.module.named_parameters())
    for question in questions(entry, 3, names).values():
        found = question.again().parameters
        assert len(found) == len(names)
        for got, name in zip(found, names, strict=True):
            torch.testing.assert_close(got, weights[name])


@pytest.mark.parametrize("model", ["linear on tokens", "embedding", "conv1d", "conv2d groups", "conv3d"])
def test_pools_are_the_means_that_they_stand_for(model: str) -> None:
    pytest.importorskip("backpack")
    entry = case(model)
    (question,) = questions(entry, 3).values()
    assert isinstance(entry.inputs, Tensor)
    module = of_known_modules(question.again().module, entry.inputs[:1])
    assert not any(isinstance(each, Mean | ChannelMean) for each in module.modules())
    with torch.no_grad():
        torch.testing.assert_close(module(entry.inputs), question.module(entry.inputs))


def test_peers_work_in_float64_and_leave_torch_as_it_was() -> None:
    before = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    assert fair()(lambda: torch.ones(1).dtype)() == torch.float64
    assert (torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()) == before


def test_the_fastest_right_answer_counts_and_else_the_nearest() -> None:
    found = {
        "slow": {"error": 1e-16, "seconds": 2.0},
        "fast": {"error": 2e-16, "seconds": 1.0},
        "wrong": {"error": 0.5, "seconds": 0.1},
        "none": {"failure": "refused"},
    }
    assert chosen(found, 1e-4) == "fast"
    assert chosen({name: found[name] for name in ("none", "wrong")}, 1e-4) == "wrong"
    assert chosen({"none": found["none"]}, 1e-4) == "none"


@pytest.mark.parametrize("model", [name for name in MODELS if name not in BARE])
def test_the_last_layer_is_that_without_which_outputs_are_a_bias(model: str) -> None:
    entry = case(model, outputs=MODELS[model].outputs[-1])
    inputs = take(entry.inputs, slice(0, 2))
    with torch.no_grad():
        for name, weight in entry.module.named_parameters():
            if name in last_layer(entry.module, inputs):
                weight.zero_()
    assert float(reference.outputs(entry).abs().max()) == 0
