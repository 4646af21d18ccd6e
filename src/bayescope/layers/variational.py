"""Layers whose weights are Gaussian: drawn in every forward pass, with a closed-form KL to their prior.

The parameters of a layer are the mean μ and ρ with σ = softplus(ρ) of its weight and bias (Blundell et al. 2015,
"Weight uncertainty in neural networks", §3.2). A loss Σ −log p(y∣f) + `kl` over N rows is the negative evidence lower
bound; on a minibatch of M rows the first term is scaled by N/M. Each row of a batch is taken to be an observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.module_copies import module_copy
from bayescope.reparameterization import ESTIMATORS, GaussianTensor, convolution, embedding, gaussian_kl, linear
from bayescope.storage import stored_layer

INITIAL_SD = 0.05
Size = int | tuple[int, ...]


class VariationalLayer(nn.Module):
    """A plain layer of torch whose weight and bias are Gaussian.

    Args:
        plain: the layer whose weights are the means; it is left unchanged.
        prior_precision: of every entry of weight and bias, around 0.
        initial_sd: σ at the start.
        estimator: one of `reparameterization.ESTIMATORS`.
    """

    _plain: ClassVar[Callable[..., nn.Module]]
    _arguments: ClassVar[tuple[str, ...]]  # of the plain layer, which has attributes of the same names
    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None

    def __init__(self, plain: nn.Module, prior_precision: float, initial_sd: float, estimator: str) -> None:
        super().__init__()
        self.prior_precision = checks.positive_number("prior_precision", prior_precision)
        self.initial_sd = checks.positive_number("initial_sd", initial_sd)
        self.estimator = checks.choice("estimator", estimator, ESTIMATORS)
        self._options = {name: getattr(plain, name) for name in self._arguments}
        if not isinstance(plain, nn.Embedding):
            self._options["bias"] = plain.bias is not None
        elif plain.max_norm is not None or plain.scale_grad_by_freq or plain.sparse:
            raise UnsupportedError(
                "plain: expected an nn.Embedding without max_norm, scale_grad_by_freq and sparse. "
                "A table that is drawn has none of them."
            )
        self._form = (type(self)._plain(**self._options, device="meta"),)  # in a tuple: its parameters are not ours
        rho = math.log(math.expm1(self.initial_sd))
        for name in ("weight", "bias"):
            value: nn.Parameter | None = getattr(plain, name, None)
            starts = (None, None) if value is None else (value.detach().clone(), torch.full_like(value, rho))
            for suffix, start in zip(("mean", "rho"), starts, strict=True):
                trained = value is not None and value.requires_grad
                parameter = None if start is None else nn.Parameter(start.detach(), requires_grad=trained)
                self.register_parameter(f"{name}_{suffix}", parameter)
        if self._options.get("padding_idx") is not None:  # a fixed entry: softplus(−∞) = 0, and so is its slope
            with torch.no_grad():
                self.weight_rho[self._options["padding_idx"]] = -math.inf

    @classmethod
    def of(
        cls,
        plain: nn.Module,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
    ) -> Self:
        """The layer whose means are the weights of a plain layer, which is left unchanged.

        Args:
            plain: the layer.
            prior_precision: as for a new layer.
            initial_sd: likewise.
            estimator: likewise.

        Raises:
            UnsupportedError: if the plain layer is an embedding that writes to its table (`max_norm`) or scales its
                gradients.
        """
        layer = cls.__new__(cls)
        VariationalLayer.__init__(layer, plain, prior_precision, initial_sd, estimator)
        return layer.train(plain.training)

    @property
    def weight(self) -> GaussianTensor:
        """The Gaussian over the weight matrix."""
        return GaussianTensor(self.weight_mean, F.softplus(self.weight_rho))

    @property
    def bias(self) -> GaussianTensor | None:
        """The Gaussian over the bias, or ``None``."""
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

    def deterministic(self) -> nn.Module:
        """The plain layer at the means, a copy."""
        plain = type(self)._plain(**self._options, device="meta")
        for name in self.deviations():
            mean = getattr(self, f"{name}_mean")
            setattr(plain, name, nn.Parameter(mean.detach().clone(), requires_grad=mean.requires_grad))
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """The shape of the weight, and the prior precision."""
        return (
            f"{tuple(self.weight_mean.shape)}, bias={self.bias is not None}, prior_precision={self.prior_precision:g}"
        )


def stored_arguments(layer: VariationalLayer) -> dict[str, Any]:
    """The arguments that make another layer like it."""
    options = {name: getattr(layer, name) for name in ("prior_precision", "initial_sd", "estimator")}
    return {**layer._options, **options}


def is_variational(module: nn.Module) -> bool:
    """Whether a module is itself a variational layer."""
    return isinstance(module, VariationalLayer)


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
    sds = {
        id(made[id(layer)].get_parameter(name)): sd
        for layer in _layers(module)
        for name, sd in layer.deviations().items()
    }
    replaced = module_copy(module, made)
    return replaced, {name: sds[id(p)] for name, p in replaced.named_parameters() if id(p) in sds}


def _layers(module: nn.Module) -> list[VariationalLayer]:
    return [layer for layer in module.modules() if isinstance(layer, VariationalLayer)]


@stored_layer("LinearVariational", stored_arguments)
@final
class LinearVariational(VariationalLayer):
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

    _plain, _arguments = nn.Linear, ("in_features", "out_features")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            nn.Linear(in_features, out_features, bias, device, dtype), prior_precision, initial_sd, estimator
        )

    def forward(self, x: Tensor) -> Tensor:
        """A draw of x Wᵀ + b, shape (N, ..., O)."""
        return linear(x, self.weight, self.bias, self.estimator)


class _ConvolutionVariational(VariationalLayer):
    """The arguments of a convolution, and its call to torch."""

    _function: ClassVar[Callable[..., Tensor]]
    _arguments = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
    )  # fmt: skip

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        plain = type(self)._plain(*geometry, device, dtype)
        super().__init__(plain, prior_precision, initial_sd, estimator)

    def forward(self, x: Tensor) -> Tensor:
        """A draw of the convolution."""
        plain: Any = self._form[0]
        rows, padding = 0 if x.ndim == self.weight_mean.ndim else None, plain.padding
        if plain.padding_mode != "zeros":
            x, padding = F.pad(x, plain._reversed_padding_repeated_twice, mode=plain.padding_mode), 0
        options = plain.stride, padding, plain.dilation, plain.groups
        return convolution(type(self)._function, x, self.weight, self.bias, self.estimator, *options, rows=rows)


@stored_layer("Conv1dVariational", stored_arguments)
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


@stored_layer("Conv2dVariational", stored_arguments)
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


@stored_layer("Conv3dVariational", stored_arguments)
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


@stored_layer("EmbeddingVariational", stored_arguments)
@final
class EmbeddingVariational(VariationalLayer):
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

    _plain, _arguments = nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        prior_precision: float = 1.0,
        initial_sd: float = INITIAL_SD,
        estimator: str = "local_reparameterization",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        plain = nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        super().__init__(plain, prior_precision, initial_sd, estimator)

    def forward(self, indices: Tensor) -> Tensor:
        """A draw of the embeddings, shape (*indices, E)."""
        return embedding(indices, self.weight, self.estimator, padding_idx=self._options["padding_idx"])
