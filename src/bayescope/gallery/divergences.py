"""Gaussians against the posterior: both directions of KL, one observation, the bound, and integrals over a link."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn.functional import logsigmoid

from bayescope import density
from bayescope.gallery.exact import Grid, curve, ellipse, grid, laplace, moment_match, on_plane
from bayescope.gallery.page import Canvas, Picture, number
from bayescope.likelihoods import Bernoulli
from bayescope.plots import marks
from bayescope.plots.style import COLOURS, FAINT, INK, LABELS, MUTED
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.quadrature import gauss_hermite, log_expected_sigmoid

SEEKING, COVERING, BLUE = COLOURS["variational"], COLOURS["ep"], COLOURS["laplace"]


# The two directions of KL --------------------------------------------------------------------------------------------
def mixture(weights: list[float], means: list[list[float]], covariances: list[list[list[float]]]) -> MixturePosterior:
    """A density with several modes whose moments are known."""
    parts = [
        GaussianPosterior(
            torch.tensor(m, dtype=torch.float64), DensePrecision(torch.tensor(c).inverse()), Record("given")
        )
        for m, c in zip(means, covariances, strict=True)
    ]
    return MixturePosterior(torch.tensor(weights, dtype=torch.float64).log(), parts, Record("given"))


LINE = mixture([0.65, 0.35], [[-2.0], [2.2]], [[[0.8]], [[0.5]]])
PLANE = mixture([0.55, 0.45], [[-2.1, -1.5], [2.1, 1.6]], [[[0.9, -0.5], [-0.5, 0.7]], [[0.6, 0.35], [0.35, 0.8]]])
TITLES = ("min KL(q‖p), from the left", "min KL(q‖p), from the right", "min KL(p‖q)")


def log_mixture(p: MixturePosterior, x: Tensor) -> Tensor:
    """log p, differentiable, at points of shape (..., dim)."""
    covariances = torch.stack([part.covariance for part in p.components])
    means = torch.stack([part.mean for part in p.components])
    parts = MultivariateNormal(means, covariances, validate_args=False)
    return torch.logsumexp(p.log_weights + parts.log_prob(x[..., None, :]), -1)


def optima(p: MixturePosterior) -> list[GaussianPosterior]:
    """The two local optima of KL(q‖p), found from the left and from the right, and the optimum of KL(p‖q)."""
    starts = [[-2.0], [2.0]] if len(p.mean) == 1 else [[-2.1, -1.5], [2.1, 1.6]]
    seeking = [
        density.variational(
            lambda x: log_mixture(p, x), len(start), start=torch.tensor(start, dtype=torch.float64), generator=0
        )
        for start in starts
    ]
    return [*seeking, moment_match(p)]


def divergences(q: GaussianPosterior, p: MixturePosterior) -> tuple[float, float]:
    """KL(q‖p) and KL(p‖q), integrated numerically."""
    return float(density.kl(q, p)), float(density.kl(p, q))


def draw_directions() -> Figure:
    """One dimension above, two below: the two optima of KL(q‖p) and the one of KL(p‖q)."""
    page = Canvas(
        6.2,
        "min KL(q‖p) finds one mode, min KL(p‖q) covers both",
        "Gaussians q for a density p with two modes (grey). KL(q‖p), the divergence that VI minimises, "
        "punishes q where p is small and has an optimum at each mode; KL(p‖q) punishes q for missing any of p: "
        "its optimum has p's moments.",
    )
    colours = (SEEKING, SEEKING, COVERING)
    [line] = page.panels(1, 1, below=0.3, left=0.35, bottom=3.3)
    x = np.linspace(-6.5, 6.5, 800)
    marks.density(line, x, np.exp(curve(LINE.log_prob, x)))
    places = ((-3.0, 0.33, "right"), (3.0, 0.36, "left"), (-3.75, 0.11, "right"))
    for q, colour, title, (at, height, side) in zip(optima(LINE), colours, TITLES, places, strict=True):
        line.plot(x, np.exp(curve(q.log_prob, x)), color=colour, lw=2)
        marks.label(line, at, height, f"{title}\n{_divergences_as_text(q, LINE)}", colour, ha=side)
    line.set(xlim=(x[0], x[-1]), ylim=(0, None))
    marks.no_scale(line)
    headings = list(zip(TITLES, colours, strict=True))
    x, y = np.linspace(-6.2, 6.2, 161), np.linspace(-6.2, 5.4, 161)
    panels = page.panels(1, 3, headings, below=2.82, left=0.35, bottom=0.25, gap=(0.19, 0))
    for axes, q, colour in zip(panels, optima(PLANE), colours, strict=True):
        marks.plane_density(axes, x, y, np.exp(on_plane(PLANE.log_prob, x, y)))
        for mass, width in ((0.5, 2), (0.95, 1.2)):
            axes.plot(*ellipse(q, mass), color=colour, lw=width)
        marks.corner(axes, _divergences_as_text(q, PLANE), colour, x=0.97, y=0.03, ha="right")
        marks.bare(axes)
    return page.figure


def _divergences_as_text(q: GaussianPosterior, p: MixturePosterior) -> str:
    return "KL(q‖p) = {:.2f}\nKL(p‖q) = {:.2f}".format(*divergences(q, p))


# One observation -----------------------------------------------------------------------------------------------------
INPUT = 25.0
PRIOR_MEAN = 0.5
OPTIMA = {"laplace": "Laplace", "variational": "min KL(q‖p)", "ep": "min KL(p‖q)"}


def log_joint_of_one(w: Tensor) -> Tensor:
    """log p(y = 1, w) at points (..., 1): w ~ N(½, 1) and y = 1 at x = 25 with p(y = 1∣x, w) = σ(w x)."""
    return (logsigmoid(INPUT * w) - 0.5 * (w - PRIOR_MEAN).square() - 0.5 * math.log(2 * math.pi))[..., 0]


@cache
def one_observation() -> tuple[Grid, dict[str, GaussianPosterior]]:
    """The posterior on a fine grid, and three Gaussians.

    With one factor EP's fixed point is the moment match, and so min KL(p‖q).
    """
    exact = grid(log_joint_of_one, (-9.0, 10.0), size=40_001)
    return exact, {
        "laplace": laplace(log_joint_of_one, [PRIOR_MEAN]),
        "variational": density.variational(log_joint_of_one, 1, generator=0),
        "ep": moment_match(exact),
    }


def predictions_of_one(x: np.ndarray) -> dict[str, np.ndarray]:
    """p(y = 1∣x) by each Gaussian, and under "exact" by the posterior itself."""
    (exact, fits), inputs = one_observation(), torch.from_numpy(x)
    answers = {"exact": exact.expect(torch.sigmoid(exact.points * inputs)).numpy()}
    for name, q in fits.items():
        answers[name] = log_expected_sigmoid(q.mean[0] * inputs, q.covariance[0, 0] * inputs.square()).exp().numpy()
    return answers


def draw_one_observation() -> Figure:
    """The posterior with its three Gaussians on the left, what they predict on the right."""
    exact, fits = one_observation()
    q = fits["laplace"]
    page = Canvas(
        4.7,
        "One observation that the prior's mode explains: Laplace learns nothing",
        f"w ~ N(½, 1), and y = 1 is seen at x = {INPUT:.0f}, where p(y = 1) = σ(wx). That rules out w < 0, 31 "
        "% of the prior's mass; but at the mode the likelihood is flat, and Laplace, "
        f"N({float(q.mean[0]):.3f}, {float(q.covariance[0, 0].sqrt()):.3f}²), is the prior again.",
    )
    headings = ["The posterior and three Gaussians", "What they predict"]
    left, right = page.panels(1, 2, headings, gap=(0.8, 0), left=0.35, widths=(1.15, 1))
    w = np.linspace(-2.4, 3.4, 1200)
    marks.density(left, w, np.exp(curve(log_joint_of_one, w) - exact.log_normaliser), INK, width=1.2)
    for name, gaussian in fits.items():
        left.plot(w, np.exp(curve(gaussian.log_prob, w)), color=COLOURS[name], lw=2)
    prior = np.exp(-0.5 * (w - PRIOR_MEAN) ** 2) / math.sqrt(2 * math.pi)
    left.plot(w, prior, color=INK, lw=1.2, ls=(0, (1, 2)))
    marks.label(left, -0.55, 0.27, "Laplace\n(dotted: prior)", BLUE, ha="right")
    marks.label(left, 1.45, 0.7, OPTIMA["variational"], SEEKING)
    marks.label(left, 1.72, 0.45, OPTIMA["ep"], COVERING)
    marks.label(left, -0.05, 0.57, "posterior p", ha="right")
    left.set(xlim=(w[0], w[-1]), ylim=(0, 0.8), xlabel="weight w")
    marks.no_scale(left)
    x = np.linspace(0, 50, 501)
    for name, values in predictions_of_one(x).items():
        colour = COLOURS.get(name, INK)
        right.plot(x, values, color=colour, lw=2)
        text = f"{OPTIMA.get(name, 'posterior')}: {values[int(np.abs(x - INPUT).argmin())]:.2f}"
        side, offset = ("bottom", 0.013) if name == "exact" else ("top", -0.013)
        marks.label(right, 50, values[-1] + offset, text, colour, ha="right", va=side)
    right.axvline(INPUT, color=MUTED, lw=0.8, ls=":", zorder=0)
    marks.label(right, INPUT + 0.6, 0.515, "y = 1 was seen here", MUTED)
    right.set(xlim=(0, 50), ylim=(0.5, 1.06), yticks=np.arange(0.5, 1.01, 0.1))
    right.set(xlabel="input x", ylabel="p(y = 1∣x, D)")
    return page.figure


# The evidence lower bound --------------------------------------------------------------------------------------------
INPUTS = torch.tensor([0.1, 0.9, 1.8, 2.7], dtype=torch.float64)
SIGNS = torch.tensor([-1, -1, 1, 1], dtype=torch.float64)
PRIOR = Prior(1 / 16)


def log_joint_of_four(theta: Tensor) -> Tensor:
    """log p(D, θ) at points (..., 2): logistic regression on four separable rows, slope and intercept N(0, 4²)."""
    activation = theta[..., :1] * INPUTS + theta[..., 1:]
    return logsigmoid(SIGNS * activation).sum(-1) + PRIOR.log_prob(theta)


@cache
def four_rows() -> tuple[Grid, dict[str, GaussianPosterior]]:
    """The posterior on a grid, and Gaussians from the loosest bound to the tightest.

    The grid reaches beyond six standard deviations of every approximation.
    """
    exact = grid(log_joint_of_four, (-24, 40), (-32, 32), size=641)
    return exact, {
        "mean_field": density.variational(log_joint_of_four, 2, family="mean_field", generator=0),
        "laplace": laplace(log_joint_of_four, [0.0, 0.0]),
        "ep": moment_match(exact),
        "variational": density.variational(log_joint_of_four, 2, family="full", generator=0),
    }


def elbo_and_kl(q: GaussianPosterior) -> tuple[float, float]:
    """E_q[log p(D, θ)] + the entropy of q by a product of Gauss–Hermite rules, and KL(q‖p) summed over the grid."""
    exact, _ = four_rows()
    nodes, log_weights = gauss_hermite(96)
    z = torch.cartesian_prod(nodes, nodes)
    weights = torch.cartesian_prod(log_weights, log_weights).sum(-1).exp()
    theta = q.location + q.precision.sqrt_solve(z.mT).mT
    elbo = float(weights @ (log_joint_of_four(theta) - q.log_prob(theta)))
    return elbo, exact.kl_from(q.log_prob(exact.points))


def draw_bound() -> Figure:
    """The posterior with every q as an ellipse, and beside it their bounds and divergences as bars."""
    exact, fits = four_rows()
    log_evidence = exact.log_normaliser
    page = Canvas(
        4.6,
        "log p(D) = ELBO + KL(q‖p): what the bound lacks is the divergence",
        "Logistic regression on four rows, slope and intercept N(0, 4²): log p(D) = "
        f"{number(log_evidence)} by quadrature. Every q splits this number; to raise its ELBO is to "
        "lower its KL.",
    )
    headings = ["Posterior, 90 % ellipses of q", "One number, split by every q"]
    left, right = page.panels(1, 2, headings, gap=(0.35, 0), left=0.6, widths=(1, 1.65), right=0.3)
    x, y = np.linspace(-4, 11, 241), np.linspace(-12, 4, 241)
    marks.plane_density(left, x, y, np.exp(on_plane(log_joint_of_four, x, y) - log_evidence))
    for name, q in fits.items():
        left.plot(*ellipse(q), color=COLOURS[name], lw=1.6)
    left.set(xlabel="slope", ylabel="intercept")
    _draw_bars(right, fits, log_evidence)
    return page.figure


def _draw_bars(axes: Axes, fits: dict[str, GaussianPosterior], log_evidence: float) -> None:
    left = log_evidence - 1.0
    names = LABELS | {"ep": "min KL(p‖q)"}
    for row, (name, q) in enumerate(reversed(fits.items())):
        (elbo, kl), colour = elbo_and_kl(q), COLOURS[name]
        axes.barh(row, elbo - left, left=left, color=FAINT, height=0.5)
        axes.barh(row, kl, left=elbo, color=colour, height=0.5)
        axes.text(left + 0.22, row, f"ELBO {number(elbo)}", va="center")
        axes.text(left, row + 0.3, names[name], color=colour, va="bottom", weight="bold", fontsize=9, zorder=4)
        axes.text(log_evidence + 0.02, row, f"KL {kl:.3f}", va="center", color=colour, weight="bold")
    # A log has no natural zero for the bars to start from: their left ends fade.
    veil = np.ones((1, 64, 4))
    veil[..., 3] = np.linspace(1, 0, 64)
    axes.imshow(veil, extent=(left, left + 0.2, -0.4, 3.26), aspect="auto", zorder=3)
    axes.axvline(log_evidence, ymax=0.93, color=INK, lw=1.2)
    axes.text(log_evidence, 3.82, "log p(D)", ha="center", va="bottom")
    axes.set(ylim=(-0.45, 4.1), xlim=(left, log_evidence + 0.27), xlabel="nats")
    marks.no_scale(axes)


# MacKay's integral of the link ---------------------------------------------------------------------------------------
def kappa_error(means: np.ndarray, sds: np.ndarray) -> np.ndarray:
    """The error σ(κμ) − E[σ(a)] of MacKay's integral for a ~ N(μ, sd²), shape (sds, means)."""
    mean, sd = np.meshgrid(means, sds)
    latent_mean, latent_cov = torch.from_numpy(mean.reshape(-1, 1)), torch.from_numpy(sd.reshape(-1, 1, 1) ** 2)
    approximate, exact = (
        Bernoulli().predictive(latent_mean, latent_cov, integral).mean[:, 1] for integral in ("mackay", "quadrature")
    )
    return (approximate - exact).reshape(mean.shape).numpy()


