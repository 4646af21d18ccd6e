"""Variational training epoch by epoch: the fit, the divergence from the prior and the bound, from three starts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, MUTED
from bayescope.posterior import Posterior
from bayescope.training.fit_map import fit_map
from bayescope.variational.variational import variational

EPOCHS = 200
STARTS = {"untrained": MUTED, "trained": COLOURS["mean_field"], "trained, Laplace's sds": COLOURS["laplace"]}
PANELS = {"nll": "−E log p(y∣f)", "kl": "KL(q∥p)", "elbo": "ELBO"}
# Epochs whose mean is one point of a curve: a q with so few draws an epoch is noisy.
WINDOW = 5


def trainings() -> dict[str, Posterior]:
    """Mean-field posteriors of one network on two classes, trained alike from three starts."""
    rows, untrained = networks.banana(), networks.mlp(2, 16, 1)
    mode = fit_map(untrained, rows.train, likelihood="bernoulli", optimizer="lbfgs", progress=False).model
    starts = zip(STARTS, (untrained, mode, mode), (None, None, "laplace"), strict=True)
    return {
        name: variational(
            module, rows.train, likelihood="bernoulli", epochs=EPOCHS, lr=0.01, batch_size=40, initial_sd=sd,
            generator=0, progress=False,
        )
        for name, module, sd in starts
    }  # fmt: skip


def reached(q: Posterior, bound: float) -> int:
    """The first epoch around which the bound is above a value."""
    smooth = means(q.trace["elbo"])
    return int(np.argmax(smooth > bound)) + WINDOW // 2 + 1


def means(values: object) -> np.ndarray:
    """The mean over each `WINDOW` epochs in a row."""
    return torch.as_tensor(values, dtype=networks.DOUBLE).unfold(0, WINDOW, 1).mean(1).numpy()


def draw_training(found: Mapping[str, Posterior] | None = None) -> Figure:
    """A panel a term of the bound, a curve a start; without an argument they are computed."""
    found = trainings() if found is None else found
    warm, laplace = (reached(found[name], -110.0) for name in list(STARTS)[1:])
    figure, top = canvas.page(
        3.9,
        "A trained network's Laplace sds save the epochs in which variational sds find their size",
        "Mean-field VI of a 2-16-1 network on 160 rows (batches of 40, Adam at 0.01); sums over rows in nats, means "
        f"of {WINDOW} epochs. From the same trained weights the bound passes −110 at epoch {laplace} with the sds of a "
        f"diagonal Laplace approximation, at epoch {warm} with 0.05 for all.",
    )
    cells = canvas.grid(figure, 1, 3, top=top + 0.45, gap=(0.55, 0.5))
    for place, (quantity, title) in enumerate(PANELS.items()):
        axes = figure.add_subplot(cells[0, place])
        canvas.heading(axes, title)
        _curves(axes, {name: means(q.trace[quantity]) for name, q in found.items()})
        if quantity == "elbo":
            for line, (name, colour) in enumerate(STARTS.items()):
                canvas.corner(axes, name, colour, x=0.97, y=0.04 + 0.1 * (len(STARTS) - 1 - line), va="bottom")
    return figure


def _curves(axes: Axes, curves: Mapping[str, np.ndarray]) -> None:
    for name, values in curves.items():
        axes.semilogx(np.arange(len(values)) + WINDOW // 2 + 1, values, color=STARTS[name], lw=1.6)
    axes.set(xlabel="epoch", xlim=(WINDOW // 2 + 1, EPOCHS), xticks=[3, 10, 30, 100, 200])
    axes.set_xticklabels(["3", "10", "30", "100", "200"])
    axes.minorticks_off()


TRAINING = Picture(
    "network-variational-training",
    "Variational training from three starts",
    "The expected fit, the divergence from the prior and the bound of mean-field VI over the epochs: from a trained "
    "network and its diagonal Laplace approximation a few epochs do what takes dozens from elsewhere.",
    "Graves (2011), Practical variational inference for neural networks; Blundell et al. (2015), Weight uncertainty in "
    "neural networks",
    draw_training,
)
