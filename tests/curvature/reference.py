"""Curvatures from their definitions, by plain `torch.func` in float64: dense, one small network at a time.

Nothing here reads a network as the library does. Jacobians are those of `functional_call`. What the Kronecker
definitions need at a layer, its inputs a and the derivatives ∂f/∂y by its outputs y, comes from numbers ε added to y by
forward hooks (or in the written-out twin of a layer that has no hook) and from the derivative by ε at 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.curvature.cases import LABELS, Case

# --- the network as a function of its flat weights --------------------------------------------------------------------


def weight_norm(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """g v/‖v‖: torch's own has a wrong second derivative."""
    return g * v / torch.linalg.vector_norm(v, dim=[axis for axis in range(v.ndim) if axis != dim], keepdim=True)


@contextmanager
def read_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, with every submodule's own mode put back; layers without their fused kernels."""
    modes = [(part, part.training) for part in module.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # fused attention has no second derivative
        plain = mock.patch.object(torch, "_weight_norm", weight_norm)
        with sdpa_kernel(SDPBackend.MATH), plain, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # rules that vmap has not got
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for part, training in modes:
            part.training = training


def call(function: Callable[..., Any], inputs: Any) -> Any:
    """Inputs by position or by name."""
    if isinstance(inputs, dict):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, tuple) else function(inputs)


def parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters in the order of `module.parameters()`, a shared one once."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def positions(module: nn.Module) -> dict[str, Tensor]:
    """Where each parameter's entries lie in the flat vector of all, in the parameter's shape."""
    places, start = {}, 0
    for name, value in parameters(module).items():
        places[name] = torch.arange(start, start + value.numel()).reshape(value.shape)
        start += value.numel()
    return places


def flat_weights(module: nn.Module) -> Tensor:
    """The trainable parameters as one vector."""
    return torch.cat([value.detach().reshape(-1) for value in parameters(module).values()])


def function(case: Case) -> Callable[[Tensor], Tensor]:
    """θ ↦ f for all rows, shape (N, C) or (N, S, C)."""
    places = positions(case.module)

    def outputs(theta: Tensor) -> Tensor:
        named = {name: theta[place] for name, place in places.items()}
        return call(lambda *args, **kwargs: functional_call(case.module, named, args, kwargs), case.inputs)

    return outputs


def outputs(case: Case) -> Tensor:
    """f, shape (N, C) or (N, S, C)."""
    with read_mode(case.module), torch.no_grad():
        return function(case)(flat_weights(case.module))


def jacobian(case: Case) -> Tensor:
    """J, with the S C outputs of a row side by side: shape (N, S C, P)."""
    with read_mode(case.module):
        J = jacrev(function(case))(flat_weights(case.module)).detach()
    return J.reshape(J.shape[0], -1, J.shape[-1])


# --- the likelihood: log p(y∣f) written out, its derivatives by autograd ----------------------------------------------


def log_prob(likelihood: Any, f: Tensor, y: Tensor) -> Tensor:
    """log p(y∣f) of one observation, f of shape (C,)."""
    if likelihood.name == "categorical":
        return 0.0 * f.sum() if y == likelihood.ignored else f.log_softmax(-1)[y.long()]
    if likelihood.name == "gaussian":
        noise = likelihood.noise_variance.expand(f.shape)
        return -0.5 * ((y - f).square() / noise + torch.log(2 * math.pi * noise)).sum()
    if likelihood.name == "bradley_terry":
        return F.logsigmoid(f[y.long()] - f[1 - y.long()])
    if likelihood.name == "heteroscedastic_gaussian":
        mean, sd = mean_and_sd(likelihood, f)
        return torch.distributions.Normal(mean, sd).log_prob(y).sum()
    s = (2 * y - 1) * f
    return (F.logsigmoid(s) if likelihood.name == "bernoulli" else torch.special.log_ndtr(s)).sum()


def mean_and_sd(likelihood: Any, f: Tensor) -> tuple[Tensor, Tensor]:
    """Of a heteroscedastic y, each of shape (..., D), for f of shape (..., 2D)."""
    first, second = f.tensor_split(2, -1)
    if likelihood.parametrization == "natural":
        return first / second.exp(), (-second / 2).exp()
    return first, (second / 2).exp()


