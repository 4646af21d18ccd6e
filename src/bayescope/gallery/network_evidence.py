"""The evidence of architectures beside their loss on new rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, final

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor, nn

from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.likelihoods import Gaussian
from bayescope.plots.style import COLOURS, INK, MUTED

ROWS = 40
TEST_ROWS = 2000
NOISE_SD = 0.3
PRIOR_PRECISION = 1.0
HIDDEN = ((2,), (8,), (4, 4))


@final
class Sine(nn.Module):
    """sin(ω x), elementwise: the larger ω, the wigglier the functions of a network with N(0, 1) weights."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self._frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self._frequency * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "sin 2x": partial(Sine, 2.0),
    "sin 4x": partial(Sine, 4.0),
    "sin 8x": partial(Sine, 8.0),
}
LOOKS = {
    "linear": ("s", INK),
    "tanh": ("o", COLOURS["laplace"]),
    "sin 2x": ("D", COLOURS["metropolis"]),
    "sin 4x": ("^", COLOURS["mean_field"]),
    "sin 8x": ("v", COLOURS["variational"]),
}


def curve(seed: int = 0) -> networks.Rows:
    """Rows of a curve seen with noise, to learn from and to judge on."""
    source = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = 4 * torch.rand(count, 1, dtype=networks.DOUBLE, generator=source) - 2
        return x, networks.truth(x) + NOISE_SD * torch.randn(count, 1, dtype=networks.DOUBLE, generator=source)

    return networks.Rows(*draw(ROWS), *draw(TEST_ROWS))


class Judged(NamedTuple):
    """One architecture: what the training rows say of it, and what new rows say.

    Attributes:
        hidden: the widths of its hidden layers.
        activation: between the layers; "linear" where there is one layer alone.
        log_evidence: of the training rows.
        training_nll: per training row, at the mode.
        test_nll: per test row, linearised.
    """

    hidden: tuple[int, ...]
    activation: str
    log_evidence: float
    training_nll: float
    test_nll: float


def judged(rows: networks.Rows) -> list[Judged]:
    """Every architecture, Laplace with the full GGN at its mode under the same prior."""
    choices = [((), "linear"), *((hidden, activation) for hidden in HIDDEN for activation in ACTIVATIONS)]
    return [judge(rows, hidden, activation) for hidden, activation in choices]


def judge(rows: networks.Rows, hidden: tuple[int, ...], activation: str) -> Judged:
    """One architecture at its mode: its log evidence and its losses on training and test rows."""
    start = networks.mlp(1, *hidden, 1, activation=ACTIVATIONS.get(activation, nn.Identity))
    q = networks.posterior(start, rows.train, Gaussian(NOISE_SD**2), PRIOR_PRECISION)
    training = -float(networks.at_mode(q).predict(rows.x).log_prob(rows.y).mean())
    return Judged(hidden, activation, float(q.log_evidence()), training, networks.test_loss(q, rows))


def rank_correlation(found: list[Judged], of: str) -> float:
    """Spearman's, between what the training rows say and the loss on the test rows."""
    return float(spearmanr([getattr(each, of) for each in found], [each.test_nll for each in found]).statistic)


def draw_evidence(found: list[Judged] | None = None) -> Figure:
    """The test loss over the evidence on the left, over the training loss on the right; computed where not given."""
    found = judged(curve()) if found is None else found
    by_evidence, by_training = -rank_correlation(found, "log_evidence"), rank_correlation(found, "training_nll")
    figure, top = canvas.page(
        4.9,
        "Networks that the evidence ranks higher predict better",
        f"{len(found)} architectures on {ROWS} rows of a curve with noise {NOISE_SD}: Laplace with the full GGN at the "
        f"mode under N(0, 1), {TEST_ROWS:,} test rows, linearised. Spearman's rank correlation with the test "
        f"loss: {canvas.number(by_evidence, 2)} for −log evidence, {canvas.number(by_training, 2)} for the training "
        "loss, which is lowest where a network overfits.",
    )
    cells = canvas.grid(figure, 1, 2, top=top + 0.45, gap=(0.35, 0), left=0.7)
    left, right = (figure.add_subplot(cells[column]) for column in range(2))
    _scatter(left, [-each.log_evidence for each in found], found)
    _scatter(right, [each.training_nll for each in found], found)
    left.set(xscale="log", xticks=[20, 50, 100, 150], xticklabels=["20", "50", "100", "150"])
    left.minorticks_off()
    left.set_xlabel("−log evidence of the training rows")
    right.set_xlabel("NLL per training row at the mode")
    canvas.heading(left, f"−log evidence: rank correlation {canvas.number(by_evidence, 2)}")
    canvas.heading(right, f"Training loss: rank correlation {canvas.number(by_training, 2)}")
    left.set_ylabel("NLL per test row")
    right.tick_params(labelleft=False)
    for name, (marker, colour) in LOOKS.items():
        left.plot([], [], marker, color=colour, label=name, ms=5)
    left.legend(loc="upper left", handletextpad=0.2, fontsize=9, labelspacing=0.3)
    canvas.corner(right, "small markers: one hidden layer\nlarge: two of 4", MUTED, x=0.97, y=0.04, fontsize=8.5)
    return figure


def _scatter(axes: Axes, values: list[float], found: list[Judged]) -> None:
    for value, each in zip(values, found, strict=True):
        marker, colour = LOOKS[each.activation]
        axes.plot(value, each.test_nll, marker, color=colour, ms=6 + 2.5 * (len(each.hidden) > 1), mec="white", mew=0.5)
    low, high = min(each.test_nll for each in found), max(each.test_nll for each in found)
    axes.set_yscale("log")
    axes.set(ylim=(0.9 * low, 1.12 * high), yticks=(ticks := [0.3, 0.5, 1, 2, 3]))
    axes.set_yticklabels([f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


EVIDENCE = Picture(
    "network-evidence",
    "Evidence against test loss over architectures",
    "The evidence of the training rows alone orders architectures much as new rows do, where the training loss prefers "
    "those that overfit.",
    "MacKay (1992), A practical Bayesian framework for backpropagation networks; Immer et al. (2021), Scalable "
    "marginal likelihood estimation for model selection in deep learning",
    draw_evidence,
)
