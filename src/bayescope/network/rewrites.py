"""Layers that use several weights inside one call, as the same mathematics in calls that each use one of them.

- Multi-head attention (Vaswani et al. 2017, "Attention is all you need", Section 3.2) in linear maps.
- Normalisation layers, scales and gates: a part without weights, then a product and a sum entry by entry. Derivatives
  of any order take many vectors at once, which those of the fused layers do not.
- Recurrent networks step by step: the inputs of all steps go through one linear map, the states through one a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayescope.network.interception import Rewrites, bound


def multi_head_attention(*args: object, **kwargs: object) -> tuple[Tensor, Tensor | None]:
    """As ``torch.nn.functional.multi_head_attention_forward``; inputs are (L, N, E) or (L, E).

    Not implemented: keys or values projected beforehand.
    """
    given = SimpleNamespace(**bound(F.multi_head_attention_forward, args, kwargs))
    if given.static_k is not None or given.static_v is not None:
        return NotImplemented
    query, key, value = given.query, given.key, given.value
    dropped = given.training and given.dropout_p > 0
    batched = query.ndim == 3
    if given.use_separate_proj_weight:
        weights = given.q_proj_weight, given.k_proj_weight, given.v_proj_weight
        biases = (None, None, None) if given.in_proj_bias is None else given.in_proj_bias.chunk(3)
        projected = tuple(map(F.linear, (query, key, value), weights, biases))
    else:
        projected = _packed_projection(query, key, value, given.in_proj_weight, given.in_proj_bias)
    q, k, v = projected if batched else (part.unsqueeze(1) for part in projected)
    attn_mask = given.attn_mask
    if given.is_causal and given.key_padding_mask is None and not given.need_weights:
        # a hint: torch does not look at the mask then
        attn_mask = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(1)
    if given.bias_k is not None and given.bias_v is not None:
        k, v = _appended(k, given.bias_k), _appended(v, given.bias_v)
    if given.add_zero_attn:
        k, v = _appended(k, k.new_zeros(1)), _appended(v, v.new_zeros(1))
    rows = q.shape[1]
    q, k, v = (part.unflatten(-1, (given.num_heads, -1)).permute(1, 2, 0, 3) for part in (q, k, v))  # (N, H, L, E/H)
    mask = _mask(attn_mask, given.key_padding_mask, rows, k.shape[-2], q)
    attention: Tensor | None = None
    if given.need_weights or dropped:
        scores = q @ k.mT * math.sqrt(1 / q.shape[-1])
        attention = F.softmax(scores if mask is None else scores + mask, dim=-1)
        attention = F.dropout(attention, given.dropout_p) if dropped else attention
        mixed = attention @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask)
    output = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), given.out_proj_weight, given.out_proj_bias)
    attention = attention if given.need_weights else None
    if attention is not None and given.average_attn_weights:
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


def _packed_projection(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
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


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) / √(variance + ε) over the last dimensions, then ⊙ w + b."""
    return _affine(_normalised(input, len(normalized_shape), eps), weight, bias)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean of x² + ε) over the last dimensions, then ⊙ w."""
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _affine(_NormalisedRows.apply(input, len(normalized_shape), eps, False), weight, None)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalised within each row's groups of channels, then ⊙ w + b by channel."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    return _channelwise(_normalised(groups, 1, eps).reshape(input.shape), weight, bias)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    """A fixed affine map by channel. Not implemented with the batch's own statistics: rows are mixed then."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    return _channelwise(_standardised(input, running_mean, running_var, eps), weight, bias)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    """Normalised within each row's channels, or by running statistics, then ⊙ w + b by channel."""
    if use_input_stats or running_mean is None or running_var is None:
        normalised = _normalised(input, input.ndim - 2, eps)
    else:
        normalised = _standardised(input, running_mean, running_var, eps)
    return _channelwise(normalised, weight, bias)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, w x elsewhere (also at 0, as torch takes the derivative there)."""
    positive = input > 0
    zero = input.new_zeros(())
    negative = torch.where(positive, zero, input)
    scaled = negative * weight if weight.numel() == 1 or input.ndim < 2 else _channelwise(negative, weight, None)
    return torch.where(positive, input, zero) + scaled


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ W_o x₂ + b_o, which is linear in x₁ ⊗ x₂."""
    products = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    return F.linear(products, weight.flatten(1), bias)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channelwise(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Channels go last for the product, so that the weights take part as they are."""
    return x if weight is None and bias is None else _affine(x.movedim(1, -1), weight, bias).movedim(-1, 1)


