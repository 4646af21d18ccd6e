"""Multi-head attention (Vaswani et al. 2017, "Attention is all you need", Section 3.2) in linear maps."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,  # noqa: ARG001
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """As ``torch.nn.functional.multi_head_attention_forward``; inputs are (L, N, E) or (L, E).

    Not implemented: keys or values projected beforehand.
    """
    if static_k is not None or static_v is not None:
        return NotImplemented
    dropped = training and dropout_p > 0
    batched = query.ndim == 3
    if use_separate_proj_weight:
        weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        projected = tuple(map(F.linear, (query, key, value), weights, biases))
    else:
        projected = _packed_projection(query, key, value, in_proj_weight, in_proj_bias)
    q, k, v = projected if batched else (part.unsqueeze(1) for part in projected)
    if is_causal and key_padding_mask is None and not need_weights:  # a hint: torch does not look at the mask then
        attn_mask = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(1)
    if bias_k is not None and bias_v is not None:
        k, v = _appended(k, bias_k), _appended(v, bias_v)
    if add_zero_attn:
        k, v = _appended(k, k.new_zeros(1)), _appended(v, v.new_zeros(1))
    rows = q.shape[1]
    q, k, v = (part.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for part in (q, k, v))  # (N, H, L, E/H)
    mask = _mask(attn_mask, key_padding_mask, rows, k.shape[-2], q)
    if need_weights or dropped:
        scores = q @ k.mT * math.sqrt(1 / q.shape[-1])
        attention = F.softmax(scores if mask is None else scores + mask, dim=-1)
        attention = F.dropout(attention, dropout_p) if dropped else attention
        mixed = attention @ v
    else:
        attention, mixed = None, F.scaled_dot_product_attention(q, k, v, mask)
    output = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    attention = attention if need_weights else None
    if attention is not None and average_attn_weights:
        attention = attention.mean(1)
    if batched:
        return output, attention
    return output.squeeze(1), None if attention is None else attention.squeeze(0)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As ``torch.nn.functional.scaled_dot_product_attention``: softmax(q kᵀ/√E + mask), dropped, times v."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.mT * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    attention = scores.softmax(-1)
    return (F.dropout(attention, dropout_p) if dropout_p else attention) @ value


def _packed_projection(query: Tensor, key: Tensor, value: Tensor, weight: Any, bias: Any) -> tuple[Tensor, ...]:
    """One linear map for each distinct input: where two are the same, their parts of the matrix stay together."""
    width = query.shape[-1]
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    if key is value:
        bias_q, bias_kv = (None, None) if bias is None else bias.split((width, 2 * width))
        weight_q, weight_kv = weight.split((width, 2 * width))
        return F.linear(query, weight_q, bias_q), *F.linear(key, weight_kv, bias_kv).chunk(2, -1)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(map(F.linear, (query, key, value), weight.chunk(3), biases))


def _appended(sequence: Tensor, entry: Tensor) -> Tensor:
    """One more position, the same for all rows. A sum with zeros spreads it, as a weight takes part as it is."""
    return torch.cat([sequence, sequence.new_zeros(1, *sequence.shape[1:]) + entry])


def _mask(attn_mask: Tensor | None, padding: Tensor | None, rows: int, keys: int, like: Tensor) -> Tensor | None:
    """What is added to the scores (N, H, L, S): −∞ where a position may not be looked at."""
    mask = None
    if attn_mask is not None:
        mask = _additive(attn_mask, keys, like)
        mask = mask.unflatten(0, (rows, -1)) if mask.ndim == 3 else mask
    if padding is not None:
        hidden = _additive(padding.reshape(rows, -1), keys, like)[:, None, None]
        mask = hidden if mask is None else mask + hidden
    return mask


def _additive(mask: Tensor, keys: int, like: Tensor) -> Tensor:
    """A mask in floating point; appended positions are open."""
    if mask.dtype == torch.bool:
        mask = like.new_zeros(mask.shape).masked_fill_(mask, -math.inf)
    return F.pad(mask, (0, keys - mask.shape[-1])).to(like.dtype)
