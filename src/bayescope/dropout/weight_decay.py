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

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network import Inputs, Weights, call, map_tensors, take_rows, tensors
from bayescope.network.dropout import Call, attention_in_calls, dropout_calls, switched_on, switches_of
from bayescope.network.forward import owned, reading
from bayescope.priors import Prior

# Two patterns of a million are alike, or make a third one together, with a probability of 1e-3 and less.
BITS = 48
_ALL = (1 << BITS) - 1


class Dropped(NamedTuple):
    """A tensor behind dropout.

    Attributes:
        tensor: itself, whose id no other may get meanwhile.
        pattern: of each number, int64: that of its mask variable, 0 where it is never dropped, all bits where it is
            zero whatever is dropped.
        rates: the probability that each is dropped; infinite where it is always zero.
    """

    tensor: Tensor
    pattern: Tensor
    rates: Tensor

    def rate(self) -> float:
        """The least rate at which its numbers are dropped, those that are always zero aside."""
        least = float(self.rates.min())
        return least if math.isfinite(least) else 0.0


def _has(pattern: Tensor, bit: int) -> Tensor:
    return ((pattern >> bit) & 1).bool()


@final
class Zeros:
    """Which tensors of one forward pass are behind dropout, found by trying the functions of the network out.

    Each mask variable gets a random pattern of `BITS` bits, and each number of a tensor behind dropout the pattern of
    the variable that it depends on. A function is called once a bit, with all numbers whose pattern has the bit set to
    zero: the zeros that come out, bit by bit, are the pattern of each output. It is that of a known variable if the
    output is zero exactly where this variable is; a sum, or a maximum, of several has an unknown pattern.
    """

    def __init__(self) -> None:
        self._found: dict[int, Dropped] = {}
        self._source = torch.Generator().manual_seed(0)

    def of(self, tensor: object) -> Dropped | None:
        """What is known of a tensor; ``None`` where it is not behind dropout."""
        return self._found.get(id(tensor))

    def forget(self, tensor: object) -> None:
        """A tensor that was written over."""
        self._found.pop(id(tensor), None)

    def drop(self, before: Tensor, after: Tensor, rate: float, kept: int) -> None:
        """Notes the result of a call of dropout.

        Args:
            before: its input, which may be behind dropout already: both have to keep a number.
            after: its result.
            rate: r.
            kept: on how many of the first axes a mask has entries of its own.
        """
        shape = [*after.shape[:kept], *[1] * (after.ndim - kept)]
        drawn = self._patterns(torch.Size(shape).numel()).reshape(shape).expand(after.shape)
        pattern, rates = drawn, torch.full(after.shape, rate, dtype=torch.float64)
        earlier = self.of(before)
        if earlier is not None:
            pairs = torch.stack([drawn.flatten(), earlier.pattern.flatten()], 1)
            _, place = pairs.unique(dim=0, return_inverse=True)
            pattern = self._patterns(int(place.max()) + 1)[place].reshape(after.shape)
            pattern = torch.where(earlier.pattern == _ALL, _ALL, pattern)
            rates = torch.where(earlier.rates.isfinite(), rate + earlier.rates - rate * earlier.rates, math.inf)
        self._found[id(after)] = Dropped(after, pattern, rates)

    def follow(self, result: object, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Notes the result of a function some of whose arguments are behind dropout."""
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        behind = [found for tensor in tensors((args, kwargs)) if (found := self.of(tensor)) is not None]
        pattern = self._zeros(result.shape, func, args, kwargs) if behind and result.numel() else None
        self.forget(result)  # which may be an argument that was written over
        if pattern is None:
            return
        known = torch.cat([torch.tensor([0, _ALL]), *[found.pattern.flatten() for found in behind]])
        ends = torch.tensor([0.0, math.inf], dtype=torch.float64)
        rates = torch.cat([ends, *[found.rates.flatten() for found in behind]])
        known, order = known.sort(stable=True)
        place = torch.searchsorted(known, pattern.flatten()).clamp(max=len(known) - 1)
        same = known[place] == pattern.flatten()
        of_each = torch.where(same, rates[order[place]], 0.0).reshape(pattern.shape)
        if bool((of_each > 0).any()):
            pattern = torch.where(same.reshape(pattern.shape), pattern, 0)
            self._found[id(result)] = Dropped(result, pattern, of_each)

    def _patterns(self, count: int) -> Tensor:
        return torch.randint(1, _ALL, (count,), generator=self._source)

    def _zeros(self, shape: torch.Size, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
        """The pattern of each output, or ``None`` where none is ever zero.

        All tensors but those behind dropout are random, so that a bias that happens to be zero is not taken for one
        that stays so; and each trial is made with both signs, so that what is below zero is not taken for dropped.
        """
        numbers = {id(t): self._numbers(t) for t in tensors((args, kwargs)) if t.is_floating_point()}

        def zero(dropped: Callable[[Tensor], Tensor]) -> Tensor:
            outputs = []
            for sign in (1.0, -1.0):

                def tried(tensor: Tensor, sign: float = sign) -> Tensor:
                    found = self.of(tensor)
                    if found is None:
                        return numbers.get(id(tensor), tensor).clone()
                    away = dropped(found.pattern).to(tensor.device)
                    return torch.where(away, 0.0, sign * numbers[id(tensor)]).to(tensor.dtype)

                outputs.append(func(*map_tensors(tried, tuple(args)), **map_tensors(tried, kwargs)) == 0)
            return (outputs[0] & outputs[1]).cpu()

        try:
            ever = zero(lambda pattern: pattern != 0)
            if ever.shape != shape or not ever.any():
                return None
            found = torch.zeros(shape, dtype=torch.int64)
            for bit in range(BITS):
                found |= zero(partial(_has, bit=bit)).to(torch.int64) << bit
        except (RuntimeError, ValueError, TypeError, IndexError):  # a function that random numbers are no input of
            return None
        return found

    def _numbers(self, like: Tensor) -> Tensor:
        """Random numbers of either sign, none of them near zero."""
        size = 1.0 + torch.rand(like.shape, dtype=torch.float64, generator=self._source)
        signs = 1.0 - 2.0 * torch.randint(2, like.shape, generator=self._source)
        return (size * signs).to(like)


_PRODUCTS = frozenset({
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
})  # fmt: skip


def rates_behind_dropout(module: nn.Module, inputs: Inputs) -> dict[str, float]:
    """The rate of the dropout that the inputs of each matrix come from, by the parameter's name; others are left out.

    A matrix has a rate where all of its inputs are zero when they are dropped, whatever stands between (`Zeros`), and
    where nothing but such products uses it; the least one where there are several. Two dropouts in a row keep an input
    where both do: 1 − r is (1 − r₁)(1 − r₂).

    Args:
        module: the network; it is left unchanged.
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
            "prior_precision: expected at most one number per weight, got a matrix. Give its diagonal."
        )
    if not rates:
        return prior
    if max(rates.values()) >= 1:
        raise UnsupportedError("rate: expected dropout at rates below 1 in a network that is trained, got 1.")
    kept = torch.cat([
        torch.full((count,), 1.0 - rates.get(name, 0.0), dtype=torch.float64, device=prior.mean.device)
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
