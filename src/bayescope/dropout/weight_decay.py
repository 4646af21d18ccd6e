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
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.dropout.zeros import Zeros
from bayescope.errors import UnsupportedError
from bayescope.network.dropout import Call, attention_in_calls, dropout_calls, switched_on, switches_of
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import call, take_rows, tensors
from bayescope.network.weights import Weights
from bayescope.priors import Prior

_PRODUCTS = frozenset({
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
})  # fmt: skip


def rates_behind_dropout(module: nn.Module, inputs: Any) -> dict[str, float]:
    """The rate of the dropout that the inputs of each matrix come from, by the parameter's name; others are left out.

    A matrix has a rate where all of its inputs are zero when they are dropped, whatever stands between (`Zeros`), and
    where nothing but such products uses it; the least one where there are several. Two dropouts in a row keep an input
    where both do: 1 − r is (1 − r₁)(1 − r₂).

    Args:
        module: the network; it is left as it is.
        inputs: a few rows.
    """
    # By the memory of a parameter, which its slices and transposes share.
    memories = {name: _memory(parameter) for name, parameter in module.named_parameters()}
    switches = switches_of(module, inputs)
    uses = _Uses(frozenset(memories.values()), switches.off)
    with reading(module), torch.no_grad(), switched_on(switches.modules), uses.calls:
        call(module, owned(take_rows(inputs, slice(0, 1)), copy=True))
    found = {name: min(uses.rates.get(memory, {0.0})) for name, memory in memories.items()}
    return {name: rate for name, rate in found.items() if rate > 0}


@final
class _Uses:
    """What the parameters of a network are used for in a pass.

    Args:
        memories: where they are.
        off: the calls of dropout that drop nothing.

    Attributes:
        rates: by the memory of a parameter, the rates of the dropout behind which it is used; 0 for any other use.
        calls: sees the pass.
    """

    def __init__(self, memories: frozenset[int], off: frozenset[int]) -> None:
        self.rates: dict[int, set[float]] = {}
        self.calls = dropout_calls(self._drop, self._otherwise, off)
        self._memories, self._zeros = memories, Zeros()

    def _drop(self, found: Call) -> Tensor:
        out = found.input.clone()
        if not found.alpha:  # which sets to another value than 0, so that nothing of the weights is dropped
            self._zeros.drop(found.input, out, found.rate, found.kept)
        return out

    def _otherwise(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if func is F.multi_head_attention_forward:
            with self.calls:
                result = attention_in_calls(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if func in _PRODUCTS:
            given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            behind = self._zeros.of(given["input"])
            self._use(given["weight"], 0.0 if behind is None else behind.rate())
            return result
        if isinstance(result, Tensor):
            for tensor in tensors((args, kwargs)):
                if _memory(tensor) != _memory(result):  # else it is a view
                    self._use(tensor, 0.0)
        if func is Tensor.__setitem__:
            self._zeros.forget(args[0])
        self._zeros.follow(result, func, args, kwargs)
        return result

    def _use(self, weight: Tensor, rate: float) -> None:
        memory = _memory(weight)
        if memory in self._memories:
            self.rates.setdefault(memory, set()).add(rate)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


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
