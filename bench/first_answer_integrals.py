"""Points of the benchmark of first answers: class probabilities of narrow and of very wide posteriors.

The outputs of a row are independent here, so that probabilities are one-dimensional integrals: softmax(f)_k is the
probability that f_k + g_k is the largest of all f_j + g_j, for standard Gumbel variables g.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.signal import fftconvolve
from scipy.stats import norm
from torch import Tensor

from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Categorical
from bayescope.predictive import Predictive
from bench.first_answer_points import Point

SDS = (0.1, 1.0, 10.0, 100.0)
CLASSES = (3, 4, 5, 10, 20)
# Probabilities below this are left out: the stated error of what is so small hardly matters.
LEAST = 1e-10


def probabilities(mean: Tensor, sd: Tensor) -> Tensor:
    """E[softmax(f)] of independent outputs, by sums over even steps: mean and sd of shape (C,)."""
    step = min(0.05, float(sd.min()) / 3)
    gumbel = np.arange(-5.0, 40.0, step)
    density = np.exp(-gumbel - np.exp(-gumbel)) * step
    f = np.arange(float((mean - 9 * sd).min()) - 50.0, float((mean + 9 * sd).max()) + 40.0, step)
    scores = [((f - m) / s, s) for m, s in zip(mean.tolist(), sd.tolist(), strict=True)]
    below = np.stack([fftconvolve(norm.cdf(z), density, mode="valid") for z, _ in scores])
    at = np.stack([fftconvolve(norm.pdf(z) / s, density, mode="valid") for z, s in scores])
    others = [np.delete(below, k, 0).prod(0) for k in range(len(mean))]
    return torch.tensor([(pdf * rest).sum() * step for pdf, rest in zip(at, others, strict=True)])


def case(classes: int, width: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means of a row as far apart as f is wide, standard deviations around the width, and the true probabilities."""
    generator = torch.Generator().manual_seed(1000 * classes + seed)
    mean = 1.5 * max(1.0, width) * torch.randn(classes, dtype=torch.float64, generator=generator)
    sd = width * (0.3 + torch.rand(classes, dtype=torch.float64, generator=generator))
    return mean, sd, probabilities(mean, sd)


def answers(classes: tuple[int, ...], rows: int) -> tuple[Tensor, Tensor]:
    """Errors of probabilities, and the errors that are stated."""
    errors, stated = [], []
    for count in classes:
        for width in SDS:
            found = [case(count, width, seed) for seed in range(rows)]
            mean, sd, truth = (torch.stack(part) for part in zip(*found, strict=True))
            p = Predictive(GaussianLatent(mean, torch.diag_embed(sd.square()), "quadrature"), Categorical())
            kept = truth > LEAST
            errors.append((torch.as_tensor(p.probs) - truth)[kept])
            stated.append(torch.as_tensor(p.integration_error)[kept])
    return torch.cat(errors), torch.cat(stated)


def few(*, quick: bool) -> dict[str, float]:
    """The largest error of three and four classes."""
    errors, _ = answers((3, 4), 2 if quick else 6)
    return {"largest error of a probability": float(errors.abs().max())}


def stated_errors(*, quick: bool) -> dict[str, float]:
    """How large errors are beside what is stated."""
    errors, stated = answers(CLASSES, 1 if quick else 4)
    return {"rms z": float((errors / stated.clamp_min(1e-15)).square().mean().sqrt())}


def rare() -> dict[str, float]:
    """A class 4.3 sds out of one of three outputs of sd 100."""
    mean, sd = torch.tensor([0.0, 0.0, -430.0]).double(), torch.tensor([1.0, 1.0, 100.0]).double()
    truth = probabilities(mean, sd)
    p = Predictive(GaussianLatent(mean[None], torch.diag(sd.square())[None], "quadrature"), Categorical())
    return {"estimate over truth, off by": abs(float(p.probs[0, 2] / truth[2]) - 1.0)}


POINTS: tuple[Point, ...] = (
    Point(
        section="Class probabilities",
        name="integrals-few",
        about="`p.probs` of 3 and 4 classes, random Gaussian outputs of sd 0.1 to 100.",
        measure=lambda quick: few(quick=quick),
        wanted={"largest error of a probability": "≤ 1e-5"},
    ),
    Point(
        section="Class probabilities",
        name="integrals-stated",
        about="`p.probs` beside `p.integration_error`: 3 to 20 classes, random Gaussian outputs of sd 0.1 to 100.",
        measure=lambda quick: stated_errors(quick=quick),
        wanted={"rms z": "≤ 1.3"},
    ),
    Point(
        section="Class probabilities",
        name="integrals-rare",
        about="A class of probability 8e-6: the largest of three outputs 4.3 standard deviations out.",
        measure=lambda quick: rare(),
        wanted={"estimate over truth, off by": "≤ 0.05"},
    ),
)
