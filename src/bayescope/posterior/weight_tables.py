"""Tables of the weights, one by one or by layer, and the quantiles of draws of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent.latent import empirical_quantile
from bayescope.models import Model
from bayescope.network.model import network_of
from bayescope.tables.frames import table_of
from bayescope.tape.tape import row_blocks


def weight_table(
    names: Sequence[str], mean: Tensor, sd: Tensor, low: Tensor, high: Tensor, more: Mapping[str, Tensor]
) -> Any:
    """A row for each of P weights, whose numbers have shape (P,); ``more`` are further columns."""
    columns = {"mean": mean, "sd": sd, "low": low, "high": high, **more}
    numbers = {name: values.detach().cpu().numpy() for name, values in columns.items()}
    return table_of({"name": np.array(names, dtype=object), **numbers}, "pandas")


def layer_table(models: Sequence[Model], mean: Tensor, sd: Tensor, low: Tensor, high: Tensor) -> Any:
    """A row for each layer of a network, in the order of its parameters, of numbers of shape (P,).

    Raises:
        UnsupportedError: if there is no network.
    """
    network = network_of(models[0]) if models else None
    if network is None:
        raise UnsupportedError("by: expected 'weight' for a model that is not a network, got 'layer'. Leave it out.")
    weights = network.weights
    layers = list(dict.fromkeys(weights.layers))
    numbers = torch.tensor([layers.index(layer) for layer in weights.layers])
    owner = numbers.repeat_interleave(torch.tensor(weights.counts)).to(mean.device)

    def averages(values: Tensor) -> Tensor:
        return values.new_zeros(len(layers)).index_add_(0, owner, values) / count

    count = mean.new_zeros(len(layers)).index_add_(0, owner, torch.ones_like(mean))
    away = ((low > 0) | (high < 0)).to(mean).masked_fill(low.isnan(), torch.nan)
    columns = {
        "weights": count.to(torch.int64), "mean_size": averages(mean.square()).sqrt(),
        "sd": averages(sd.square()).sqrt(), "away_from_0": averages(away),
    }  # fmt: skip
    arrays = {name: values.cpu().numpy() for name, values in columns.items()}
    return table_of({"layer": np.array(layers, dtype=object), **arrays}, "pandas")


def ends_of_draws(draws: Tensor, tail: float) -> tuple[Tensor, Tensor]:
    """For each column of draws (S, P) the quantiles that this share of them is below and above, each of shape (P,)."""
    blocks = [draws[:, some] for some in row_blocks(draws.shape[1], 8 * draws.shape[0])]
    low, high = ([empirical_quantile(block, level) for block in blocks] for level in (tail, 1.0 - tail))
    return torch.cat(low), torch.cat(high)
