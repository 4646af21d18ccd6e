"""The diagnosis of a network's draws in function space: of what they predict, since weights are not identified.

A network's hidden units can change places and signs without a change of f, so that chains which agree on every
prediction may stay far apart in θ: R-hat of the weights tells little about the answers (Izmailov et al. 2021, "What
are Bayesian neural network posteriors really like?", section 4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescope.density import Mixing, convergence
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.network.inputs import Inputs, count_rows, map_tensors, take_rows

# Predictions are diagnosed at no more rows than these, evenly spaced over those given, and fewer where those of all
# draws would be more numbers than that. Weights are diagnosed where all draws of them are no more.
DIAGNOSED_ROWS = 200
DIAGNOSED_NUMBERS = 2**25


def prediction_diagnosis(
    function: Model, draws: Tensor, inputs: Inputs, likelihood: Likelihood, *, numbers: int = DIAGNOSED_NUMBERS
) -> Mixing:
    """R-hat and effective draws of E(y∣f(x, θ)) at N inputs, shape (N, K), for K outcome columns.

    A prediction that is the same number in every draw, such as a saturated probability, has R-hat 1 and as many
    effective draws as there are.

    Args:
        function: f(x, θ).
        draws: of θ, shape (chains, draws, P), at least four a chain; one chain is judged by its two halves.
        inputs: rows as the model's `inputs` returns them; of more than `DIAGNOSED_ROWS` some are taken, evenly spaced.
            Each position of dense outputs counts as a row; one row is taken with all of them.
        likelihood: p(y∣f).
        numbers: the most that the predictions of all draws are; at least those at one row are taken.
    """
    with torch.no_grad():
        of_one_row = _expected(function.forward(take_rows(inputs, slice(0, 1)), draws[:1, 0]), likelihood)
        room = numbers // (draws.shape[:2].numel() * of_one_row.numel())
        some = diagnosed_rows(inputs, max(1, min(room, DIAGNOSED_ROWS // of_one_row.shape[1])))
        expected = torch.stack([_expected(function.forward(some, chain), likelihood) for chain in draws])
    chains, kept, rows, columns = expected.shape
    r_hat, effective = convergence(expected.flatten(2).cpu())
    constant = (expected == expected[:1, :1]).all(0).all(0).flatten().cpu()
    return Mixing(
        torch.where(constant, 1.0, r_hat).reshape(rows, columns),
        torch.where(constant, float(chains * kept), effective).reshape(rows, columns),
    )


def diagnosed_rows(inputs: Inputs, most: int = DIAGNOSED_ROWS) -> Any:
    """At most this many of the rows of checked inputs, evenly spaced."""
    rows = count_rows(inputs)
    if rows <= most:
        return inputs
    chosen = torch.linspace(0, rows - 1, most, dtype=torch.float64).round().long()
    return map_tensors(lambda tensor: tensor[chosen.to(tensor.device)], inputs)


def _expected(f: Tensor, likelihood: Likelihood) -> Tensor:
    """E(y∣f), shape (S, M, K), for outputs (S, N, *positions, C)."""
    return likelihood.conditional(f.flatten(1, -2))[0]
