"""How many labels a classifier needs when it chooses them: by mutual information, and at random.

Each run begins with a few labels of each class, fits, asks for the labels that the choice names among those of a pool,
and fits again. What counts is how many labels it has when its accuracy on a test set first reaches a threshold: the
median over the seeds, each with its own table, pool and first labels, which all choices share. It
takes two minutes of one core.

    python -m bench.active_learning [--seeds 20] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons

import bayescope as bs
from bench import record

Model = bs.BayesianLogisticRegression
Choice = Callable[[Model, np.ndarray, int, torch.Generator], np.ndarray]


def informative(model: Model, x: np.ndarray, n: int, _: torch.Generator) -> np.ndarray:
    """The largest mutual information."""
    return np.asarray(bs.most_informative(model.predict_distribution(x), n))


def diverse(model: Model, x: np.ndarray, n: int, generator: torch.Generator) -> np.ndarray:
    """Drawn in proportion to it."""
    return np.asarray(bs.most_informative(model.predict_distribution(x), n, diverse=True, generator=generator))


def uncertain(model: Model, x: np.ndarray, n: int, _: torch.Generator) -> np.ndarray:
    """The largest entropy."""
    return np.argsort(-np.asarray(model.predict_distribution(x).entropy), kind="stable")[:n]


def at_random(_: Model, x: np.ndarray, n: int, generator: torch.Generator) -> np.ndarray:
    """Any rows."""
    return torch.randperm(len(x), generator=generator)[:n].numpy()


CHOICES: dict[str, Choice] = {
    "mutual information": informative,
    "mutual information, diverse": diverse,
    "entropy": uncertain,
    "random": at_random,
}


@dataclass(frozen=True)
class Setting:
    """A task: its table for a seed as (pool, labels, test, labels), and how it is gone through."""

    table: Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    first: int  # labels of each class
    step: int  # labels asked for at once
    most: int  # labels
    accuracy: float
    prior_precision: float


def moons(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two moons of noise 0.15, in 49 radial basis functions of width 0.5; a pool of 500 rows, 2000 to test."""
    x, y = make_moons(2500, noise=0.15, random_state=seed)
    centres = np.stack(np.meshgrid(np.linspace(-1.5, 2.5, 7), np.linspace(-1, 1.5, 7)), -1).reshape(-1, 2)
    features = np.exp(-np.square(x[:, None] - centres).sum(-1) / (2 * 0.5**2))
    return features[:500], y[:500], features[500:], y[500:]


def eights(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's digits, 8 x 8 pixels, a tenth of them an 8; a pool of 1000 images, 797 to test."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = x[order] / 16, (y[order] == 8).astype(int)
    return x[:1000], y[:1000], x[1000:], y[1000:]


SETTINGS = {
    "two moons, a label at a time": Setting(moons, 2, 1, 80, 0.97, 0.1),
    "an eight or not, ten labels at a time": Setting(eights, 2, 10, 600, 0.95, 0.1),
}


def labels_needed(setting: Setting, choice: Choice, seed: int) -> int:
    """How many labels there are when the accuracy is first reached; one step more than the most, where it is not."""
    x, y, x_test, y_test = setting.table(seed)
    source = np.random.default_rng(seed)
    chosen = [row for k in np.unique(y) for row in source.choice(np.flatnonzero(y == k), setting.first, replace=False)]
    generator = torch.Generator().manual_seed(seed)
    while len(chosen) <= setting.most:
        model = Model(prior_precision=setting.prior_precision).fit(x[chosen], y[chosen])
        if (model.predict(x_test) == y_test).mean() >= setting.accuracy:
            return len(chosen)
        rest = np.setdiff1d(np.arange(len(y)), chosen)
        chosen += rest[choice(model, x[rest], setting.step, generator)].tolist()
    return setting.most + setting.step


def run(seeds: int) -> dict[str, Any]:
    """The labels needed, for each setting and choice."""
    answers: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        answers[name] = {}
        for label, choice in CHOICES.items():
            answers[name][label] = [labels_needed(setting, choice, seed) for seed in range(seeds)]
            print(f"{name}: {label}: median {median(answers[name][label]):g} labels")
    return answers


def written(answers: dict[str, Any], seeds: int) -> list[str]:
    """The results as Markdown."""
    header, parts = ["choice", "labels needed, median", "quartiles", "fewer than at random"], []
    for name, setting in SETTINGS.items():
        rows, chance = [], np.array(answers[name]["random"])
        for label, needed in answers[name].items():
            low, high = np.quantile(needed, [0.25, 0.75])
            fewer = "" if label == "random" else f"in {(np.array(needed) < chance).sum()} of {seeds} seeds"
            rows.append([label, f"{median(needed):g}", f"{low:g} to {high:g}", fewer])
        title = f"## {name.capitalize()}: {setting.accuracy:.0%} accuracy"
        parts += [title, setting.table.__doc__ or "", record.table(header, rows)]
    return parts


def main() -> None:
    """Runs it and writes the results."""
    parser = record.arguments(__doc__)
    parser.add_argument("--seeds", type=int, help="20; 1 of a quick run")
    options = parser.parse_args()
    seeds = options.seeds or (1 if options.quick else 20)
    torch.set_num_threads(1)
    answers = run(seeds)
    how = f"{record.method_in(__doc__)} {seeds} seeds."
    record.publish(
        options, "bench.active_learning", "Active learning", how, written(answers, seeds), {"answers": answers}
    )


if __name__ == "__main__":
    main()
