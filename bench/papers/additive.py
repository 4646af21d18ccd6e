"""Neural additive models beside EBM, gradient boosting and linear models, on the folds of the authors' own run.

Each model is fitted with its default settings to the same training rows, one after the other, in two threads.

    python -m bench.papers.additive [--models ebm la_nam ...] [--sets yacht ...] [--seeds 0 1 ...] [--again] [--show]

A seed is the number of a fold. Results that are there are not computed again, unless `--again` says so, as it should
after a change to our own estimators; what the peers gave is there also where it is committed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from bench.papers.additive_models import HELD_OUT, MODELS, OURS, THREADS, TITLES
from bench.papers.additive_sets import AUTHORS, AUTHORS_PAIRS, SETS, SOURCES, AuthorsResult, folds, load
from bench.papers.common import Estimate, Log, Record, chosen_of, options, run, save
from bench.papers.compared import Comparison, section
from bench.record import table

REGRESSION = ("yacht", "autompg", "concrete", "energy", "bostonHousing")
EXTRA = tuple(name for name in SOURCES if name not in SETS)
# What runs unless `--models` says otherwise: EBM without pairs is hours more, and nothing here is compared with it.
USUAL = tuple(model for model in MODELS if model != "ebm_no_pairs")
# Results by model, then by set, then by fold.
Results = Mapping[str, Mapping[str, Mapping[int, Record]]]
CAUSES = {
    (f"{score} of {TITLES['la_nam_pairs']}", "yacht"): "The ranking of the pairs: see `causes.md`."
    for score in ("NLL", "RMSE")
}


def task(name: str, fold: int, *, model: str) -> Record:
    """One model on one fold."""
    torch.set_num_threads(THREADS)
    with threadpool_limits(THREADS):
        return MODELS[model](load(name, fold))


# --- tables -----------------------------------------------------------------------------------------------------------


def values(results: Results, model: str, name: str, what: str) -> dict[int, float]:
    """One number of each fold; ``"seconds"`` are those of the fit."""
    ours = results.get(model, {}).get(name, {})
    found = {fold: record.get("fit", {}) if what == "seconds" else record for fold, record in ours.items()}
    return {fold: record[what] for fold, record in found.items() if what in record}


def mean_text(numbers: Mapping[int, float], *, signed: bool = False) -> str:
    """Mean and standard error over the folds, or a dash."""
    if not numbers:
        return "–"
    if len(numbers) == 1:
        return f"{next(iter(numbers.values())):{'+' if signed else ''}.4f}"
    return Estimate.of(list(numbers.values())).text(signed=signed)


def cell(results: Results, model: str, name: str, what: str) -> str:
    """The same, with the number of folds where some are not there."""
    numbers = values(results, model, name, what)
    return mean_text(numbers) + of_folds(numbers, name)


def of_folds(numbers: Mapping[int, float], name: str) -> str:
    """How many of the folds there are, where that is not all of them."""
    return f" ({len(numbers)} of {len(folds(name))})" if 0 < len(numbers) < len(folds(name)) else ""


def by_model(results: Results, kinds: Mapping[str, str]) -> list[tuple[str, ...]]:
    """One row a model, with a kind of score for each set."""
    return [(TITLES[model], *(cell(results, model, name, what) for name, what in kinds.items())) for model in results]


def authors_row(title: str, found: Mapping[str, AuthorsResult], what: str) -> tuple[str, ...]:
    """What the authors' code gave, with ``what`` among ``"nll"``, ``"other"`` and ``"coverage"``."""
    results = [found[name]._asdict() if name in found else {what: np.nan} for name in SETS]
    cells = []
    for result in results:
        if np.isnan(result[what]):
            cells.append("–")
        elif what == "coverage":
            cells.append(f"{result[what]:.2f}")
        else:
            cells.append(Estimate(result[what], result[f"{what}_error"]).text())
    return (title, *cells)


def seconds(results: Results, sets: Sequence[str]) -> list[tuple[str, ...]]:
    """One row a model: the median over the folds, and the longest."""
    rows = []
    for model in results:
        spent = [list(values(results, model, name, "seconds").values()) for name in sets]
        rows.append((TITLES[model], *(f"{np.median(s):.1f} ({max(s):.1f})" if s else "–" for s in spent)))
    return rows


def less_boosting_machine(results: Results) -> list[str]:
    """NLL of our models less EBM's, fold by fold, where both have one, and how often ours is lower."""
    rows = []
    for model in [each for each in OURS if each in results]:
        pairs = [paired_with_ebm(results, model, name) for name in SETS]
        caught = sum(float(np.mean(list(ours.values()))) < 0 for ours in pairs if ours)
        pair_text = (
            f"{mean_text(ours, signed=True)}{of_folds(ours, name)}" for ours, name in zip(pairs, SETS, strict=True)
        )
        rows.append((TITLES[model], *pair_text, f"{caught} of {sum(map(bool, pairs))}"))
    return ["## NLL less EBM's, paired by fold", "", table(("model", *SETS, "lower on"), rows), ""]


def paired_with_ebm(results: Results, model: str, name: str) -> dict[int, float]:
    """The differences in NLL, by fold."""
    ebm = values(results, "ebm", name, "nll")
    return {fold: value - ebm[fold] for fold, value in values(results, model, name, "nll").items() if fold in ebm}


