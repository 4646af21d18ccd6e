"""The symmetric product X Xᵀ, most entries of it once."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

# Wide enough for a matrix product to run at full speed, narrow enough to leave most of the lower triangle out.
PANEL = 96


def add_gram(onto: Tensor | None, x: Tensor) -> Tensor:
    """Adds Σ_m x_dm x_em to the upper triangle of a sum, in place; `mirrored` gives the whole of it in the end.

    On a CPU the product is computed by panels of rows, which leave out what lies below them: at D = 785, 0.44 of the
    flops. A GPU is faster with the whole product.

    Args:
        onto: the sum so far, shape (G, D, D); ``None`` for none.
        x: shape (G, D, M).

    Returns:
        The sum. What is below its diagonal means nothing.
    """
    groups, width, _ = x.shape
    if groups > 1 or width <= PANEL or x.device.type != "cpu":
        return x @ x.mT if onto is None else onto.baddbmm_(x, x.mT)
    matrix, total = x[0], x.new_zeros(1, width, width) if onto is None else onto
    for start in range(0, width, PANEL):
        stop = min(start + PANEL, width)
        total[0, start:stop, start:].addmm_(matrix[start:stop], matrix[start:].mT)
    return total


def sum_of_grams(blocks: Iterable[Tensor], onto: Tensor | None) -> Tensor:
    """Σ x xᵀ over blocks x of shape (G, D, M): added to the upper triangle of ``onto``, or symmetric without one."""
    total = onto
    for x in blocks:
        total = add_gram(total, x)
    assert total is not None
    return mirrored(total) if onto is None else total


def mirrored(total: Tensor) -> Tensor:
    """The symmetric matrices (G, D, D) that have this upper triangle, in its place."""
    upper = total.triu_()
    return upper.add_(upper.triu(1).mT)


def weighted(x: Tensor, weights: Tensor | None) -> Tensor:
    """√w_n x_n for x of shape (N, ...), whose Gram matrix is that of w_n equal rows; x itself without weights."""
    return x if weights is None else x * weights.sqrt().to(x).reshape(-1, *[1] * (x.ndim - 1))


def columns(x: Tensor) -> Tensor:
    """The vectors of x (..., G, C) as columns, shape (G, C, M); a view where the strides allow one."""
    return x.movedim((-2, -1), (0, 1)).flatten(2)
