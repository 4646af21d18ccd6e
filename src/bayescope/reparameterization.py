"""Independent Gaussian weights, and what a layer makes of them: draws whose gradients reach means and sds.

Each estimator draws the output of a layer so that every row of it has the distribution that drawing the weights gives
it, and gradients are unbiased. They differ in what the rows of a batch have in common, and so in variance:

- "reparameterization": W = μ + σ∘ε, once for all rows (Kingma & Welling 2014, "Auto-encoding variational Bayes", §2.4).
- "local_reparameterization": y = x μᵀ + √(x² (σ²)ᵀ) ∘ ε with an ε for each row, exact where a row meets the weights
  once (Kingma, Salimans & Welling 2015, "Variational dropout and the local reparameterization trick", Eq. 6);
  elsewhere, over positions and in convolutions, it is flipout.
- "flipout": y = x μᵀ + ((x ∘ s) (σ∘ε)ᵀ) ∘ r with one ε, and for each row signs s, r, which its positions share (Wen et
  al. 2018, "Flipout: efficient pseudo-independent weight perturbations on mini-batches", Eq. 4).
- "sticking_the_landing": draws as "reparameterization" does; it is the log density of the draw whose gradient differs
  (Roeder, Wu & Duvenaud 2017).

In a fit noise comes from the fit's generators, in a layer that a caller trains from torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from bayescope.private_draws import by_process, by_row, for_all, generator_on, standard_normal

ESTIMATORS = ("local_reparameterization", "reparameterization", "flipout", "sticking_the_landing")


@final
@dataclass(frozen=True, eq=False)
class GaussianTensor:
    """Independent entries N(mean, sd²).

    Attributes:
        mean: μ.
        sd: σ ≥ 0, in the shape of the mean; 0 where an entry is fixed.
    """

    mean: Tensor
    sd: Tensor

    def draw(self) -> Tensor:
        """One draw μ + σ∘ε, with a graph to μ and σ."""
        return torch.addcmul(self.mean, self.sd, for_all(lambda: standard_normal(self.mean.shape, self.mean)))

    def draws(self, n: int) -> Tensor:
        """n independent draws, shape (n, *shape)."""
        shape = n, *self.mean.shape
        noise = for_all(lambda: standard_normal(shape, self.mean))
        return torch.addcmul(self.mean, self.sd, noise)

    def perturbation(self) -> Tensor:
        """σ∘ε, a draw less its mean."""
        return self.sd * for_all(lambda: standard_normal(self.mean.shape, self.mean))


def drawn(value: GaussianTensor | Tensor) -> Tensor:
    """A draw; a tensor as it is."""
    return value.draw() if isinstance(value, GaussianTensor) else value


def gaussian_kl(mean: Tensor, sd: Tensor, prior_precision: Tensor | float, prior_mean: Tensor | float = 0.0) -> Tensor:
    """KL(N(μ, diag σ²) ∥ N(m, diag 1/p)) = Σ ½ [p (σ² + (μ − m)²) − 1 − log(p σ²)], a float64 scalar.

    Entries with σ = 0 are fixed and left out.

    Args:
        mean: μ.
        sd: σ.
        prior_precision: p > 0, a number or a tensor that broadcasts to the mean.
        prior_mean: m, likewise.
    """
    random, precision = sd != 0, torch.as_tensor(prior_precision, dtype=mean.dtype, device=mean.device)
    scaled = precision * torch.where(random, sd, 1.0).square()  # p σ²; log would be −∞ where an entry is fixed
    terms = scaled - 1 - scaled.log() + precision * (mean - prior_mean).square()
    return 0.5 * torch.where(random, terms, 0.0).sum(dtype=torch.float64)


def linear(
    x: Tensor,
    weight: GaussianTensor | Tensor,
    bias: GaussianTensor | Tensor | None,
    estimator: str,
    *,
    rows: int | None = 0,
) -> Tensor:
    """x Wᵀ + b with W (O, I), b (O,) or both random.

    Args:
        x: shape (..., I).
        weight: W.
        bias: b, or ``None``.
        estimator: one of `ESTIMATORS`.
        rows: the axis of x with the observations; ``None`` where there is none: W is then drawn once.
    """
    if rows is None or x.ndim < 2 or not _per_row(estimator):
        return F.linear(x, drawn(weight), None if bias is None else drawn(bias))
    if x.ndim == 2 and rows == 0 and estimator == "local_reparameterization":
        return _locally_reparameterized(x, weight, bias)
    y = F.linear(x, _mean(weight), _mean(bias))
    if isinstance(weight, GaussianTensor):
        out, into = weight.mean.shape
        flipped = F.linear(x * _signs(x, rows, into, -1), weight.perturbation())
        y = y + flipped * _signs(x, rows, out, -1)
    return y + _row_noise(y, bias, rows, -1) if isinstance(bias, GaussianTensor) else y


def convolution(
    function: Callable[..., Tensor],
    x: Tensor,
    weight: GaussianTensor | Tensor,
    bias: GaussianTensor | Tensor | None,
    estimator: str,
    *options: Any,
    rows: int | None = 0,
    **named: Any,
) -> Tensor:
    """One of torch's convolutions, transposed ones too, with kernel, bias or both random.

    Args:
        function: such as ``F.conv2d``.
        x: shape (N, C, ...).
        weight: the kernel.
        bias: shape (O,), or ``None``.
        estimator: one of `ESTIMATORS`; "local_reparameterization" is flipout here, since positions share the kernel.
        options: further positional arguments of the function, from the stride on.
        rows: 0; ``None`` where x has no axis of observations: the kernel is then drawn once.
        named: further named arguments of the function.
    """
    if rows is None or not _per_row(estimator):
        return function(x, drawn(weight), None if bias is None else drawn(bias), *options, **named)
    y = function(x, _mean(weight), _mean(bias), *options, **named)
    if isinstance(weight, GaussianTensor):
        flipped = function(x * _signs(x, rows, x.shape[1], 1), weight.perturbation(), None, *options, **named)
        y = y + flipped * _signs(x, rows, y.shape[1], 1)
    return y + _row_noise(y, bias, rows, 1) if isinstance(bias, GaussianTensor) else y


def embedding(
    indices: Tensor, weight: GaussianTensor, estimator: str, *options: Any, rows: int | None = 0, **named: Any
) -> Tensor:
    """Rows of a random table W (V, E): ``F.embedding``.

    "reparameterization" draws the whole table, the other estimators only the rows that are looked up. A token that
    stands twice in an observation has one embedding there: the positions of an observation share a draw, up to signs.

    Args:
        indices: whole numbers.
        weight: W.
        estimator: one of `ESTIMATORS`; "local_reparameterization" is exact for indices (N,), and flipout elsewhere.
        options: further positional arguments of ``F.embedding``.
        rows: the axis of the indices with the observations, or ``None``.
        named: further named arguments of ``F.embedding``.
    """
    if rows is None or indices.ndim < 1 or not _per_row(estimator):
        return F.embedding(indices, weight.draw(), *options, **named)
    mean = F.embedding(indices, weight.mean, *options, **named)
    sd = F.embedding(indices, weight.sd, *options, **named)
    if indices.ndim == 1 and estimator == "local_reparameterization":
        return torch.addcmul(mean, sd, _normal(sd.shape, 0, sd))
    tokens, places = indices.unique(return_inverse=True)
    drawn_once = len(tokens), sd.shape[-1]  # whichever tokens other processes have
    noise = by_process(lambda: standard_normal(drawn_once, sd))[places]
    return torch.addcmul(mean, sd, noise * _signs(mean, rows, sd.shape[-1], -1))


def _locally_reparameterized(
    x: Tensor, weight: GaussianTensor | Tensor, bias: GaussianTensor | Tensor | None
) -> Tensor:
    """Outputs with the mean and variance that the weights give them, independent over rows."""
    if not isinstance(weight, GaussianTensor):
        y = F.linear(x, weight, _mean(bias))
        return y + _row_noise(y, bias, 0, -1) if isinstance(bias, GaussianTensor) else y
    noise = _normal((x.shape[0], weight.mean.shape[0]), 0, x)
    shift = bias.sd if isinstance(bias, GaussianTensor) else None
    return _Local.apply(x, weight.mean, weight.sd, _mean(bias), shift, noise)[0]


@final
class _Local(torch.autograd.Function):
    """y = x μᵀ + b + s ∘ ε with s² = x² (σ²)ᵀ + σ_b², differentiated by hand.

    With g = ∂/∂y and h = g ∘ ε / s: ∂/∂μ = gᵀ x, ∂/∂σ = σ ∘ (hᵀ x²), ∂/∂σ_b = σ_b ∘ Σ h, ∂/∂x = g μ + x ∘ (h σ²).
    Where s = 0, as for fixed weights or a row of zeros, the slope of the root is taken as 0.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, mean: Tensor, sd: Tensor, shift: Tensor | None, shift_sd: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        squares = x.square()
        s = _root_of(squares, sd, shift_sd)
        return torch.addcmul(F.linear(x, mean, shift), s, noise), s, squares

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, mean, sd, _, shift_sd, noise = inputs
        _, s, squares = output
        ctx.mark_non_differentiable(s, squares)
        ctx.save_for_backward(x, mean, sd, shift_sd, noise, s, squares)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, sd, shift_sd, noise, s, squares = ctx.saved_tensors
        of_x, of_mean, of_sd, of_shift, of_shift_sd = ctx.needs_input_grad[:5]
        # g ε / s, and 0 where s is: no number whose square is one is as small as the least of them.
        h = (g * noise).mul_(s).div_(s.square().add_(torch.finfo(s.dtype).tiny))
        return (
            g @ mean + x * (h @ sd.square()) if of_x else None,
            g.mT @ x if of_mean else None,
            (h.mT @ squares).mul_(sd) if of_sd else None,
            g.sum(0) if of_shift else None,
            h.sum(0) * shift_sd if of_shift_sd else None,
            None,
        )