def beside_authors(results: Results) -> list[Comparison]:
    """Our neural additive models beside the authors' code, without pairs and with them."""
    compared = []
    for model, published in (
        ("la_nam", AUTHORS),
        ("la_nam_published_pairs", AUTHORS_PAIRS),
        ("la_nam_pairs", AUTHORS_PAIRS),
    ):
        for what, title in {"nll": "NLL", "rmse": "RMSE", "auroc": "AUROC"}.items():
            for name, authors in published.items():
                known = Estimate(*(authors[:2] if what == "nll" else authors[2:4]))
                ours = list(values(results, model, name, what).values())
                if ours and not np.isnan(known.mean):
                    score, higher = f"{title} of {TITLES[model]}", what == "auroc"
                    compared.append(Comparison.apart(name, score, ours, known, higher_is_better=higher))
    return compared


def tables(results: Results) -> list[str]:
    """All of them."""
    header = ("model", *SETS)
    accuracy = {name: "rmse" if name in REGRESSION else "auroc" for name in SETS}
    plain, pairs = "LA-NAM, the authors' code", "the same with 10 pairs"
    lines = [
        "# Additive models on tables",
        "",
        "Made by `python -m bench.papers.additive`. Default settings everywhere. Mean ± standard error over five",
        "folds, in the units of the data. A peer's Gaussian noise is the mean squared residual on",
        f"{HELD_OUT:.0%} of the training rows after a fit to the others; a second fit to all of them gives the means.",
        f"Seconds are of that one, in {THREADS} threads. The authors' rows are their code's on the same folds.",
        "",
        "## NLL",
        "",
        table(header, [*by_model(results, dict.fromkeys(SETS, "nll")), authors_row(plain, AUTHORS, "nll"),
                       authors_row(pairs, AUTHORS_PAIRS, "nll")]),
        "",
        "## RMSE; AUROC of heart and breast",
        "",
        table(header, [*by_model(results, accuracy), authors_row(plain, AUTHORS, "other"),
                       authors_row(pairs, AUTHORS_PAIRS, "other")]),
        "",
        "## Share of the test rows in their 95 % interval",
        "",
        table(("model", *REGRESSION), [*by_model(results, dict.fromkeys(REGRESSION, "coverage")),
                                       authors_row(plain, AUTHORS, "coverage")[: len(REGRESSION) + 1]]),
        "",
        "## Seconds to fit: median over the folds (longest)",
        "",
        table(header, seconds(results, SETS)),
        "",
    ]  # fmt: skip
    how = [
        "The authors' code was run on the same folds; of its results the means and standard errors are known, and not",
        "the folds. So the standard error of a difference is the root of both squared, which is too large where a fold",
        "that is hard for one is hard for the other. With ten pairs theirs was run on two sets; adult it has not.",
    ]
    compared = section(beside_authors(results), CAUSES, how)
    return [*lines, *less_boosting_machine(results), *extra(results), *compared]


def extra(results: Results) -> list[str]:
    """Adult on the split it is published with, and the other sets that were run."""
    lines: list[str] = []
    for name in EXTRA:
        found = {model: results[model] for model in results if values(results, model, name, "nll")}
        if not found:
            continue
        header = ("model", "folds", "NLL", "less EBM's", "AUROC", "calibration error", "s")
        rows = []
        for model in found:
            nll = values(results, model, name, "nll")
            paired = paired_with_ebm(results, model, name)
            scores = [mean_text(values(results, model, name, what)) for what in ("auroc", "ece")]
            spent = f"{np.median(list(values(results, model, name, 'seconds').values())):.1f}"
            rows.append((TITLES[model], str(len(nll)), mean_text(nll), mean_text(paired, signed=True), *scores, spent))
        lines += [f"## {name}", "", table(header, rows), ""]
    return lines


# --- running ----------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, prints and saves."""
    parser = options(__doc__, (*SETS, *EXTRA), range(5))
    parser.set_defaults(jobs=1, sets=[*SETS, "adult"])
    parser.add_argument("--models", nargs="+", default=list(USUAL), choices=list(MODELS))
    chosen = chosen_of(parser, "bench.papers.additive", argv, models=["linear", "la_nam"])
    keys = [(name, fold) for name in chosen.sets for fold in chosen.seeds if fold in folds(name)]
    logs = logs_of(chosen.out / "additive.jsonl", MODELS)
    failed = sum(run(partial(task, model=model), keys, logs[model], chosen) for model in chosen.models)
    # The tables hold all that is there, and not only what was asked for now.
    records = {model: list(found.values()) for model, log in logs.items() if (found := log.results())}
    results = {
        model: {name: {r["seed"]: r for r in several if r["set"] == name} for name in SOURCES}
        for model, several in records.items()
    }
    if records:
        save(
            chosen.out / "additive",
            tables(results),
            {"threads": THREADS, "records": records},
            chosen.module,
            show=chosen.show,
        )
    if failed:
        raise SystemExit(1)


def logs_of(path: Path, models: Iterable[str], **settings: Any) -> dict[str, Log]:
    """One for each model, in one file; what peers gave lasts, since our code has no part in it."""
    return {model: Log(path, {"model": model, "threads": THREADS} | settings, model not in OURS) for model in models}


if __name__ == "__main__":
    main()
