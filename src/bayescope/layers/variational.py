"""Layers whose weights are Gaussian: drawn in every forward pass, with a closed-form KL to their prior.

The parameters of a layer are the mean μ and ρ with σ = softplus(ρ) of its weight and bias (Blundell et al. 2015,
"Weight uncertainty in neural networks", §3.2). A loss Σ −log p(y∣f) + `kl` over N rows is the negative evidence lower
bound; on a minibatch of M rows the first term is scaled by N/M. Each row of a batch is taken to be an observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Protocol, Self, TypeVar, final, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.module_copies import module_copy
from bayescope.reparameterization import ESTIMATORS, GaussianTensor, convolution, embedding, gaussian_kl, linear
from bayescope.storage.modules import stored_layer

Plain = TypeVar("Plain", bound=nn.Module)

INITIAL_SD = 0.05


@runtime_checkable
class VariationalLayer(Protocol):
    """What `kl` and `deterministic` look for in a module."""

    def kl(self) -> Tensor:
        """KL(q ∥ prior) of the layer's weights."""

    def deterministic(self) -> nn.Module:
        """The plain layer at the means, a copy."""

    def deviations(self) -> dict[str, Tensor]:
        """σ by the name that the parameter has in the plain layer, detached."""


def is_variational(module: nn.Module) -> bool:
    """Whether a module is itself a variational layer."""
    return isinstance(module, _Variational)


def kl(module: nn.Module) -> Tensor:
    """Σ KL(q ∥ prior) over the variational layers of a module, itself among them, a float64 scalar; 0 if it has none.

    A layer that stands in several places counts once.
    """
    return sum((layer.kl() for layer in _layers(module)), torch.zeros((), dtype=torch.float64))


