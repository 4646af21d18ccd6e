"""Tables whose middle column is a bar with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayescope.additive.importance import Importance
from bayescope.report.facts.influence import MOST_WEIGHTS, Coefficients
from bayescope.report.page.blocks import Bar, BarTable
from bayescope.report.page.numbers import around, plain

MOST_TERMS = 30


def importance(shown: Importance, silent: Sequence[str] = ()) -> BarTable:
    """Terms by how much they move the predictions; of several outputs the one that each moves most.

    Args:
        shown: of all terms.
        silent: those that have no line.
    """
    mean, low, high, point = (
        part if part.ndim == 1 else part[np.arange(len(part)), shown.mean.argmax(1)]
        for part in (shown.mean, shown.low, shown.high, shown.at_mean)
    )
    order = [place for place in shown.order if shown.names[place] not in silent][:MOST_TERMS]
    names = [shown.names[place].replace(" & ", " × ") for place in order]
    track = (0.0, float(high[order].max()) or 1.0)
    bars = [
        _bar(name, around(mean[k], low[k], high[k], track[1]), mean[k], (low[k], high[k]), track, mark=point[k])
        for name, k in zip(names, order, strict=True)
    ]
    more = len(shown.names) - len(order) - len(silent)
    caption = (
        f"Mean absolute contribution over the training rows, in {shown.unit}, with 95 % intervals. The tick is that of "
        "the mean effect: close to 0 where a bar is no more than uncertainty."
    )
    return BarTable(
        caption + (f" {more} more contribute less." if more else ""), ("term", "", "importance"), tuple(bars)
    )


def coefficients(shown: Coefficients) -> tuple[BarTable, ...]:
    """One table for each output: weights times the inputs' standard deviations, so that bars can be compared.

    Args:
        shown: of a linear model.
    """
    order = shown.order[:MOST_WEIGHTS]
    weights = shown.weights
    per_sd = [part[:, :-1] * shown.scales for part in weights]
    mean, low, high = per_sd
    track = (min(0.0, float(low[:, order].min())), max(0.0, float(high[:, order].max())))
    tables = []
    for output in range(len(mean)):
        bars = [
            _bar(
                shown.names[k],
                around(mean[output, k], low[output, k], high[output, k], max(-track[0], track[1]), sign=True),
                mean[output, k],
                (low[output, k], high[output, k]),
                track,
                tint="high" if mean[output, k] > 0 else "low",
            )
            for k in order
        ]
        of = f" for {shown.outputs[output]}" if shown.outputs else ""
        more = f" {len(shown.names) - len(order)} more move it less." if len(shown.names) > len(order) else ""
        caption = (
            f"Change of {shown.unit}{of} for one standard deviation more of each input, with 95 % intervals. Intercept "
            f"{plain(weights.mean[output, -1])}.{more}"
        )
        tables.append(BarTable(caption, ("input", "", "per standard deviation"), tuple(bars)))
    return tuple(tables)


def _bar(
    name: str,
    told: tuple[str, str],
    length: float,
    interval: Sequence[float],
    track: tuple[float, float],
    *,
    tint: str = "accent",
    mark: float | None = None,
) -> Bar:
    least, most = track

    def place(at: float) -> float:
        return round(100.0 * (at - least) / ((most - least) or 1.0), 2)

    zero = place(0.0)
    ends = sorted((zero, place(float(length))))
    low, high = (place(float(end)) for end in interval)
    whisker = None if high <= low else (low, round(high - low, 2))
    return Bar(
        name,
        *told,
        ends[0],
        round(ends[1] - ends[0], 2),
        whisker,
        zero,
        tint,
        None if mark is None else place(float(mark)),
    )
