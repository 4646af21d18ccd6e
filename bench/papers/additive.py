"""Neural additive models beside EBM, gradient boosting and linear models, on the folds of the authors' own run.

Each model is fitted with its default settings to the same training rows, one after the other, in two threads.

    python -m bench.papers.additive [--models ebm la_nam ...] [--sets yacht ...] [--seeds 0 1 ...] [--again]

A seed is the number of a fold. Results that are there are not computed again, unless `--again` says so, as it should
after a change to our own estimators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from bench.papers.additive_models import HELD_OUT, MODELS, OURS, PEERS, THREADS, TITLES
from bench.papers.additive_sets import AUTHORS, AUTHORS_PAIRS, SETS, SOURCES, AuthorsResult, folds, load
from bench.papers.common import Estimate, Log, Record, chosen_of, options, run, save, table

REGRESSION = ("yacht", "autompg", "concrete", "energy", "bostonHousing")
EXTRA = tuple(name for name in SOURCES if name not in SETS)

# Results by model, then by set, then by fold.
Results = Mapping[str, Mapping[str, Mapping[int, Record]]]


def task(name: str, fold: int, *, model: str) -> Record:
    """One model on one fold."""
    torch.set_num_threads(THREADS)
    with threadpool_limits(THREADS):
        return MODELS[model](load(name, fold))


# --- tables -----------------------------------------------------------------------------------------------------------


def values(results: Results, model: str, name: str, what: str) -> dict[int, float]:
    """One number of each fold; ``"seconds"`` are those of the fit."""
    own = results.get(model, {}).get(name, {})
    found = {fold: record["fit"] if what == "seconds" else record for fold, record in own.items()}
    return {fold: record[what] for fold, record in found.items() if what in record}


def told(numbers: Mapping[int, float], *, signed: bool = False) -> str:
    """Mean and standard error over the folds, or a dash."""
    if not numbers:
        return "–"
    if len(numbers) == 1:
        return f"{next(iter(numbers.values())):{'+' if signed else ''}.4f}"
    return Estimate.of(list(numbers.values())).told(signed=signed)


def cell(results: Results, model: str, name: str, what: str) -> str:
    """The same, with the number of folds where some are not there."""
    numbers = values(results, model, name, what)
    missing = 0 < len(numbers) < len(folds(name))
    return told(numbers) + (f" ({len(numbers)} of {len(folds(name))})" if missing else "")


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
            cells.append(Estimate(result[what], result[f"{what}_error"]).told())
    return (title, *cells)


def seconds(results: Results, sets: Sequence[str]) -> list[tuple[str, ...]]:
    """One row a model: the median over the folds, and the longest."""
    rows = []
    for model in results:
        spent = [list(values(results, model, name, "seconds").values()) for name in sets]
        rows.append((TITLES[model], *(f"{np.median(s):.1f} ({max(s):.1f})" if s else "–" for s in spent)))
    return rows


def differences(results: Results, model: str) -> list[str]:
    """NLL of one of our models less EBM's, fold by fold, and less the authors' mean; and how many sets that wins."""
    rows = []
    better = within = caught = compared = 0
    for name in SETS:
        ours, ebm = values(results, model, name, "nll"), values(results, "ebm", name, "nll")
        if not ours:
            continue
        published = AUTHORS[name]
        less_authors = {fold: value - published.nll for fold, value in ours.items()}
        less_ebm = {fold: value - ebm[fold] for fold, value in ours.items() if fold in ebm}
        gap = float(np.mean(list(less_authors.values())))
        better += gap < 0
        within += gap <= published.nll_error
        caught += bool(less_ebm) and float(np.mean(list(less_ebm.values()))) < 0
        compared += bool(less_ebm)
        ours_told, ebm_told = told(less_authors, signed=True), told(less_ebm, signed=True)
        verdict = "better" if gap < 0 else "within" if gap <= published.nll_error else "worse"
        rows.append((name, str(len(ours)), told(ours), ours_told, f"{published.nll_error:.3f}", verdict, ebm_told))
    header = ("set", "folds", "NLL", "less the authors' mean", "its standard error", "so", "less EBM's, paired")
    counts = (
        f"Better than the authors' mean on {better} of {len(rows)} sets, at most one of its standard errors worse on "
        f"{within}; better than EBM on {caught} of {compared}."
    )
    return [f"## {TITLES[model]}: differences in NLL", "", *table(header, rows), "", counts, ""]


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
        *table(header, [*by_model(results, dict.fromkeys(SETS, "nll")), authors_row(plain, AUTHORS, "nll"),
                        authors_row(pairs, AUTHORS_PAIRS, "nll")]),
        "",
        "## RMSE; AUROC of heart and breast",
        "",
        *table(header, [*by_model(results, accuracy), authors_row(plain, AUTHORS, "other"),
                        authors_row(pairs, AUTHORS_PAIRS, "other")]),
        "",
        "## Share of the test rows in their 95 % interval",
        "",
        *table(("model", *REGRESSION), [*by_model(results, dict.fromkeys(REGRESSION, "coverage")),
                                        authors_row(plain, AUTHORS, "coverage")[: len(REGRESSION) + 1]]),
        "",
        "## Seconds to fit: median over the folds (longest)",
        "",
        *table(header, seconds(results, SETS)),
        "",
    ]  # fmt: skip
    for model in OURS:
        if model in results:
            lines += differences(results, model)
    return lines + extra(results)


def extra(results: Results) -> list[str]:
    """Adult on the split it is published with, and the other sets that were run."""
    lines: list[str] = []
    for name in EXTRA:
        found = {model: results[model] for model in results if values(results, model, name, "nll")}
        if not found:
            continue
        header = ("model", "folds", "NLL", "less EBM's", "AUROC", "calibration error", "s")
        ebm = values(results, "ebm", name, "nll")
        rows = []
        for model in found:
            nll = values(results, model, name, "nll")
            paired = {fold: value - ebm[fold] for fold, value in nll.items() if fold in ebm}
            scores = [told(values(results, model, name, what)) for what in ("auroc", "ece")]
            spent = f"{np.median(list(values(results, model, name, 'seconds').values())):.1f}"
            rows.append((TITLES[model], str(len(nll)), told(nll), told(paired, signed=True), *scores, spent))
        lines += [f"## {name}", "", *table(header, rows), ""]
    return lines


# --- running ----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs what is missing, prints and saves."""
    parser = options(__doc__, (*SETS, *EXTRA), range(5))
    parser.set_defaults(jobs=1, sets=[*SETS, "adult"])
    parser.add_argument("--models", nargs="+", default=list(PEERS), choices=list(MODELS))
    chosen = chosen_of(parser, models=["logistic", "la_nam"])
    keys = [(name, fold) for name in chosen.sets for fold in chosen.seeds if fold in folds(name)]
    logs = {model: Log(chosen.out / "additive.jsonl", {"model": model, "threads": THREADS}) for model in MODELS}
    for model in chosen.models:
        run(partial(task, model=model), keys, logs[model], chosen)
    # The tables hold all that is there, and not only what was asked for now.
    records = {model: log.records() for model, log in logs.items() if log.records()}
    results = {
        model: {name: {r["seed"]: r for r in own if r["set"] == name} for name in SOURCES}
        for model, own in records.items()
    }
    if records:
        save(chosen.out / "additive", tables(results), {"threads": THREADS, "records": records})


if __name__ == "__main__":
    main()
