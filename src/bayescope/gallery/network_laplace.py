"""Laplace's posterior of a network: both kinds of uncertainty, linearised predictions, and curvature structures."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, SymLogNorm, to_rgb
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayescope.curvature import fit_curvature
from bayescope.curvature.options import StructureName
from bayescope.gallery import networks
from bayescope.gallery.page import Canvas, Picture, number
from bayescope.likelihoods import Gaussian
from bayescope.models import LinearizedModel, Model
from bayescope.plots import marks
from bayescope.plots.style import CLASS_COLOURS, COLOURS, INK, MUTED, probability_scale
from bayescope.posterior import GaussianPosterior
from bayescope.predictive import Predictive

DEEP = LinearSegmentedColormap.from_list("variance", ["#ffffff", "#c7b9dc", "#6a4c93", "#2d1457"])
BLUE, BROWN = COLOURS["laplace"], "#A6611A"

# A bent and a round class --------------------------------------------------------------------------------------------
SPAN = ((-5.0, 5.0), (-4.5, 4.5))
BANANA_PRECISION = 0.3
BANANA_HIDDEN = (16, 16)


def fit_banana(rows: networks.TrainTest) -> GaussianPosterior:
    """Laplace with the full GGN at the mode of a network with two hidden layers."""
    start = networks.mlp(2, *BANANA_HIDDEN, 1, activation=nn.Softplus)
    return networks.posterior(start, rows.train, "bernoulli", BANANA_PRECISION)


def plane(size: int) -> Tensor:
    """Points on a grid over the part of the plane that is shown, row by row, shape (size², 2)."""
    return torch.from_numpy(marks.lattice(SPAN, size))


def banana_maps(q: GaussianPosterior, size: int = 80) -> dict[str, np.ndarray]:
    """What the posterior says on a grid over the plane, each of shape (size, size).

    Returns:
        p(red) at the mode and averaged over f, the mean of p(red) p(blue), and the variance of p(red).
    """
    predictive, point = q.predict(plane(size)), networks.at_mode(q).predict(plane(size))
    maps = {
        "point": point.mean,
        "mean": predictive.mean,
        "aleatoric": predictive.aleatoric,
        "epistemic": predictive.epistemic,
    }
    return {name: np.asarray(values[:, 1]).reshape(size, size) for name, values in maps.items()}


def draw_banana(q: GaussianPosterior | None = None) -> Figure:
    """p(red) at the mode and averaged above, its two kinds of variance below."""
    rows = networks.banana()
    q = q or fit_banana(rows)
    point, averaged = (networks.test_loss(each, rows) for each in (networks.at_mode(q), q))
    page = Canvas(
        7.9,
        "Away from the data the posterior is unsure, and says of which kind",
        f"Linearised Laplace, full GGN of a 2-{BANANA_HIDDEN[0]}-{BANANA_HIDDEN[1]}-1 softplus network ({len(q.mean)} "
        f"weights, prior precision {BANANA_PRECISION}) on {len(rows.x)} rows. A label's variance, p(1 − p), is the sum "
        f"of both kinds. NLL of {len(rows.test_x):,} test rows: {number(point)} at the mode, {number(averaged)} "
        "averaged.",
    )
    headings: list[str | tuple[str, str]] = [
        ("p(red) at the mode", COLOURS["map"]),
        ("p(red) averaged over the posterior", BLUE),
        "Aleatoric: the classes overlap",
        "Epistemic: no data were here",
    ]
    panels = page.panels(2, 2, headings, gap=(0.2, 0.45), left=0.3, right=1.15, bottom=0.3)
    for axes, (name, values) in zip(panels, banana_maps(q).items(), strict=True):
        if name in ("point", "mean"):
            marks.probability_map(axes, SPAN, values)
        else:
            marks.field(axes, SPAN, values, DEEP, 0.25)
        marks.rows(axes, rows.x.numpy(), rows.y.numpy(), size=9)
        marks.bare(axes)
    for axes, colours, name, ticks in (
        (panels[1], probability_scale(), "p(red)", [0, 0.1, 0.5, 0.9, 1]),
        (panels[3], DEEP, "variance of the label", [0, 0.1, 0.2, 0.25]),
    ):
        box = axes.get_position()
        place = (box.x1 + 0.02, box.y0 + 0.1 * box.height, 0.014, 0.8 * box.height)
        marks.colour_scale(page.figure, place, colours, name, ticks)
    return page.figure


# Drawn networks against their tangent --------------------------------------------------------------------------------
HIDDEN = 50
PRIOR_PRECISION = 1.0
PRIOR_PRECISIONS = (0.3, 1.0, 10.0, 30.0, 100.0)
DRAWS = 200
SHOWN = 25


class Losses(NamedTuple):
    """NLL per test row of three predictives, in nats."""

    point: float
    linearized: float
    sampled: float


def fit_gap(
    rows: networks.TrainTest, prior_precision: float = PRIOR_PRECISION, hidden: int = HIDDEN
) -> GaussianPosterior:
    """Laplace with the full GGN at the mode of a network with one hidden layer."""
    likelihood = Gaussian(networks.NOISE_SD**2)
    return networks.posterior(networks.mlp(1, hidden, 1), rows.train, likelihood, prior_precision)


def losses(q: GaussianPosterior, rows: networks.TrainTest, draws: int = DRAWS) -> Losses:
    """The test rows' loss at the mode, with f Gaussian by its tangent, and averaged over drawn weights."""
    sampled = networks.test_loss(q, rows, method="sampled", samples=draws, generator=0)
    return Losses(networks.test_loss(networks.at_mode(q), rows), networks.test_loss(q, rows), sampled)


