"""The hyperparameters of a likelihood by the evidence of a network, where another value takes another curvature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.judgement import by_evidence
from bayescope.laplace.options import LaplaceOptions
from bayescope.likelihoods import Likelihood, read_targets
from bayescope.network.batches import Batches, Data, row_total
from bayescope.network.inputs import Inputs, call
from bayescope.private_draws import private_draws
from bayescope.training.learnt_likelihood import first_likelihood

# Training rows, and draws of the outputs of each, that hyperparameters are fitted to.
LEARNT_ROWS, DRAWS = 2**13, 32
# In unconstrained coordinates, such as logs, hyperparameters that move by less than this have settled.
SETTLED, ROUNDS = 1e-3, 20


def refitted(fit: LaplaceFit, rows: Iterable[tuple[Inputs, Tensor]], names: tuple[str, ...]) -> Likelihood:
    """The likelihood that maximises E_q[Σ log p(y∣f)] over training rows: a step of expectation maximisation.

    Where it changes nothing the evidence ∫ p(y∣θ) q(θ) is stationary in these hyperparameters, as far as q is the
    posterior. For a Gaussian it would be σ² = (RSS + γ σ²)/n, MacKay's update.

    Args:
        fit: Laplace's approximation, under the present hyperparameters.
        rows: inputs with canonical targets; the first `LEARNT_ROWS` of them are read.
        names: of the hyperparameters.
    """
    q, outputs, targets, count = fit.predicting(), [], [], 0
    for inputs, y in rows:
        latent = q.predict(inputs, method="linearized").latent
        outputs.append(latent.sample(DRAWS, torch.Generator().manual_seed(0)))
        targets.append(y.to(outputs[-1].device))
        count += len(y)
        if count >= LEARNT_ROWS:
            break
    f = torch.cat(outputs, 1).to(torch.float64)
    return fit.likelihood.fitted(names, f, torch.cat(targets), row_total)


def sampled_rows(fit: LaplaceFit) -> Iterator[tuple[Inputs, Tensor]]:
    """The training rows that a fit has kept, with canonical targets."""
    for inputs, y in fit.sample:
        f = fit.function.forward(inputs, fit.mode)
        yield inputs, read_targets(fit.likelihood, y, f.shape)


def learnt_likelihood(asked: LaplaceOptions, module: nn.Module, data: Data, source: torch.Generator) -> LaplaceOptions:
    """The options with hyperparameters of the likelihood at which the evidence is stationary, with one prior precision.

    The curvature is read again for each step of expectation maximisation; the first values are those that suit the
    outputs of the network alone.

    Args:
        asked: how the curvature is read, with a likelihood that is to be learnt.
        module: at a mode.
        data: that it was trained on.
        source: of random numbers of the curvature.
    """
    names, likelihood = asked.likelihood.learnable, _first(asked.likelihood, module, data)
    for _ in range(ROUNDS):
        asked = replace(asked, likelihood=likelihood)
        fit = asked.fit(module, data, 1.0, generator=source, sampled_rows=LEARNT_ROWS)
        likelihood = refitted(by_evidence(fit, noise=False), sampled_rows(fit), names)
        if settled(asked.likelihood, likelihood, names):
            break
    return replace(asked, likelihood=likelihood)


def _first(likelihood: Likelihood, module: nn.Module, data: Data) -> Likelihood:
    """First values of hyperparameters: those that suit the network's own outputs."""
    outputs, targets, count = [], [], 0
    with private_draws(), torch.no_grad():
        for inputs, y in Batches(data, module):
            f = call(module, inputs).to(torch.float64)
            outputs.append(f.flatten(0, -2))
            targets.append(read_targets(likelihood, y, f.shape, count).to(f.device))
            count += len(outputs[-1])
            if count >= LEARNT_ROWS:
                break
    f, y = torch.cat(outputs), torch.cat(targets)
    return first_likelihood(likelihood, lambda: y).fitted(likelihood.learnable, f, y, row_total)


def settled(before: Likelihood, after: Likelihood, names: tuple[str, ...]) -> bool:
    """Whether hyperparameters have moved next to nothing."""
    return bool((after.unconstrained(names) - before.unconstrained(names)).abs().max() < SETTLED)
