"""The minibatch gradient is that of the whole objective on average, and each term is what it says."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.sampling import sgmcmc
from bayescope.training import Minibatches, NegativeLogJoint, canonical_targets, fit_map
from tests.training.toys import classes, line, perceptron

ROWS = 24


def gradient(parameters: list[nn.Parameter]) -> Tensor:
    found = []
    for parameter in parameters:
        assert parameter.grad is not None
        found.append(parameter.grad.flatten().clone())
    return torch.cat(found)


def by_autograd(module: nn.Module, likelihood: Any, prior: Prior, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of −Σ log p(y∣f) − log p(θ) over all rows, plainly."""
    parameters = list(module.parameters())
    theta = torch.cat([parameter.flatten() for parameter in parameters])
    offset = theta - prior.centre(len(theta))
    penalty = 0.5 * offset @ prior.structured(len(theta)).to_dense() @ offset
    f = module(x)
    loss = penalty - likelihood.log_prob(f, likelihood.targets(y, f.shape[-1])).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


def priors(dim: int) -> dict[str, Prior]:
    root = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spread = torch.linspace(0.1, 3.0, dim, dtype=torch.float64)
    return {
        "scalar": Prior(2.0),
        "mean": Prior(2.0, spread),
        "vector": Prior(spread, 1.0),
        "full": Prior(DensePrecision(root @ root.mT + torch.eye(dim)), spread),
    }


@pytest.mark.parametrize("name", ["scalar", "mean", "vector", "full"])
@pytest.mark.parametrize("batch_size", [1, 5, 8, ROWS])
def test_minibatches_of_an_epoch_average_to_the_gradient_of_the_sum(name: str, batch_size: int) -> None:
    """Each row is in one minibatch of an epoch; equal sizes, so that the average over them is exact."""
    module = perceptron()
    x, y = line(ROWS)
    likelihood, weights = Gaussian(0.3), Weights.select(module, "all")
    prior = priors(weights.dim)[name]
    rows = Minibatches((x, y), module, likelihood, batch_size, torch.Generator().manual_seed(0))
    objective = NegativeLogJoint(module, weights, ROWS, likelihood, prior)
    total, losses, seen = torch.zeros(weights.dim, dtype=torch.float64), 0.0, 0
    for inputs, targets in rows.epoch():
        losses += objective.estimate(inputs, targets).item() * len(targets)
        total += gradient(objective.parameters) * len(targets) / ROWS
        seen += len(targets)
    assert seen == ROWS
    torch.testing.assert_close(total * ROWS, by_autograd(module, likelihood, prior, x, y))
    f = module(x).detach()
    assert losses == pytest.approx(-likelihood.log_prob(f, y).sum().item())
    theta = weights.flat(module)
    normaliser = prior.log_prob(prior.centre(weights.dim))
    assert objective.penalty().item() == pytest.approx((normaliser - prior.log_prob(theta)).item())


def test_one_minibatch_is_unbiased_over_permutations() -> None:
    """Unequal sizes: the first minibatch of an epoch, over many epochs, tells the whole within its standard error."""
    module = perceptron()
    x, y = classes(23, count=3)
    module[2] = nn.Linear(8, 3).double() if module[2].out_features != 1 else perceptron(outputs=3)[2]
    likelihood, weights, prior = Categorical(), Weights.select(module, "all"), Prior(0.5)
    rows = Minibatches((x, y), module, likelihood, 6, torch.Generator().manual_seed(1))
    objective = NegativeLogJoint(module, weights, 23, likelihood, prior)
    draws = []
    for _ in range(400):
        inputs, targets = next(iter(rows.epoch()))
        objective.estimate(inputs, targets)
        draws.append(gradient(objective.parameters) * 23)
    found = torch.stack(draws)
    deviation = (found.mean(0) - by_autograd(module, likelihood, prior, x, y)) / (found.std(0) / 20.0)
    assert deviation.abs().max() < 4.5


def test_targets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="one column for one output"):
        canonical_targets(Gaussian(), torch.zeros(4), torch.Size((4,)))
    with pytest.raises(InputError, match="each of the positions"):
        canonical_targets(Gaussian(), torch.zeros(4), torch.Size((4, 2, 1)))
    with pytest.raises(InputError, match="expected 4 labels"):
        canonical_targets(Gaussian(), torch.zeros(3), torch.Size((4, 1)))
    assert canonical_targets(Categorical(), torch.zeros(4, 2, 3), torch.Size((4, 2, 3, 5))).shape == (4, 6)


def test_outputs_that_no_weight_is_seen_in_are_refused() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out.detach()

    for fit in (partial(fit_map, epochs=1), partial(sgmcmc, draws=2)):
        with pytest.raises(InputError, match="model: expected outputs that depend on the weights that are trained"):
            fit(Detached(), line(), likelihood="gaussian", generator=0)
