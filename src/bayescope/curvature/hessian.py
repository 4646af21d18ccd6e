"""The exact Hessian of −Σ log p(y∣f) over the random weights: its products with vectors, and parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayescope.curvature.kinds import Observations
from bayescope.errors import UnsupportedError
from bayescope.network.forward import owned
from bayescope.network.inputs import Inputs, call
from bayescope.network.interception import Rewrites
from bayescope.network.rewrites import OF_WEIGHTS, REWRITES
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import pull_back
from bayescope.network.weights import Weights

# This many columns of the Hessian of one batch travel together: as many copies of all activations are held.
COLUMNS = 32
Product = Callable[[Tensor], Tensor]


def hessian_product(
    module: nn.Module, weights: Weights, inputs: Inputs, observe: Callable[[Tensor], Observations]
) -> tuple[Product, Observations]:
    """The product V ↦ H V with the Hessian of one batch, H = −∂² Σ_n log p(y_n∣f_n)/∂θ².

    The gradient is taken once with its own graph; each product is one more backward pass through it, for all the
    columns of V at once (Pearlmutter 1994). The module has to be in the state of a reading already.

    Args:
        module: the network.
        weights: θ, which of its parameters are random.
        inputs: of the batch.
        observe: pairs the outputs with their labels.

    Returns:
        The product, from (P, R) to (P, R) in float64, and the batch's observations.
    """
    theta = weights.flat(module).requires_grad_()
    with torch.enable_grad(), _second_derivatives():
        parameters, values = weights.parameters(module), weights.unflat(theta, module)
        with substituted(module, list(parameters.values()), [values[name] for name in parameters], _REWRITES):
            f = call(module, owned(inputs, copy=True))
        observations = observe(f)
        outputs = f.reshape(-1, f.shape[-1]).to(torch.float64)
        loss = -observations.likelihood.log_prob(outputs, observations.y).sum()
        (gradient,) = torch.autograd.grad(loss, theta, create_graph=True, materialize_grads=True)

    def product(vectors: Tensor) -> Tensor:
        if not gradient.requires_grad:  # f is linear in θ, and log p in f
            return torch.zeros_like(vectors, dtype=torch.float64)
        with _second_derivatives():
            (columns,) = pull_back(gradient, [theta], vectors.mT.to(gradient))
        return torch.zeros_like(vectors) if columns is None else columns.mT.to(torch.float64)

    return product, observations


def check_symmetric(product: Product, dim: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuses a product whose matrix is not symmetric: uᵀ(H v) = vᵀ(H u) at two random vectors.

    The two may differ by the root of the dtype's rounding, relative to ‖u‖‖Hv‖: sums of many terms are far within it.

    Args:
        product: V ↦ H V.
        dim: P.
        device: that the product is computed on.
        dtype: the coarsest that it is computed in.

    Raises:
        UnsupportedError: if the two differ by more than rounding: some operation's second derivative in torch is wrong.
    """
    vectors = torch.randn(dim, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    images = product(vectors)
    cross = vectors.mT @ images
    size = torch.linalg.vector_norm(vectors) * torch.linalg.vector_norm(images)
    if (cross[0, 1] - cross[1, 0]).abs() > torch.finfo(dtype).eps ** 0.5 * size:
        raise UnsupportedError(
            f"curvature: expected a symmetric Hessian, got uᵀHv = {float(cross[0, 1]):.6g} and vᵀHu = "
            f"{float(cross[1, 0]):.6g}: torch's second derivative of an operation in this network is wrong, or the "
            "operation has none. Use 'ggn'."
        )


def unit_products(product: Product, indices: Tensor, dim: int, columns: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The columns H e_p for the given positions p, a few at a time: the positions (r,), and the columns (P, r)."""
    for some in indices.split(columns or COLUMNS):
        units = torch.zeros(dim, len(some), dtype=torch.float64, device=indices.device)
        units[some, torch.arange(len(some), device=indices.device)] = 1.0
        yield some, product(units)


def add_blocks(
    totals: Sequence[Tensor], product: Product, groups: Sequence[Tensor], dim: int, columns: int | None
) -> None:
    """Adds to each total H's block over a group of weights, in the group's order: P products in all."""
    for total, group in zip(totals, groups, strict=True):
        start = 0
        for some, image in unit_products(product, group, dim, columns):
            total[:, start : start + len(some)] += image[group]
            start += len(some)


def add_diagonal(total: Tensor, product: Product, columns: int | None) -> None:
    """Adds the diagonal of H, shape (P,): P products, of each of which one entry is used."""
    everything = torch.arange(total.shape[0], device=total.device)
    for some, image in unit_products(product, everything, total.shape[0], columns):
        total[some] += image[some, torch.arange(len(some), device=total.device)]


@contextmanager
def _second_derivatives() -> Iterator[None]:
    """Attention by its plain formula: the fused kernels have no second derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


# Torch's second derivatives of fused layers (norms, recurrent layers) are wrong or absent for several vectors at once;
# those of the arithmetic that they stand for are right.
_REWRITES: Rewrites = {**REWRITES, **OF_WEIGHTS}
