"""A table as from an intensive care unit, made up: what additive models make of it beside their peers.

10,000 stays of 30 columns and a death in one of ten: vital signs and laboratory values that move together with how ill
a patient is, a smooth risk of each, often U-shaped as in doctors' scores, and two interactions. Laboratory values are
missing more often where nobody had a reason to ask for them, that is, where they would have been normal. The risk
itself is known, and scored too: no model can do better, and none can reach it, because of the values that are missing.

    python -m bench.papers.additive_icu [--models ebm la_nam ...] [--seeds 0 1 2] [--again] [--show]

A seed makes another table, of which 70 % are for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from bench.papers.additive import USUAL, logs_of, mean_text
from bench.papers.additive_models import MODELS, THREADS, TITLES, classification_scores
from bench.papers.additive_sets import Split
from bench.papers.common import Record, chosen_of, options, run, save
from bench.papers.compared import HEADING
from bench.record import table

Floats = NDArray[np.float64]

ROWS = 10_000
TEST_SHARE = 0.3
POSITIVE_SHARE = 0.1


# --- the table --------------------------------------------------------------------------------------------------------


def _none(z: Floats) -> Floats:
    return np.zeros_like(z)


def _high(z: Floats) -> Floats:
    """Rises above the mean, smoothly."""
    return np.logaddexp(0.0, 2.0 * z) / 2.0


def _low(z: Floats) -> Floats:
    return _high(-z)


def _u(z: Floats) -> Floats:
    """Flat within one standard deviation, and rises on both sides."""
    return _high(z - 1.0) + _high(-z - 1.0)


def _step(z: Floats) -> Floats:
    """From 0 to 1, one standard deviation above the mean."""
    return expit(6.0 * (z - 1.0))


class Measured(NamedTuple):
    """A column of numbers.

    Attributes:
        name: with its unit.
        centre: its mean, or median where it is skewed.
        sd: its standard deviation, or that of its logarithm where it is skewed.
        skewed: whether its logarithm is Gaussian.
        illness: its correlation with how ill the patient is.
        missing: the share of stays without it.
        shape: its effect on the log odds of death, of the standardised value.
        weight: the effect's factor.
    """

    name: str
    centre: float
    sd: float
    skewed: bool
    illness: float
    missing: float
    shape: Callable[[Floats], Floats]
    weight: float


MEASURED = (
    Measured("age_years", 63, 16, False, 0.1, 0.0, _high, 0.8),
    Measured("weight_kg", 80, 0.22, True, 0.0, 0.05, _u, 0.6),
    Measured("heart_rate_bpm", 88, 18, False, 0.4, 0.0, _u, 1.0),
    Measured("systolic_mmhg", 120, 22, False, -0.4, 0.0, _u, 1.3),
    Measured("diastolic_mmhg", 62, 13, False, -0.3, 0.0, _none, 0.0),
    Measured("respiration_per_min", 20, 0.25, True, 0.4, 0.02, _high, 0.4),
    Measured("temperature_celsius", 37.0, 0.8, False, 0.1, 0.03, _u, 1.1),
    Measured("saturation_percent", 96, 2.5, False, -0.3, 0.01, _low, 0.4),
    Measured("inspired_oxygen_share", 0.4, 0.35, True, 0.4, 0.1, _step, 0.6),
    Measured("urine_ml_per_day", 1700, 0.7, True, -0.4, 0.1, _low, 0.5),
    Measured("sodium_mmol", 138, 4.5, False, 0.0, 0.1, _u, 1.0),
    Measured("potassium_mmol", 4.1, 0.6, False, 0.1, 0.1, _u, 1.0),
    Measured("chloride_mmol", 104, 6, False, 0.0, 0.15, _none, 0.0),
    Measured("bicarbonate_mmol", 24, 4, False, -0.4, 0.15, _low, 0.3),
    Measured("calcium_mmol", 2.1, 0.2, False, -0.1, 0.25, _none, 0.0),
    Measured("magnesium_mmol", 0.85, 0.15, False, 0.0, 0.25, _none, 0.0),
    Measured("creatinine_umol", 90, 0.55, True, 0.4, 0.1, _high, 0.4),
    Measured("urea_mmol", 8, 0.6, True, 0.4, 0.1, _high, 0.4),
    Measured("glucose_mmol", 7.5, 0.3, True, 0.2, 0.1, _u, 0.8),
    Measured("lactate_mmol", 1.6, 0.6, True, 0.6, 0.4, _high, 0.7),
    Measured("ph", 7.37, 0.08, False, -0.5, 0.3, _u, 0.9),
    Measured("arterial_oxygen_kpa", 13, 0.35, True, -0.2, 0.3, _u, 0.4),
    Measured("haemoglobin_g", 105, 20, False, -0.2, 0.1, _low, 0.2),
    Measured("platelets_g", 200, 0.5, True, -0.2, 0.1, _low, 0.4),
    Measured("white_cells_g", 11, 0.5, True, 0.3, 0.1, _u, 1.1),
    Measured("bilirubin_umol", 12, 0.8, True, 0.3, 0.4, _step, 0.8),
    Measured("albumin_g", 30, 6, False, -0.4, 0.4, _low, 0.3),
)
# Categories, the share of stays in each, and its effect on the log odds.
LABELS = {
    "admission": (("elective", "emergency", "transfer"), (0.3, 0.55, 0.15), (-1.0, 0.3, 0.1)),
    "unit": (("cardiac", "medical", "neuro", "surgical", "trauma"), (0.25, 0.3, 0.1, 0.25, 0.1), (0, 0.3, 0.4, 0, 0)),
    "sex": (("female", "male"), (0.43, 0.57), (0.0, 0.0)),
}


class Stays(NamedTuple):
    """A table, who died, and the risk of it that they were drawn from."""

    x: pd.DataFrame
    died: NDArray[np.int64]
    risk: Floats


def _level(log_odds: Floats, share: float) -> float:
    """The constant that gives the log odds a mean probability."""
    return float(brentq(lambda level: expit(log_odds + level).mean() - share, -50.0, 50.0))


def stays(seed: int, rows: int = ROWS) -> Stays:
    """One table."""
    rng = np.random.default_rng(seed)
    illness = rng.standard_normal(rows)
    log_odds = 0.3 * illness
    columns: dict[str, pd.Series[float] | pd.Categorical | Floats] = {}
    standardised: dict[str, Floats] = {}
    for column in MEASURED:
        z = column.illness * illness + np.sqrt(1.0 - column.illness**2) * rng.standard_normal(rows)
        log_odds = log_odds + column.weight * column.shape(z)
        values = column.centre * np.exp(column.sd * z) if column.skewed else column.centre + column.sd * z
        if column.missing:
            # Normal values of patients who are not so ill are those that nobody asks for.
            reason = -np.abs(z) - 0.7 * illness
            absent = expit(reason + _level(reason, column.missing))
            values = np.where(rng.random(rows) < absent, np.nan, values)
        standardised[column.name], columns[column.name] = z, values.round(2)
    for name, (categories, shares, effects) in LABELS.items():
        codes = rng.choice(len(categories), rows, p=shares)
        log_odds = log_odds + np.asarray(effects)[codes]
        columns[name] = pd.Categorical.from_codes(codes, list(categories))
    # A fast heart under low pressure is worse than the two apart; so is lactate in the old.
    log_odds = log_odds - 0.5 * standardised["heart_rate_bpm"] * standardised["systolic_mmhg"]
    log_odds = log_odds + 0.4 * standardised["age_years"] * standardised["lactate_mmol"]
    risk = expit(log_odds + _level(log_odds, POSITIVE_SHARE))
    return Stays(pd.DataFrame(columns), (rng.random(rows) < risk).astype(np.int64), risk)


def load(seed: int, rows: int) -> tuple[Split, Floats]:
    """A split, and the risks of its test rows."""
    whole = stays(seed, rows)
    train, test = train_test_split(np.arange(rows), test_size=TEST_SHARE, random_state=seed, stratify=whole.died)
    x_train, x_test = (whole.x.iloc[rows].reset_index(drop=True) for rows in (train, test))
    split = Split(x_train, whole.died[train], x_test, whole.died[test], "classification", tuple(LABELS))
    return split, whole.risk[test]


# --- running ----------------------------------------------------------------------------------------------------------


def task(name: str, seed: int, *, model: str, rows: int) -> Record:  # noqa: ARG001
    """One model on one table; the model "risk" is the risk that the deaths were drawn from."""
    split, risk = load(seed, rows)
    if model == "risk":
        return {"fit": {"seconds": 0.0}} | classification_scores(np.column_stack([1.0 - risk, risk]), split.y_test)
    torch.set_num_threads(THREADS)
    with threadpool_limits(THREADS):
        return MODELS[model](split)


def tables(records: dict[str, Sequence[Record]], stays_of_each: int) -> list[str]:
    """One row a model."""
    rows = []
    for model, ours in records.items():
        scores = [mean_text({r["seed"]: r[what] for r in ours}) for what in ("auroc", "auprc", "nll", "ece")]
        spent = "–" if model == "risk" else f"{np.median([r['fit']['seconds'] for r in ours]):.1f}"
        least = {r["seed"]: r["nll"] for r in records.get("risk", ())}
        pairs = {r["seed"]: r["nll"] - least[r["seed"]] for r in ours if r["seed"] in least}
        more = "" if model == "risk" else mean_text(pairs, signed=True)
        rows.append((TITLES.get(model, "the risk itself"), str(len(ours)), *scores, more, spent))
    header = ("model", "tables", "AUROC", "AUPRC", "NLL", "calibration error", "NLL less the risk's, paired", "s")
    return [
        "# Deaths in an intensive care unit that is made up",
        "",
        f"Made by `python -m bench.papers.additive_icu`: {stays_of_each:,} stays,",
        f"{len(MEASURED) + len(LABELS)} columns, values missing not at random, {POSITIVE_SHARE:.0%} positive,",
        f"{TEST_SHARE:.0%} of the rows to test on; mean ± standard error over tables. Default settings, seconds of the",
        f"fit in {THREADS} threads.",
        "",
        "## Scores",
        "",
        table(header, rows),
        "",
        HEADING,
        "",
        "There is none: the table is made up here. What a model could reach is known instead, the risk that the deaths",
        "were drawn from; NLL less the risk's own is the distance to it.",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, prints and saves."""
    parser = options(__doc__, ("icu",), range(3))
    parser.set_defaults(jobs=1)
    parser.add_argument("--models", nargs="+", default=["risk", *USUAL], choices=["risk", *MODELS])
    parser.add_argument("--rows", type=int, default=ROWS)
    chosen = chosen_of(parser, "bench.papers.additive_icu", argv, models=["risk", "la_nam"], rows=1_000)
    keys = [(name, seed) for name in chosen.sets for seed in chosen.seeds]
    settings = {} if chosen.rows == ROWS else {"rows": chosen.rows}
    logs = logs_of(chosen.out / "additive_icu.jsonl", ("risk", *MODELS), **settings)
    tasks = {model: partial(task, model=model, rows=chosen.rows) for model in chosen.models}
    failed = sum(run(one, keys, logs[model], chosen) for model, one in tasks.items())
    records = {model: list(found.values()) for model, log in logs.items() if (found := log.results())}
    if records:
        whole = {"threads": THREADS, "records": records}
        save(chosen.out / "additive_icu", tables(records, chosen.rows), whole, chosen.module, show=chosen.show)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
