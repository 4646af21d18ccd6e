"""What a network's training data say of its architecture, of its priors, and of variational training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import spearmanr
from torch import Tensor, nn

from bayescope.gallery import networks
from bayescope.gallery.network_laplace import SPAN, plane
from bayescope.gallery.page import Canvas, Picture, number
from bayescope.laplace.online import fit_evidence
from bayescope.likelihoods import Bernoulli, Gaussian, Likelihood
from bayescope.plots import marks
from bayescope.plots.style import COLOURS, INK, MUTED
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.training.fit_map import fit_map
from bayescope.variational.variational import variational

BLUE, ORANGE = COLOURS["laplace"], COLOURS["mean_field"]

# The evidence of architectures ---------------------------------------------------------------------------------------
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
    "tanh": ("o", BLUE),
    "sin 2x": ("D", COLOURS["metropolis"]),
    "sin 4x": ("^", ORANGE),
    "sin 8x": ("v", COLOURS["variational"]),
}
# Of a mark, by the hidden layers.
SIZES = {"one hidden layer": 6.0, "two hidden layers": 8.5}


def noisy_curve(seed: int = 0) -> networks.TrainTest:
    """Rows of a curve with noise, to train on and to test on."""
    source = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = 4 * torch.rand(count, 1, dtype=networks.DOUBLE, generator=source) - 2
        return x, networks.truth(x) + NOISE_SD * torch.randn(count, 1, dtype=networks.DOUBLE, generator=source)

    return networks.TrainTest(*draw(ROWS), *draw(TEST_ROWS))


class JudgedArchitecture(NamedTuple):
    """One architecture: what the training rows say of it, and what new rows say.

    Attributes:
        hidden: the widths of its hidden layers.
        activation: between the layers; "linear" if there is only one layer.
        log_evidence: of the training rows.
        training_nll: per training row, at the mode.
        test_nll: per test row, linearised.
    """

    hidden: tuple[int, ...]
    activation: str
    log_evidence: float
    training_nll: float
    test_nll: float


def architectures(rows: networks.TrainTest) -> list[JudgedArchitecture]:
    """Every architecture, Laplace with the full GGN at its mode under the same prior."""
    found = []
    for hidden, activation in [((), "linear"), *((hidden, name) for hidden in HIDDEN for name in ACTIVATIONS)]:
        start = networks.mlp(1, *hidden, 1, activation=ACTIVATIONS.get(activation, nn.Identity))
        q = networks.posterior(start, rows.train, Gaussian(NOISE_SD**2), PRIOR_PRECISION)
        training = -float(networks.at_mode(q).predict(rows.x).log_prob(rows.y).mean())
        found.append(
            JudgedArchitecture(hidden, activation, float(q.log_evidence()), training, networks.test_loss(q, rows))
        )
    return found


def rank_correlation(found: Sequence[JudgedArchitecture], of: str) -> float:
    """Spearman's, between what the training rows say and the loss on the test rows."""
    return float(spearmanr([getattr(each, of) for each in found], [each.test_nll for each in found]).statistic)


