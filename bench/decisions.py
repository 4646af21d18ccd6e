"""What decisions rest on: mutual information against references, and how much conformal predictions hold.

Mutual information of two classes is compared with adaptive quadrature in 30 digits (mpmath), of three classes with
2¹⁸ scrambled Sobol' points, of mixtures of Gaussians with a sum over a fine grid of y. Conformal predictions of models
that are wrong on purpose (a line through a parabola with skewed noise; logits three times too large and shifted) are
made from 19 held-out rows at level 0.9, which exchangeable rows without ties are then held to exactly.

    python -m bench.decisions [--quick]
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import torch
from torch.quasirandom import SobolEngine

from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.predictive import Predictive
from bench import record
from tests.test_conformal import TRIALS

ROWS, LEVEL = 19, 0.9
Record = dict[str, Any]


def of_two_classes(means: list[float], sds: list[float]) -> Record:
    """The greatest error of I(y; f) over means and standard deviations of f."""
    errors = []
    for sd in sds:
        mean = torch.tensor(means, dtype=torch.float64)[:, None]
        cov = torch.full((len(means), 1, 1), sd**2, dtype=torch.float64)
        got = Predictive(GaussianLatent(mean, cov, "quadrature"), Bernoulli()).mutual_information
        errors += [abs(float(value) - two_classes(m, sd)) for value, m in zip(got, means, strict=True)]
    return {"what": "two classes", "reference": "mpmath", "cases": len(errors), "error": max(errors), "unit": "nats"}


def two_classes(mean: float, sd: float) -> float:
    """I(y; f) for f ~ N(mean, sd²), by its definition."""
    if sd == 0.0:
        return 0.0
    with mpmath.workdps(30):
        m, s = mpmath.mpf(mean), mpmath.mpf(sd)
        # The integrand has the Gaussian's scale and, around f = 0, that of the sigmoid.
        ends = sorted({m - 12 * s, m + 12 * s, m, *(mpmath.mpf(at) for at in (-40, -8, 0, 8, 40))})
        ends = [at for at in ends if m - 12 * s <= at <= m + 12 * s]

        def entropy(p: Any) -> Any:
            return sum((-q * mpmath.log(q) if q > 0 else mpmath.mpf(0)) for q in (p, 1 - p))

        def average(g: Any) -> Any:
            return mpmath.quad(lambda f: mpmath.npdf(f, m, s) * g(1 / (1 + mpmath.exp(-f))), ends)

        return float(entropy(average(lambda p: p)) - average(entropy))


def of_three_classes(rows: int, sds: list[float], points: int) -> Record:
    """The greatest error relative to the answer, over random means and covariances."""
    generator, errors = torch.Generator().manual_seed(0), []
    engine = SobolEngine(3, scramble=True, seed=0)
    normal = math.sqrt(2) * torch.erfinv(2 * engine.draw(points, dtype=torch.float64).clamp(1e-12, 1 - 1e-12) - 1)
    for sd in sds:
        mean = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
        root = sd * torch.randn(rows, 3, 3, dtype=torch.float64, generator=generator) / math.sqrt(3)
        got = Predictive(GaussianLatent(mean, root @ root.mT, "quadrature"), Categorical()).mutual_information
        for i in range(rows):
            log_p = (mean[i] + normal @ root[i].mT).log_softmax(-1)
            total = log_p.exp().mean(0)
            want = (torch.special.entr(total) - torch.special.entr(log_p.exp()).mean(0)).sum()
            errors.append(float((got[i] - want).abs() / want))
    case = {"what": "three classes", "reference": f"{points:,} Sobol' points"}
    return {**case, "cases": len(errors), "error": max(errors), "unit": "of it"}


def of_mixtures(rows: int) -> Record:
    """The greatest error over mixtures of five Gaussians: draws of a regression with constant noise."""
    generator, noise = torch.Generator().manual_seed(1), 0.3
    f = 3 * torch.randn(5, rows, 1, dtype=torch.float64, generator=generator)
    got = Predictive(DrawsLatent(f), Gaussian(noise)).mutual_information
    grid = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    errors = []
    for i in range(rows):
        log_density = torch.logsumexp(
            -0.5 * (grid - f[:, i]).square() / noise - 0.5 * math.log(2 * math.pi * noise) - math.log(5), 0
        )
        entropy = -torch.trapezoid(log_density.exp() * log_density, grid)
        errors.append(abs(float(got[i] - entropy) + 0.5 * math.log(2 * math.pi * math.e * noise)))
    return {"what": "mixtures", "reference": "a grid", "cases": rows, "error": max(errors), "unit": "nats"}


def held(name: str, repetitions: int) -> Record:
    """The mean share of new rows that is held, and its standard error over repetitions."""
    shares = np.array([TRIALS[name](seed, ROWS, LEVEL) for seed in range(repetitions)])
    return {"what": name, "coverage": float(shares.mean()), "standard_error": float(shares.std() / repetitions**0.5)}


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    sds = [0.0, 1.0] if options.quick else [0.0, 1e-3, 0.1, 1.0, 3.0, 30.0, 300.0]
    points, repetitions = (2**12, 50) if options.quick else (2**18, 1000)
    information = [
        of_two_classes([-20.0, -2.0, 0.0, 0.5, 5.0], sds),
        of_three_classes(2 if options.quick else 8, [each for each in sds if 0 < each <= 30], points),
        of_mixtures(2 if options.quick else 12),
    ]
    coverage = [held(name, repetitions) for name in TRIALS]
    origin, how = record.made("bench.decisions"), record.method_in(__doc__)
    rows = [
        [
            each["what"],
            each["reference"],
            each["cases"],
            f"{each['error']:.1e}",
            each["unit"],
        ]
        for each in information
    ]
    lines = [[each["what"], f"{each['coverage']:.3f}", f"{each['standard_error']:.3f}"] for each in coverage]
    parts = [
        "## Mutual information",
        record.table(["of", "reference", "cases", "greatest error", ""], rows),
        "## Conformal predictions",
        f"{repetitions:,} repetitions of 40 new rows, {ROWS} held-out rows, level {LEVEL}.",
        record.table(["model", "mean coverage", "standard error"], lines),
    ]
    text = record.page("Decisions: mutual information and conformal predictions", origin, how, parts)
    results = {"made": origin, "information": information, "coverage": coverage}
    record.save(record.folder(options), "decisions", results, text)


if __name__ == "__main__":
    main()