def total_log_prob(case: Case, f: Tensor) -> Tensor:
    """Σ log p(y∣f) over rows and positions, for f of shape (N, C) or (N, S, C)."""
    f = f.reshape(-1, f.shape[-1])
    y = case.targets.reshape(len(f), *case.targets.shape[case.targets.ndim - (case.likelihood.name not in LABELS) :])
    return sum(log_prob(case.likelihood, row, label) for row, label in zip(f, y, strict=True))


def observed_curvature(case: Case, f: Tensor) -> Tensor:
    """Λ = −∂² log p/∂f² at the targets, shape (N, S C, S C), zero between positions."""
    rows = [case.rows(slice(n, n + 1)) for n in range(len(f))]
    second = [
        jacrev(jacrev(lambda x, row=row: total_log_prob(row, x)))(x[None]) for row, x in zip(rows, f, strict=True)
    ]
    return -torch.stack(second).reshape(len(f), f[0].numel(), f[0].numel())


def output_curvature(case: Case, kind: str) -> Tensor:
    """What takes Λ's place in Jᵀ Λ J, shape (N, S C, S C).

    "ggn": Λ = −∂² log p/∂f², zero between positions; of a heteroscedastic y its expectation. "fisher": ∇∇ᵀ for the
    gradient by all outputs of a row at the targets, which are the drawn labels. "empirical_fisher": the same for each
    position by itself.
    """
    f = outputs(case)
    rows = [case.rows(slice(n, n + 1)) for n in range(len(f))]
    if kind == "ggn" and case.likelihood.name == "heteroscedastic_gaussian":
        mean, sd = mean_and_sd(case.likelihood, f)  # Λ is quadratic in y: its average at m ± σ is its expectation
        return 0.5 * sum(observed_curvature(replace(case, targets=mean + step), f) for step in (sd, -sd))
    if kind == "ggn":
        return observed_curvature(case, f)
    gradient = torch.stack(
        [jacrev(lambda x, row=row: total_log_prob(row, x))(x[None])[0] for row, x in zip(rows, f, strict=True)]
    )
    flat = gradient.reshape(len(f), -1)
    outer = flat[:, :, None] * flat[:, None, :]
    if kind == "fisher":
        return outer
    position = torch.arange(flat.shape[1]) // f.shape[-1]
    return outer * (position[:, None] == position)


# --- full matrices ----------------------------------------------------------------------------------------------------


def full(case: Case, kind: str) -> Tensor:
    """The curvature of −Σ log p in all trainable weights, shape (P, P)."""
    if kind == "hessian":
        return hessian(case)
    J, middle = jacobian(case), output_curvature(case, kind)
    return torch.einsum("ncp,ncd,ndq->pq", J, middle, J)


def hessian(case: Case) -> Tensor:
    """−∂² Σ log p/∂θ², shape (P, P), reverse mode twice.

    By autograd itself: `torch.func`'s second derivative of layer and instance norms is not symmetric.
    """
    with read_mode(case.module):
        loss = lambda theta: -total_log_prob(case, function(case)(theta))  # noqa: E731
        return torch.autograd.functional.hessian(loss, flat_weights(case.module))


def restricted(matrix: Tensor, groups: list[Tensor]) -> Tensor:
    """The matrix on the blocks of the given flat positions, zero elsewhere."""
    kept = torch.zeros_like(matrix)
    for group in groups:
        kept[group[:, None], group] = matrix[group[:, None], group]
    return kept


# --- Kronecker: the sites of a network and their factors --------------------------------------------------------------


@final
@dataclass
class Site:
    """One weight matrix (G, O, D) and everything it was applied to.

    Attributes:
        places: flat position of each entry of the matrix, the joined bias as its last column, shape (G, O, D).
        activations: per call a, shape (N, T, G, D).
        shapes: per call the shape of the layer's output.
        unfolds: per call the map from (L, *shape), L derivatives by the layer's output, to g of shape (L, N, T, G, O).
        one_hot: whether a is one-hot, so that its second moment is held as a diagonal.
        mixed: whether the matrix is looked up in one call and multiplied in another: no single Kronecker product.
    """

    places: Tensor
    one_hot: bool = False
    mixed: bool = False
    activations: list[Tensor] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    unfolds: list[Callable[[Tensor], Tensor]] = field(default_factory=list)