def along_draws(q: GaussianPosterior, rows: networks.TrainTest, steps: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The training loss per row on the way from the mode, θ* + s (θ − θ*), to drawn weights θ.

    Returns:
        For the network's tangent and for the network, shape (draws, steps).
    """
    network, likelihood = networks.parts(q)
    offsets = q.sample(SHOWN, generator=1) - q.mean
    theta = q.mean + steps[None, :, None] * offsets[:, None]

    def loss(function: Model) -> np.ndarray:
        return -likelihood.log_prob(function.forward(rows.x, theta), rows.y).mean(-1).numpy()

    return loss(LinearizedModel(network, q.mean)), loss(network)


def draw_underfitting() -> Figure:
    """Drawn functions of both kinds above; the loss on the way to drawn weights and over prior precisions below."""
    rows = networks.gap()
    q = fit_gap(rows)
    found = losses(q, rows)
    page = Canvas(
        7.1,
        "Networks drawn from the posterior underfit, their tangents do not",
        f"Laplace with the full GGN of a 1-{HIDDEN}-1 tanh network ({len(q.mean)} weights, N(0, 1) prior, "
        f"{len(rows.x)} rows with noise {networks.NOISE_SD}). NLL per test row: {number(found.point)} at the "
        f"mode, {number(found.linearized)} linearised, {number(found.sampled)} with {DRAWS} drawn "
        "networks.",
    )
    headings = [("Tangent at the mode, f* + J(θ − θ*)", BLUE), ("The network itself, f(x, θ)", BROWN)]
    above = page.panels(1, 2, headings, bottom=3.7, gap=(0.5, 0), left=0.7)
    network, _ = networks.parts(q)
    notes = (f"black: the mode\n{SHOWN} draws of θ", f"the same {SHOWN} draws of θ")
    functions: tuple[Model, Model] = (LinearizedModel(network, q.mean), network)
    x = torch.linspace(-2.4, 2.4, 200, dtype=networks.DOUBLE)[:, None]
    for axes, function, (_, colour), note in zip(above, functions, headings, notes, strict=True):
        f = function.forward(x, q.sample(SHOWN, generator=1))
        axes.plot(x, f[..., 0].T, color=colour, lw=0.7, alpha=0.5)
        axes.plot(x, network.forward(x, q.mean), color=INK, lw=1.8)
        axes.plot(rows.x, rows.y, "o", color=INK, ms=2.6)
        axes.set(xlim=(-2.4, 2.4), ylim=(-4.2, 4.2), xlabel="x", yticks=[-4, -2, 0, 2, 4], xticks=[-2, -1, 0, 1, 2])
        marks.corner(axes, note, MUTED)
    headings_below = ["Training loss on the way to the draws", "Test loss over the prior precision"]
    left, right = page.panels(1, 2, headings_below, below=3.3, gap=(0.75, 0), left=0.7)
    _draw_ways(left, q, rows)
    by_precision = [found if p == PRIOR_PRECISION else losses(fit_gap(rows, p), rows) for p in PRIOR_PRECISIONS]
    _draw_precisions(right, np.array(by_precision))
    return page.figure


def _draw_ways(axes: Axes, q: GaussianPosterior, rows: networks.TrainTest) -> None:
    """Only for the tangent are the flat directions of the GGN flat."""
    steps = torch.linspace(0, 1, 41, dtype=networks.DOUBLE)
    tangent, network = along_draws(q, rows, steps)
    for values, colour in ((network, BROWN), (tangent, BLUE)):
        axes.plot(steps, values.T, color=colour, lw=0.7, alpha=0.5)
        axes.plot(steps, np.median(values, 0), color=colour, lw=2.2)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set(xlim=(0, 1), xlabel="s, weights θ* + s (θ − θ*)", ylabel="NLL, nats per training row", xticks=[0, 0.5, 1])
    axes.set_ylim(-1, 10**4.2)
    marks.plain_ticks(axes, "y", [-1, 0, 1, 10, 100, 1000, 10000], ["−1", "0", "1", "10", "100", "10³", "10⁴"])
    marks.label(axes, 0.75, -0.05, "tangent (bold: median)", BLUE, ha="center", va="center")
    marks.label(axes, 0.28, 1000, "network", BROWN, ha="center", va="center")


def _draw_precisions(axes: Axes, found: np.ndarray) -> None:
    for column, name, colour in ((1, "linearised", BLUE), (2, "sampled", BROWN)):
        axes.plot(PRIOR_PRECISIONS, found[:, column], "-o", color=colour, ms=3.5, lw=1.6)
        marks.label(axes, PRIOR_PRECISIONS[1] * 1.3, found[1, column] + 0.18, name, colour)
    axes.plot(PRIOR_PRECISIONS, found[:, 0], color=INK, lw=1, ls=":")
    marks.label(axes, PRIOR_PRECISIONS[0], found[0, 0] - 0.45, "dotted: at the mode", MUTED)
    marks.label(axes, 26, found[-1, 0] + 0.25, "here the mode\nitself underfits", MUTED, ha="center")
    axes.set_xscale("log")
    axes.set(xlabel="prior precision", ylabel="NLL, nats per test row", ylim=(-1.1, found.max() + 0.5))
    marks.plain_ticks(axes, "x", [0.3, 1, 10, 30, 100])


# Structures of the curvature -----------------------------------------------------------------------------------------
WIDTHS = (2, 6, 5, 1)
RANK = 5
STRUCTURES: dict[StructureName, str] = {
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


def trained() -> tuple[nn.Module, networks.TrainTest]:
    """A network of two hidden layers at its mode on the bent and the round class, with the rows."""
    rows = networks.banana()
    return networks.posterior(networks.mlp(*WIDTHS), rows.train, "bernoulli", PRIOR_PRECISION).model, rows


def layer_sizes(module: nn.Module) -> list[int]:
    """The number of weights of each linear layer."""
    return [sum(p.numel() for p in layer.parameters()) for layer in module.children() if isinstance(layer, nn.Linear)]


def matrices() -> dict[str, dict[str, np.ndarray]]:
    """The GGN ("curvature") and the inverse of the GGN plus the prior ("covariance") in every structure, (P, P)."""
    module, rows = trained()
    found: dict[str, dict[str, np.ndarray]] = {"curvature": {}, "covariance": {}}
    for structure in STRUCTURES:
        rank = RANK if structure == "low_rank" else None
        curvature = fit_curvature(
            module, rows.train, likelihood="bernoulli", structure=structure, rank=rank, generator=0
        )
        posterior = curvature.with_prior(PRIOR_PRECISION)
        found["curvature"][structure] = curvature.precision.to_dense().numpy()
        found["covariance"][structure] = posterior.solve(torch.eye(posterior.dim, dtype=networks.DOUBLE)).numpy()
    return found


def relative_distance(a: np.ndarray, b: np.ndarray) -> float:
    """The Frobenius norm of the difference, relative to the norm of b."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def draw_structures() -> Figure:
    """A column a structure: the curvature above, the covariance below, with their distances to the full ones."""
    module, rows = trained()
    page = Canvas(
        4.6,
        "What each structure keeps, and what that costs the covariance",
        f"GGN of a {'-'.join(map(str, WIDTHS))} tanh network on {len(rows.x)} rows, and (GGN + I)⁻¹, its posterior "
        "covariance under a N(0, 1) prior. Thin lines part the layers; red is above 0 and blue below, logarithmic "
        "in size. Numbers: the distance to the full matrix in the Frobenius norm, relative to the full matrix's.",
    )
    panels = iter(page.panels(2, 6, [*STRUCTURES.values()], below=0.5, gap=(0.1, 0.4), left=0.55, bottom=0.4))
    for name, found in matrices().items():
        largest = float(np.abs(found["full"]).max())
        norm = SymLogNorm(linthresh=largest / 100, vmin=-largest, vmax=largest)
        for structure, matrix in found.items():
            axes = next(panels)
            axes.imshow(matrix, cmap=SIGNED, norm=norm, interpolation="nearest")
            for edge in np.cumsum(layer_sizes(module))[:-1]:
                axes.axhline(edge - 0.5, color=MUTED, lw=0.4)
                axes.axvline(edge - 0.5, color=MUTED, lw=0.4)
            marks.bare(axes, frame=0.5)
            if structure == "full":
                axes.set_ylabel(name, color=MUTED, fontsize=9)
            error = "exact" if structure == "full" else f"{relative_distance(matrix, found['full']):.2f}"
            axes.set_xlabel(error, color=INK, fontsize=9, labelpad=3)
    return page.figure


# A segmentation ------------------------------------------------------------------------------------------------------
SIDE = 24
IMAGES = 10
CHANNELS = 6
SEGMENTATION_PRECISION = 3.0
PIXEL_NOISE = 0.05
STAINS = ("#C8553D", "#2A7F9E")  # what the two channels look like


class ChannelsLast(nn.Module):
    """(N, C, H, W) to (N, H, W, C): each pixel's outputs in the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def disc(x: float, y: float, radius: float, blur: float) -> Tensor:
    """How much of a disc is at each pixel: 1 inside, 0 outside, a logistic curve across its border."""
    at = torch.arange(SIDE, dtype=networks.DOUBLE)
    distance = ((at[None, :] - x).square() + (at[:, None] - y).square()).sqrt()
    return torch.sigmoid((radius - distance) / blur)


def photographed(amounts: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of two stains with pixel noise, shape (N, 2, side, side), and labels 0/1, shape (N, side, side).

    An annotator marks a pixel with a probability that equals the first stain's amount.
    """
    noise = PIXEL_NOISE * torch.randn(amounts.shape, dtype=networks.DOUBLE, generator=source)
    labels = torch.rand(amounts[:, 0].shape, dtype=networks.DOUBLE, generator=source) < amounts[:, 0]
    return amounts + noise, labels.long()


def training_images(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two discs in the first stain on each image, their borders from sharp to blurred."""
    source = torch.Generator().manual_seed(seed)
    amounts = torch.zeros(IMAGES, 2, SIDE, SIDE, dtype=networks.DOUBLE)
    for image in amounts:
        for x, y, radius, blur in torch.rand(2, 4, generator=source).tolist():
            spot = disc(4 + 16 * x, 4 + 16 * y, 2.5 + 3 * radius, 0.25 * math.exp(2 * blur))
            image[0] = torch.maximum(image[0], spot)
    return photographed(amounts, source)


def new_images(seed: int = 1) -> tuple[Tensor, Tensor]:
    """One image like those of the training, and the same image with a square in the second stain, which is new."""
    amounts = torch.zeros(2, 2, SIDE, SIDE, dtype=networks.DOUBLE)
    amounts[:, 0] = torch.maximum(disc(7, 7, 4.5, 0.25), disc(16, 16, 4.5, 1.8))
    amounts[1, 1, 3:9, 15:21] = 1.0
    return photographed(amounts, torch.Generator().manual_seed(seed))


def fit_segmentation(seed: int = 0) -> GaussianPosterior:
    """Laplace with the full GGN at the mode of three convolutions, 3 × 3, 3 × 3 and 1 × 1; a pixel is a row."""
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for into, out, size in ((2, CHANNELS, 3), (CHANNELS, CHANNELS, 3), (CHANNELS, 1, 1)):
        layer = nn.utils.skip_init(nn.Conv2d, into, out, size, padding=size // 2, dtype=networks.DOUBLE)
        with torch.no_grad():
            layer.weight.normal_(0.0, 1.0 / math.sqrt(into * size * size), generator=source)
            layer.bias.zero_()
        layers += [layer, nn.Softplus()]
    network = nn.Sequential(*layers[:-1], ChannelsLast())
    return networks.posterior(network, training_images(), "bernoulli", SEGMENTATION_PRECISION)


def draw_segmentation(q: GaussianPosterior | None = None) -> Figure:
    """A row an image: the image, the annotator's mask, p(marked), and its two variances."""
    images, labels = new_images()
    q = q or fit_segmentation()
    predictive = q.predict(images)
    square = predictive.epistemic[1, 3:9, 15:21, 1].mean() / predictive.epistemic[0, 3:9, 15:21, 1].mean()
    page = Canvas(
        5.0,
        "Blurred borders are noise, an unknown stain is ignorance",
        f"Linearised Laplace, full GGN of a convolutional network ({len(q.mean)} weights), from {IMAGES} images of "
        f"{SIDE} × {SIDE} pixels; an annotator marks a pixel with the probability that is its amount of the first "
        f"stain. The square's stain was in none of them: there the epistemic variance is {float(square):,.0f} times "
        "what it is without the square.",
    )
    titles = ("image", "annotation", "p(marked)", "aleatoric", "epistemic")
    panels = page.panels(2, 5, titles, below=0.5, gap=(0.12, 0.15), left=0.45, right=0.3, bottom=0.85)
    probability = probability_scale()
    for row, name in enumerate(("as seen", "with a new stain")):
        panels[5 * row].set_ylabel(name, color=MUTED, fontsize=9)
        maps: list[tuple[Tensor, Colormap | None, float]] = [
            (_stained(images[row]), None, 1.0),
            (labels[row], probability, 1.0),
            *_predicted(predictive, row, probability),
        ]
        for axes, (values, colours, highest) in zip(panels[5 * row :], maps, strict=False):
            axes.imshow(values.numpy(), cmap=colours, vmin=0, vmax=highest, interpolation="nearest")
            marks.bare(axes, frame=0.5)
    marks.colour_scale(page.figure, (0.455, 0.1, 0.12, 0.02), probability, "p(marked)", [0, 0.5, 1])
    marks.colour_scale(page.figure, (0.705, 0.1, 0.2, 0.02), DEEP, "variance of the label", [0, 0.1, 0.25])
    return page.figure


def _predicted(predictive: Predictive, row: int, probability: Colormap) -> list[tuple[Tensor, Colormap, float]]:
    parts = (
        (predictive.mean, probability, 1.0),
        (predictive.aleatoric, DEEP, 0.25),
        (predictive.epistemic, DEEP, 0.25),
    )
    return [(torch.as_tensor(values)[row, ..., 1], colours, highest) for values, colours, highest in parts]


def _stained(amounts: Tensor) -> Tensor:
    """Both stains on white, as colours of shape (side, side, 3)."""
    light = torch.ones(SIDE, SIDE, 3, dtype=networks.DOUBLE)
    for amount, stain in zip(amounts, STAINS, strict=True):
        light = light * (1 - amount[..., None] * (1 - torch.tensor(to_rgb(stain), dtype=networks.DOUBLE)))
    return light.clamp(0, 1)


BANANA = Picture(
    "network-banana",
    "A network's mean and uncertainty on a bent class",
    "The mode of a network is sure wherever it extrapolates; its linearised Laplace posterior returns towards ½ with "
    "the distance from the data, and tells the noise between overlapping classes from the ignorance beyond them.",
    "Ritter, Botev & Barber (2018), A scalable Laplace approximation for neural networks; Immer, Korzepa & Bauer "
    "(2021), Improving predictions of Bayesian neural nets via local linearization",
    draw_banana,
)
UNDERFITTING = Picture(
    "network-underfitting",
    "Drawn networks against their tangent",
    "The GGN is the curvature of the network's tangent: along directions that leave the tangent's outputs on the data "
    "as they are the posterior is as wide as the prior, and the network itself, drawn there, no longer fits the data.",
    "Immer, Korzepa & Bauer (2021), Improving predictions of Bayesian neural nets via local linearization; "
    "Lawrence (2001), Variational inference in probabilistic models",
    draw_underfitting,
)
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
SEGMENTATION = Picture(
    "network-segmentation",
    "A segmentation's aleatoric and epistemic maps",
    "In a segmentation each pixel has both variances: the aleatoric one follows blurred borders, which more "
    "annotations would leave as they are, and the epistemic one finds the object that no training image had.",
    "Kendall & Gal (2017), What uncertainties do we need in Bayesian deep learning for computer vision?",
    draw_segmentation,
)