def deterministic(module: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of a module with plain layers at the means in the place of its variational ones, and their sds.

    Returns:
        The copy, and σ by the name of a parameter of the copy.
    """
    made = {id(layer): layer.deterministic() for layer in _layers(module)}
    sds = {id(parameter): sd for layer in _layers(module) for parameter, sd in _paired(made[id(layer)], layer)}
    replaced = module_copy(module, made)
    return replaced, {name: sds[id(p)] for name, p in replaced.named_parameters() if id(p) in sds}


def _paired(plain: nn.Module, layer: VariationalLayer) -> Iterator[tuple[nn.Parameter, Tensor]]:
    return ((plain.get_parameter(name), sd) for name, sd in layer.deviations().items())


def _layers(module: nn.Module) -> list[VariationalLayer]:
    return [layer for layer in module.modules() if isinstance(layer, VariationalLayer)]


class _Variational(nn.Module):
    """What all layers have: q of a weight and of a bias, in the place of those of a plain layer."""

    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None

    def __init__(self, prior_precision: float, initial_sd: float, estimator: str) -> None:
        super().__init__()
        self.prior_precision = checks.positive_number("prior_precision", prior_precision)
        self.initial_sd = checks.positive_number("initial_sd", initial_sd)
        self.estimator = checks.choice("estimator", estimator, ESTIMATORS)

    @property
    def weight(self) -> GaussianTensor:
        """The Gaussian over the weight matrix."""
        return GaussianTensor(self.weight_mean, F.softplus(self.weight_rho))

    @property
    def bias(self) -> GaussianTensor | None:
        """q of the bias, or ``None``."""
        if self.bias_mean is None or self.bias_rho is None:
            return None
        return GaussianTensor(self.bias_mean, F.softplus(self.bias_rho))

    def kl(self) -> Tensor:
        """KL(q ∥ N(0, 1/prior_precision)), summed over weight and bias, a float64 scalar."""
        terms = [gaussian_kl(q.mean, q.sd, self.prior_precision) for q in (self.weight, self.bias) if q is not None]
        return torch.stack(terms).sum()

    def deviations(self) -> dict[str, Tensor]:
        """σ of "weight" and "bias", detached."""
        named = {"weight": self.weight, "bias": self.bias}
        return {name: q.sd.detach() for name, q in named.items() if q is not None}

    def extra_repr(self) -> str:
        """The shape of the weight, and the prior precision."""
        return (
            f"{tuple(self.weight_mean.shape)}, bias={self.bias is not None}, prior_precision={self.prior_precision:g}"
        )

    def _arguments(self, sizes: tuple[str, ...] = ()) -> dict[str, Any]:
        """Those that make another layer like it; the sizes of its weight by the names that they have."""
        biased = {} if isinstance(self, EmbeddingVariational) else {"bias": self.bias_mean is not None}
        options = {name: getattr(self, name) for name in ("prior_precision", "initial_sd", "estimator")}
        return {**dict(zip(sizes, self.weight_mean.shape, strict=False)), **biased, **options}

    def _start(self, plain: nn.Module) -> None:
        """Takes the weights of a plain layer for means, and one σ for all."""
        rho = math.log(math.expm1(self.initial_sd))
        for name in ("weight", "bias"):
            value: nn.Parameter | None = getattr(plain, name, None)
            starts = (None, None) if value is None else (value.detach().clone(), torch.full_like(value, rho))
            for suffix, start in zip(("mean", "rho"), starts, strict=True):
                trained = value is not None and value.requires_grad
                parameter = None if start is None else nn.Parameter(start, requires_grad=trained)
                self.register_parameter(f"{name}_{suffix}", parameter)

    def _stopped(self, plain: Plain) -> Plain:
        """A plain layer with copies of the means for weights."""
        for name in self.deviations():
            mean = getattr(self, f"{name}_mean")
            setattr(plain, name, nn.Parameter(mean.detach().clone(), requires_grad=mean.requires_grad))
        return plain.train(self.training)


@stored_layer("LinearVariational", lambda layer: layer._arguments(("out_features", "in_features")))
@final
class LinearVariational(_Variational):
    """x Wᵀ + b with Gaussian W and b: ``nn.Linear`` drawn in every pass, in training and in eval mode.

    Means start as ``nn.Linear`` starts its weights, from torch's random state.

    Args:
        in_features: I, the number of columns of x.
        out_features: O.
        bias: whether b is there.
        prior_precision: of every entry of W and b, around 0.
        initial_sd: σ at the start.
        estimator: one of `reparameterization.ESTIMATORS`. By default outputs of x (N, I) are drawn for each row, and
            those of x (N, ..., I) by flipout.
        device: as in torch.
        dtype: as in torch.

    Raises:
        InputError: if the prior precision or the standard deviation is not positive.
        OptionError: if the estimator is unknown.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(prior_precision, initial_sd, estimator)
        self._start(nn.Linear(in_features, out_features, bias, device, dtype))

    @classmethod
    def of(
        cls,
        plain: nn.Linear,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
    ) -> Self:
        """The layer whose means are the weights of a plain one, which is left as it is.

        Args:
            plain: the layer.
            prior_precision: as for a new layer.
            initial_sd: likewise.
            estimator: likewise.
        """
        layer = cls(
            plain.in_features, plain.out_features, plain.bias is not None,
            prior_precision=prior_precision, initial_sd=initial_sd, estimator=estimator, device="meta",
        )  # fmt: skip
        layer._start(plain)
        return layer.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        """A draw of x Wᵀ + b, shape (N, ..., O)."""
        return linear(x, self.weight, self.bias, self.estimator)

    def deterministic(self) -> nn.Linear:
        """The plain layer at the means, a copy."""
        out, into = self.weight_mean.shape
        return self._stopped(nn.Linear(into, out, self.bias is not None, device="meta"))


class _ConvolutionVariational(_Variational):
    """What the three convolutions have: all but their plain layer and torch's function."""

    _plain: ClassVar[Callable[..., Any]]
    _function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(prior_precision, initial_sd, estimator)
        self._make = partial(
            self._plain, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        )
        plain = self._make(device=device, dtype=dtype)
        pads = plain._reversed_padding_repeated_twice
        self._around = None if padding_mode == "zeros" else (pads, padding_mode)
        self._options = (plain.stride, plain.padding if self._around is None else 0, plain.dilation, plain.groups)
        self._start(plain)

    @classmethod
    def of(
        cls,
        plain: nn.Conv1d | nn.Conv2d | nn.Conv3d,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
    ) -> Self:
        """The layer whose means are the weights of a plain one, which is left as it is.

        Args:
            plain: the layer.
            prior_precision: as for a new layer.
            initial_sd: likewise.
            estimator: likewise.
        """
        layer = cls(
            plain.in_channels, plain.out_channels, plain.kernel_size, plain.stride, plain.padding, plain.dilation,
            plain.groups, plain.bias is not None, plain.padding_mode,
            prior_precision=prior_precision, initial_sd=initial_sd, estimator=estimator, device="meta",
        )  # fmt: skip
        layer._start(plain)
        return layer.train(plain.training)

    def _geometry(self) -> dict[str, Any]:
        """The arguments of the plain layer, but for its channels and bias."""
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
        return {**dict(zip(names, self._make.args, strict=False)), "padding_mode": self._make.args[-1]}

    def forward(self, x: Tensor) -> Tensor:
        """A draw of the convolution."""
        if self._around is not None:
            pads, mode = self._around
            x = F.pad(x, pads, mode=mode)
        rows = 0 if x.ndim == self.weight_mean.ndim else None
        return convolution(type(self)._function, x, self.weight, self.bias, self.estimator, *self._options, rows=rows)

    def deterministic(self) -> nn.Module:
        """The plain layer at the means, a copy."""
        return self._stopped(self._make(device="meta"))


@stored_layer("Conv1dVariational", lambda layer: {**layer._arguments(), **layer._geometry()})
@final
class Conv1dVariational(_ConvolutionVariational):
    """``nn.Conv1d`` with a Gaussian kernel and bias, drawn in every pass: each row of a batch by itself, by flipout.

    Means start as torch starts its kernels, from its random state.

    Args:
        in_channels: as in torch.
        out_channels: as in torch.
        kernel_size: as in torch.
        stride: as in torch.
        padding: as in torch.
        dilation: as in torch.
        groups: as in torch.
        bias: whether there is one.
        padding_mode: as in torch.
        prior_precision: of every entry of kernel and bias, around 0.
        initial_sd: σ at the start.
        estimator: one of `reparameterization.ESTIMATORS`; the default is flipout here: positions share a kernel.
        device: as in torch.
        dtype: as in torch.

    Raises:
        InputError: if the prior precision or the standard deviation is not positive.
        OptionError: if the estimator is unknown.
    """

    _plain, _function = nn.Conv1d, F.conv1d


@stored_layer("Conv2dVariational", lambda layer: {**layer._arguments(), **layer._geometry()})
@final
class Conv2dVariational(_ConvolutionVariational):
    """``nn.Conv2d`` with a Gaussian kernel and bias, drawn in every pass: each row of a batch by itself, by flipout.

    Means start as torch starts its kernels, from its random state.

    Args:
        in_channels: as in torch.
        out_channels: as in torch.
        kernel_size: as in torch.
        stride: as in torch.
        padding: as in torch.
        dilation: as in torch.
        groups: as in torch.
        bias: whether there is one.
        padding_mode: as in torch.
        prior_precision: of every entry of kernel and bias, around 0.
        initial_sd: σ at the start.
        estimator: one of `reparameterization.ESTIMATORS`; the default is flipout here: positions share a kernel.
        device: as in torch.
        dtype: as in torch.

    Raises:
        InputError: if the prior precision or the standard deviation is not positive.
        OptionError: if the estimator is unknown.
    """

    _plain, _function = nn.Conv2d, F.conv2d


@stored_layer("Conv3dVariational", lambda layer: {**layer._arguments(), **layer._geometry()})
@final
class Conv3dVariational(_ConvolutionVariational):
    """``nn.Conv3d`` with a Gaussian kernel and bias, drawn in every pass: each row of a batch by itself, by flipout.

    Means start as torch starts its kernels, from its random state.

    Args:
        in_channels: as in torch.
        out_channels: as in torch.
        kernel_size: as in torch.
        stride: as in torch.
        padding: as in torch.
        dilation: as in torch.
        groups: as in torch.
        bias: whether there is one.
        padding_mode: as in torch.
        prior_precision: of every entry of kernel and bias, around 0.
        initial_sd: σ at the start.
        estimator: one of `reparameterization.ESTIMATORS`; the default is flipout here: positions share a kernel.
        device: as in torch.
        dtype: as in torch.

    Raises:
        InputError: if the prior precision or the standard deviation is not positive.
        OptionError: if the estimator is unknown.
    """

    _plain, _function = nn.Conv3d, F.conv3d


@stored_layer(
    "EmbeddingVariational",
    lambda layer: {**layer._arguments(("num_embeddings", "embedding_dim")), "padding_idx": layer.padding_idx},
)
@final
class EmbeddingVariational(_Variational):
    """Rows of a Gaussian table: ``nn.Embedding`` drawn in every pass, a token once for each observation.

    Means start as torch starts its tables, from its random state. The embedding of `padding_idx` is fixed, σ = 0.

    Args:
        num_embeddings: V.
        embedding_dim: E.
        padding_idx: as in torch.
        prior_precision: of every entry of the table, around 0.
        initial_sd: σ at the start.
        estimator: one of `reparameterization.ESTIMATORS`.
        device: as in torch.
        dtype: as in torch.

    Raises:
        InputError: if the prior precision or the standard deviation is not positive.
        OptionError: if the estimator is unknown.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(prior_precision, initial_sd, estimator)
        plain = nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.padding_idx = plain.padding_idx
        self._start(plain)
        self._fix_padding()

    @classmethod
    def of(
        cls,
        plain: nn.Embedding,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
    ) -> Self:
        """The layer whose means are the table of a plain one, which is left as it is.

        Args:
            plain: the layer.
            prior_precision: as for a new layer.
            initial_sd: likewise.
            estimator: likewise.

        Raises:
            UnsupportedError: if the plain layer writes to its table (`max_norm`), or has other gradients than others.
        """
        if plain.max_norm is not None or plain.scale_grad_by_freq or plain.sparse:
            raise UnsupportedError(
                "plain: expected an nn.Embedding without max_norm, scale_grad_by_freq and sparse. "
                "A table that is drawn has none of them."
            )
        layer = cls(
            plain.num_embeddings, plain.embedding_dim, plain.padding_idx,
            prior_precision=prior_precision, initial_sd=initial_sd, estimator=estimator, device="meta",
        )  # fmt: skip
        layer._start(plain)
        layer._fix_padding()
        return layer.train(plain.training)

    def forward(self, indices: Tensor) -> Tensor:
        """A draw of the embeddings, shape (*indices, E)."""
        return embedding(indices, self.weight, self.estimator, padding_idx=self.padding_idx)

    def deterministic(self) -> nn.Embedding:
        """The plain layer at the means, a copy."""
        rows, columns = self.weight_mean.shape
        return self._stopped(nn.Embedding(rows, columns, self.padding_idx, device="meta"))

    def _fix_padding(self) -> None:
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight_rho[self.padding_idx] = -math.inf  # softplus(−∞) = 0, and so is its slope
