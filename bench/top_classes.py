"""`top=` of very many classes: how far the probabilities of a row's most probable ones are from those of all of them.

Outputs of 300 and of 1,000 classes with a Gaussian uncertainty, of which three are asked for; the truth is the mean of
softmax over draws of all outputs. The others are represented by 64 of them, drawn with their variances (a last layer's
are known) and without (all layers). Beside it stands what is cheaper: all others at their mean outputs.

    python -m bench.top_classes [--draws 40000] [--quick]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayescope.likelihoods import Categorical
from bayescope.models import among_pairs
from bayescope.top_classes import Representatives, Together, top_classes
from bench import record

TOP = 3
SDS = (0.3, 1.0, 2.0)
SHARED = ("nothing", "one direction", "eight directions")
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Outputs of one row: their mean (C,) and a root (C, R) of what their covariance shares, and the rest (C,)."""

    name: str
    sd: float
    mean: Tensor
    root: Tensor
    ours: Tensor

    @property
    def covariance(self) -> Tensor:
        """Shape (C, C)."""
        return self.root @ self.root.mT + self.ours.diag()

    def draws(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Outputs of draws, in blocks of rows."""
        for start in range(0, count, 2000):
            rows, kind = min(2000, count - start), {"dtype": torch.float64, "generator": generator}
            common = torch.randn(rows, self.root.shape[1], **kind) @ self.root.mT
            yield self.mean + common + torch.randn(rows, len(self.mean), **kind) * self.ours.sqrt()


def normal(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def common(classes: int, sd: float, shared: str, spread: float, seed: int) -> Case:
    """Means of one spread, the first one likely; a uncertainty of which four fifths of the sd may be shared."""
    mean = spread * normal(classes, seed=seed)
    mean[0] = mean[1:].logsumexp(0) + 0.2
    share = 0.0 if shared == "nothing" else 0.8
    root = torch.ones(classes, 1) if shared == "one direction" else normal(classes, 8, seed=seed + 1) / math.sqrt(8)
    ours = 0.5 + torch.rand(classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 2))
    name = f"{classes} classes, {shared} shared, means of sd {spread:g}"
    return Case(name, sd, mean, sd * share * root.double(), sd**2 * (1 - share**2) * ours)


def hard(seed: int) -> list[Case]:
    """Few wide classes among narrow ones, and uncertainties of a large sd in two directions."""
    mean, wide = normal(300, seed=seed), torch.full((300,), 0.01, dtype=torch.float64)
    mean[0] += 6.0
    wide[5:8] = 100.0
    root, none = 9.0 / math.sqrt(2) * normal(300, 2, seed=seed + 1), torch.zeros(300, 1, dtype=torch.float64)
    return [
        Case("300 classes, three of them of sd 10, the others of .1", 10.0, mean, none, wide),
        Case("300 classes, sd 9 in two directions", 9.0, mean, root, torch.full((300,), 1e-6, dtype=torch.float64)),
    ]


def measured(case: Case, count: int) -> Record:
    """The greatest errors of a top class' probability, and the greatest standard error of the truth."""
    classes = top_classes(case.mean[None], TOP)
    total, squares = torch.zeros(TOP, dtype=torch.float64), torch.zeros(TOP, dtype=torch.float64)
    for f in case.draws(count, torch.Generator().manual_seed(7)):
        probs = f.softmax(-1)[:, classes[0]]
        total, squares = total + probs.sum(0), squares + probs.square().sum(0)
    want = total / count
    noise = ((squares / count - want.square()).clamp_min(0.0) / count).sqrt()
    covariance = case.covariance
    found: Record = {"case": case.name, "sd": case.sd, "standard_error": float(noise.max())}
    for name, variance in (("last layer", covariance.diagonal()[None]), ("all layers", None)):
        others = Representatives.of(case.mean[None], classes, variance)
        chosen = among_pairs(covariance[None], torch.cat([classes, others.classes], -1))
        latent = Together(case.mean[None], classes, others, chosen).gaussian("quadrature")
        found[name] = float((latent.moments(Categorical()).mean[0, :TOP] - want).abs().max())
    rest = case.mean.scatter(0, classes[0], -torch.inf).logsumexp(0)
    held = torch.zeros(TOP + 1, TOP + 1, dtype=torch.float64)
    held[:TOP, :TOP] = covariance[classes[0]][:, classes[0]]
    mean = torch.cat([case.mean[classes[0]], rest[None]])
    probs = Categorical().predictive(mean[None], held[None], "quadrature").mean[0, :TOP]
    found["held at their means"] = float((probs - want).abs().max())
    return found


WAYS = ("last layer", "all layers", "held at their means")


def main() -> None:
    """Measures, prints and saves."""
    parser = record.arguments(__doc__)
    parser.add_argument("--draws", type=int, help="40,000; 2,000 of a quick run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = options.draws or (2000 if options.quick else 40_000)
    sizes, seeds = ((300,), (0,)) if options.quick else ((300, 1000), (0, 10, 20))
    cases = [common(*each) for each in itertools.product(sizes, SDS, SHARED, (1.0, 3.0), seeds)]
    found = [measured(case, count) for case in cases]
    bad = [measured(case, count) for seed in seeds for case in hard(seed)]
    how = record.method_in(__doc__)
    largest = [
        [f"{sd:g}", *(f"{max(each[way] for each in found if each['sd'] == sd):.4f}" for way in WAYS)] for sd in SDS
    ]
    worst = [
        [name, *(f"{max(each[way] for each in bad if each['case'] == name):.4f}" for way in WAYS)]
        for name in dict.fromkeys(each["case"] for each in bad)
    ]
    noise = max(each["standard_error"] for each in found + bad)
    parts = [
        "## Errors",
        f"The greatest error of a probability over {len(found) // len(SDS)} cases of each standard deviation: "
        f"{' and '.join(f'{size:,}' for size in sizes)} classes, uncertainties that share nothing, one direction or "
        f"eight, means of sd 1 and 3. The standard error of the truth is {noise:.4f} at most.",
        record.table(["sd of f", *WAYS], largest),
        "## Hard cases",
        record.table(["case", *WAYS], worst),
    ]
    record.publish(
        options, "bench.top_classes", "`top=` of very many classes: errors", how, parts, {"cases": found, "hard": bad}
    )


if __name__ == "__main__":
    main()
