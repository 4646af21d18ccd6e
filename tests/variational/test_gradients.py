"""Estimators of the gradient of the bound: unbiased, ordered in variance, and silent at the posterior."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from bayescope.likelihoods import Gaussian
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.variational.families import PACE, Full, kl_divergence
from bayescope.variational.objective import AtDraws
from tests.variational.toys import (
    GAUSSIAN,
    STANDARD_ERRORS,
    Regression,
    family_of,
    gradients_of,
    network,
    regression,
    seeded_draws,
)

CASES = [
    ("mean_field", "local_reparameterization"),
    ("mean_field", "reparameterization"),
    ("mean_field", "flipout"),
    ("mean_field", "sticking_the_landing"),
    ("low_rank", "sticking_the_landing"),
    ("low_rank", "reparameterization"),
    ("full", "sticking_the_landing"),
    ("full", "reparameterization"),
]
DENSE = Prior(DensePrecision(torch.tensor([[3.0, 1.0, 0.5], [1.0, 2.0, 0.2], [0.5, 0.2, 4.0]])), [0.5, 0.0, -1.0])
PRIORS = {"scalar": Prior(2.0), "vector": Prior([1.0, 5.0, 20.0], [1.0, -2.0, 3.0]), "dense": DENSE}
# So much noise and such a weight that neither term of the bound is lost in the spread of the other.
NOISE, KL_WEIGHT = 4.0, 5.0


def loss(problem: Regression, f: Tensor, likelihood: Gaussian = GAUSSIAN) -> Tensor:
    return -likelihood.log_prob(f, problem.y).sum() / (f.shape[0] * f.shape[1])


def estimates(problem: Regression, family: str, estimator: str, n: int, samples: int = 1) -> tuple[Tensor, Tensor]:
    """n estimates of the gradient, (n, number of parameters), and the closed form."""
    module = network()
    weights, rows = Weights.select(module, "all"), len(problem.x)
    q, gradients = gradients_of(family, estimator, module, weights, problem.x, samples)
    parameters = [*module.parameters(), *q.parameters()]
    gradients.begin_epoch(problem.prior, KL_WEIGHT / rows)
    drawn = []
    with seeded_draws(5):
        for _ in range(n):
            for parameter in parameters:
                parameter.grad = None
            gradients.accumulate(problem.x, partial(loss, problem, likelihood=Gaussian(NOISE)))
            drawn.append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
    mean = weights.flatten(dict(module.named_parameters()))
    exact = (problem.expected_nll(mean, q, NOISE) + KL_WEIGHT * kl_divergence(q, mean, problem.prior)) / rows
    truth = torch.autograd.grad(exact, parameters)
    return torch.stack(drawn), torch.cat([part.flatten() for part in truth])


@pytest.mark.parametrize(
    ("family", "estimator", "prior"),
    [(*case, "vector") for case in CASES]
    + [(*case, "dense") for case in (CASES[0], CASES[4], CASES[7])]
    + [(*CASES[0], "scalar")],
)
def test_estimates_are_unbiased(family: str, estimator: str, prior: str) -> None:
    found, truth = estimates(regression(prior=PRIORS[prior]), family, estimator, 250)
    moving = found.std(0) > 1e-12 * found.abs().amax()
    torch.testing.assert_close(found[:, ~moving].mean(0), truth[~moving])
    errors = found.std(0)[moving] / len(found) ** 0.5
    assert ((found.mean(0) - truth)[moving] / errors).abs().max() < STANDARD_ERRORS


def test_local_reparameterization_has_the_smallest_variance() -> None:
    """Of the noise of a minibatch's rows, which the draws of the weights share, it makes noise of each row's own."""
    spread = {}
    for estimator in ("local_reparameterization", "flipout", "reparameterization"):
        found, _ = estimates(regression(40), "mean_field", estimator, 200)
        spread[estimator] = float(found.var(0).sum())
    assert spread["local_reparameterization"] < 0.7 * spread["flipout"]
    assert spread["local_reparameterization"] < 0.2 * spread["reparameterization"]


def test_more_samples_have_less_variance() -> None:
    one, _ = estimates(regression(), "full", "sticking_the_landing", 200)
    four, _ = estimates(regression(), "full", "sticking_the_landing", 200, samples=4)
    ratio = float(four.var(0).sum() / one.var(0).sum())
    assert ratio == pytest.approx(0.25, abs=0.08)


@pytest.mark.parametrize("prior", PRIORS)
def test_sticking_the_landing_leaves_no_gradient_at_the_posterior(prior: str) -> None:
    problem, module = regression(prior=PRIORS[prior]), network()
    weights = Weights.select(module, "all")
    covariance = torch.linalg.inv(problem.precision)
    root = torch.linalg.cholesky(covariance)
    family = Full(root.diagonal().clone())
    with torch.no_grad():  # T = s₀∘(PACE B + I)
        family.below.copy_((root / root.diagonal()[:, None]).tril(-1) / PACE)
        module[0].weight.copy_(problem.mean[None, :2])
        module[0].bias.copy_(problem.mean[2:])
    gradients = AtDraws(module, weights, family, 3, sticking=True)
    gradients.begin_epoch(problem.prior, 1.0 / len(problem.x))
    with seeded_draws(0):
        gradients.accumulate(problem.x, partial(loss, problem))
    for parameter in [*module.parameters(), *family.parameters()]:
        assert parameter.grad is not None
        assert parameter.grad.abs().max() < 1e-10


def test_masked_entries_are_trained_without_a_prior() -> None:
    """Their gradient is that of the data alone, and their sds have none."""
    problem, module = regression(), network()
    mask = torch.tensor([True, False, True])
    weights = Weights.select(module, mask)
    for estimator in ("local_reparameterization", "sticking_the_landing"):
        q, gradients = gradients_of("mean_field", estimator, module, weights, problem.x)
        for prior in (1.0, 1000.0):
            for parameter in [*module.parameters(), *q.parameters()]:
                parameter.grad = None
            gradients.begin_epoch(Prior(prior), 1.0 / len(problem.x))
            with seeded_draws(0):
                gradients.accumulate(problem.x, partial(loss, problem))
            found = module[0].weight.grad[0, 1].clone()
            assert q.scale.rho[0].grad[0, 1] == 0.0
            if prior == 1.0:
                first = found
        assert first == found
        assert found != 0.0


def test_weights_that_are_not_in_use_go_to_their_prior() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.unused = network(), nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out

    problem, module = regression(), Partial()
    weights = Weights.select(module, "all")
    q, gradients = gradients_of("mean_field", "local_reparameterization", module, weights, problem.x)
    gradients.begin_epoch(Prior(4.0), 0.5)
    with seeded_draws(0):
        gradients.accumulate(problem.x, partial(loss, problem))
    torch.testing.assert_close(module.unused.grad, torch.full((2,), 2.0, dtype=torch.float64))
    sd = q.scale.sds()["unused"].detach()
    place = weights.names.index("unused")
    torch.testing.assert_close(q.scale.rho[place].grad, PACE * 0.5 * (4.0 * sd.square() - 1.0))


def test_family_of_is_away_from_zero() -> None:
    """Else the gradients above would be compared at a special point."""
    module = network()
    weights = Weights.select(module, "all")
    for name in ("low_rank", "full"):
        dense = torch.linalg.inv(family_of(name, module, weights).precision().to_dense())
        assert (dense - torch.diag(dense.diagonal())).abs().max() > 0.01


@pytest.mark.parametrize("prior", [Prior(2.0), Prior([1.0, 5.0, 20.0, 3.0, 0.2, 7.0], [1.0, -2.0, 3.0, 0.5, 0.0, 2.0])])
def test_by_row_the_divergence_is_exact_beside_masks_and_weights_out_of_use(prior: Prior) -> None:
    """With a loss that is flat, its gradient alone is left; that of entries that a mask leaves out is zero."""
    module = nn.ModuleDict({"used": network(), "idle": network(1)})
    module.forward = module["used"].forward
    weights = Weights.select(module, torch.tensor([True, False, True, True, True, True]))
    problem = regression()
    q, gradients = gradients_of("mean_field", "local_reparameterization", module, weights, problem.x)
    prior = Prior(prior.diagonal(6)[:5], prior.centre(6)[:5])
    gradients.begin_epoch(prior, 0.3)
    with seeded_draws(0):
        gradients.accumulate(problem.x, lambda f: 0.0 * f.sum())
    parameters = [*module.parameters(), *q.parameters()]
    found = [parameter.grad for parameter in parameters]
    mean = weights.flatten(weights.parameters(module))
    expected = torch.autograd.grad(0.3 * kl_divergence(q, mean, prior), parameters, materialize_grads=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
