"""What a reader of a comparison's table has to know, one line each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from bayescope.comparison.agreement import is_point
from bayescope.comparison.columns import columns
from bayescope.comparison.outcome import Outcome
from bayescope.plots import style
from bayescope.posterior import DrawsPosterior


def footnotes(
    table: pd.DataFrame, outcomes: Mapping[str, Outcome], warned: Mapping[str, Sequence[str]], reference: str
) -> tuple[str, ...]:
    """The columns' meanings, why cells are blank, and what the fits found or warned of.

    Args:
        table: of the comparison.
        outcomes: the contenders' answers by name.
        warned: the warnings of each one's fit.
        reference: the name of the row that the others are compared with.
    """
    meanings = [f"{column.label}: {column.meaning}." for column in columns(reference)]
    notes = {name: outcome.fitted.note for name, outcome in outcomes.items()}
    found = [f"{style.label(name)}: {note}." for name, note in notes.items() if note]
    warnings = [f"{style.label(name)}, warning: {text}" for name, texts in warned.items() for text in texts]
    told = (*_precision(outcomes, reference), *_harmless(outcomes), *_blanks(table, outcomes, reference))
    return (*meanings, *told, *found, *warnings)


def _precision(outcomes: Mapping[str, Outcome], reference: str) -> list[str]:
    """How well a reference of draws knows a standard deviation, by the spread between its chains.

    The effective draws of the means would promise too much: a chain that swings from side to side knows the means
    better than independent draws, and the widths worse.
    """
    posterior = outcomes[reference].fitted.posterior
    if not isinstance(posterior, DrawsPosterior) or posterior.draws.shape[0] < 2:
        return []
    by_chain = posterior.draws.std(dim=1)
    errors = by_chain.std(dim=0) / by_chain.mean(dim=0) / math.sqrt(len(by_chain))
    typical = 100 * float(errors.square().mean().sqrt())
    return [
        f"{style.label(reference)} is a sample: it knows a weight's sd to ±{typical:.1f} %, so sd errors hold noise."
    ]


def _harmless(outcomes: Mapping[str, Outcome]) -> list[str]:
    """How many of the rows above k̂ = 0.7 do no harm, by posterior."""
    each = [
        f"{outcome.loo.harmless} for {style.label(name)}"
        for name, outcome in outcomes.items()
        if outcome.loo is not None and outcome.loo.harmless
    ]
    if not each:
        return []
    return [f"Of the rows with k̂ > 0.7, those that weigh all draws nearly alike are safe: {', '.join(each)}."]


def _blanks(table: pd.DataFrame, outcomes: Mapping[str, Outcome], reference: str) -> list[str]:
    """Why cells are blank, in one line."""
    shown = [column for column in columns(reference) if table[column.name].isna().any()]
    reasons = []
    for name, outcome in outcomes.items():
        empty = [column.label for column in shown if table[column.name].isna()[name]]
        posterior = outcome.fitted.posterior
        if posterior is None:
            reasons.append(f"{style.label(name)} rescales predictions and has no posterior of its own")
        elif is_point(posterior):
            reasons.append(f"{style.label(name)} is a point")
        elif empty:
            reasons.append(f"{style.label(name)} has no {' or '.join(empty)}")
    return [f"Blank cells: {'; '.join(reasons)}."] if reasons else []
