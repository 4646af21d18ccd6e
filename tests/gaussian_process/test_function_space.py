"""Function space is weight space: the same predictive and evidence with all the data, and what is left with fewer."""

from __future__ import annotations

import copy
import io
import math
import warnings
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.errors import InputError, MemoryBudgetError, OptionError, UndefinedQuantityError, UnsupportedError
from bayescope.gaussian_process import data as module_of_data
from bayescope.gaussian_process import precision as module_of_precision
from bayescope.gaussian_process import rows as module_of_rows
from bayescope.gaussian_process.function_space import function_space
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.laplace import laplace
from bayescope.laplace.selection import select
from bayescope.laplace.tuning import tune_prior
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.network.weights import largest_variance
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.laplace.problems import (
    closed_form,
    mlp,
    normal,
    nothing_written,
    penalty,
    seeded,
    set_flat,
    train,
    unlike,
    with_ones,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")

ROWS, WEIGHTS = 17, 24  # of mlp(2, hidden=4): fewer rows than weights, and with two columns each more
CLOSE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8}
X, NEW = normal(ROWS, 2, seed=1), 2.0 * normal(6, 2, seed=2)
LABELS = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(3))
TASKS: dict[str, tuple[Likelihood, int, Tensor]] = {
    "gaussian": (Gaussian(0.3), 2, normal(ROWS, 2, seed=4)),
    "noise for each output": (Gaussian([0.3, 1.2]), 2, normal(ROWS, 2, seed=4)),
    "categorical": (Categorical(), 3, LABELS),
    "bernoulli": (Bernoulli(), 1, LABELS > 0),
    "probit": (Bernoulli(link="probit"), 1, LABELS > 0),
    "multilabel": (Bernoulli(), 2, normal(ROWS, 2, seed=5) > 0),
}


def dense_prior(dim: int) -> DensePrecision:
    root = normal(dim, dim, seed=6) / math.sqrt(dim)
    return DensePrecision(root @ root.mT + 0.3 * torch.eye(dim, dtype=torch.float64))


def priors(dim: int) -> dict[str, Any]:
    return {
        "weak": 0.01,
        "by layer": {"0": 0.4, "2": 3.0},
        "by weight, about a mean": Prior(0.2 + normal(dim, seed=7).square(), normal(dim, seed=8)),
        "dense": Prior(dense_prior(dim)),
    }


def gaussian(q: Posterior) -> GaussianPosterior:
    assert isinstance(q, GaussianPosterior)
    return q


def assert_equal(one: Posterior, other: Posterior, x: Any, **tolerance: Any) -> None:
    """The same predictive and evidence, and the same for what is computed from the fit."""
    p, q = one.predict(x), other.predict(x)
    for name in ("latent_mean", "latent_cov", "mean", "variance"):
        torch.testing.assert_close(getattr(p, name), getattr(q, name), **(tolerance or CLOSE))
    torch.testing.assert_close(one.log_evidence(), other.log_evidence(), **(tolerance or CLOSE))


# --- all the data: the exact process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", priors(1))
@pytest.mark.parametrize("task", TASKS)
def test_weight_space_and_function_space_are_the_same(task: str, prior: str) -> None:
    likelihood, outputs, y = TASKS[task]
    module = mlp(outputs)
    chosen = priors(sum(p.numel() for p in module.parameters()))[prior]
    options: dict[str, Any] = {"likelihood": likelihood, "prior_precision": chosen}
    full = laplace(module, (X, y), structure="full", **options)
    process = function_space(module, (X, y), **options)
    assert_equal(process, full, NEW)
    torch.testing.assert_close(process.covariance, full.covariance, **CLOSE)
    for name in ("newton_decrement", "effective_parameters"):
        ours, theirs = (getattr(cast(LaplaceFit, q.fit), name)() for q in (process, full))
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("weights", ["last_layer", "*.weight", "2.bias", largest_variance(5)])
def test_the_weights_that_are_random_are_a_choice(weights: Any) -> None:
    likelihood, outputs, y = TASKS["categorical"]
    options: dict[str, Any] = {"likelihood": likelihood, "weights": weights, "prior_precision": 0.5}
    full = laplace(mlp(outputs), (X, y), structure="full", **options)
    assert_equal(function_space(mlp(outputs), (X, y), **options), full, NEW)


