"""Terms that the evidence would rather be without: each that might be one is tried off.

The fixed points of the precisions climb to a local maximum of log Z, which may keep a term that fits noise. Off is
δ = ∞ for the weights that a term's effect is linear in: far away for a climb, and close for a comparison.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bayescope.additive.evidence import MOST_PRECISION
from bayescope.additive.families import linear_weights
from bayescope.additive.fit import ROUGHLY, AdditiveFit, settled
from bayescope.additive.problem import Blocks, Hyperparameters, State

# Terms are tried whose removal would lose at most so many nats by the density ratio, which knows nothing of the others.
DOUBTFUL = 5.0


def pruned(fit: AdditiveFit) -> AdditiveFit:
    """The fit with those terms off without which log Z is higher, tried one after another."""
    gains = removal_gains(fit)
    for gain, family, term in sorted(gains, reverse=True):
        if gain < -DOUBTFUL:
            break
        trial = _without(fit, family, term)
        if trial.log_evidence >= fit.log_evidence:
            fit = trial
    return fit


def removal_gains(fit: AdditiveFit) -> list[tuple[float, int, int]]:
    """What log Z would gain without each term that is on, by itself, with its family and place.

    With o the weights that the effect is linear in, and 0 their prior mean, it is the Savage-Dickey density ratio
    log q(o = 0) − log p(o = 0) of the Gaussian posterior to the prior (Dickey 1971).
    """
    problem = fit.problem
    blocks = Blocks.of(fit.linear.blocks, problem.families, fit.at, 0.0)
    gains = []
    for place, (family, factor, departure, diagonal) in enumerate(
        zip(
            problem.families,
            blocks.factors,
            problem.departures(fit.state),
            fit.at.diagonal(problem.families),
            strict=True,
        )
    ):
        outer = linear_weights(family)
        covariance = torch.cholesky_inverse(factor)[:, outer][:, :, outer]
        root = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, departure[:, outer, None], upper=False)
        log_posterior = -0.5 * whitened.square().sum((1, 2)) - root.diagonal(dim1=1, dim2=2).log().sum(1)
        log_prior = 0.5 * diagonal[:, outer].log().sum(1)
        on = diagonal[:, outer].amin(1) < MOST_PRECISION
        gains += [
            (float(gain), place, term)
            for term, (gain, is_on) in enumerate(zip(log_posterior - log_prior, on.tolist(), strict=True))
            if is_on
        ]
    return gains


def _without(fit: AdditiveFit, family: int, term: int) -> AdditiveFit:
    """The mode with a term switched off: all that it is linear in, or all of it where its layers share a precision."""
    own = fit.at.precisions[family][term]
    shared = bool((own == own[0]).all())
    layers = torch.tensor([shared or name != "inner" for name in fit.problem.families[family].layers])
    precisions = [precision.clone() for precision in fit.at.precisions]
    precisions[family][term, layers] = MOST_PRECISION
    thetas = [theta.clone() for theta in fit.state.thetas]
    thetas[family][term] = fit.problem.centres[family][term]
    at: Hyperparameters = replace(fit.at, precisions=tuple(precisions))
    state = State(tuple(thetas), fit.state.intercept)
    return settled(fit.problem, state, at, fit.trace, fit.ended, ROUGHLY, fit.log_evidence)