def draw_kappa() -> Figure:
    """A map of the error over (μ, sd), and the error along μ at four sds."""
    page = Canvas(
        4.4,
        "MacKay's σ(κμ) is never off by more than 0.018",
        "The class probability with the latent a ~ N(μ, sd²) averaged out: the closed form σ(κμ), κ = 1/√(1 + "
        "π sd²/8), minus E[σ(a)] by quadrature. For −μ the error changes its sign.",
    )
    left, right = page.panels(1, 2, ["Over μ and sd: blue is too cautious", "Along μ"], gap=(1.0, 0))
    means, sds = np.linspace(0, 20, 101), np.linspace(0.1, 12, 80)
    table = kappa_error(means, sds)
    left.contourf(means, sds, table, np.arange(-0.018, 0.019, 0.002), cmap="RdBu_r", vmin=-0.02, vmax=0.02)
    negative = [-0.016, -0.012, -0.008, -0.004]
    lines = left.contour(means, sds, table, negative, colors="white", linewidths=0.6, linestyles="solid")
    places = [(16.5, 8.2), (15.5, 6.4), (14.5, 4.9), (13.5, 3.55)]
    texts = left.clabel(lines, fmt=number, fontsize=8, manual=places)
    for text, tone in zip(texts, ("white", "white", INK, INK), strict=True):
        text.set_color(tone)
    left.contour(means, sds, table, [0], colors=INK, linewidths=1.4)
    marks.label(left, 1.3, 6.2, "too confident", rotation=90, ha="center", va="center")
    left.set(xlabel="latent mean μ", ylabel="latent sd", ylim=(0, 12), xticks=range(0, 21, 5))
    means = np.linspace(0, 20, 201)
    right.axhline(0, color=MUTED, lw=0.8)
    places = [(1.5, -0.0042), (2.5, -0.0093), (4.9, -0.0139), (13.2, -0.0168)]
    for alpha, sd, place in zip((0.4, 0.6, 0.8, 1.0), (1.0, 2.0, 4.0, 10.0), places, strict=True):
        right.plot(means, kappa_error(means, np.array([sd]))[0], color=BLUE, alpha=alpha, lw=1.8)
        marks.label(right, *place, f"sd {sd:g}", BLUE, ha="center")
    marks.corner(right, "too confident ↑", MUTED, x=0.98, y=0.97)
    marks.corner(right, "too cautious ↓", MUTED, x=0.03, y=0.03)
    right.set(xlabel="latent mean μ", ylabel="σ(κμ) − E[σ(a)]", xlim=(0, 20), ylim=(-0.0195, 0.0055))
    right.set_xticks(range(0, 21, 5))
    return page.figure