ALL = slice(None)


@final
class Reading:
    """Applies layers with ε added to their outputs, and takes notes about the first time they are called."""

    def __init__(self, module: nn.Module, epsilon: dict[str, list[Tensor]] | None) -> None:
        self.module, self.epsilon = module, epsilon
        self.places = positions(module)
        self.names = {id(value): name for name, value in parameters(module).items()}
        self.sites: dict[str, Site] = {}
        self.calls: dict[str, int] = {}

    def name(self, value: Tensor | None) -> str | None:
        """The flat name of a parameter, if it is a trainable one."""
        return self.names.get(id(value))

    def note(
        self,
        weight: str,
        bias: str | None,
        y: Tensor,
        a: Tensor,
        places: Tensor,
        unfold: Callable[[Tensor], Tensor],
        *,
        rows: slice = ALL,
        bias_rows: slice = ALL,
        one_hot: bool = False,
    ) -> Tensor:
        """Takes note of one call and returns y + ε."""
        key = weight if rows == ALL else f"{weight}[{rows.start}:{rows.stop}]"
        index = self.calls.get(key, 0)
        self.calls[key] = index + 1
        if self.epsilon is not None:
            return y + self.epsilon[key][index]
        if bias is not None:
            groups, width, _ = places.shape
            places = torch.cat([places, self.places[bias][bias_rows].reshape(groups, width, 1)], 2)
            a = torch.cat([a, torch.ones_like(a[..., :1])], 3)
        site = self.sites.setdefault(key, Site(places, one_hot))
        site.mixed |= site.one_hot != one_hot
        site.activations.append(a.detach())
        site.shapes.append(tuple(y.shape))
        site.unfolds.append(unfold)
        return y

    # --- layers -------------------------------------------------------------------------------------------------------

    def linear(
        self,
        x: Tensor,
        y: Tensor,
        weight: str,
        bias: str | None,
        rows: slice = ALL,
        bias_rows: slice = ALL,
        transposed: bool = False,
    ) -> Tensor:
        """y = W x + b, for x of shape (N, ..., D), W and b some rows of the parameters or W the transpose of one."""

        def unfold(g: Tensor) -> Tensor:
            return g.reshape(*g.shape[:2], -1, 1, g.shape[-1])

        places = self.places[weight].T if transposed else self.places[weight][rows].flatten(1)
        a = x.reshape(x.shape[0], -1, 1, x.shape[-1])
        return self.note(weight, bias, y, a, places[None], unfold, rows=rows, bias_rows=bias_rows)

    def convolution(self, layer: nn.Module, x: Tensor, y: Tensor, weight: str, bias: str | None) -> Tensor:
        """Patches by a convolution whose kernels are the unit vectors."""
        dims = layer.weight.ndim - 2
        convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        per_group = layer.weight[0].numel()
        units = torch.eye(per_group, dtype=x.dtype).reshape(per_group, *layer.weight.shape[1:])
        padding = layer.padding
        if layer.padding_mode != "zeros":
            x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode), 0
        patches = convolve(
            x, units.repeat(layer.groups, *[1] * (dims + 1)), None, layer.stride, padding, layer.dilation, layer.groups
        )
        a = patches.flatten(2).unflatten(1, (layer.groups, per_group)).permute(0, 3, 1, 2)

        def unfold(g: Tensor) -> Tensor:
            return g.flatten(3).unflatten(2, (layer.groups, -1)).permute(0, 1, 4, 2, 3)

        return self.note(weight, bias, y, a, self.places[weight].reshape(layer.groups, -1, per_group), unfold)

    def transposed_convolution(self, layer: nn.Module, x: Tensor, y: Tensor, weight: str) -> Tensor:
        """y is the sum, over where each z = Wᵀ x lands, of z: the adjoint of taking patches of y."""
        dims = layer.weight.ndim - 2
        convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        group_in, per_group = layer.in_channels // layer.groups, layer.weight[0].numel()
        a = x.flatten(2).unflatten(1, (layer.groups, group_in)).permute(0, 3, 1, 2)
        units = torch.eye(per_group, dtype=x.dtype).reshape(per_group, *layer.weight.shape[1:])

        def unfold(g: Tensor) -> Tensor:
            flat = g.flatten(0, 1)
            z = convolve(
                flat, units.repeat(layer.groups, *[1] * (dims + 1)), None,
                layer.stride, layer.padding, layer.dilation, layer.groups,
            )  # fmt: skip
            z = z[(..., *(slice(size) for size in x.shape[2:]))]  # output_padding is not landed on
            return z.flatten(2).unflatten(1, (layer.groups, -1)).permute(0, 3, 1, 2).unflatten(0, g.shape[:2])

        places = self.places[weight].reshape(layer.groups, group_in, per_group).mT
        return self.note(weight, None, y, a, places, unfold)

    def embedding(self, layer: nn.Embedding, tokens: Tensor, y: Tensor, weight: str) -> Tensor:
        """One-hot inputs, a = 0 at the padding token: its vector is fixed."""
        a = F.one_hot(tokens.reshape(tokens.shape[0], -1), layer.num_embeddings).to(y.dtype)
        if layer.padding_idx is not None:
            a[..., layer.padding_idx] = 0.0

        def unfold(g: Tensor) -> Tensor:
            return g.flatten(2, -2)[..., None, :]

        return self.note(weight, None, y, a[:, :, None], self.places[weight].T[None], unfold, one_hot=True)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def hook(self, layer: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor | None:
        """A forward hook for layers that are modules."""
        weight, bias = self.name(layer.weight), self.name(getattr(layer, "bias", None))
        if weight is None:
            return None
        x = args[0]
        if isinstance(layer, nn.Linear):
            return self.linear(x, y, weight, bias)
        if isinstance(layer, nn.Embedding):
            return self.embedding(layer, x, y, weight)
        if layer.transposed:
            return self.transposed_convolution(layer, x, y, weight)
        return self.convolution(layer, x, y, weight, bias)


KRONECKER = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)
Twin = Callable[[nn.Module, Any, Reading], Tensor]