def test_outputs_with_positions() -> None:
    module = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1), _Last()))
    x, y = normal(5, 1, 3, 3, seed=9), torch.randint(0, 3, (5, 3, 3), generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}
    process = function_space(module, (x, y), **options)
    assert_equal(process, laplace(module, (x, y), structure="full", **options), x[:2])


class _Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


@pytest.mark.parametrize("task", ["gaussian", "categorical"])
@pytest.mark.parametrize("prior", priors(1))
def test_rows_are_read_again_in_pieces_where_they_are_not_held(
    monkeypatch: pytest.MonkeyPatch, task: str, prior: str
) -> None:
    likelihood, outputs, y = TASKS[task]
    module = mlp(outputs)
    dim = sum(p.numel() for p in module.parameters())
    options: dict[str, Any] = {"likelihood": likelihood, "prior_precision": priors(dim)[prior]}
    held = function_space(module, (X, y), **options)
    monkeypatch.setattr(module_of_data, "HELD_BYTES", 0)
    monkeypatch.setattr(module_of_rows, "PIECE_BYTES", 8 * 2 * 3 * dim)  # a few rows
    for module_of in (module_of_rows, module_of_precision):
        monkeypatch.setattr(module_of, "OUTER_BYTES", 8 * 7 * dim)
    read = function_space(module, (X, y), batch_size=7, **options)
    assert_equal(read, held, NEW)
    draws = [q.sample_functions(NEW, 3, generator=1) for q in (read, held)]
    torch.testing.assert_close(*draws, **CLOSE)
    diagonals = [gaussian(q).precision.diagonal() for q in (read, held)]
    torch.testing.assert_close(*diagonals, **CLOSE)
    if not isinstance(options["prior_precision"], Prior):
        slopes = [_slope(q, dim) for q in (read, held)]
        torch.testing.assert_close(*slopes, **CLOSE)


def _slope(q: Posterior, dim: int) -> Tensor:
    diagonal = torch.linspace(0.5, 2.0, dim, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(q.log_evidence(prior_precision=diagonal), diagonal)[0]


@pytest.mark.parametrize("centre", [0.0, 0.7])
def test_a_linear_model_is_gaussian_process_regression(centre: float) -> None:
    design, y = with_ones(X), normal(ROWS, seed=10)
    prior = 0.3 + normal(3, seed=11).square()
    closed = closed_form(design, y, prior, 0.4, centre)
    module = seeded(lambda: nn.Linear(2, 1))
    set_flat(module, closed.mean)
    process = function_space(
        module,
        (X, y[:, None]),
        likelihood=Gaussian(0.4),
        prior_precision=Prior(prior, torch.full((3,), centre, dtype=torch.float64)),
    )
    torch.testing.assert_close(process.log_evidence(), closed.log_evidence, rtol=1e-10, atol=1e-10)
    # Rasmussen and Williams (2006, eq. 2.25 and 2.26), with the prior's mean function
    new = with_ones(NEW)
    kernel, cross = (design / prior) @ design.mT + 0.4 * torch.eye(ROWS, dtype=torch.float64), (new / prior) @ design.mT
    mean = new.sum(1) * centre + cross @ torch.linalg.solve(kernel, y - design.sum(1) * centre)
    variance = ((new / prior) * new).sum(1) - (cross * torch.linalg.solve(kernel, cross.mT).mT).sum(1)
    p = process.predict(NEW)
    torch.testing.assert_close(p.latent_mean[:, 0], mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(p.latent_cov[:, 0, 0], variance, rtol=1e-10, atol=1e-10)


def test_functions_are_joint_over_the_inputs() -> None:
    likelihood, outputs, y = TASKS["categorical"]
    module = mlp(outputs)
    process = function_space(module, (X, y), likelihood=likelihood)
    full = laplace(module, (X, y), likelihood=likelihood, structure="full")
    count = 20_000
    draws = process.sample_functions(NEW, count, generator=5).flatten(1)
    exact = _joint(gaussian(full), outputs)
    expected = process.predict(NEW).latent_mean.flatten()
    deviation = (draws.mean(0) - expected) / (exact.diagonal() / count).sqrt()
    assert deviation.abs().max() < 5.5  # of 18 normal deviates: false by chance once in 10⁶
    centred = draws - expected
    covariance = centred.mT @ centred / count
    error = ((exact.square() + exact.diagonal()[:, None] * exact.diagonal()) / count).sqrt()
    assert ((covariance - exact) / error).abs().max() < 6.0
    twice = [process.sample_functions(NEW, 4, generator=5) for _ in range(2)]
    assert torch.equal(*twice)


def _joint(full: GaussianPosterior, outputs: int) -> Tensor:
    """J A⁻¹ Jᵀ over all rows and outputs."""
    assert full.function is not None
    identity = torch.eye(full.precision.dim, dtype=torch.float64)
    jacobian = full.function.jacobian_product(NEW, full.location, identity).flatten(1).mT
    assert jacobian.shape[0] == len(NEW) * outputs
    return jacobian @ full.covariance @ jacobian.mT


@pytest.mark.parametrize("approximation", [{}, {"approximation": "nystrom", "points": 4}])
def test_the_mean_is_the_network_away_from_a_mode(approximation: dict[str, Any]) -> None:
    module, y = mlp(1), 5.0 + normal(ROWS, 1, seed=12)
    process = function_space(module, (X, y), likelihood=Gaussian(0.1), **approximation)
    with torch.no_grad():
        torch.testing.assert_close(process.predict(NEW).mean, module(NEW), rtol=1e-12, atol=1e-12)


def test_the_evidence_is_differentiable_and_tuned_as_in_weight_space() -> None:
    module, y = mlp(1), normal(ROWS, 1, seed=12)
    train(module, lambda: 0.5 * (module(X) - y).square().sum() / 0.3 + penalty(module, 1.0))
    full = laplace(module, (X, y), likelihood=Gaussian(0.3), structure="full")
    process = function_space(module, (X, y), likelihood=Gaussian(0.3))
    slopes = []
    for q in (process, full):
        prior, noise = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 0.5))
        slopes.append(torch.autograd.grad(q.log_evidence(prior_precision=prior, noise_variance=noise), (prior, noise)))
    torch.testing.assert_close(*slopes, **CLOSE)
    torch.testing.assert_close(_slope(process, 17), _slope(full, 17), **CLOSE)
    tuned = [tune_prior(q, groups="layer") for q in (process, full)]
    assert_equal(*tuned, NEW, rtol=1e-5, atol=1e-5)
    learnt = function_space(module, (X, y), likelihood=Gaussian("evidence"), prior_precision="evidence")
    torch.testing.assert_close(learnt.log_evidence(), tuned[0].log_evidence(), rtol=1e-5, atol=1e-5)


