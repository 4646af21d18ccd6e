"""What each structure keeps of a network's curvature, and of the posterior covariance that comes of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, SymLogNorm
from matplotlib.figure import Figure
from torch import nn

from bayescope.curvature import fit_curvature
from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.plots.style import CLASS_COLOURS, INK, MUTED

WIDTHS = (2, 6, 5, 1)
PRIOR_PRECISION = 1.0
RANK = 5
STRUCTURES = {
    "full": "full",
    "block": "block",
    "kfac": "kfac",
    "ekfac": "ekfac",
    "low_rank": f"low_rank, {RANK}",
    "diagonal": "diagonal",
}
SIGNED = LinearSegmentedColormap.from_list(
    "signed", [CLASS_COLOURS[0], "#a9c6e0", "#ffffff", "#e3aab0", CLASS_COLOURS[1]]
)


class Kept(NamedTuple):
    """One structure's matrices.

    Attributes:
        curvature: of the data, shape (P, P).
        covariance: the inverse of the curvature plus the prior, shape (P, P).
    """

    curvature: np.ndarray
    covariance: np.ndarray


def trained() -> tuple[nn.Sequential, networks.Rows]:
    """A network of two hidden layers at its mode on the bent and the round class, with the rows."""
    rows = networks.banana()
    return networks.posterior(networks.mlp(*WIDTHS), rows.train, "bernoulli", PRIOR_PRECISION).model, rows


def kept() -> dict[str, Kept]:
    """The GGN and the posterior covariance in every structure."""
    module, rows = trained()
    found = {}
    for structure in STRUCTURES:
        rank = RANK if structure == "low_rank" else None
        curvature = fit_curvature(
            module, rows.train, likelihood="bernoulli", structure=structure, rank=rank, generator=0
        )
        posterior = curvature.with_prior(PRIOR_PRECISION)
        found[structure] = Kept(
            curvature.precision.to_dense().numpy(),
            posterior.solve(torch.eye(posterior.dim, dtype=networks.DOUBLE)).numpy(),
        )
    return found


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The Frobenius norm of the difference, relative to that of b."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def draw_structures() -> Figure:
    """A column a structure: the curvature above, the covariance below, with their distances to the full ones."""
    found = kept()
    module, rows = trained()
    parts = [sum(p.numel() for p in layer.parameters()) for layer in module if isinstance(layer, nn.Linear)]
    figure, top = canvas.page(
        4.6,
        "What each structure keeps, and what that costs the covariance",
        f"GGN of a {'-'.join(map(str, WIDTHS))} tanh network on {len(rows.x)} rows, and (GGN + I)⁻¹, its posterior "
        "covariance under a N(0, 1) prior. Thin lines part the layers; colours are logarithmic in size. Numbers: the "
        "distance to the full matrix in the Frobenius norm, relative to the full matrix's.",
    )
    cells = canvas.grid(figure, 2, 6, top=top + 0.5, gap=(0.1, 0.4), left=0.55, right=0.3, bottom=0.4)
    for row, of in enumerate(Kept._fields):
        full = getattr(found["full"], of)
        largest = float(np.abs(full).max())
        for column, (structure, title) in enumerate(STRUCTURES.items()):
            axes = figure.add_subplot(cells[row, column])
            matrix = getattr(found[structure], of)
            _matrix(axes, matrix, largest, parts)
            if row == 0:
                canvas.heading(axes, title)
            if column == 0:
                axes.set_ylabel(of, color=MUTED, fontsize=9)
            error = "exact" if structure == "full" else f"{distance(matrix, full):.2f}"
            axes.set_xlabel(error, color=INK, fontsize=9, labelpad=3)
    return figure


def _matrix(axes: Axes, matrix: np.ndarray, largest: float, parts: list[int]) -> None:
    norm = SymLogNorm(linthresh=largest / 100, vmin=-largest, vmax=largest)
    axes.imshow(matrix, cmap=SIGNED, norm=norm, interpolation="nearest")
    for edge in np.cumsum(parts)[:-1]:
        axes.axhline(edge - 0.5, color=MUTED, lw=0.4)
        axes.axvline(edge - 0.5, color=MUTED, lw=0.4)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)


STRUCTURES_PICTURE = Picture(
    "network-structures",
    "The structures as matrices",
    "Block-diagonal structures drop what couples layers, Kronecker factors replace a layer's block by a product of "
    "two small matrices, a diagonal keeps single weights and a low rank keeps the directions of the largest curvature "
    "alone.",
    "Martens & Grosse (2015), Optimizing neural networks with Kronecker-factored approximate curvature; George et al. "
    "(2018), Fast approximate natural gradient descent in a Kronecker-factored eigenbasis",
    draw_structures,
)
