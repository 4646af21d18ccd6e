"""Training side by side: each network reads the rows, and is pulled, as it would be by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training import Minibatches, NegativeLogJoint, Stack, canonical_targets, for_each
from tests.training.members import MEMBERS, made, plain, rows_of_each
from tests.training.toys import classes, line


def priors(dim: int) -> dict[str, Prior]:
    """A prior of each kind, over P weights."""
    root = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    values = torch.linspace(0.5, 4.0, dim, dtype=torch.float64)
    full = DensePrecision(root @ root.mT + torch.eye(dim, dtype=torch.float64))
    return {"scalar": Prior(2.0), "vector": Prior(values), "mean": Prior(values, -values), "full": Prior(full, values)}


@pytest.mark.parametrize("choice", ["all", "0.*", {"0.weight": torch.eye(5, 2, dtype=torch.bool)}])
@pytest.mark.parametrize("kind", ["scalar", "vector", "mean", "full"])
@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Categorical()], ids=lambda likelihood: likelihood.name)
def test_gradients_and_terms_are_those_of_each_log_joint(likelihood: Likelihood, kind: str, choice: Any) -> None:
    modules, x = made(plain), rows_of_each()
    weights = Weights.select(modules[0], choice)
    prior = priors(weights.dim)[kind]
    stack = Stack(modules, vectorized=True)
    joint = NegativeLogJoint(stack, weights, 20, likelihood, prior)
    y = x if likelihood.name == "gaussian" else (x[..., 0] > 0).long()
    targets = [canonical_targets(likelihood, y[:, m], torch.Size((6, 2))) for m in range(MEMBERS)]
    joint.begin_epoch(0, 1)
    nll = joint.estimate(x, torch.cat(targets, 1))
    told = joint.finish_epoch(float(nll) * 6)
    for m, module in enumerate(modules):
        alone = NegativeLogJoint(module, weights, 20, likelihood, prior)
        own = alone.estimate(x[:, m], targets[m])
        for parameter, stacked in zip(module.parameters(), stack.values, strict=True):
            torch.testing.assert_close(stacked.grad[m], parameter.grad)
        assert told["losses"][m] == pytest.approx(alone.finish_epoch(float(own) * 6)["loss"])
    assert told["loss"] == pytest.approx(sum(told["losses"]) / MEMBERS)
    assert float(joint.per_row_penalty()) == pytest.approx(told["penalty"] / 20)


def test_a_parameter_that_is_not_in_use_is_pulled_by_the_prior() -> None:
    modules = made(lambda: nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)}))
    for module in modules:
        module.forward = module["used"].forward  # type: ignore[method-assign]
    stack = Stack(modules, vectorized=True)
    x = rows_of_each()
    NegativeLogJoint(stack, Weights.select(modules[0], "all"), 10, Gaussian(1.0), Prior(3.0)).estimate(x, x[..., :1])
    idle = stack.names.index("unused.weight")
    torch.testing.assert_close(stack.values[idle].grad, 0.3 * stack.values[idle].detach())


@pytest.mark.parametrize("size", [7, 60])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_each_reads_the_rows_that_it_would_by_itself(size: int, *, bootstrap: bool) -> None:
    x, y = classes()
    module = made(plain, 1)[0]

    def orders() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in (5, 6)]

    chosen = torch.randint(60, (2, 60), generator=torch.Generator().manual_seed(7)) if bootstrap else None
    data = Minibatches((x, y), module, Categorical(), size, torch.Generator())
    data.stack(orders(), chosen)
    own = [
        (x, y) if chosen is None else (x[rows], y[rows]) for rows in (chosen if chosen is not None else (None, None))
    ]
    alone = [Minibatches(pair, module, Categorical(), size, order) for pair, order in zip(own, orders(), strict=True)]
    for _ in range(2):
        batches = list(data.epoch())
        for m, rows in enumerate(alone):
            for (inputs, targets), (mine, labels) in zip(batches, rows.epoch(), strict=True):
                assert torch.equal(inputs[:, m], mine)
                assert torch.equal(targets[:, m : m + 1], labels)
    assert data.largest == min(size, 60)


def test_batches_of_a_loader_are_the_same_for_all() -> None:
    x, y = line()
    module = made(lambda: nn.Linear(2, 1), 1)[0]
    data = [(x[:9], y[:9]), (x[9:], y[9:])]
    rows = Minibatches(data, module, Gaussian(1.0), 128, torch.Generator())
    rows.stack([torch.Generator()] * MEMBERS)
    for (inputs, targets), (own, labels) in zip(rows.epoch(), data, strict=True):
        assert torch.equal(inputs, for_each(own, MEMBERS))
        assert torch.equal(targets, labels[:, None].expand(-1, MEMBERS, -1))


def test_bernoulli_targets_keep_their_rows() -> None:
    """One output a member, and labels without a column: members must not be taken for positions of a row."""
    modules, x = made(lambda: nn.Linear(2, 1)), rows_of_each()
    weights, likelihood = Weights.select(modules[0], "all"), Bernoulli()
    y = (x[..., 0] > 0).double()
    targets = torch.cat([canonical_targets(likelihood, y[:, m], torch.Size((6, 1))) for m in range(MEMBERS)], 1)
    joint = NegativeLogJoint(Stack(modules, vectorized=True), weights, 6, likelihood, Prior(1.0))
    joint.begin_epoch(0, 1)
    joint.estimate(x, targets)
    for m, module in enumerate(modules):
        nll = -likelihood.log_prob(module(x[:, m]).detach(), likelihood.targets(y[:, m], 1)).sum()
        penalty = 0.5 * sum(float(parameter.detach().square().sum()) for parameter in module.parameters())
        assert joint.finish_epoch(0.0)["losses"][m] == pytest.approx(float(nll) + penalty)