def run(case: Case, twin: Twin | None, epsilon: dict[str, list[Tensor]] | None) -> tuple[Tensor, Reading]:
    """One forward pass with notes or with ε."""
    reading = Reading(case.module, epsilon)
    hooks = [
        part.register_forward_hook(reading.hook)
        for part in case.module.modules()
        if isinstance(part, KRONECKER) and not hasattr(part, "parametrizations")
    ]
    try:
        f = call(case.module, case.inputs) if twin is None else twin(case.module, case.inputs, reading)
    finally:
        for hook in hooks:
            hook.remove()
    return f, reading


@final
@dataclass(frozen=True)
class Factors:
    """The factors of one site: K = (Σ a aᵀ) ⊗ (Σ g gᵀ)/(N T), per group.

    Attributes:
        places: flat positions (G, O, D).
        inputs: Σ a aᵀ, shape (G, D, D).
        gradients: Σ g gᵀ, shape (G, O, O).
        count: N T.
        rows: ∂f_nk/∂(matrix) for the k-th of the S C outputs of a row, shape (N, S C, G, O, D).
        one_hot: whether the basis of the inputs is the axes themselves.
    """

    places: Tensor
    inputs: Tensor
    gradients: Tensor
    count: int
    rows: Tensor
    one_hot: bool


