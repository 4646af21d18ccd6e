"""What may be asked of `laplace`, under which names, and what it tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bayescope import laplace
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators import BayesianLinearRegression
from bayescope.laplace import tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.posterior import DrawsPosterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.laplace.problems import (
    UNTRAINED,
    at,
    mlp,
    normal,
    seeded,
)

# --- what cannot be asked ---------------------------------------------------------------------------------------------


REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (OptionError, "structure", {"structure": "kron"}),
    (OptionError, "curvature", {"curvature": "gnn"}),
    (OptionError, "likelihood", {"likelihood": "classification"}),
    (OptionError, "weights", {"weights": "first"}),
    (OptionError, "mixture", {"mixture": "best"}),
    (OptionError, "prior_precision: expected one of 'auto', 'evidence'", {"prior_precision": "evidenc"}),
    (InputError, "positive", {"prior_precision": -1.0}),
    (UnsupportedError, "Supported", {"curvature": "hessian", "structure": "kfac"}),
    (TypeError, r"^laplace\(\) got an unexpected keyword argument .groups", {"groups": "layer"}),
    (UnsupportedError, "rank", {"rank": 3}),
    (UnsupportedError, "samples: expected with", {"samples": 3}),
    (UnsupportedError, "mixture: expected with a list", {"mixture": "evidence"}),
    (
        UnsupportedError,
        "goes with prior_precision='auto' or 'evidence'",
        {"likelihood": Gaussian("evidence"), "prior_precision": 1.0},
    ),
]


@pytest.mark.parametrize(("error", "message", "options"), REFUSED)
def test_what_cannot_be_asked(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        laplace(mlp(2), (normal(4, 2, seed=1), torch.arange(4) % 2), **{"likelihood": "categorical", **options})


def test_a_module_that_cannot_be_copied() -> None:
    net = mlp(2)
    net.last = net(normal(4, 2, seed=1))  # type: ignore[assignment]
    with pytest.raises(InputError, match="no results of a forward pass"):
        laplace(net, (normal(4, 2, seed=1), torch.arange(4) % 2), likelihood="categorical")


def test_what_is_no_module() -> None:
    with pytest.raises(InputTypeError, match=r"torch\.nn\.Module or a list"):
        laplace(lambda x: x, (normal(4, 2, seed=1), torch.arange(4) % 2), likelihood="categorical")  # type: ignore[arg-type]


# --- hyperparameters by name ------------------------------------------------------------------------------------------


@UNTRAINED
@pytest.mark.parametrize("likelihood", [Gaussian("evidence"), "gaussian"])
def test_prior_precision_by_evidence_is_tune_prior(likelihood: str | Gaussian) -> None:
    x, y = normal(30, 2, seed=1), normal(30, seed=2)
    net = mlp(1)
    q = laplace(net, (x, y), likelihood=likelihood, prior_precision="evidence")
    start = laplace(net, (x, y), likelihood="gaussian")
    tuned = tune_prior(start)
    torch.testing.assert_close(q.log_evidence(), tuned.log_evidence(), rtol=1e-6, atol=1e-6)
    assert q.log_evidence() > start.log_evidence()


def test_prior_precision_by_evidence_finds_the_optimum_of_a_linear_model() -> None:
    x = normal(60, 3, seed=1)
    y = x @ torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64) + 0.5 * normal(60, seed=2)
    table = BayesianLinearRegression(fit_intercept=False, standardize=False).fit(x.numpy(), y.numpy())
    net = at(seeded(lambda: nn.Linear(3, 1, bias=False)), table.posterior_.mean)
    q = laplace(net, (x, y), likelihood=Gaussian("evidence"), structure="full", prior_precision="evidence")
    # at the mode under the tuned hyperparameters both are MacKay's, at the same place
    assert float(q.log_evidence()) == pytest.approx(table.log_evidence_, abs=1e-6)
    assert float(q.fit.prior.precision.mean()) == pytest.approx(table.prior_precision_, rel=1e-3)  # type: ignore[union-attr]


# --- what a reader is told --------------------------------------------------------------------------------------------


@UNTRAINED
def test_a_structure_in_another_case_or_by_another_name_is_recognised() -> None:
    data = (normal(6, 2, seed=1), torch.arange(6) % 2)
    for given, meant in [("KFAC", "kfac"), ("kron", "kfac"), ("sample", "samples"), ("diag", "diagonal")]:
        with pytest.raises(OptionError, match=f"'low_rank', 'samples', got '{given}'. Did you mean '{meant}'"):
            laplace(mlp(2), data, likelihood="categorical", structure=given)
    with pytest.raises(InputError, match=r"either rank= or cutoff=, got neither. Say how many .*rank=50"):
        laplace(mlp(2), data, likelihood="categorical", structure="low_rank")
    with pytest.raises(InputError, match="either rank= or cutoff=, got both"):
        laplace(mlp(2), data, likelihood="categorical", structure="low_rank", rank=2, cutoff=0.1)


@UNTRAINED
def test_what_is_no_module_that_runs_is_told_what_to_give() -> None:
    data = (normal(6, 2, seed=1), torch.arange(6) % 2)
    with pytest.raises(InputTypeError, match=r"got a ModuleList, which cannot. .* plain list of modules"):
        laplace(nn.ModuleList([mlp(2), mlp(2)]), data, likelihood="categorical")
    q = laplace(mlp(2), data, likelihood="categorical")
    assert torch.equal(laplace(q, data, likelihood="categorical").mean, q.mean)  # of one mode the posterior will do
    draws = DrawsPosterior(q.sample(4, generator=0)[None], q.record, q.function, q.likelihood)
    with pytest.raises(InputTypeError, match=r"got DrawsPosterior. A posterior's \.model is its module"):
        laplace(draws, data, likelihood="categorical")


@UNTRAINED
def test_the_summary_has_the_hyperparameters() -> None:
    data = (normal(6, 2, seed=1), normal(6, 1, seed=2))
    given: dict[str, Any] = {
        "0.7": 0.7,
        "0: 0.7, 2: 2": {"0": 0.7, "2": 2.0},
        "0.weight: 0.7, 0.bias: 1, 2.weight: 0.7, 2.bias: 1": {"*.weight": 0.7, "*.bias": 1.0},
        "one per weight, from 1 to 17": torch.arange(1.0, 18.0),
        "a matrix, such as that of an earlier posterior": Prior(DensePrecision(torch.eye(17, dtype=torch.float64))),
    }
    for told, prior in given.items():
        q = laplace(mlp(1), data, likelihood=Gaussian(0.3), structure="full", prior_precision=prior)
        for line in (f"prior precision: {told}", "likelihood: gaussian", "noise variance: 0.3"):
            assert f"\n  {line}\n" in q.summary()
    several = laplace(mlp(2), (data[0], data[1].expand(-1, 2)), likelihood=Gaussian([0.3, 0.5]))
    assert several.record.notes["noise variance"] == "0.3, 0.5"
    assert "noise variance" not in laplace(mlp(2), (data[0], torch.arange(6) % 2), likelihood="categorical").summary()


@UNTRAINED
def test_a_noise_that_is_known_is_held() -> None:
    data = (normal(16, 2, seed=1), normal(16, 1, seed=2))
    learnt = laplace(mlp(1), data, likelihood=Gaussian("evidence"), prior_precision="evidence")
    held = laplace(mlp(1), data, likelihood=Gaussian(0.3), prior_precision="evidence")
    assert float(held.likelihood.noise_variance) == 0.3  # type: ignore[union-attr]
    assert float(learnt.likelihood.noise_variance) != 0.3  # type: ignore[union-attr]
    assert held.log_evidence() < learnt.log_evidence()
    named = laplace(mlp(1), data, likelihood="gaussian", prior_precision="evidence")
    assert named.log_evidence() == learnt.log_evidence()  # the name is short for Gaussian("evidence")
    assert tune_prior(named).likelihood.noise_variance == pytest.approx(float(learnt.likelihood.noise_variance))  # type: ignore[union-attr]
    assert tune_prior(held).likelihood.noise_variance == 0.3  # type: ignore[union-attr]
    with pytest.raises(UnsupportedError, match=r"noise_variance: 'evidence' goes with .*likelihood='gaussian'"):
        laplace(mlp(1), data, likelihood=Gaussian("evidence"), prior_precision=1.0)


@UNTRAINED
def test_the_reason_for_another_structure_is_the_true_one() -> None:
    net, data = mlp(2), (normal(6, 2, seed=1), torch.arange(6) % 2)
    some = torch.ones(22, dtype=torch.bool)
    some[:3] = False
    told = laplace(net, data, likelihood="categorical", weights=some).record.notes["read in another structure"]
    assert told == "0: full: some of '0.weight' is fixed"
    beside = laplace(net, data, likelihood="categorical", weights="0.bias").record.notes["read in another structure"]
    assert beside == "0: full: '0.weight', the matrix beside it, is fixed"
