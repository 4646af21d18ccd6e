"""A last-layer posterior's predictive as a module of plain tensor operations, for `torch.export` and ONNX."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.files import staged
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.memory import require_memory
from bayescope.models import LinearModel, Model
from bayescope.module_copies import module_copy
from bayescope.network.inputs import Inputs, call, count_rows, map_arrays, map_tensors, placed, require_rows, tensors
from bayescope.network.model import NetworkModel
from bayescope.posterior.missing import require_no_reader
from bayescope.precision import BlockPrecision, DiagonalPrecision, Precision
from bayescope.precision.spectrum import Spectral
from bayescope.process_state import ignoring

if TYPE_CHECKING:
    from bayescope.posterior.posterior import Posterior

ADVICE = (
    "Fit bs.laplace(model, data, weights='last_layer', ...), whose body stays at its weights. For other posteriors "
    "export the network itself, or serve them by bs.load."
)
# ONNX's inputs and outputs have this axis for rows.
ROWS = "batch"


@final
class PredictiveModule(nn.Module):
    """f(x) with its variance, and what they predict, by plain tensor operations in the dtype of the network.

    With h the input of the last layer and a = (h, 1), the latent mean is W h + b and the latent variance of output c is
    aᵀ Σ_cc a, with Σ_cc the covariance of the weights of that output.

    Args:
        network: the module at its mode; ``None`` for a linear model of the inputs themselves.
        head: its last layer.
        spread: from a to the variances.
        response: from the latent mean and variance to what is predicted.
        outputs: the names of what is returned.
    """

    def __init__(
        self,
        network: nn.Module | None,
        head: nn.Linear,
        spread: nn.Module,
        response: nn.Module,
        outputs: tuple[str, ...],
    ) -> None:
        super().__init__()
        self.network, self.head, self.spread, self.response = network, head, spread, response
        self.outputs = outputs

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The latent mean and variance, shape (N, *positions, C) each, and the probabilities or the variance of y.

        Args:
            inputs: as the network takes them: a tensor, a tuple of positional arguments, or a dict of named ones.
        """
        if self.network is None:
            f, h = self.head(inputs), inputs
        else:
            met: list[Tensor] = []
            hook = self.head.register_forward_pre_hook(lambda _, arguments: met.append(arguments[0]))
            try:
                f = call(self.network, inputs)
            finally:
                hook.remove()
            (h,) = met
        variance = self.spread(h)
        return f, variance, self.response(f, variance)


