"""Active learning: which rows to have labelled next."""

from __future__ import annotations

import torch

from bayescope import checks
from bayescope.errors import InputError
from bayescope.predictive import Array, Predictive


def most_informative(
    predictive: Predictive, n: int = 1, *, diverse: bool = False, generator: torch.Generator | int | None = None
) -> Array:
    """The n rows whose labels would tell most of the model, by mutual information (BALD; Houlsby et al. 2011).

    The n best rows are often alike: the label of one tells what the others would have told. ``diverse=True`` draws them
    instead, without replacement and with probability proportional to their information, which does as well as
    costlier choices of whole batches (power sampling with exponent 1; Kirsch, Farquhar, Atighehchian, Jesson,
    Branchaud-Charron & Gal 2023). For one row at a time it is the worse of the two.

    Args:
        predictive: for the N rows of a pool without labels. Dense rows count the sum over their positions.
        n: how many, from 1 to N.
        diverse: whether to draw them.
        generator: for that, a ``torch.Generator`` or an int.

    Returns:
        Their indices, shape (n,), the most informative first (in the order drawn, for ``diverse``), ties by index.

    Raises:
        InputError: if n is not between 1 and N, or a generator is given where nothing is drawn.
    """
    rows = len(predictive)
    if checks.count("n", n) > rows:
        raise InputError(f"n: expected at most the {rows} rows of the pool, got {n}.")
    if generator is not None and not checks.flag("diverse", diverse):
        raise InputError("generator: expected None where nothing is drawn, got one. Leave it out, or ask for diverse.")
    scores = torch.as_tensor(predictive.mutual_information).detach().reshape(rows, -1).sum(1)
    if checks.flag("diverse", diverse):
        # The first arrivals of exponential clocks with these rates; log of a rate of 0 is −∞: last, and by index
        clocks = torch.empty(rows, dtype=torch.float64).exponential_(generator=checks.generator(generator))
        scores = scores.log() - clocks.to(scores.device).log()
    best = scores.argsort(descending=True, stable=True)[:n]
    return best.cpu().numpy() if predictive.arrays else best
