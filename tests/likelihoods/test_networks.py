"""Every likelihood on a network: Laplace's predictive against J Σ Jᵀ from plain `torch.func` and its integral."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from bayescope import laplace, load
from bayescope.errors import ConvergenceWarning
from tests.cases import LIKELIHOODS, LikelihoodCase
from tests.reference import expected_hessian

pytestmark = pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.{ConvergenceWarning.__name__}")
everywhere = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS.keys())
ROWS = 14
PRIOR = 0.7


def network(outputs: int, generator: torch.Generator) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs)).to(torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """∂f/∂θ, shape (N, C, P)."""
    named = {name: value.detach() for name, value in module.named_parameters()}
    each = jacrev(lambda values: functional_call(module, values, (x,)))(named)
    return torch.cat([each[name].flatten(2) for name in named], -1)


def problem(case: LikelihoodCase) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case.outputs)
    module = network(case.outputs, generator)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    return module, x, case.labels[torch.arange(ROWS) % len(case.labels)]


def covariance(case: LikelihoodCase, module: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """J Σ Jᵀ at some inputs, with Σ⁻¹ the dense GGN and the prior's precision."""
    J, f = jacobian(module, x), module(x).detach()
    middle = expected_hessian(case.likelihood, f, case.labels) if case.expected else case.likelihood.hessian(f, y)
    precision = torch.einsum("ncp,ncd,ndq->pq", J, middle, J) + PRIOR * torch.eye(J.shape[-1], dtype=torch.float64)
    new = jacobian(module, at)
    return new @ torch.linalg.solve(precision, new.mT)


@everywhere
def test_the_linearised_predictive_is_the_integral_over_the_dense_covariance(case: LikelihoodCase) -> None:
    module, x, y = problem(case)
    at = torch.linspace(-3, 3, 10, dtype=torch.float64).reshape(5, 2)
    q = laplace(module, (x, y), likelihood=case.likelihood, structure="full", prior_precision=PRIOR)
    p = q.predict(at)
    f, cov = module(at).detach(), covariance(case, module, x, y, at)
    torch.testing.assert_close(p.latent_mean, f, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(p.latent_cov, cov, rtol=1e-8, atol=1e-10)
    moments = case.likelihood.predictive(f, cov, case.likelihood.integral(None, case.outputs))
    for got, truth in ((p.mean, moments.mean), (p.aleatoric, moments.aleatoric), (p.epistemic, moments.epistemic)):
        torch.testing.assert_close(got, truth, rtol=1e-5, atol=1e-7)
    if case.likelihood.name == "probit":
        exact = torch.special.ndtr(f / torch.sqrt(1 + cov.diagonal(dim1=-2, dim2=-1)))
        torch.testing.assert_close(p.probs[:, -case.outputs :], exact, rtol=1e-8, atol=1e-10)


@everywhere
def test_every_question_is_answered(case: LikelihoodCase) -> None:
    module, x, y = problem(case)
    q = laplace(module, (x, y), likelihood=case.likelihood, structure="kfac", prior_precision=PRIOR)
    assert q.log_evidence().isfinite()
    for p in (q.predict(x), q.predict(x, method="sampled", samples=200, generator=0)):
        assert p.log_prob(y).isfinite().all()
        torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
        low, high = p.interval(0.9)
        assert (low < high).all()
        assert p.sample(3, generator=0).shape[:2] == (3, ROWS)


@everywhere
def test_linearised_log_densities_are_those_of_sampled_functions(case: LikelihoodCase) -> None:
    """q.sample_functions draws the f that predict integrates over: 20,000 draws, five standard errors."""
    module, x, y = problem(case)
    q = laplace(module, (x, y), likelihood=case.likelihood, structure="full", prior_precision=5.0)
    functions = q.sample_functions(x, 20_000, generator=0)
    each = case.likelihood.log_prob(functions, y).exp()
    got = q.predict(x).log_prob(y).exp()
    assert ((each.mean(0) - got).abs() < 5 * each.std(0) / math.sqrt(20_000) + 2e-3 * got).all()


def test_a_saved_posterior_has_the_likelihood_that_it_was_fitted_with(tmp_path: Path) -> None:
    for name, case in LIKELIHOODS.items():
        module, x, y = problem(case)
        q = laplace(module, (x, y), likelihood=case.likelihood, structure="diagonal", prior_precision=PRIOR)
        path = tmp_path / "posterior.bayes"
        q.save(path)
        again = load(path)
        torch.testing.assert_close(again.predict(x).log_prob(y), q.predict(x).log_prob(y), msg=name)
        path.unlink()
