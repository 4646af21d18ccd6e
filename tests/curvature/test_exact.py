"""Full, block and diagonal curvatures, and the parts that no Kronecker product fits, against plain `torch.func`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.curvature import reference
from tests.curvature.cases import LABELS, LIKELIHOODS, NAMES, ROWS, Case, assert_close, case, fit
from tests.curvature.twins import TWINS

KINDS = ["ggn", "fisher", "empirical_fisher", "hessian"]
# One output alone adds nothing to what the labels and second derivatives of three show.
KINDS_OF_CASES = [(model, c, kind) for model, c in NAMES for kind in (["ggn"] if c == 1 else KINDS)]
EXACT = ["full", "block", "diagonal"]
# What a layer contributes does not depend on the labels: each kind of them is taken with two of the structures.
STRUCTURES_OF_KINDS = {"fisher": ["block", "diagonal"], "empirical_fisher": ["full", "diagonal"]}
# A likelihood sees the outputs alone: one row of them here and one for each position there. Layers are taken in turn.
OTHER_LIKELIHOODS = [
    (model, name) for model in ("mlp", "dense outputs") for name in LIKELIHOODS if name not in ("logit", "categorical")
]


def chosen_labels(likelihood: str, f: Tensor) -> Tensor:
    """Labels neither all likely nor all unlikely."""
    if likelihood in LABELS:
        return (f * torch.arange(1, f.shape[-1] + 1)).argmax(-1)
    if likelihood in ("gaussian", "heteroscedastic_gaussian"):
        return 1.5 * (f if likelihood == "gaussian" else f[..., : f.shape[-1] // 2]) + 0.2
    return (f < 0.4).to(f)


def chosen_draws(entry: Case) -> Case:
    """The case whose likelihood draws the labels of `chosen_labels`, in place of random ones."""
    likelihood = copy.copy(entry.likelihood)
    likelihood.__dict__["sample"] = lambda f, generator: chosen_labels(likelihood.name, f)
    return replace(entry, likelihood=likelihood)


def drawn(entry: Case) -> Case:
    """The case with the labels that `chosen_draws` draws for targets."""
    return replace(entry, targets=chosen_labels(entry.likelihood.name, reference.outputs(entry)))


def check(entry: Case, model: str, kind: str, structures: Sequence[str] = EXACT) -> None:
    found = {structure: fit(chosen_draws(entry), structure, kind, generator=0) for structure in structures}
    got = {structure: curvature.precision.to_dense() for structure, curvature in found.items()}
    log_likelihood = reference.total_log_prob(entry, reference.outputs(entry))
    for curvature in found.values():  # what the evidence needs beside the curvature
        assert curvature.rows == ROWS
        assert curvature.log_likelihood.dtype == torch.float64
        assert_close(curvature.log_likelihood, log_likelihood, 1e-10)
    full = reference.full(drawn(entry) if kind == "fisher" else entry, kind)
    want = {
        "full": full,
        "block": reference.restricted(full, reference.layers(entry, TWINS.get(model))),
        "diagonal": torch.diag(full.diagonal()),
    }
    for structure, matrix in got.items():
        assert_close(matrix, want[structure])


@pytest.mark.parametrize(("model", "outputs", "kind"), KINDS_OF_CASES)
def test_every_layer(model: str, outputs: int, kind: str) -> None:
    check(case(model, outputs=outputs), model, kind, STRUCTURES_OF_KINDS.get(kind, EXACT))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "likelihood"), OTHER_LIKELIHOODS)
def test_every_likelihood(model: str, likelihood: str, kind: str) -> None:
    check(case(model, likelihood), model, kind)


@pytest.mark.parametrize("blocks", ["tensor", "layer", [["0.weight", "2.bias"], ["0.bias", "2.weight"]]])
def test_blocks_are_those_asked_for(blocks: object) -> None:
    entry = case("mlp")
    places = {name: place.reshape(-1) for name, place in reference.positions(entry.module).items()}
    wanted = {
        "tensor": list(places.values()),
        "layer": reference.layers(entry),
    }.get(str(blocks)) or [torch.cat([places[name] for name in group]) for group in blocks]  # fmt: skip
    got = fit(entry, "block", blocks=blocks).precision.to_dense()
    assert_close(got, reference.restricted(reference.full(entry, "ggn"), wanted))


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
@pytest.mark.parametrize("structure", EXACT)
def test_weights_are_those_asked_for(structure: str, kind: str) -> None:
    entry = case("mlp")
    mask = torch.rand(43, generator=torch.Generator().manual_seed(0)) < 0.5
    flat = torch.arange(43)
    places = reference.positions(entry.module)
    chosen = {
        "all": flat,
        "last_layer": torch.cat([places["2.weight"].reshape(-1), places["2.bias"]]),
        "*.weight": torch.cat([places["0.weight"].reshape(-1), places["2.weight"].reshape(-1)]),
        "mask": flat[mask],
    }
    full = reference.full(entry, kind)
    for name, kept in chosen.items():
        curvature = fit(entry, structure, kind, weights=mask if name == "mask" else name)
        want = full[kept[:, None], kept]
        if structure == "diagonal":
            want = torch.diag(want.diagonal())
        if structure == "block":
            groups = [torch.isin(kept, group).nonzero()[:, 0] for group in reference.layers(entry)]
            want = reference.restricted(want, [group for group in groups if len(group)])
        assert_close(curvature.precision.to_dense(), want)


def test_the_reference_is_the_derivative_that_differences_show() -> None:
    """The reference itself, where torch's own second derivatives have been wrong."""
    for model in ("layer norm", "instance norm", "weight norm", "self-attention"):
        entry = case(model)
        theta, step = reference.flat_weights(entry.module), 1e-5
        with reference.read_mode(entry.module):
            function = reference.function(entry)
            ends = [(function(theta + step * e), function(theta - step * e)) for e in torch.eye(len(theta)).double()]
        differences = torch.stack([(up - down) / (2 * step) for up, down in ends], -1).detach()
        assert_close(reference.jacobian(entry), differences, 1e-6)
        assert_close(reference.hessian(entry), reference.hessian(entry).T, 1e-10)
