"""The rewards of single items, after a fit to preferences between pairs of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.layers.outputs import Pairwise, Rewards
from bayescope.models import LinearizedModel, Model
from bayescope.module_copies import module_copy
from bayescope.network.model import NetworkModel
from bayescope.posterior.draws import ImplicitPosterior
from bayescope.posterior.gaussian import GaussianPosterior
from bayescope.posterior.mixture import MixturePosterior
from bayescope.posterior.posterior import Posterior, noted


def item_rewards(q: Posterior) -> Posterior:
    """Return the posterior of the rewards of single items, for a posterior that was fitted to pairs of them.

    Its functions map M items to their rewards, shape (M, 1), over the weights of q:
    `joint_latent(items)` has the mean and the covariance of all rewards, `sample_functions` draws of them, both with
    gradients on request. Preferences tell nothing of what all rewards have in common: that part of the covariance is
    the prior's, and differences between items are what the data determine. For items i and j the difference has the
    variance ``c[i, i] + c[j, j] - 2 * c[i, j]``.

    Args:
        q: of a `bayescope.layers.Pairwise`, under the likelihood "bradley_terry": a Gaussian posterior, a mixture,
            draws, or a point.

    Returns:
        A posterior of the same form. It has no likelihood, since a reward by itself has no outcome.

    Raises:
        InputTypeError: if q is not the posterior of a `Pairwise`.
        UnsupportedError: if q draws functions and not weights (MC dropout).
    """
    if not isinstance(q, Posterior):
        raise InputTypeError(f"q: expected the posterior of a bs.layers.Pairwise, got {type(q).__name__}.")
    if isinstance(q, ImplicitPosterior):
        raise UnsupportedError(
            f"q: expected a posterior over weights, got one by {q.record.method}, which draws functions of pairs. Take "
            "laplace, variational, ensemble or swag."
        )
    changes: dict[str, Any] = {"function": None if q.function is None else _of_items(q.function), "likelihood": None}
    if isinstance(q, MixturePosterior):
        changes["components"] = [item_rewards(part) for part in q.components]
    if isinstance(q, GaussianPosterior):  # more data are pairs, and so is the evidence of other hyperparameters
        changes |= {"infer": None, "fit": None, "lost": ()}
    return noted(cast(Posterior, replace(cast(Any, q), **changes)), {"function": "the rewards of single items"})


def _of_items(function: Model) -> Model:
    if isinstance(function, LinearizedModel):
        return LinearizedModel(_of_items(function.model), function.at)
    module = function.module if isinstance(function, NetworkModel) else function
    if not isinstance(function, NetworkModel) or not isinstance(module, Pairwise):
        raise InputTypeError(
            f"q: expected the posterior of a bs.layers.Pairwise, got one of a {type(module).__name__}. Fit "
            "bs.layers.Pairwise(reward) to pairs."
        )
    return NetworkModel(Rewards(module_copy(module.reward)), function.weights, outputs=1)