# `apply` asks for the arguments' names at each call: looking them up again took a twentieth of a step.
_Local.forward.__signature__ = signature(_Local.forward)  # type: ignore[attr-defined]


def local_sd(x: Tensor, sd: Tensor, shift_sd: Tensor | None) -> Tensor:
    """s = √(x² (σ²)ᵀ + σ_b²), the sd of an output x Wᵀ + b of independent weights."""
    return _root_of(x.square(), sd, shift_sd)


def _root_of(squares: Tensor, sd: Tensor, shift_sd: Tensor | None) -> Tensor:
    return F.linear(squares, sd.square(), None if shift_sd is None else shift_sd.square()).sqrt_()


def _per_row(estimator: str) -> bool:
    return estimator in ("local_reparameterization", "flipout")


def _mean(value: Any) -> Any:
    return value.mean if isinstance(value, GaussianTensor) else value


def _signs(like: Tensor, rows: int, channels: int, axis: int) -> Tensor:
    """Independent ±1 for each observation and channel, shared by the positions."""
    shape = _row_shape(like, rows, channels, axis)
    signs = by_row(
        lambda wanted: torch.randint(0, 2, wanted, device=like.device, generator=generator_on(like.device)), shape, rows
    )
    return signs.to(like.dtype).mul_(2).sub_(1)


def _row_noise(like: Tensor, bias: GaussianTensor, rows: int, axis: int) -> Tensor:
    """The bias of each observation less its mean, shared by the positions."""
    shape = _row_shape(like, rows, bias.mean.numel(), axis)
    spread = [1] * like.ndim
    spread[axis] = -1
    return bias.sd.reshape(spread) * _normal(shape, rows, like)


def _normal(shape: Sequence[int], rows: int, like: Tensor) -> Tensor:
    """Standard normal numbers, of which each row has its own."""
    return by_row(lambda wanted: standard_normal(wanted, like), shape, rows)


def _row_shape(like: Tensor, rows: int, channels: int, axis: int) -> list[int]:
    shape = [1] * like.ndim
    shape[rows], shape[axis] = like.shape[rows], channels
    return shape