def links(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """σ(a) and Φ(λa) with λ² = π/8, which gives both the slope ¼ at 0."""
    activation = torch.from_numpy(a)
    probit = torch.special.ndtr(math.sqrt(math.pi / 8) * activation)
    return torch.sigmoid(activation).numpy(), probit.numpy()


def draw_sigmoid() -> Figure:
    """The two curves above, their difference below."""
    a = np.linspace(-8, 8, 801)
    logistic, probit = links(a)
    difference = logistic - probit
    worst = int(difference.argmax())
    page = Canvas(
        5.0,
        f"σ(a) and Φ(λa) differ by {difference[worst]:.3f} at most",
        "The logistic sigmoid and the scaled normal distribution function: with λ² = π/8 both have the slope ¼ "
        "at 0. The Gaussian integral of Φ is known in closed form, and so σ's is nearly: this is where "
        "MacKay's κ is from.",
    )
    above, below = page.panels(2, 1, below=0.2, heights=(2, 1), gap=(0, 0.3), left=0.75)
    above.plot(a, logistic, color=BLUE, lw=2.5)
    above.plot(a, probit, color=SEEKING, lw=1.8, ls=(0, (4, 2)))
    above.plot(a, 0.5 + a / 4, color=MUTED, lw=0.8, zorder=0)
    marks.label(above, 1.1, 0.66, "σ(a) = 1/(1 + e⁻ᵃ)", BLUE, fontsize=10)
    marks.label(above, -1.4, 0.33, "Φ(λa)", SEEKING, fontsize=10, ha="right")
    marks.label(above, 2.15, 1.045, "slope ¼", MUTED, ha="left", va="center")
    above.set(ylim=(-0.03, 1.08), xlim=(-8, 8), ylabel="probability", yticks=[0, 0.5, 1])
    above.tick_params(labelbottom=False)
    below.axhline(0, color=MUTED, lw=0.8)
    marks.density(below, a, difference, INK, width=1.8)
    below.set(xlim=(-8, 8), ylim=(-0.026, 0.026), xlabel="activation a", ylabel="σ(a) − Φ(λa)", yticks=[-0.02, 0, 0.02])
    both = [worst, -1 - worst]
    below.plot(a[both], difference[both], "o", color=INK, ms=4)
    text = f"{difference[worst]:+.4f} at a = {a[worst]:.2f}".replace("-", "−")
    marks.label(below, a[worst] + 0.15, difference[worst] + 0.0035, text)
    return page.figure


DIRECTIONS = Picture(
    "kl-directions",
    "The two directions of KL",
    "Minimising KL(q‖p) makes q avoid places where p is small, so that it settles in one mode and forgets the other; "
    "minimising KL(p‖q) makes q cover all of p, also the gap between its modes.",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 10.3; Murphy (2023), Advanced Topics, chapter 5",
    draw_directions,
)
ONE_OBSERVATION = Picture(
    "one-observation",
    "One observation: Laplace against both KL optima",
    "Where the mode already explains the observation, Laplace sees a flat likelihood and gives the prior back, "
    "while the Gaussian of least KL(q‖p) leaves the excluded region and that of least KL(p‖q) has the "
    "posterior's mean and variance.",
    "Kuss & Rasmussen (2005), Assessing approximate inference for binary Gaussian process classification",
    draw_one_observation,
)
BOUND = Picture(
    "elbo-and-kl",
    "log p(D) = ELBO + KL",
    "Every approximation q splits the log evidence into its bound and its divergence from the posterior, so "
    "that the q with the highest bound in a family is the one closest to the posterior in KL(q‖p).",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 9.11",
    draw_bound,
)
KAPPA = Picture(
    "kappa-against-quadrature",
    "MacKay's κ against quadrature",
    "The closed form σ(κμ) is a good class probability: its error against quadrature is largest for wide latents, "
    "where it tends to the gap between σ(a) and Φ(λa), and it errs on the cautious side there.",
    "MacKay (1992), The evidence framework applied to classification networks",
    draw_kappa,
)
SIGMOID = Picture(
    "sigmoid-against-probit",
    "σ(a) against Φ(λa), λ² = π/8",
    "The logistic sigmoid and the normal distribution function scaled to the same slope at 0 hardly differ, except "
    "in their tails, which are e⁻ᵃ against exp(−λ²a²/2).",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 4.9",
    draw_sigmoid,
)