def draw_evidence(found: Sequence[JudgedArchitecture] | None = None) -> Figure:
    """The test loss over the evidence on the left, over the training loss on the right; computed if not given."""
    found = architectures(noisy_curve()) if found is None else found
    by_evidence = number(-rank_correlation(found, "log_evidence"), 2)
    by_training = number(rank_correlation(found, "training_nll"), 2)
    page = Canvas(
        5.2,
        "Networks that the evidence ranks higher predict better",
        f"{len(found)} architectures on {ROWS} training rows of a curve with noise {NOISE_SD}: Laplace with the full "
        f"GGN at the mode under N(0,\u00a01), {TEST_ROWS:,} test rows, linearised. The training loss is lowest where a "
        "network overfits; the evidence is not.",
    )
    looks = {name: {"marker": marker, "color": colour, "ls": ""} for name, (marker, colour) in LOOKS.items()}
    named = [Line2D([], [], **look, ms=5, label=name) for name, look in looks.items()]  # type: ignore[arg-type]
    sizes = [Line2D([], [], marker="o", color=MUTED, ls="", ms=ms, label=name) for name, ms in SIZES.items()]
    page.key([*named, *sizes], columns=len(named) + len(sizes))
    headings = [
        f"By the evidence: rank correlation {by_evidence}",
        f"By the training loss: rank correlation {by_training}",
    ]
    left, right = page.panels(1, 2, headings, gap=(0.35, 0), left=0.7)
    for each in found:
        size = list(SIZES.values())[len(each.hidden) > 1]
        for axes, value in ((left, -each.log_evidence / ROWS), (right, each.training_nll)):
            axes.plot(value, each.test_nll, **looks[each.activation], ms=size, mec="white", mew=0.5)  # type: ignore[arg-type]
    low, high = min(each.test_nll for each in found), max(each.test_nll for each in found)
    for axes in (left, right):
        axes.set(yscale="log", ylim=(0.9 * low, 1.12 * high))
        marks.plain_ticks(axes, "y", [0.3, 0.5, 1, 2, 3])
    left.set(xscale="log", xlabel="−log evidence, nats per training row", ylabel="NLL, nats per test row")
    marks.plain_ticks(left, "x", [0.5, 1, 2, 4])
    right.set_xlabel("NLL at the mode, nats per training row")
    right.tick_params(labelleft=False)
    return page.figure


# Hyperparameters learnt while training -------------------------------------------------------------------------------
EPOCHS = 15


@final
@dataclass(frozen=True)
class Learning:
    """A network that learns its hyperparameters: one prior precision a layer, and the noise variance of a regression.

    Attributes:
        rows: to train on and to test on.
        start: the network before training.
        likelihood: with the noise variance to learn, if it has one.
        fixed_likelihood: with a noise variance of 1.
    """

    rows: networks.TrainTest
    start: nn.Module
    likelihood: Likelihood
    fixed_likelihood: Likelihood

    @cached_property
    def learnt(self) -> GaussianPosterior:
        """The posterior at the highest evidence; every epoch trains and then climbs."""
        return fit_evidence(
            self.start, self.rows.train, likelihood=self.likelihood, structure="full", optimizer="lbfgs",
            epochs=EPOCHS, burn_in=1, every=1, steps=10, progress=False,
        )  # fmt: skip

    @cached_property
    def fixed(self) -> GaussianPosterior:
        """The posterior if every hyperparameter is 1."""
        return networks.posterior(self.start, self.rows.train, self.fixed_likelihood, 1.0)

    def losses(self) -> str:
        """NLL per test row before and after the hyperparameters were learnt."""
        return ", ".join(number(networks.test_loss(q, self.rows)) for q in (self.fixed, self.learnt))


def problems() -> tuple[Learning, Learning]:
    """A curve with a gap, whose noise variance is learnt, and the bent and the round class; one hidden layer each."""
    return (
        Learning(networks.gap(), networks.mlp(1, 20, 1, seed=1), Gaussian("evidence"), Gaussian(1.0)),
        Learning(networks.banana(), networks.mlp(2, 16, 1), Bernoulli(), Bernoulli()),
    )


