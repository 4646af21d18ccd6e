"""Whether a sampler has settled: R-hat, effective draws, traces and ranks of the weights, as ArviZ computes them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from bayescope import checks
from bayescope.density.diagnosis import EFFECTIVE_DRAWS_LIMIT, R_HAT_LIMIT
from bayescope.errors import MissingDependencyError
from bayescope.estimators.base import TableEstimator
from bayescope.plots.numbers import count, fixed, plain
from bayescope.plots.style import shorten
from bayescope.posterior import DrawsPosterior
from bayescope.report.blocks import Block, Figure, Figures, Folded, Paragraphs, Table, aside
from bayescope.report.figures import Trace, axis, layout, line, table

# Weights that are drawn: those that have settled least; points of a trace; bins of the ranks; lines of the table.
DRAWN, POINTS, BINS, LINES = 3, 200, 20, 12


@final
@dataclass(frozen=True, eq=False)
class Diagnostics:
    """The chains of P weights.

    Attributes:
        names: of the weights.
        draws: shape (chains, draws, P).
        r_hat: rank-normalised split R-hat, shape (P,).
        bulk: effective draws of the middle, shape (P,).
        tail: effective draws of the tails, shape (P,).
        divergences: how many trajectories diverged.
    """

    names: tuple[str, ...]
    draws: np.ndarray
    r_hat: np.ndarray
    bulk: np.ndarray
    tail: np.ndarray
    divergences: int

    @property
    def order(self) -> np.ndarray:
        """The weights that have settled least first."""
        effective = np.minimum(self.bulk, self.tail) / EFFECTIVE_DRAWS_LIMIT
        return np.argsort(
            np.minimum(effective, (R_HAT_LIMIT - 1.0) / np.maximum(self.r_hat - 1.0, 1e-9)), kind="stable"
        )

    @property
    def unsettled(self) -> np.ndarray:
        """Which weights are outside the limits, shape (P,)."""
        found: np.ndarray = ~((self.r_hat <= R_HAT_LIMIT) & (np.minimum(self.bulk, self.tail) >= EFFECTIVE_DRAWS_LIMIT))
        return found


def diagnostics(estimator: TableEstimator) -> Diagnostics | str | None:
    """The diagnostics of a sampled posterior; why there are none; ``None`` where nothing was sampled by chains."""
    posterior = estimator.posterior_
    if not isinstance(posterior, DrawsPosterior) or posterior.r_hat is None:
        return None
    if posterior.prediction_r_hat is not None and posterior.prediction_effective_draws is not None:
        return (
            "The weights of a network mean nothing one by one. Of its predictions at some rows the largest R-hat is "
            f"{fixed(float(posterior.prediction_r_hat.max()), 3)} (limit {R_HAT_LIMIT}), the fewest effective "
            f"draws are {plain(float(posterior.prediction_effective_draws.min()), 3)} (limit {EFFECTIVE_DRAWS_LIMIT})."
        )
    try:
        arviz = checks.optional_package("arviz", extra="nuts")
    except MissingDependencyError:
        return "ArviZ is not installed here, which computes diagnostics: pip install 'bayescope[nuts]' brings it."
    data = estimator.to_arviz()["posterior"]
    data = data.to_dataset() if hasattr(data, "to_dataset") else data
    r_hat, bulk, tail = (
        np.concatenate([np.ravel(part[variable].values) for variable in data.data_vars])
        for part in (arviz.rhat(data), arviz.ess(data, method="bulk"), arviz.ess(data, method="tail"))
    )
    names = [name for variable in data.data_vars for name in _names(data[variable], str(variable))]
    draws = np.concatenate([_flat(data[variable].values, 2) for variable in data.data_vars], axis=2)
    return Diagnostics(tuple(names), draws, r_hat, bulk, tail, posterior.divergences)


def _flat(values: np.ndarray, axes: int) -> np.ndarray:
    return values.reshape(*values.shape[:axes], -1)


def _names(variable: Any, name: str) -> list[str]:
    """A name for each number of a variable: its coordinates, or its own name where it has none."""
    along = [variable.coords[each].values.tolist() for each in variable.dims[2:]]
    parts = [": ".join(map(str, each)) for each in itertools.product(*along)]
    return [part if name == "weights" else f"{name} {part}".strip() for part in parts]


def diagnostics_blocks(found: Diagnostics | str) -> tuple[Block, ...]:
    """The verdict in words, the traces and ranks of the worst, and the numbers of all."""
    if isinstance(found, str):
        return (aside(found),)
    chains, draws, weights = found.draws.shape
    bad = int(found.unsettled.sum())
    said = (
        f"{count(chains, 'chain')} of {count(draws, 'draw')}: the largest R-hat of {count(weights, 'weight')} is "
        f"{fixed(float(found.r_hat.max()), 3)} (limit {R_HAT_LIMIT}), the fewest effective "
        f"draws are {plain(float(min(found.bulk.min(), found.tail.min())), 3)} (limit {EFFECTIVE_DRAWS_LIMIT})."
    )
    if bad:
        said += f" {count(bad, 'weight')} of {weights} have not settled: raise tune and draws."
    if found.divergences:
        said += f" {count(found.divergences, 'trajectory' if found.divergences == 1 else 'trajectorie')} diverged."
    tone: Literal["caution", "good"] = "caution" if bad or found.divergences else "good"
    lead = aside(
        "Below are the weights that have settled least. Chains that have settled look alike, and the ranks of their "
        "draws among all are even; ArviZ computes these figures."
    )
    worst = found.order[:DRAWN]
    charts = [chart for place, k in enumerate(worst) for chart in (_trace(found, k, place), _ranks(found, k, place))]
    rows = [
        (
            found.names[k],
            plain(float(found.draws[..., k].mean()), 3),
            plain(float(found.draws[..., k].std()), 3),
            fixed(float(found.r_hat[k]), 3),
            plain(float(found.bulk[k]), 3),
            plain(float(found.tail[k]), 3),
        )
        for k in found.order
    ]
    head = ("weight", "mean", "sd", "R-hat", "effective draws", "in the tails")
    numbers: Table | Folded = table("Diagnostics, the least settled weight first", head, rows)
    if len(rows) > LINES:
        numbers = Folded(f"Diagnostics of all {len(rows)} weights", (numbers,))
    return Paragraphs((said,), tone), lead, Figures(tuple(charts), "half"), numbers


def _key(chains: int) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"chain {chain + 1}", f"@class{chain % 8}", "line") for chain in range(chains))


def _trace(found: Diagnostics, weight: int, place: int) -> Figure:
    name, draws = found.names[weight], found.draws[..., weight]
    at = np.unique(np.linspace(0, draws.shape[1] - 1, POINTS).astype(int))
    traces: list[Trace] = [line(at + 1, chain[at], f"@class{c % 8}", width=1) for c, chain in enumerate(draws)]
    rows = [
        (f"chain {c + 1}", plain(float(chain.mean()), 3), plain(float(chain.std()), 3)) for c, chain in enumerate(draws)
    ]
    every = f" Every {draws.shape[1] / len(at):.2g}th draw is shown." if len(at) < draws.shape[1] else ""
    return Figure(
        f"trace-{place}",
        f"Trace of {shorten(name, 40)}",
        every.strip(),
        f"Trace of {name}, {count(len(draws), 'chain')}, {plain(float(draws.min()))} to {plain(float(draws.max()))}.",
        tuple(traces),
        layout(axis("draw", nticks=5), axis(nticks=5)),
        table(f"Chains of {name}", ("chain", "mean", "sd"), rows),
        220,
        _key(len(draws)),
    )  # fmt: skip


def _ranks(found: Diagnostics, weight: int, place: int) -> Figure:
    """Vehtari et al. (2021): histograms of each chain's ranks among the draws of all."""
    name, draws = found.names[weight], found.draws[..., weight]
    ranks = draws.ravel().argsort(kind="stable").argsort(kind="stable").reshape(draws.shape)
    bins = ranks * BINS // draws.size
    counts = np.stack([np.bincount(chain, minlength=BINS) for chain in bins])
    corners = np.repeat(np.linspace(0.0, 1.0, BINS + 1), 2)[1:-1]
    traces: list[Trace] = [
        line(corners, np.repeat(each, 2), f"@class{c % 8}", width=1.5) for c, each in enumerate(counts)
    ]
    even = draws.shape[1] / BINS
    traces.append(line([0.0, 1.0], [even, even], "@muted", width=1, dash="dot"))
    rows = [
        (f"{bin_ / BINS:.0%} to {(bin_ + 1) / BINS:.0%}", *(str(each[bin_]) for each in counts)) for bin_ in range(BINS)
    ]
    return Figure(
        f"ranks-{place}",
        f"Ranks of {shorten(name, 40)}",
        "",
        f"Ranks of {name} by chain: {counts.min()} to {counts.max()} draws a bin, {even:.3g} if even.",
        tuple(traces),
        layout(axis("rank among all draws", tickformat=".0%", nticks=6), axis("draws", rangemode="tozero", nticks=4)),
        table(f"Ranks of {name}", ("ranks", *(f"chain {c + 1}" for c in range(len(counts)))), rows),
        220,
        _key(len(draws)),
    )  # fmt: skip
