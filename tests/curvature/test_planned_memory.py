"""The plan of a fit beside the tensors that live at its highest, and a fit that holds no matrix twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.curvature import CurvatureOptions
from bayescope.laplace import LaplaceFit, LaplaceOptions, own_copy
from bayescope.likelihoods import Categorical, Gaussian, Likelihood
from bayescope.posterior import GaussianPosterior
from tests.curvature.test_plan import MODELS, Peak, initialised, linear, randn, sequence
from tests.precision.cases import Calls

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained

MOST, LEAST = 1.5, 0.8
CATEGORICAL = Categorical()


def labelled(rows: int, inputs: int, classes: int) -> tuple[Tensor, Tensor]:
    return randn(rows, inputs), torch.arange(rows) % classes


def posterior(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    prior_precision: float,
    likelihood: Likelihood = CATEGORICAL,
    weights: str = "all",
    **options: Any,
) -> GaussianPosterior:
    """Laplace's posterior without the comparison with the network, a prediction that the plan counts apart."""
    asked = LaplaceOptions(likelihood, weights, curved=CurvatureOptions(**options))
    return asked.fit(own_copy(model), data, prior_precision, generator=0, sampled_rows=0).posterior()


CASES: dict[str, tuple[nn.Module, tuple[Tensor, Tensor], dict[str, Any]]] = {
    "small": (sequence(), labelled(256, 20, 10), {"batch_size": 64}),
    "three classes": (
        initialised(nn.Sequential(linear(60, 250), nn.Tanh(), linear(250, 3))), labelled(256, 60, 3), {}
    ),
    "deep": (
        initialised(nn.Sequential(linear(300, 200), nn.Tanh(), linear(200, 100), nn.Tanh(), linear(100, 10))),
        labelled(256, 300, 10),
        {"batch_size": 128},
    ),
    "images": MODELS["images"],
    "head": MODELS["head"],
    "tokens": MODELS["tokens"],
    "by rows": MODELS["by rows"],
}  # fmt: skip
STRUCTURES = {
    "small": ("full", "block", "diagonal", "kfac", "ekfac", "low_rank"),
    "three classes": ("diagonal", "kfac", "ekfac"),
    "deep": ("diagonal", "kfac", "ekfac"),
    "images": ("diagonal", "kfac", "ekfac"),
    "head": ("diagonal", "kfac"),
    "tokens": ("diagonal", "kfac"),
    "by rows": ("diagonal", "kfac"),
}
TABLE = [(name, structure) for name, structures in STRUCTURES.items() for structure in structures]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "structure"), TABLE)
def test_a_fit_takes_what_was_planned(name: str, structure: str, dtype: torch.dtype) -> None:
    """At most 20 % short and 50 % too much.

    Counted are the tensors that live at once, without what libraries and the allocator take besides.
    """
    model, (x, y), given = CASES[name]
    model, x = copy.deepcopy(model).to(dtype), x.to(dtype) if x.is_floating_point() else x
    options = {"structure": structure, "memory": 2**34, **given}
    if structure == "low_rank":
        options["rank"] = 10
    planned = bs.plan(model, (x, y), likelihood="categorical", **options)
    with Peak() as taken:
        posterior(model, (x, y), 1.0, **options)
    assert LEAST * taken.bytes <= planned.bytes <= MOST * taken.bytes


@pytest.mark.parametrize("structure", ["full", "block"])
def test_three_matrices_are_all_that_a_dense_fit_takes(structure: str) -> None:
    """H, A and its factor; what a posterior keeps of them is the same."""
    model = initialised(nn.Sequential(linear(30, 20), nn.Tanh(), linear(20, 20)))
    options: dict[str, Any] = {"blocks": [["*"]]} if structure == "block" else {}
    with Peak() as taken:
        q = posterior(model, labelled(8, 30, 20), 2.0, structure=structure, **options)
    matrix = 8 * q.sizes[0] ** 2
    assert 3 * matrix < taken.bytes < 3.7 * matrix  # columns of L⁻¹, some at a time, come on top


def test_cotangents_that_have_been_read_are_gone_while_the_next_ones_travel() -> None:
    model, data = CASES["deep"][0], labelled(1024, 300, 10)
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "diagonal", "batch_size": 256, "memory": 2**34}

    def taken(cotangents: int) -> int:
        with Peak() as peak:
            bs.fit_curvature(model, data, cotangents=cotangents, **options)
        return peak.bytes

    rest = taken(1)
    assert taken(3) - rest < 0.3 * (taken(9) - rest)


def fitted() -> LaplaceFit:
    data = randn(32, 20).double(), randn(32, 2).double()
    q = posterior(sequence(2).double(), data, 1.0, Gaussian(0.5), structure="full")
    assert isinstance(q.fit, LaplaceFit)
    return q.fit


def test_what_a_fit_is_asked_under_its_own_prior_is_factorised_once() -> None:
    with Calls("cholesky_ex") as calls:
        fit = fitted()
        assert calls.count == 1
        assert fit.posterior().precision is fit.precision()
        for answer in (fit.log_evidence, fit.newton_decrement, fit.effective_parameters):
            answer()
        assert calls.count == 1
        fit.log_evidence(3.0)
        assert calls.count == 2


def test_noise_in_its_graph_is_not_kept() -> None:
    """A graph serves one backward pass, and what does not require a gradient is as good for all."""
    fit, noise = fitted(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    given = torch.autograd.grad(fit.log_evidence(1.0, noise) + fit.at_noise(noise).newton_decrement(), noise)
    for _ in range(2):
        held = fit.at_noise(noise)
        assert held.precision() is not held.precision()
        found = torch.autograd.grad(held.log_evidence() + held.newton_decrement(), noise)
        torch.testing.assert_close(found, given)
    assert not fit.precision().logdet().requires_grad