def draw_online(learnings: tuple[Learning, Learning] | None = None) -> Figure:
    """A row a problem: what is predicted, the log evidence and the hyperparameters over the epochs.

    Without an argument the curve and the classes are learnt.
    """
    regression, classification = problems() if learnings is None else learnings
    page = Canvas(
        6.4,
        "The training data alone tell the priors' precisions and the noise",
        "The log evidence (full GGN) is climbed after each epoch in the logarithms of one prior precision a layer and "
        "of the noise variance; the weights of its highest value (dotted line) are kept. NLL per test row with 1 for "
        f"every hyperparameter, then learnt: {regression.losses()} above; {classification.losses()} below.",
    )
    traces = ["Log evidence, nats", "Precisions and noise variance"]
    headings = ["A curve with a gap", *traces, "A bent and a round class", traces[0], "Precisions"]
    panels = page.panels(2, 3, headings, gap=(0.65, 0.75), left=0.55, right=0.75)
    _draw_curve(panels[0], regression)
    _draw_trace(panels[1], panels[2], regression.learnt.trace)
    p = np.asarray(classification.learnt.predict(plane(80)).mean[:, 1]).reshape(80, 80)
    marks.probability_map(panels[3], SPAN, p)
    marks.rows(panels[3], classification.rows.x.numpy(), classification.rows.y.numpy(), size=9)
    marks.bare(panels[3])
    panels[3].set_xlabel("p(red), learnt", fontsize=9.5)
    _draw_trace(panels[4], panels[5], classification.learnt.trace)
    return page.figure


def _draw_curve(axes: Axes, learning: Learning) -> None:
    x = torch.linspace(-2.6, 2.6, 200, dtype=networks.DOUBLE)[:, None]
    predictive = learning.learnt.predict(x)
    low, high, mean = (np.asarray(part)[:, 0] for part in (*predictive.interval(0.95), predictive.mean))
    marks.band(axes, x[:, 0].numpy(), low, high, BLUE, mean=mean)
    axes.plot(x, learning.fixed.predict(x).mean, color=MUTED, lw=1, ls=(0, (4, 2)))
    axes.plot(learning.rows.x, learning.rows.y, "o", color=INK, ms=2.2)
    marks.corner(axes, "blue: learnt, 95 % of y\ndashed: all 1", MUTED, fontsize=8.5)
    axes.set(xlim=(-2.6, 2.6), ylim=(-2.6, 4.2), xlabel="x", xticks=[-2, 0, 2], yticks=[-2, 0, 2])


def _draw_trace(left: Axes, right: Axes, trace: Mapping[str, Sequence[float]]) -> None:
    """The log evidence on the left, the hyperparameters on the right, over the epochs."""
    epochs, evidence = np.array(trace["judged"]), np.array(trace["log_evidence"])
    best, highest = float(epochs[evidence.argmax()]), float(evidence.max())
    left.plot(epochs, evidence, "-o", color=BLUE, ms=3.5)
    marks.label(left, best + 0.3, highest - 0.35 * np.ptp(evidence), number(highest, 1), BLUE, weight="bold")
    precisions = np.array(trace["prior_precision"])
    named = [("layer 1", precisions[:, 0], INK), ("layer 2", precisions[:, 1], MUTED)]
    if "noise_variance" in trace:
        named.append(("noise", np.array(trace["noise_variance"]), ORANGE))
    for name, values, colour in named:
        right.semilogy(epochs, values, "-o", color=colour, ms=3, lw=1.4)
        marks.label(right, EPOCHS + 0.7, float(values[-1]), name, colour, va="center")
    for axes in (left, right):
        axes.axvline(best, color=MUTED, lw=0.8, ls=":", zorder=0)
        axes.set(xlabel="epoch", xlim=(0, EPOCHS + 0.5), xticks=[0, 5, 10, 15])


# Variational training from three starts ------------------------------------------------------------------------------
VARIATIONAL_EPOCHS = 200
STARTS: dict[str, tuple[str, Any]] = {
    "untrained weights, sds of 0.05": (MUTED, (0, (1, 1))),
    "trained weights, sds of 0.05": (ORANGE, (0, (4, 1.5))),
    "trained weights, Laplace's sds": (BLUE, "-"),
}
PANELS = {"nll": "Misfit −E log p(y∣f)", "kl": "Distance KL(q∥p)", "elbo": "ELBO = −misfit − KL"}
# Epochs whose mean is one point of a curve: a q with so few draws an epoch is noisy.
WINDOW = 5


