"""What was tried to explain where ours differs from published figures: runs of other pages, unchanged and changed.

The sentences beside the published figures take their numbers from here: `additive.md`, `uci_classification.md`,
`uci_regression_dropout.md` and `uci_regression_variational.md`, on the same splits and folds, with the same networks.
The unchanged runs are here once more because a page may be of earlier code: before and after are to be of one. After a
run that gave others, each of these pages is written anew by its own benchmark with `--show`.

    python -m bench.papers.causes [--variants longer_dropout ...] [--sets energy ...] [--seeds 0 1 ...]

A seed is the number of a fold or split, or the seed of one. A quick run has one split of each variant and no more than
a few epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, final
from unittest import mock

import bayescope as bs
from bayescope.additive import valued
from bench.papers import uci_classification, uci_regression_dropout, uci_regression_variational
from bench.papers.additive_models import additive
from bench.papers.additive_sets import load
from bench.papers.common import SEEDS, Log, Record, chosen_of, key_of, options, run, save, scored, warned
from bench.papers.sets import classification_split
from bench.papers.tried import NAME, figure
from bench.papers.uci_classification import COMPARED, METHODS, at, network, scores
from bench.record import load as load_results
from bench.record import table

# Of the networks trained as theirs (Scannell et al. 2024): the prior precisions that are published, the step sizes, the
# minibatches, and after how many epochs without a better validation NLL they end. Digits is left out: the full GGN of
# its ten classes takes minutes a split; KFAC there, which takes less, is not tried yet.
PRECISIONS = {"glass": 3e-3, "vehicle": 1e-4, "breast_cancer": 1e-4}
STEPS = {"glass": 1e-4, "vehicle": 1e-3, "breast_cancer": 1e-3}
BATCH, PATIENCE = 128, 1_000
# Their patience ends them long before.
ENDLESS = 100_000
# Epochs of a quick run.
FEW = 2


def fitted(name: str, fold: int, _most: int, **options_of_model: Any) -> Record:
    """Our neural additive model."""
    return additive(load(name, fold), **options_of_model)


def without_values(name: str, fold: int, _most: int) -> Record:
    """Our neural additive model with nets alone: no feature has effects of its single values."""
    with mock.patch.object(valued, "MOST_VALUES", 0):
        return additive(load(name, fold))


def trained_as_theirs(name: str, seed: int, most: int) -> Record:
    """The methods of `uci_classification` at a network that is trained as the published ones, with the full GGN."""
    split = classification_split(name, seed)
    best = bs.fit_map(
        network(split, seed),
        tuple(split.train),
        likelihood="categorical",
        prior_precision=PRECISIONS[name],
        epochs=min(ENDLESS, most),
        lr=STEPS[name],
        optimizer="adam",
        batch_size=BATCH,
        validation=tuple(split.validation),
        patience=PATIENCE,
        generator=seed,
        progress=False,
    )
    q = at(best, split, PRECISIONS[name], "full")
    return {
        "map": scores(best, split.test),
        "sampled": scores(q, split.test, "sampled", seed),
        "linearized": scores(q, split.test),
        "validation": scores(bs.tune_prior(q, method="validation", data=tuple(split.validation)), split.test),
        "epochs": len(best.trace["loss"]),
    }


def classified(name: str, seed: int, _most: int) -> Record:
    """The task of `uci_classification`, of which the methods are kept that are compared with published figures."""
    record = uci_classification.task(name, seed, structure="kfac")
    return {method: record[method] for method in COMPARED}


def paced(name: str, split: int, most: int, *, task: Callable[..., Record], epochs: Mapping[str, int]) -> Record:
    """The task of a page, with so many epochs."""
    count = min(epochs[name], most)
    return task(name, split, epochs=count) | {"epochs": count}


def told_epochs(epochs: Mapping[str, int]) -> str:
    """How many each set has."""
    return "epochs: " + ", ".join(f"{name} {count:,}" for name, count in epochs.items())


@final
@dataclass(frozen=True)
class Variant:
    """A page's run on some of its splits, with one change or none.

    Attributes:
        page: whose difference it is to explain.
        changed: what is other than in that page's run, or that nothing is.
        seeds: the folds, splits or seeds of each set.
        scores: what is told of it: the title, the part of a record (``None``: all of it), the score, its decimals.
        run: of the set, the seed, and how many epochs at most.
        same: the part of the page's records that it is to repeat, ``""`` for all; ``None`` where something is changed.
    """

    page: str
    changed: str
    seeds: Mapping[str, Sequence[int]]
    scores: Sequence[tuple[str, str | None, str, int]]
    run: Callable[[str, int, int], Record]
    same: str | None = None


ADDITIVE = (("NLL", None, "nll", 3), ("RMSE", None, "rmse", 3))
DROPOUT = (("log-likelihood", None, "log_likelihood", 3), ("RMSE", None, "rmse", 3))
VARIATIONAL = (*DROPOUT, ("bound", None, "elbo", 0))
CLASSIFICATION = tuple((f"NLL of {METHODS[method]}", method, "nll", 3) for method in COMPARED)
FEWER_DROPOUT = {name: uci_regression_dropout.PACES[name]["epochs"] for name in ("energy",)}
MORE_DROPOUT = {"energy": 1_600}
FEWER_VARIATIONAL = {name: uci_regression_variational.EPOCHS[name] for name in ("energy", "concrete")}
MORE_VARIATIONAL = {"energy": 4_000, "concrete": 2_000}
UNCHANGED = "as the page has it"
VARIANTS = {
    "page_additive": Variant(
        "additive", f"{UNCHANGED}, without pairs", {"concrete": range(5)}, ADDITIVE, fitted, "la_nam"
    ),
    "no_single_values": Variant(
        "additive", "no effects of single values", {"concrete": range(5)}, ADDITIVE, without_values
    ),
    "page_pairs": Variant(
        "additive", f"{UNCHANGED}, pairs while the evidence rises", {"yacht": range(5)}, ADDITIVE,
        partial(fitted, interactions="auto"), "la_nam_pairs",
    ),
    "published_pairs": Variant(
        "additive", "10 pairs, the best by mutual information", {"yacht": range(5)}, ADDITIVE,
        partial(fitted, interactions=10, ranking="mutual_information"),
    ),
    "evidence_pairs": Variant(
        "additive", "10 pairs, the best by the evidence", {"yacht": range(5)}, ADDITIVE,
        partial(fitted, interactions=10, ranking="evidence"),
    ),
    "page_dropout": Variant(
        "uci_regression_dropout", f"{UNCHANGED}; {told_epochs(FEWER_DROPOUT)}",
        dict.fromkeys(MORE_DROPOUT, range(6)), DROPOUT,
        partial(paced, task=uci_regression_dropout.task, epochs=FEWER_DROPOUT), "",
    ),
    "longer_dropout": Variant(
        "uci_regression_dropout", told_epochs(MORE_DROPOUT),
        dict.fromkeys(MORE_DROPOUT, range(6)), DROPOUT,
        partial(paced, task=uci_regression_dropout.task, epochs=MORE_DROPOUT),
    ),
    "page_variational": Variant(
        "uci_regression_variational", f"{UNCHANGED}; {told_epochs(FEWER_VARIATIONAL)}",
        dict.fromkeys(MORE_VARIATIONAL, range(3)), VARIATIONAL,
        partial(paced, task=uci_regression_variational.task, epochs=FEWER_VARIATIONAL), "",
    ),
    "longer_variational": Variant(
        "uci_regression_variational", told_epochs(MORE_VARIATIONAL),
        dict.fromkeys(MORE_VARIATIONAL, range(3)), VARIATIONAL,
        partial(paced, task=uci_regression_variational.task, epochs=MORE_VARIATIONAL),
    ),
    "page_classification": Variant(
        "uci_classification", UNCHANGED, dict.fromkeys(PRECISIONS, SEEDS[:5]), CLASSIFICATION, classified, ""
    ),
    "published_training": Variant(
        "uci_classification",
        f"one prior precision, {PRECISIONS['vehicle']:.4f} (glass {PRECISIONS['glass']:.3f}), where the page searches "
        f"a grid; Adam at a constant step size of {STEPS['vehicle']:g} (glass {STEPS['glass']:.4f}), where the page's "
        f"falls to 0 by a cosine, in minibatches of {BATCH} until the validation NLL has not fallen for {PATIENCE:,} "
        "epochs; the full GGN, where the page has KFAC",
        dict.fromkeys(PRECISIONS, SEEDS[:5]),
        CLASSIFICATION,
        trained_as_theirs,
    ),
}  # fmt: skip
SETS = tuple(dict.fromkeys(name for variant in VARIANTS.values() for name in variant.seeds))


def task(name: str, seed: int, *, variant: str, most: int) -> Record:
    """One variant on one split, with at most so many epochs."""
    record: Record = {"fit": {}}
    with warned(record["fit"]):
        return record | VARIANTS[variant].run(name, seed, most)


def tables(results: Mapping[str, Sequence[Record]], folder: Path) -> list[str]:
    """A section for each page, and in it a table for each variant."""
    lines = [
        "# What was tried to explain the differences",
        "",
        f"Made by `python -m bench.papers.{NAME}`. Each variant is a run of another page, on some of its splits",
        "and folds, but for what stands above its table. The sentences there, beside the published figures, have their",
        "numbers from here. In the units of the data, mean ± standard error over the n splits.",
    ]
    for page, group in groupby(results, key=lambda each: VARIANTS[each].page):
        lines += ["", f"## For {page}.md"]
        for variant in group:
            header = ("set", "n", *(title for title, *_ in VARIANTS[variant].scores))
            changed = VARIANTS[variant].changed
            told = table(header, rows(VARIANTS[variant], results[variant]))
            lines += ["", f"{changed[:1].upper()}{changed[1:]}:", "", told]
            lines += repeated(VARIANTS[variant], results[variant], folder)
    return lines


def repeated(variant: Variant, records: Sequence[Record], folder: Path) -> list[str]:
    """How far the page's own results, which may be of another code, are from these on the same splits."""
    if variant.same is None:
        return []
    stored = load_results(folder, variant.page).get("records") or {}
    page = {key_of(each): each for each in (stored.get(variant.same, ()) if variant.same else stored)}
    told = []
    for title, part, score, _ in variant.scores:
        pairs = [(each, page[key_of(each)]) for each in records if key_of(each) in page]
        apart = [abs((one[part] if part else one)[score] - (two[part] if part else two)[score]) for one, two in pairs]
        told += [f"{title} {max(apart):.1g}"] if apart else []
    said = f"The page's own results on these splits are apart from these by at most: {'; '.join(told)}."
    return ["", said] if told else []