class _NormalisedRows(torch.autograd.Function):
    """x̂ = (x − m) r over the last axes, r = (mean of (x − m)² + ε)^−½, with m the mean or 0.

    ∂L/∂x = r (g − [mean of g] − x̂ · mean of g x̂), the bracket where m is the mean. What does not depend on g is worked
    out anew from x: once for all cotangents, and with a graph where a second derivative is asked for.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: int, eps: float, centre: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.options = tuple(range(-axes, 0)), eps, centre
        return _standard(x, *ctx.options)[0].to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        axes, _, centre = ctx.options
        standard, scale = _standard(x, *ctx.options)
        along = (g * standard).mean(axes, keepdim=True)
        rest = g - g.mean(axes, keepdim=True) if centre else g
        return (torch.addcmul(rest, standard, along, value=-1) * scale).to(x.dtype), None, None, None


def _standard(x: Tensor, axes: tuple[int, ...], eps: float, centre: bool) -> tuple[Tensor, Tensor]:
    """x̂ and r, in float32 at least, as the fused layers compute inside."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x - x.mean(axes, keepdim=True) if centre else x
    scale = (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return x * scale, scale


def _normalised(x: Tensor, axes: int, eps: float) -> Tensor:
    return _NormalisedRows.apply(x, axes, eps, True)


def _standardised(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    return ((x.movedim(1, -1) - mean) * (variance + eps).rsqrt()).movedim(-1, 1).to(x.dtype)


class _WeightNorm(torch.autograd.Function):
    """W = g v/‖v‖ by rows, v of shape (G, D), g of (G, 1): ∂L/∂g = u·v̂ and ∂L/∂v = (g/‖v‖) (u − (u·v̂) v̂) for u = ∂L/∂W.

    Torch's own backward pass writes about twice as many tensors of the size of u, and its derivative is wrong.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, g: Tensor) -> Tensor:
        ctx.save_for_backward(v, g)
        return v * (g / torch.linalg.vector_norm(v, dim=1, keepdim=True))

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor]:
        v, g = ctx.saved_tensors
        norm = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        unit = v / norm
        along = torch.linalg.vecdot(u, unit)[:, None]
        return torch.addcmul(u, unit, along, value=-1) * (g / norm), along


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """W = g v/‖v‖, the norm over all axes but one, or over all of them where it is −1."""
    moved = v[None] if dim == -1 else v.movedim(dim, 0)
    w = _WeightNorm.apply(moved.flatten(1), g.reshape(-1, 1)).reshape(moved.shape)
    return w[0] if dim == -1 else w.movedim(0, dim)


# A step: (W_ih x + b_ih, the state, W_hh, b_hh, W_hr) ↦ the next state, whose first entry is the output h.
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Tensor, Tensor | None, Tensor | None], State]


def _recurrent(step: Step) -> Callable[..., Any]:
    def unrolled(
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        """As ``torch.lstm`` and its like: output, last h, last c. Packed sequences and dropout are not implemented."""
        packed = not isinstance(has_biases, bool)  # then the parameters stand in its place
        if packed or (train and dropout > 0):
            return NotImplemented
        start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        return _layers(step, input, start, params, has_biases, num_layers, bidirectional, batch_first)

    return unrolled


def _cell(step: Step) -> Callable[..., Tensor | State]:
    def stepped(
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor | State:
        """As ``torch.gru_cell`` and its like: h; as ``torch.lstm_cell``: h and c."""
        start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        state = step(F.linear(input, w_ih, b_ih), start, w_hh, b_hh, None)
        return state[0] if isinstance(hx, Tensor) else state

    return stepped


def _lstm_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:
    h, c = state
    input_gate, forget_gate, candidate, output_gate = (gates + F.linear(h, w_hh, b_hh)).chunk(4, -1)
    c = torch.sigmoid(forget_gate) * c + torch.sigmoid(input_gate) * torch.tanh(candidate)
    h = torch.sigmoid(output_gate) * torch.tanh(c)
    return (h if w_hr is None else F.linear(h, w_hr)), c


def _gru_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:  # noqa: ARG001
    (h,) = state
    reset_x, update_x, candidate_x = gates.chunk(3, -1)
    reset_h, update_h, candidate_h = F.linear(h, w_hh, b_hh).chunk(3, -1)
    update = torch.sigmoid(update_x + update_h)
    candidate = torch.tanh(candidate_x + torch.sigmoid(reset_x + reset_h) * candidate_h)
    return (candidate + update * (h - candidate),)


def _tanh_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:  # noqa: ARG001
    return (torch.tanh(gates + F.linear(state[0], w_hh, b_hh)),)


def _relu_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:  # noqa: ARG001
    return (F.relu(gates + F.linear(state[0], w_hh, b_hh)),)


def _layers(
    step: Step,
    x: Tensor,
    start: State,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Runs the stack. The flat list holds, per layer and direction, W_ih, W_hh (, b_ih, b_hh) (, W_hr)."""
    directions = 2 if bidirectional else 1
    per_cell = len(params) // (num_layers * directions)
    time = x.ndim - 2 if batch_first else 0
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            w_ih, w_hh, *rest = params[cell * per_cell : (cell + 1) * per_cell]
            b_ih, b_hh = rest[:2] if has_biases else (None, None)
            w_hr = rest[-1] if len(rest) % 2 else None
            steps = F.linear(x, w_ih, b_ih).unbind(time)
            state, found = tuple(part[cell] for part in start), []
            for gates in reversed(steps) if direction else steps:
                state = step(gates, state, w_hh, b_hh, w_hr)
                found.append(state[0])
            outputs.append(torch.stack(found[::-1] if direction else found, time))
            last.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return x, *(torch.stack(part) for part in zip(*last, strict=True))


lstm = _recurrent(_lstm_step)
gru = _recurrent(_gru_step)
rnn_tanh = _recurrent(_tanh_step)
rnn_relu = _recurrent(_relu_step)
lstm_cell = _cell(_lstm_step)
gru_cell = _cell(_gru_step)
rnn_tanh_cell = _cell(_tanh_step)
rnn_relu_cell = _cell(_relu_step)

# What to call in the place of a function of torch, with the same arguments. The answer is the same up to rounding, or
# NotImplemented where the arguments ask for something that keeps no row by itself.
REWRITES: Rewrites = {
    F.multi_head_attention_forward: multi_head_attention,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.batch_norm: batch_norm,
    F.instance_norm: instance_norm,
    torch.prelu: prelu,
    torch.Tensor.prelu: prelu,
    F.bilinear: bilinear,
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: rnn_tanh_cell,
    torch.rnn_relu_cell: rnn_relu_cell,
}

# Functions of weights alone, which have the same answer, and a backward pass that takes many cotangents in less time.
OF_WEIGHTS: Rewrites = {torch._weight_norm: weight_norm}

# What has to be rewritten inside of two vmaps, over rows and over cotangents: torch's rule for the backward pass of
# prelu (2.13) takes the rows of one for those of the other, in silence, where both are as many.
NESTED: Rewrites = dict.fromkeys(
    (torch.prelu, torch.Tensor.prelu, torch.ops.aten.prelu, torch.ops.aten.prelu.default), prelu
)