class _Spread(nn.Module):
    """The variances of the outputs of a last layer from its inputs h, (..., D) to (..., C)."""

    def __init__(self, bias: bool, buffers: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.bias = bias
        for name, values in buffers.items():
            self.register_buffer(name, values.detach().to(dtype).clone(memory_format=torch.contiguous_format))

    def joined(self, h: Tensor) -> Tensor:
        """a = (h, 1), where the bias is random too."""
        return torch.cat([h, torch.ones_like(h[..., :1])], -1) if self.bias else h


@final
class _DiagonalSpread(_Spread):
    """Σ_d a_d² s_cd."""

    variances: Tensor

    def forward(self, h: Tensor) -> Tensor:
        return self.joined(h).square() @ self.variances.mT


@final
class _KroneckerSpread(_Spread):
    """Σ_o L_co² Σ_d (aᵀR)_d² / s_od for A⁻¹ = (L ⊗ R) diag(s)⁻¹ (L ⊗ R)ᵀ: the structures "kfac" and "ekfac"."""

    left_squares: Tensor
    right: Tensor
    inverse: Tensor

    def forward(self, h: Tensor) -> Tensor:
        return (self.joined(h) @ self.right).square() @ self.inverse.mT @ self.left_squares.mT


@final
class _DenseSpread(_Spread):
    """‖L_cᵀ a‖² with Σ_cc = L_c L_cᵀ."""

    roots: Tensor

    def forward(self, h: Tensor) -> Tensor:
        return torch.einsum("...d,cde->...ce", self.joined(h), self.roots).square().sum(-1)


@final
class _Response(nn.Module):
    """What a latent mean and variance predict.

    Args:
        kind: "noise", "logit", "probit" or "softmax".
        noise: the noise variances, shape (C,) or ().
    """

    noise: Tensor
    slope: Tensor
    root_half: Tensor

    def __init__(self, kind: str, noise: Tensor, single: bool) -> None:
        super().__init__()
        self.kind, self.single = kind, single
        self.register_buffer("noise", noise)
        # As tensors of the network's dtype: exporters round Python's numbers to single precision.
        self.register_buffer("slope", torch.tensor(math.pi / 8.0, dtype=noise.dtype))
        self.register_buffer("root_half", torch.tensor(math.sqrt(0.5), dtype=noise.dtype))

    def forward(self, mean: Tensor, variance: Tensor) -> Tensor:
        if self.kind == "noise":
            return variance + self.noise
        if self.kind == "probit":
            h = mean * torch.rsqrt(1.0 + variance)
            one, zero = (0.5 * (1.0 + torch.erf(side * self.root_half)) for side in (h, -h))
        else:
            logits = mean * torch.rsqrt(1.0 + self.slope * variance)
            if self.kind == "softmax":
                return torch.softmax(logits, -1)
            one, zero = torch.sigmoid(logits), torch.sigmoid(-logits)
        return torch.cat([zero, one], -1) if self.single else one


def predictive_module(q: Posterior, example: object) -> PredictiveModule:
    """The module of `Posterior.predictive_module`."""
    precision = getattr(q, "precision", None)
    require_no_reader("export", q.reader)
    if not isinstance(precision, Precision) or q.function is None or bool(getattr(q, "cones", None)):
        raise UnsupportedError(
            f"export: expected a Gaussian posterior over the weights of a last layer, got one by {q.record.method}. "
            f"{ADVICE}"
        )
    if getattr(q, "method", "linearized") != "linearized":
        raise UnsupportedError(f"export: expected a linearised posterior, got one by {q.record.method}. {ADVICE}")
    q.function.forward(q.function.inputs(example), q.location)  # says what is wrong with inputs that do not fit
    network, head, bias = _last_layer(q.function, example, q.location)
    dtype = head.weight.dtype
    response, name = _response(q.likelihood, head.out_features, dtype)
    spread = _spread(precision, head, bias=bias)
    return PredictiveModule(network, head, spread, response, ("latent_mean", "latent_variance", name)).eval()


def export_onnx(q: Posterior, path: str | Path, example: object) -> Path:
    """The file of `Posterior.export`."""
    checks.optional_package("onnxscript", extra="onnx")
    module, place = predictive_module(q, example), Path(path)
    inputs = _example(q.function, example)
    shapes = map_tensors(lambda _: {0: torch.export.Dim(ROWS)}, inputs)
    names = list(inputs) if isinstance(inputs, Mapping) else [f"x{n}" for n in range(len(list(tensors(inputs))))]
    # What the exporter says about itself is not for our callers to act on.
    with staged(place.parent) as stage, ignoring("", Warning).inside(), _unlogged(), torch.no_grad():
        torch.onnx.export(
            module, (inputs,), stage / place.name, input_names=["x"] if isinstance(inputs, Tensor) else names,
            output_names=list(module.outputs), dynamic_shapes=(shapes,), dynamo=True, external_data=False,
            verbose=False,
        )  # fmt: skip
    return place


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without the lines that this thread's exporter logs about torchvision, which a predictive does not need."""
    thread, logger = get_ident(), logging.getLogger("torch.onnx._internal.exporter._registration")

    def kept(record: logging.LogRecord) -> bool:
        return record.thread != thread or not record.getMessage().startswith("torchvision is not installed")

    logger.addFilter(kept)
    try:
        yield
    finally:
        logger.removeFilter(kept)


def _example(function: Model | None, example: Any) -> Any:
    """Rows like those that the file will get, two at least: an exporter takes a single one for a constant."""
    if isinstance(function, NetworkModel):
        inputs: Inputs = require_rows(placed(map_arrays(example), function.module))
    else:
        assert function is not None
        inputs = function.inputs(example)
    return map_tensors(lambda tensor: torch.cat([tensor, tensor]), inputs) if count_rows(inputs) == 1 else inputs


def _last_layer(function: Model, example: Any, location: Tensor) -> tuple[nn.Module | None, nn.Linear, bool]:
    """The module at the mode, its last layer, and whether the bias of that is random.

    Raises:
        UnsupportedError: if the random weights are not those of one ``nn.Linear`` whose output is f.
    """
    if isinstance(function, LinearModel):
        weights, bias = function.unflat(location)
        head = nn.utils.skip_init(
            nn.Linear, function.features, function.outputs, bias=bias is not None, dtype=torch.float64
        )
        with torch.no_grad():
            head.weight.copy_(weights)
            if bias is not None:
                head.bias.copy_(bias)
        return None, head.requires_grad_(False), bias is not None
    if not isinstance(function, NetworkModel):
        raise UnsupportedError(
            f"export: expected the posterior of a network, got one of a {type(function).__name__}. {ADVICE}"
        )
    names = function.weights.names
    if not function.is_last_layer(function.inputs(example), location):
        listed = ", ".join(map(repr, names[:4])) + (" …" if len(names) > 4 else "")
        raise UnsupportedError(
            f"export: expected a posterior over all weights of the last layer and no others, got {listed}. {ADVICE}"
        )
    owner, _, kind = names[0].rpartition(".")
    network = module_copy(function.at(location).module).requires_grad_(False)
    found = network.get_submodule(owner)
    if not isinstance(found, nn.Linear) or kind != "weight":
        raise UnsupportedError(
            f"export: expected a last layer that is a torch.nn.Linear with a random weight, got "
            f"{type(found).__name__} with {', '.join(map(repr, names))}. {ADVICE}"
        )
    return network, found, len(names) == 2


def _response(likelihood: Likelihood | None, outputs: int, dtype: torch.dtype) -> tuple[_Response, str]:
    """What is predicted under a likelihood, and its name."""
    none = torch.zeros((), dtype=dtype)
    match likelihood:
        case Gaussian(noise_variance=Tensor() as noise):
            return _Response("noise", noise.detach().to(dtype), single=False), "variance"
        case Bernoulli():
            return _Response(likelihood.link, none, single=outputs == 1), "probs"
        case Categorical():
            return _Response("softmax", none, single=False), "probs"
    raise UnsupportedError(
        f"export: expected the likelihood gaussian, bernoulli, probit or categorical, got "
        f"{'none' if likelihood is None else likelihood.name!r}, whose prediction cannot be exported as a formula. "
        "Serve it by bs.load."
    )


def _spread(precision: Precision, head: nn.Linear, *, bias: bool) -> _Spread:
    """The variances under a precision over (W row-major, b), in the form that its structure has."""
    outputs, features, dtype = head.out_features, head.in_features, head.weight.dtype
    weights = torch.arange(outputs * features).reshape(outputs, features)
    places = torch.cat([weights, outputs * features + torch.arange(outputs)[:, None]], 1) if bias else weights
    if isinstance(precision, BlockPrecision) and len(precision.blocks) == 1:
        (block,), (index,) = precision.blocks, precision.indices
        if isinstance(block, Spectral) and torch.equal(index.cpu(), places.flatten()):
            basis, inverse = block.spectrum.basis, block.spectrum.inverse.reshape(places.shape)
            left, right = _matrix(basis.left, len(places)), _matrix(basis.right, places.shape[1])
            return _KroneckerSpread(bias, {"left_squares": left.square(), "right": right, "inverse": inverse}, dtype)
    if isinstance(precision, DiagonalPrecision):
        return _DiagonalSpread(bias, {"variances": precision.marginal_variance()[places]}, dtype)
    require_memory(
        2 * 8 * precision.dim**2,
        f"the covariance of {precision.dim:,} weights",
        "Fit with structure='kfac', whose file has two small factors.",
        device=head.weight.device,
    )
    sigma = precision.solve(torch.eye(precision.dim, dtype=torch.float64, device=head.weight.device))
    blocks = torch.stack([sigma[row][:, row] for row in places.to(sigma.device)])
    return _DenseSpread(bias, {"roots": _roots(blocks)}, dtype)


def _roots(blocks: Tensor) -> Tensor:
    """L_c with Σ_cc = L_c L_cᵀ; eigenvalues below 0 are rounding."""
    values, vectors = torch.linalg.eigh(0.5 * (blocks + blocks.mT))
    return vectors * values.clamp_min(0.0).sqrt()[:, None]


def _matrix(factor: Tensor | None, size: int) -> Tensor:
    """A factor of a Kronecker product of one group as a matrix."""
    if factor is None:
        return torch.eye(size, dtype=torch.float64)
    return torch.diag(factor[0]) if factor.ndim == 2 else factor[0]
