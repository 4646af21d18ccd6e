"""What dropout and its weight decay say as variational inference: the prior behind the penalty, and the noise.

Gal and Ghahramani 2016, "Dropout as a Bayesian approximation", and its appendix. A pass uses the weights M diag(z),
z_k ~ Bernoulli(1 − r): the columns of M, one an input of the layer, are each dropped with probability r. Under the
prior N(0, l⁻²) the divergence from it is, up to constants in M,

    KL = ½ l² E‖M diag(z)‖² − K H(r) = ½ l² (1 − r) ‖M‖² − K H(r),    H(r) = −r ln r − (1 − r) ln(1 − r).

The dropout of torch, and of Keras, is inverted: it divides by 1 − r, so that the layer holds W = (1 − r) M, the mean of
its random weights M diag(z), and

    KL = ½ l² ‖W‖² / (1 − r) − K H(r) = ½ l² (‖W‖² + ‖W‖² r/(1 − r)) − K H(r).

For a regression with noise precision τ the sum −log p(y∣f) + KL is N τ times Gal's loss N⁻¹ Σ ½‖y − f‖² + λ‖M‖², with
λ = (1 − r) l²/(2 N τ) for weights behind dropout, and l²/(2 N τ) for biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network.dropout_calls import Call, DropoutCalls
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import call
from bayescope.network.weights import Weights
from bayescope.priors import Prior

_PRODUCTS = frozenset({
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
})  # fmt: skip
# What leaves an input that was dropped at zero, so that the weights after it are dropped all the same.
_KEEPS_ZEROS = frozenset({
    torch.flatten, torch.relu, torch.reshape, torch.tanh, torch.transpose, F.gelu, F.leaky_relu, F.relu, F.silu, F.tanh,
    Tensor.contiguous, Tensor.flatten, Tensor.permute, Tensor.relu, Tensor.reshape, Tensor.squeeze, Tensor.tanh,
    Tensor.transpose, Tensor.unsqueeze, Tensor.view,
})  # fmt: skip


def rates_behind_dropout(module: nn.Module, inputs: Any) -> dict[str, float]:
    """The rate of the dropout that the inputs of each matrix come from, by the parameter's name; others are left out.

    Args:
        module: the network; it is left as it is.
        inputs: a few rows.
    """
    rates: dict[int, set[float]] = {}
    dropped: dict[int, tuple[Tensor, float]] = {}  # with the tensors, whose ids no other may get meanwhile

    def drop(found: Call) -> Tensor:
        out = found.input.clone()
        if not found.alpha:  # which sets to another value than 0, so that nothing of the weights is dropped
            dropped[id(out)] = out, found.rate
        return out

    def otherwise(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        behind = dropped.get(id(args[0])) if args else None
        if func in _PRODUCTS and len(args) > 1:
            rates.setdefault(id(args[1]), set()).add(0.0 if behind is None else behind[1])
        result = func(*args, **kwargs)
        if behind is not None and func in _KEEPS_ZEROS:
            dropped[id(result)] = result, behind[1]
        return result

    with reading(module), torch.no_grad(), DropoutCalls(drop, otherwise):
        call(module, owned(inputs, copy=True))
    found = {name: rates.get(id(parameter), {0.0}) for name, parameter in module.named_parameters()}
    return {name: min(of_uses) for name, of_uses in found.items() if min(of_uses) > 0}


def dropout_prior(prior: Prior, weights: Weights, rates: Mapping[str, float]) -> Prior:
    """The Gaussian whose penalty on the weights W that a network holds is that of a prior on its random weights.

    E[(W z/(1−r) − m)²] = (W − (1−r) m)²/(1−r) + constants: precision l²/(1−r) and mean (1−r) m behind dropout.

    Args:
        prior: N(m, l⁻²) over the weights that a pass uses.
        weights: which they are.
        rates: r by the parameter's name, where it is above 0.

    Raises:
        UnsupportedError: if the prior's precision is a matrix, or r = 1 leaves nothing of the weights.
    """
    if not isinstance(prior.precision, Tensor):
        raise UnsupportedError(
            "prior_precision: expected one number a weight at most, got a matrix. Give its diagonal."
        )
    if not rates:
        return prior
    if max(rates.values()) >= 1:
        raise UnsupportedError("rate: expected dropout at rates below 1 in a network that is trained, got 1.")
    kept = torch.cat([
        torch.full((count,), 1.0 - rates.get(name, 0.0), dtype=torch.float64)
        for name, count in zip(weights.names, weights.counts, strict=True)
    ])  # fmt: skip
    return Prior(prior.diagonal(weights.dim) / kept, prior.centre(weights.dim) * kept)


def noise_variance(weight_decay: float, length_precision: float, rates: Iterable[float], rows: int) -> float:
    """τ⁻¹ = 2 N λ/((1 − r) l²): the noise under which dropout with the weight decay λ is variational inference.

    Args:
        weight_decay: λ of the loss N⁻¹ Σ ½‖y − f‖² + λ‖M‖², with M as in the formulas above.
        length_precision: l², the prior precision.
        rates: r, which has to be the same wherever there is dropout.
        rows: N.

    Raises:
        UnsupportedError: if the rates differ, or nothing is kept.
    """
    different = sorted(set(rates))
    if len(different) != 1 or different[0] >= 1:
        raise UnsupportedError(
            f"weight_decay: expected dropout at one rate below 1, which tells the noise, got {different}. Give the "
            "likelihood its noise: bs.Gaussian(noise_variance=...)."
        )
    return 2.0 * rows * weight_decay / ((1.0 - different[0]) * length_precision)
