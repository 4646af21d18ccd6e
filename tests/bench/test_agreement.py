"""The yardsticks of the table of agreement: what is right is near them, and planted errors are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.agreement import best, error
from bench.agreement_peers import ClassesSecond, Packed, fair, of_known_modules, questions
from tests.curvature import reference
from tests.curvature.cases import MODELS, ChannelMean, Mean, case


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


def test_the_most_exact_of_a_peers_ways_counts() -> None:
    want = torch.eye(2)

    def refuse() -> Tensor:
        raise NotImplementedError("no such layer")

    ways = {"wrong": lambda: 2 * want, "right": want.clone, "none": refuse}
    assert best(ways, lambda got: error(got, want)) == {"error": 0.0, "way": "right"}
    assert best({"none": refuse}, lambda got: error(got, want))["failure"] == "NotImplementedError: no such layer"