def factors(case: Case, middle: Tensor, *, twin: Twin | None = None, reduce: bool = False) -> list[Factors]:
    """The Kronecker factors of every site, for Λ (or what takes its place) of shape (N, S C, S C)."""
    with read_mode(case.module):
        with torch.no_grad():
            f, reading = run(case, twin, None)
        if not reading.sites:
            return []
        zero = {
            key: [torch.zeros(shape, dtype=f.dtype) for shape in site.shapes] for key, site in reading.sites.items()
        }
        derivatives = jacrev(lambda epsilon: run(case, twin, epsilon)[0])(zero)
    found = []
    for key, site in reading.sites.items():
        if site.mixed:
            continue
        gs = [
            _own(unfold(by.detach().flatten(0, f.ndim - 1)), len(f))
            for by, unfold in zip(derivatives[key], site.unfolds, strict=True)
        ]
        g, a = torch.cat(gs, 2), torch.cat(site.activations, 1)  # (N, S C, T, G, O) and (N, T, G, D)
        rows = torch.einsum("nktgo,ntgd->nkgod", g, a)
        if reduce:
            g, a = g.sum(2, keepdim=True), a.mean(1, keepdim=True)
        gradients = torch.einsum("nktgo,nkl,nltgp->gop", g, middle, g)
        inputs = torch.einsum("ntgd,ntge->gde", a, a)
        found.append(Factors(site.places, inputs, gradients, len(a) * a.shape[1], rows, site.one_hot and not reduce))
    return found


def _own(g: Tensor, rows: int) -> Tensor:
    """From the derivatives of all outputs of all rows, (N S C, N, ...), those by the outputs of the own row."""
    g = g.unflatten(0, (rows, -1))
    return torch.stack([g[n, :, n] for n in range(rows)])


def kron(left: Tensor, right: Tensor) -> Tensor:
    """left ⊗ right, of matrices in any memory layout."""
    return torch.kron(left.contiguous(), right.contiguous())


def kfac_blocks(found: list[Factors]) -> list[tuple[Tensor, Tensor]]:
    """Per site and group: flat positions and the matrix Σ g gᵀ ⊗ Σ a aᵀ/(N T)."""
    return [
        (
            f.places[group].reshape(-1),
            kron(f.gradients[group], f.inputs[group]) / f.count,
        )
        for f in found
        for group in range(f.places.shape[0])
    ]


def ekfac_blocks(found: list[Factors], middle: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The same eigenvectors; the eigenvalues are the second moments of ∂f/∂W along them under Λ."""
    blocks = []
    for f in found:
        for group in range(f.places.shape[0]):
            left = torch.linalg.eigh(f.gradients[group]).eigenvectors
            right = torch.eye(f.inputs.shape[-1], dtype=left.dtype)
            if not f.one_hot:
                right = torch.linalg.eigh(f.inputs[group]).eigenvectors
            turned = torch.einsum("nkod,op,de->nkpe", f.rows[:, :, group], left, right)
            moments = torch.einsum("nkpe,nkl,nlpe->pe", turned, middle, turned)
            basis = kron(left, right)
            blocks.append((f.places[group].reshape(-1), (basis * moments.reshape(-1)) @ basis.T))
    return blocks


def assembled(dim: int, blocks: list[tuple[Tensor, Tensor]], rest: Tensor, groups: list[Tensor]) -> Tensor:
    """The Kronecker blocks, and on the groups of positions that they leave over those of ``rest``."""
    matrix = torch.zeros(dim, dim, dtype=rest.dtype)
    for place, block in blocks:
        matrix[place[:, None], place] = block
    taken = torch.zeros(dim, dtype=torch.bool)
    for place, _ in blocks:
        taken[place] = True
    left = [group[~taken[group]] for group in groups]
    return matrix + restricted(rest, left)


def layers(case: Case, twin: Twin | None = None) -> list[Tensor]:
    """Flat positions of each layer: a matrix with the bias that joins it, and what else a module owns together."""
    with read_mode(case.module), torch.no_grad():
        sites = run(case, twin, None)[1].sites.values()
    found = [site.places.reshape(-1) for site in sites if not site.mixed]
    taken = torch.cat([torch.tensor([], dtype=torch.long), *found])
    owners: dict[str, list[Tensor]] = {}
    for name, place in positions(case.module).items():
        owners.setdefault(name.rpartition(".")[0], []).append(place[~torch.isin(place, taken)])
    left = [torch.cat(places) for places in owners.values()]
    return found + [places for places in left if len(places)]
