"""A posterior in function space like the others: what it keeps, what decides it, what it refuses, exact or not."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bayescope import laplace
from bayescope.errors import InputError, MemoryBudgetError, OptionError, UndefinedQuantityError, UnsupportedError
from bayescope.gaussian_process import function_space
from bayescope.laplace import select, tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.precision import DiagonalPrecision
from bayescope.priors import Prior
from bayescope.tape import block_bytes, block_limit
from tests.gaussian_process.problems import FORMS, LABELS, NEW, ROWS, X, assert_equal, dense_prior, gaussian
from tests.laplace.problems import mlp, normal, nothing_written, unlike

pytestmark = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("held", [True, False])
def test_nothing_of_the_callers_is_written_or_kept(form: str, held: bool) -> None:
    with block_limit(block_bytes() if held else 1):
        _check_that_nothing_is_written_or_kept(form)


def _check_that_nothing_is_written_or_kept(form: str) -> None:
    module, x = mlp(3).train(), X.clone()
    with nothing_written(module):
        q = function_space(module, (x, LABELS), likelihood="categorical", generator=0, **FORMS[form])
        before = q.predict(NEW).latent_cov
        copied = copy.deepcopy(q)
        q.sample_functions(NEW, 2, generator=0)
        q.log_evidence(prior_precision=7.0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        x.zero_()
    for posterior in (q, copied):
        torch.testing.assert_close(posterior.predict(NEW).latent_cov, before, rtol=0, atol=0)
    assert "Posterior by function_space" in q.summary()
    assert {"exact": "exact", "subset": "random rows", "nystrom": "features", "inducing": "inducing"}[form] in (
        q.record.notes["approximation"]
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_generator_decides(form: str) -> None:
    def fitted(seed: int) -> Tensor:
        return function_space(
            mlp(3), (X, LABELS), likelihood="categorical", generator=seed, **FORMS[form]
        ).log_evidence()

    assert torch.equal(fitted(3), fitted(3))
    assert torch.equal(fitted(3), fitted(4)) == (form in ("exact", "inducing"))  # all rows are candidates


def test_a_posterior_goes_through_torch_save() -> None:
    q = function_space(mlp(3), (X, LABELS), likelihood="categorical")
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded.predict(NEW).latent_cov, q.predict(NEW).latent_cov)


def test_data_come_in_any_form() -> None:
    module = mlp(3)
    pair = function_space(module, (X, LABELS), likelihood="categorical")
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=4, shuffle=True, generator=torch.Generator())
    assert_equal(function_space(module, loader, likelihood="categorical"), pair, NEW)


@pytest.mark.parametrize("prior", [1.0, 1e-6])
def test_a_network_in_single_precision(prior: float) -> None:
    """Its rows are rounded once; what is done with them, kernels of 10⁷ included, is in double precision."""
    module = mlp(3).to(torch.float32)
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": prior}
    single = function_space(module, (X, LABELS), **options)
    double = function_space(copy.deepcopy(module).double(), (X, LABELS), **options)
    ours, truth = single.predict(NEW.to(torch.float32)).latent_cov, double.predict(NEW).latent_cov
    torch.testing.assert_close(torch.as_tensor(ours, dtype=torch.float64), truth, rtol=2e-5, atol=0.0)
    torch.testing.assert_close(single.log_evidence(), double.log_evidence(), rtol=1e-6, atol=0.0)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_kernel_beyond_the_budget_is_refused_before_it_is_computed() -> None:
    with pytest.raises(MemoryBudgetError, match="'subset', 'nystrom' or 'inducing'"):
        function_space(mlp(3), (X, LABELS), likelihood="categorical", memory=10_000)
    q = function_space(mlp(3), (X, LABELS), likelihood="categorical", memory=150_000)
    assert q.predict(NEW).mean.shape == (6, 3)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"approximation": "sparse"}, OptionError, "nystrom"),
        ({"points": 3}, UnsupportedError, "exact"),
        ({"approximation": "subset"}, InputError, "points"),
        ({"approximation": "subset", "points": ROWS + 1}, InputError, "17 rows"),
        ({"approximation": "nystrom", "points": 0}, InputError, "points"),
        (
            {"approximation": "nystrom", "points": 3, "prior_precision": Prior(dense_prior(27))},
            UnsupportedError,
            "full",
        ),
        ({"approximation": "inducing", "points": 3, "prior_precision": "evidence"}, UnsupportedError, "bound"),
        ({"prior_precision": "evidenc"}, OptionError, "evidence"),
        ({"prior_precision": -1.0}, InputError, "positive"),
        ({"memory": -1}, InputError, "memory"),
        ({"likelihood": Gaussian("evidence")}, UnsupportedError, "evidence"),
    ],
)
def test_what_cannot_be_used_is_said(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        function_space(mlp(3), (X, LABELS), **{"likelihood": "categorical", **options})


def test_a_kernel_is_not_added_to_another() -> None:
    q = gaussian(function_space(mlp(3), (X, LABELS), likelihood="categorical"))
    with pytest.raises(UnsupportedError, match="expected one that adds"):
        DiagonalPrecision(torch.ones(q.precision.dim)) + q.precision


def test_what_it_does_not_have_is_said_with_what_does() -> None:
    q = function_space(mlp(3), (X, LABELS), likelihood="categorical")
    with pytest.raises(UndefinedQuantityError, match=r"condition: .* by function_space .*Take laplace.*'full'"):
        q.condition((X, LABELS))
    bound = function_space(mlp(3), (X, LABELS), likelihood="categorical", approximation="inducing", points=5)
    with pytest.raises(UndefinedQuantityError, match=r"by function_space. Take laplace .*without inducing rows"):
        tune_prior(bound)


def test_the_exact_process_has_the_evidence_of_the_full_structure() -> None:
    models = [
        function_space(mlp(3), (X, LABELS), likelihood="categorical"),
        laplace(mlp(3), (X, LABELS), likelihood="categorical", structure="full", prior_precision=1.0),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = select(models).log_evidences.values()
    assert first == pytest.approx(second)


def test_a_noise_that_is_known_is_held() -> None:
    data = (X, normal(ROWS, 2, seed=4))
    learnt = function_space(mlp(2), data, likelihood="gaussian", prior_precision="evidence")
    held = function_space(mlp(2), data, likelihood=Gaussian(0.3), prior_precision="evidence")
    assert float(held.likelihood.noise_variance) == 0.3  # type: ignore[union-attr]
    assert float(learnt.likelihood.noise_variance) != 0.3  # type: ignore[union-attr]
    assert held.record.notes["noise variance"] == "0.3"
    with pytest.raises(UnsupportedError, match="noise_variance: 'evidence' goes with"):
        function_space(mlp(2), data, likelihood=Gaussian("evidence"), prior_precision=1.0)


@pytest.mark.global_rng
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", ["torch", "numpy", "replacement"])
def test_passes_that_differ_are_refused(form: str, source: str) -> None:
    with pytest.raises(InputError, match="data: expected every pass to give the same rows"):
        function_space(mlp(3), unlike(X, LABELS, source), likelihood="categorical", generator=0, **FORMS[form])


@pytest.mark.global_rng
@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_shuffles_is_as_good_as_any(form: str) -> None:
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=5, shuffle=True)
    before = torch.get_rng_state()
    q = function_space(mlp(3), loader, likelihood="categorical", generator=0, **FORMS[form])
    assert torch.equal(torch.get_rng_state(), before)
    if form == "exact":
        truth = function_space(mlp(3), (X, LABELS), likelihood="categorical")
        torch.testing.assert_close(q.log_evidence(), truth.log_evidence())