def trainings() -> dict[str, Posterior]:
    """Mean-field posteriors of one network on two classes, trained alike from three starts."""
    rows, untrained = networks.banana(), networks.mlp(2, 16, 1)
    mode = fit_map(untrained, rows.train, likelihood="bernoulli", optimizer="lbfgs", progress=False).model
    starts = zip(STARTS, (untrained, mode, mode), (None, None, "laplace"), strict=True)
    return {
        name: variational(
            module, rows.train, likelihood="bernoulli", epochs=VARIATIONAL_EPOCHS, lr=0.01, batch_size=40,
            initial_sd=sd, generator=0, progress=False,
        )
        for name, module, sd in starts
    }  # fmt: skip


def reached(q: Posterior, bound: float) -> int:
    """The first epoch around which the bound is above a value."""
    return int(np.argmax(means(q.trace["elbo"]) > bound)) + WINDOW // 2 + 1


def means(values: object) -> np.ndarray:
    """The mean over each `WINDOW` epochs in a row."""
    return torch.as_tensor(values, dtype=networks.DOUBLE).unfold(0, WINDOW, 1).mean(1).numpy()


def draw_training(found: Mapping[str, Posterior] | None = None) -> Figure:
    """A panel a term of the bound, a curve a start; without an argument they are computed."""
    found = trainings() if found is None else found
    warm, laplace = (reached(found[name], -110.0) for name in list(STARTS)[1:])
    page = Canvas(
        4.2,
        f"Starting from Laplace's sds saves mean-field VI {warm - laplace} epochs",
        f"A 2-16-1 network, trained on {len(networks.banana().x)} rows (batches of 40, Adam at 0.01). From the same "
        f"trained weights the bound passes −110 nats at epoch {laplace} with the standard deviations of a diagonal "
        f"Laplace approximation, at epoch {warm} with 0.05 for all weights. Curves: means of {WINDOW} epochs.",
    )
    page.key([Line2D([], [], color=colour, ls=dash, label=name) for name, (colour, dash) in STARTS.items()])
    panels = page.panels(1, 3, [*PANELS.values()], gap=(0.55, 0.5), left=0.8)
    for axes, quantity in zip(panels, PANELS, strict=True):
        for name, (colour, dash) in STARTS.items():
            values = means(found[name].trace[quantity])
            axes.semilogx(np.arange(len(values)) + WINDOW // 2 + 1, values, color=colour, ls=dash, lw=1.6)
        axes.set(xlabel="epoch", xlim=(WINDOW // 2 + 1, VARIATIONAL_EPOCHS))
        marks.plain_ticks(axes, "x", [3, 10, 30, 100, 200])
    panels[0].set_ylabel("nats, sum over all rows")
    return page.figure


EVIDENCE = Picture(
    "network-evidence",
    "Evidence against test loss over architectures",
    "The evidence of the training rows alone orders architectures much as new rows do, where the training loss prefers "
    "those that overfit.",
    "MacKay (1992), A practical Bayesian framework for backpropagation networks; Immer et al. (2021), Scalable "
    "marginal likelihood estimation for model selection in deep learning",
    draw_evidence,
)
ONLINE = Picture(
    "network-online-evidence",
    "Evidence while a network trains",
    "Training that alternates with ascent on the evidence finds the noise and a prior precision for each layer from "
    "the training data alone, and keeps the weights at which the evidence was highest.",
    "Immer, Bauer, Fortuin, Rätsch & Khan (2021), Scalable marginal likelihood estimation for model selection in deep "
    "learning",
    draw_online,
)
TRAINING = Picture(
    "network-variational-training",
    "Variational training from three starts",
    "The expected fit, the divergence from the prior and the bound of mean-field VI over the epochs: from a trained "
    "network and its diagonal Laplace approximation a few epochs do what takes dozens from elsewhere.",
    "Graves (2011), Practical variational inference for neural networks; Blundell et al. (2015), Weight uncertainty in "
    "neural networks",
    draw_training,
)
