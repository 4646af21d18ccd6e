"""The page and the pictures of `bench.scaling`, from its numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from bayescope.plots import style
from bench.record import page, table

AXES = {
    "rows": ("rows N", "Against rows"),
    "weights": ("weights P", "Against weights"),
    "classes": ("classes C", "Against classes"),
    "ranks": ("processes", "Against processes"),
}
# What each picture shows: the sizes differ, and what a fit takes at each of them.
TITLES = {
    "rows": "What one fit costs with more rows",
    "weights": "What one fit costs with more weights",
    "classes": "What one fit costs with more classes",
    "ranks": "What each process of one fit costs with more processes",
}
SAID = {
    "rows": "Networks of 3,498 weights and 10 classes; tables of 20 columns of numbers, in Parquet.",
    "weights": "256 rows, 10 classes, 64 features, two hidden layers of one width.",
    "classes": "128 rows, 64 features, two hidden layers of 64.",
    "ranks": "One thread each. The floor is the time of one process, shared evenly.",
}
# Okabe & Ito (2008), and a mark for each.
COLOURS = {
    "forward + backward": ("#7f7f7f", "x"),
    "diagonal": ("#E69F00", "o"),
    "Kronecker": ("#0072B2", "s"),
    "Kronecker, diagonal outputs": ("#56B4E9", "D"),
    "last layer": ("#009E73", "^"),
    "low rank": ("#CC79A7", "v"),
    "full": ("#222222", "P"),
    "VI, 5 epochs": ("#D55E00", "<"),
    "prediction": ("#8C510A", ">"),
    "logistic regression, on disk": ("#AA4499", "*"),
    "additive model, on disk": ("#117733", "h"),
}
# Numbers of the two jobs.
MANY, COLUMNS, WEIGHTS, PROCESSES = 10**9, 20, 10**9, 64


def curves(found: dict[str, Any], axis: str) -> dict[str, list[dict[str, Any]]]:
    """The points of each method along an axis, from small to large."""
    points = sorted((p for p in found["points"] if p["axis"] == axis), key=lambda p: list(COLOURS).index(p["method"]))
    return {
        method: sorted(group, key=lambda p: p["size"]) for method, group in groupby(points, key=lambda p: p["method"])
    }


def slope(points: Sequence[dict[str, Any]], key: str) -> float:
    """How a quantity grows between the two largest sizes: the exponent of a power law."""
    if len(points) < 2 or min(points[-1][key], points[-2][key]) <= 0:
        return math.nan
    return math.log(points[-1][key] / points[-2][key]) / math.log(points[-1]["size"] / points[-2]["size"])


# --- the page ---------------------------------------------------------------------------------------------------------


def written(found: dict[str, Any]) -> str:
    """The page."""
    how = (
        "Seconds are those of one core: what a run keeps a processor busy, which other work on the machine enters "
        "little. The floor of a network's method is the operations that its formulas ask for, counted by hand, at the "
        "speed of a plain matrix product in the same process; that of a table on disk is one reading of the file by "
        "pyarrow alone. Small problems are far above it: there the time is that of calls, not of arithmetic. Exponents "
        "are those between the two largest sizes."
    )
    parts: list[str] = []
    for axis, (_, title) in AXES.items():
        each = curves(found, axis)
        if each:
            parts += [f"## {title}", SAID[axis], _table(axis, each)]
    parts += ["## Two jobs, extrapolated", *_jobs(found)]
    title = "Scaling: time and memory against rows, weights, classes and processes"
    return page(title, found["made"], how, parts)


def _table(axis: str, each: dict[str, list[dict[str, Any]]]) -> str:
    header = ["method", "size", "CPU seconds", "floor", "times the floor", "memory", "exponent of time, of memory"]
    rows = []
    for method, points in each.items():
        for place, point in enumerate(points):
            last = place == len(points) - 1
            grown = (
                f"{slope(points, 'cpu'):.2f}, {slope(points, 'memory'):.2f}"
                if last and place and axis != "ranks"
                else ""
            )
            over = f" ({int(point['size'])} on {int(point['facts']['cores'])} cores)" if _crowded(point) else ""
            ratio = point["cpu"] / point["floor"]
            rows.append(
                [method, f"{point['size']:,}{over}", f"{point['cpu']:.3g}", f"{point['floor']:.2g}", f"{ratio:.3g}",
                 _bytes(point["memory"]), grown]
            )  # fmt: skip
    return table(header, rows)


def _crowded(point: dict[str, Any]) -> bool:
    return point["axis"] == "ranks" and point["size"] > point["facts"]["cores"]


def _jobs(found: dict[str, Any]) -> list[str]:
    """What 10⁹ rows or weights would take, by proportion."""
    parts = []
    for method, points in curves(found, "rows").items():
        if "on disk" in method:
            last = points[-1]
            hours = last["cpu"] / last["size"] * MANY / 3600.0
            parts.append(
                f"**{MANY:.0e} rows × {COLUMNS} columns, {method}.** The largest table here had {last['size']:,} rows: "
                f"{last['cpu'] / last['size'] * 1e6:.3g} CPU seconds a million rows, {last['facts']['readings']:.1f} "
                f"times one plain reading, in {last['facts']['passes']:.0f} passes and {_bytes(last['memory'])}. In "
                f"proportion: {hours:.3g} core hours, {hours / PROCESSES:.2g} hours with {PROCESSES} processes, of "
                f"files of {_bytes(last['facts']['bytes'] / last['size'] * MANY)}. This is an extrapolation over a "
                f"factor of {MANY / last['size']:,.0f} in rows; nothing of that size was run."
            )
    parts.append(
        "Of weights, with 256 rows: what does not grow with rows (eigenvalues) is in the time of a row, and what rows "
        "take while they are read (cotangents) in the memory of a weight, so that both are upper bounds for more rows."
    )
    for method, points in curves(found, "weights").items():
        last = points[-1]
        if method in ("diagonal", "Kronecker", "last layer", "VI, 5 epochs", "forward + backward"):
            each, held = last["cpu"] / last["facts"]["rows"] / last["size"], last["memory"] / last["size"]
            parts.append(
                f"**{WEIGHTS:.0e} weights, {method}.** At {last['size']:,} weights: {each * 1e9:.3g} CPU nanoseconds "
                f"a row and weight ({last['cpu'] / last['floor']:.2g} times the floor), {held:.3g} bytes a weight. In "
                f"proportion, a row of {WEIGHTS:.0e} weights takes {each * WEIGHTS:.3g} CPU seconds, and the work "
                f"{_bytes(held * WEIGHTS)} of memory: an extrapolation over a factor of "
                f"{WEIGHTS / last['size']:,.0f}."
            )
    return parts


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


# --- the pictures -----------------------------------------------------------------------------------------------------
MEASURED = "Solid: measured. Dashed: its floor, what no program goes below. Both axes are logarithmic."
FLOOR: Any = (0, (4, 2))
LEAST_MEMORY = 0.3  # MB: below, a measurement says nothing


def draw(found: dict[str, Any], folder: Path) -> None:
    """A picture for each axis: time and memory, with what no program goes below dashed."""
    for axis, (label, _) in AXES.items():
        each = curves(found, axis)
        if not each:
            continue
        looks = {method: {"color": COLOURS[method][0], "marker": COLOURS[method][1]} for method in each}
        floor = Line2D([], [], color=style.MUTED, ls=FLOOR, lw=1.0, label="floor of each")
        key = [*(Line2D([], [], **looks[method], lw=1.8, ms=6, label=method) for method in each), floor]
        with style.house():
            figure, (left, right) = style.panels(
                2, width=4.0, height=3.4, title=TITLES[axis], subtitle=f"{SAID[axis]} {MEASURED}", key=key
            )
            for method, points in each.items():
                _curve(left, method, points, "cpu", 1.0, floor="floor")
                _curve(right, method, points, "memory", 1e6, floor="floor_memory")
            whose = "of one process" if axis == "ranks" else "of one fit"
            left.set(xscale="log", yscale="log", xlabel=label, ylabel=f"CPU seconds {whose}")
            right.set(xscale="log", yscale="log", xlabel=label, ylabel=f"peak memory {whose}, MB")
            if axis == "ranks":
                _name_processes((left, right), each)
            else:
                right.set_ylim(bottom=LEAST_MEMORY)
                for panel in (left, right):
                    panel.xaxis.set_major_formatter(_plain)
            for panel in (left, right):
                panel.grid(color=style.FAINT, lw=0.5)
                panel.yaxis.set_major_formatter(_plain)
            style.save(figure, folder / f"scaling-{axis}.png")


def _plain(value: float, _: float) -> str:
    """A tick of a logarithmic axis without powers of ten."""
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def _curve(axes: Axes, method: str, points: Sequence[dict[str, Any]], key: str, unit: float, *, floor: str) -> None:
    colour, mark = COLOURS[method]
    sizes = [p["size"] for p in points]
    axes.plot(sizes, [p[key] / unit for p in points], color=colour, marker=mark, lw=1.8, ms=6, label=method)
    bound = [p[floor] / unit for p in points]
    if any(bound):
        axes.plot(sizes, bound, color=colour, ls=FLOOR, lw=1.0)


def _name_processes(panels: Sequence[Axes], each: dict[str, list[dict[str, Any]]]) -> None:
    """Ticks at the numbers of processes, and a word on those beyond the cores."""
    points = next(iter(each.values()))
    for panel in panels:
        panel.minorticks_off()
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.set_xticks([p["size"] for p in points], [str(p["size"]) for p in points])
    crowded = [p for p in points if _crowded(p)]
    if crowded:
        panels[0].axvspan(1.05 * crowded[0]["facts"]["cores"], 1.1 * crowded[-1]["size"], color="#f3f3f3", zorder=0)
        panels[0].annotate("more processes\nthan cores", (1.1 * crowded[0]["facts"]["cores"], 0.97),
                           xycoords=("data", "axes fraction"), va="top", color=style.MUTED)  # fmt: skip