def rows(variant: Variant, records: Sequence[Record]) -> list[tuple[str, ...]]:
    """One a set."""
    found = []
    for name, group in groupby(records, key=lambda each: each["set"]):
        own = list(group)
        told = (figure(own, score, part, digits=digits) for _, part, score, digits in variant.scores)
        found.append((name, str(len(own)), *told))
    return found


def settings_of(variant: str, most: int) -> dict[str, Any]:
    """What its results depend on beside the set and the seed; those of a quick run are no others'."""
    return {"variant": variant, "changed": VARIANTS[variant].changed} | ({"most": most} if most < ENDLESS else {})


def main() -> None:
    """Runs what is missing, prints and saves."""
    seeds = dict.fromkeys(seed for variant in VARIANTS.values() for some in variant.seeds.values() for seed in some)
    parser = options(__doc__, SETS, tuple(seeds))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    chosen = chosen_of(parser, sets=list(SETS), seeds=list(seeds))
    most, failed = FEW if chosen.quick else ENDLESS, 0
    logs = {each: Log(chosen.out / f"{NAME}.jsonl", settings_of(each, most)) for each in VARIANTS}
    for variant in () if chosen.show else chosen.variants:
        own = VARIANTS[variant].seeds
        keys = [(name, seed) for name in own if name in chosen.sets for seed in own[name] if seed in chosen.seeds]
        work = partial(task, variant=variant, most=most)
        failed += run(work, keys[:1] if chosen.quick else keys, logs[variant], chosen)
    results = {variant: scored(log.shown(), SETS) for variant, log in logs.items()}
    results = {variant: records for variant, records in results.items() if records}
    if results:
        save(chosen.out / NAME, tables(results, chosen.out), {"records": results}, show=chosen.show)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
