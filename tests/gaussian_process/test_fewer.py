"""Function space with fewer data, or features of them: it tends to the exact process, and its evidence is a bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import UndefinedQuantityError
from bayescope.gaussian_process import function_space
from bayescope.laplace import tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.posterior import Posterior
from tests.gaussian_process.problems import CLOSE, ROWS, X
from tests.laplace.problems import mlp, normal, penalty, train

pytestmark = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")

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