# --- fewer data, or features of them ----------------------------------------------------------------------------------


LAYERS = {"0": 0.4, "2": 3.0}


def _problem(rows: int = 120) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Three classes in the plane, and a network of 123 weights at its mode."""
    x = 1.5 * normal(rows, 2, seed=20)
    y = (x[:, 0].sin() + x[:, 1] > 0).long() + (x[:, 0] > 1).long()
    module = mlp(3, hidden=20)
    train(module, lambda: nn.functional.cross_entropy(module(x), y, reduction="sum") + penalty(module, 1.0))
    return module, (x, y)


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, tuple[Tensor, Tensor], Posterior]:
    module, data = _problem()
    return module, data, function_space(module, data, likelihood="categorical", prior_precision=LAYERS)


def _errors(q: Posterior, exact: Posterior) -> Tensor:
    """Relative errors of the predictive variances."""
    grid = 3.0 * normal(40, 2, seed=21)
    ours, theirs = (torch.as_tensor(p.predict(grid).latent_cov).diagonal(dim1=-2, dim2=-1) for p in (q, exact))
    return (ours / theirs).log().abs()


@pytest.mark.parametrize(
    ("approximation", "counts", "within"),
    [("subset", (3, 20, 80), 1e-9), ("nystrom", (3, 10, 30), 1e-7), ("inducing", (2, 5, 10), 1e-7)],
)
def test_approximations_tend_to_the_exact_process(
    problem: Any, approximation: str, counts: tuple[int, ...], within: float
) -> None:
    module, data, exact = problem
    errors, evidences = [], []
    for points in (*counts, 120):
        q = function_space(
            module,
            data,
            likelihood="categorical",
            prior_precision=LAYERS,
            approximation=approximation,
            points=points,
            generator=points,
        )
        errors.append(float(_errors(q, exact).mean()))
        evidences.append(abs(float(q.log_evidence() - exact.log_evidence())))
    assert errors[0] > errors[1] > errors[2]
    assert evidences[0] > evidences[1] > evidences[2]
    assert errors[0] > 0.1
    assert errors[3] < within
    assert evidences[3] < within


def test_features_and_inducing_rows_bracket_the_evidence(problem: Any) -> None:
    module, data, exact = problem
    truth = float(exact.log_evidence())
    for points in (3, 10, 30):
        options: dict[str, Any] = {
            "likelihood": "categorical",
            "prior_precision": LAYERS,
            "points": points,
            "generator": 2,
        }
        upper = function_space(module, data, approximation="nystrom", **options)
        lower = function_space(module, data, approximation="inducing", **options)
        assert float(lower.log_evidence()) < truth < float(upper.log_evidence())
        assert "lower bound" in lower.summary()


def test_chosen_rows_are_better_than_random_ones(problem: Any) -> None:
    module, data, exact = problem
    means = {}
    for approximation in ("nystrom", "inducing"):
        found = [
            function_space(
                module,
                data,
                likelihood="categorical",
                prior_precision=LAYERS,
                approximation=approximation,
                points=12,
                generator=seed,
            )
            for seed in range(5)
        ]
        means[approximation] = float(torch.stack([_errors(q, exact).mean() for q in found]).mean())
    assert means["inducing"] < 0.5 * means["nystrom"]


def test_a_row_of_a_subset_stands_for_several(problem: Any) -> None:
    module, (x, y), _ = problem
    subset = function_space(
        module, (x, y), likelihood="categorical", prior_precision=LAYERS, approximation="subset", points=40, generator=0
    )
    # The same rows three times over are the data whose GGN the subset's is.
    chosen = torch.randperm(120, generator=torch.Generator().manual_seed(0))[:40].sort().values
    thrice = (x[chosen].repeat(3, 1), y[chosen].repeat(3))
    exact = function_space(module, thrice, likelihood="categorical", prior_precision=LAYERS)
    new = normal(5, 2, seed=1)
    torch.testing.assert_close(subset.predict(new).latent_cov, exact.predict(new).latent_cov, **CLOSE)


def test_a_bound_answers_for_other_hyperparameters() -> None:
    module, y = mlp(1), normal(ROWS, 1, seed=12)
    q = function_space(module, (X, y), likelihood=Gaussian(0.3), approximation="inducing", points=3, generator=0)
    torch.testing.assert_close(q.log_evidence(prior_precision=1.0), q.log_evidence(), rtol=1e-12, atol=1e-12)
    exact = function_space(module, (X, y), likelihood=Gaussian(0.3))
    for prior, noise in ((0.2, 0.3), (5.0, 1.0)):
        bound = q.log_evidence(prior_precision=prior, noise_variance=noise)
        assert bound < exact.log_evidence(prior_precision=prior, noise_variance=noise)
    with pytest.raises(UndefinedQuantityError):
        tune_prior(q)


# --- a posterior like the others --------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "exact": {},
    "subset": {"approximation": "subset", "points": 5},
    "nystrom": {"approximation": "nystrom", "points": 5},
    "inducing": {"approximation": "inducing", "points": 5},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("held", [True, False])
def test_nothing_of_the_callers_is_written_or_kept(monkeypatch: pytest.MonkeyPatch, form: str, held: bool) -> None:
    if not held:
        monkeypatch.setattr(module_of_data, "HELD_BYTES", 0)
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


def test_neither_sums_nor_files_hold_a_network_and_its_data() -> None:
    q = gaussian(function_space(mlp(3), (X, LABELS), likelihood="categorical"))
    with pytest.raises(UnsupportedError, match="training data"):
        q.precision.state()


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
        laplace(mlp(3), (X, LABELS), likelihood="categorical", structure="full"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = select(models).log_evidences.values()
    assert first == pytest.approx(second)


def test_a_noise_that_is_known_is_held() -> None:
    data = (X, normal(ROWS, 2, seed=4))
    learnt = function_space(mlp(2), data, likelihood=Gaussian(0.3), prior_precision="evidence")
    held = function_space(mlp(2), data, likelihood=Gaussian(0.3), prior_precision="evidence", noise=False)
    assert float(held.likelihood.noise_variance) == 0.3  # type: ignore[union-attr]
    assert float(learnt.likelihood.noise_variance) != 0.3  # type: ignore[union-attr]
    assert held.record.notes["noise variance"] == "0.3"
    with pytest.raises(UnsupportedError, match="noise=True"):
        function_space(mlp(2), data, likelihood=Gaussian("evidence"), prior_precision="evidence", noise=False)


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
