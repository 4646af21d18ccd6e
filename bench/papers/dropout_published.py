"""What Gal and Ghahramani (2016) published of MC dropout split by split, and results on the same splits beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.papers.common import Record
from bench.papers.compared import Comparison
from bench.papers.sets import published_dropout

SETS = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm")
SPLITS = 20
SCORES = {"log-likelihood": ("log_likelihood", "test_ll", True), "RMSE": ("rmse", "test_MC_rmse", False)}
# A density N(y; f, 1/τ) is at most √(τ/2π), and the published ones are means over passes of those.
NOISE_PRECISION = 0.75
HIGHEST = 0.5 * math.log(NOISE_PRECISION / (2 * math.pi))
CAPPED = (
    f"Theirs is bounded by its noise: the precision that their search chose is {NOISE_PRECISION:g} in all {SPLITS} "
    f"splits, with which no prediction has a log-likelihood above {HIGHEST:.2f}; here the noise is learnt."
)


def beside_dropout(records: Sequence[Record]) -> list[Comparison]:
    """Log-likelihoods and RMSE of the sets, paired with the published ones by split."""
    compared = []
    for score, (ours, published, higher) in SCORES.items():
        for name in SETS:
            some = {record["seed"]: record[ours] for record in records if record["set"] == name}
            if some:
                theirs = published_dropout(name, published)[list(some)].tolist()
                values = list(some.values())
                compared.append(Comparison.paired(name, score, values, theirs, higher_is_better=higher))
    return compared


def missing_splits(records: Sequence[Record]) -> str:
    """Which sets have fewer than the published splits, and what the published figure is over all of these."""
    counts = {name: sum(record["set"] == name for record in records) for name in SETS}
    text = [
        f"{name} {count} (the published log-likelihood over all is {published_dropout(name, 'test_ll').mean():.3f})"
        for name, count in counts.items()
        if 0 < count < SPLITS
    ]
    absent = [name for name, count in counts.items() if not count]
    parts = [f"Fewer than {SPLITS} splits: {'; '.join(text)}."] if text else []
    parts += [f"Not run: {', '.join(absent)}."] if absent else []
    return " ".join(parts) or f"All {SPLITS} splits of all sets."
