"""Dropout inside of torch's own functions is seen as any other, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayescope.errors import UnsupportedError
from bayescope.network import dropout_calls
from tests.network.networks import built, numbers


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, "mask", "float mask"]
)
def test_attention_with_dropout_is_attention_but_for_the_masks(options: Any) -> None:
    q, k, v = numbers(2, 4, 5, 3), numbers(2, 4, 6, 3, seed=2), numbers(2, 4, 6, 3, seed=3)
    if options == "mask":
        options = {"attn_mask": numbers(5, 6, seed=4) > -0.5}
    elif options == "float mask":
        options = {"attn_mask": numbers(5, 6, seed=4)}
    elif "enable_gqa" in options:
        k, v = k[:, :2], v[:, :2]
    seen = []
    with dropout_calls(lambda found: seen.append(found.rate) or found.input):
        f = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, **options)
    torch.testing.assert_close(f, F.scaled_dot_product_attention(q, k, v, **options))
    assert seen == [0.3]


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_with_dropout_is_that_but_for_the_masks(need_weights: bool) -> None:
    layer, x = built(lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)).eval(), numbers(3, 4, 8)
    seen = []
    with dropout_calls(lambda found: seen.append(found.rate) or found.input):
        f, weights = layer(x, x, x, need_weights=need_weights)
    expected, expected_weights = layer(x, x, x, need_weights=need_weights)
    torch.testing.assert_close(f, expected)
    assert (weights is None) == (expected_weights is None) == (not need_weights)
    assert seen == [0.3]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_dropout_between_recurrent_layers_is_refused(kind: type[nn.Module], packed: bool) -> None:
    layer, x = built(lambda: kind(3, 4, num_layers=2, dropout=0.2)), numbers(4, 2, 3)
    given = nn.utils.rnn.pack_padded_sequence(x, [4, 4]) if packed else x
    with (
        dropout_calls(lambda found: found.input),
        pytest.raises(UnsupportedError, match="between its recurrent layers"),
    ):
        layer(given)
    alone = built(lambda: kind(3, 4))
    with dropout_calls(lambda found: found.input):
        alone(given)
