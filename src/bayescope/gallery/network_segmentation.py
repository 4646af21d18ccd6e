"""A segmentation with its two kinds of uncertainty, pixel by pixel."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayescope.gallery import canvas, networks
from bayescope.gallery.network_banana import DEEP, colour_scale
from bayescope.gallery.picture import Picture
from bayescope.gallery.surfaces import between
from bayescope.plots.style import CLASS_COLOURS, MUTED
from bayescope.posterior import GaussianPosterior

SIDE = 24
IMAGES = 10
CHANNELS = 6
PRIOR_PRECISION = 3.0
PIXEL_NOISE = 0.05
STAINS = ("#C8553D", "#2A7F9E")  # what the two channels look like


class Scenes(NamedTuple):
    """Images of discs, and which pixels an annotator marked.

    Attributes:
        images: the amounts of two stains, shape (N, 2, side, side).
        labels: 0/1, shape (N, side, side).
    """

    images: Tensor
    labels: Tensor


class ChannelsLast(nn.Module):
    """(N, C, H, W) to (N, H, W, C): each pixel's outputs in the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def disc(x: float, y: float, radius: float, blur: float) -> Tensor:
    """How much of a disc is at each pixel: 1 inside, 0 outside, a logistic curve across its border."""
    at = torch.arange(SIDE, dtype=networks.DOUBLE)
    distance = ((at[None, :] - x).square() + (at[:, None] - y).square()).sqrt()
    return torch.sigmoid((radius - distance) / blur)


def photographed(amounts: Tensor, source: torch.Generator) -> Scenes:
    """Images with pixel noise; an annotator marks a pixel with the probability that the first stain's amount is."""
    noise = PIXEL_NOISE * torch.randn(amounts.shape, dtype=networks.DOUBLE, generator=source)
    labels = torch.rand(amounts[:, 0].shape, dtype=networks.DOUBLE, generator=source) < amounts[:, 0]
    return Scenes(amounts + noise, labels.long())


def seen(seed: int = 0) -> Scenes:
    """Training images: two discs each in the first stain, their borders from sharp to blurred."""
    source = torch.Generator().manual_seed(seed)
    amounts = torch.zeros(IMAGES, 2, SIDE, SIDE, dtype=networks.DOUBLE)
    for image in amounts:
        for x, y, radius, blur in torch.rand(2, 4, generator=source).tolist():
            image[0] = torch.maximum(
                image[0], disc(4 + 16 * x, 4 + 16 * y, 2.5 + 3 * radius, 0.25 * math.exp(2 * blur))
            )
    return photographed(amounts, source)


def new(seed: int = 1) -> Scenes:
    """Two new images: one like those seen, and the same with a square in the second stain, which none of them had."""
    amounts = torch.zeros(2, 2, SIDE, SIDE, dtype=networks.DOUBLE)
    amounts[:, 0] = torch.maximum(disc(7, 7, 4.5, 0.25), disc(16, 16, 4.5, 1.8))
    amounts[1, 1, 3:9, 15:21] = 1.0
    return photographed(amounts, torch.Generator().manual_seed(seed))


def network(seed: int = 0) -> nn.Sequential:
    """Two convolutions of 3 × 3 pixels and one of 1 × 1, in float64."""
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for into, out, size in ((2, CHANNELS, 3), (CHANNELS, CHANNELS, 3), (CHANNELS, 1, 1)):
        layer = nn.utils.skip_init(nn.Conv2d, into, out, size, padding=size // 2, dtype=networks.DOUBLE)
        with torch.no_grad():
            layer.weight.normal_(0.0, 1.0 / math.sqrt(into * size * size), generator=source)
            layer.bias.zero_()
        layers += [layer, nn.Softplus()]
    return nn.Sequential(*layers[:-1], ChannelsLast())


def fit(scenes: Scenes) -> GaussianPosterior:
    """Laplace with the full GGN at the mode; each pixel is an observation."""
    return networks.posterior(network(), scenes, "bernoulli", PRIOR_PRECISION)


def draw_segmentation() -> Figure:
    """A row an image: the image, the annotator's mask, p(marked), and its two variances."""
    trained, scenes = seen(), new()
    q = fit(trained)
    predictive = q.predict(scenes.images)
    square = predictive.epistemic[1, 3:9, 15:21, 1].mean() / predictive.epistemic[0, 3:9, 15:21, 1].mean()
    figure, top = canvas.page(
        5.0,
        "Blurred borders are noise, an unknown stain is ignorance",
        f"Linearised Laplace, full GGN of a convolutional network ({len(q.mean)} weights), from {IMAGES} images of "
        f"{SIDE} × {SIDE} pixels; an annotator marks a pixel with the probability that is its amount of the first "
        f"stain. The square's stain was in none of them: there the epistemic variance is {float(square):,.0f} times "
        "what it is without the square.",
    )
    cells = canvas.grid(figure, 2, 5, top=top + 0.5, gap=(0.12, 0.15), left=0.45, right=0.3, bottom=0.85)
    titles = ("image", "annotation", "p(marked)", "aleatoric", "epistemic")
    for row, name in enumerate(("as seen", "with a new stain")):
        pictures = (
            _stained(scenes.images[row]),
            scenes.labels[row].double().numpy(),
            *(
                np.asarray(values[row, ..., 1])
                for values in (predictive.mean, predictive.aleatoric, predictive.epistemic)
            ),
        )
        for column, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
            axes = figure.add_subplot(cells[row, column])
            _map(axes, picture, column)
            if row == 0:
                canvas.heading(axes, title)
            if column == 0:
                axes.set_ylabel(name, color=MUTED, fontsize=9)
    scale = between(*CLASS_COLOURS[:2])
    colour_scale(figure, (0.455, 0.1, 0.12, 0.02), ScalarMappable(Normalize(0, 1), scale), "p(marked)", [0, 0.5, 1])
    colour_scale(
        figure,
        (0.705, 0.1, 0.2, 0.02),
        ScalarMappable(Normalize(0, 0.25), DEEP),
        "variance of the label",
        [0, 0.1, 0.2],
    )
    return figure


def _stained(amounts: Tensor) -> np.ndarray:
    """Both stains on white, as colours of shape (side, side, 3)."""
    light = torch.ones(SIDE, SIDE, 3, dtype=networks.DOUBLE)
    for amount, stain in zip(amounts, STAINS, strict=True):
        light = light * (1 - amount[..., None] * (1 - torch.tensor(to_rgb(stain), dtype=networks.DOUBLE)))
    return light.clamp(0, 1).numpy()


def _map(axes: Axes, picture: np.ndarray, column: int) -> None:
    scale = (None, between(*CLASS_COLOURS[:2]), between(*CLASS_COLOURS[:2]), DEEP, DEEP)[column]
    axes.imshow(picture, cmap=scale, vmin=0, vmax=1 if column < 3 else 0.25, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)


SEGMENTATION = Picture(
    "network-segmentation",
    "A segmentation's aleatoric and epistemic maps",
    "In a segmentation each pixel has both variances: the aleatoric one follows blurred borders, which more "
    "annotations would leave as they are, and the epistemic one finds the object that no training image had.",
    "Kendall & Gal (2017), What uncertainties do we need in Bayesian deep learning for computer vision?",
    draw_segmentation,
)
