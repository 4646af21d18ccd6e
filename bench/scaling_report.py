"""The page and the pictures of `bench.scaling`, from its numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.record import page, table

AXES = {
    "rows": ("rows N", "Against rows"),
    "weights": ("weights P", "Against weights"),
    "classes": ("classes C", "Against classes"),
    "ranks": ("processes", "Against processes"),
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


def draw(found: dict[str, Any], folder: Path) -> None:
    """A picture for each axis: time, with the floors dashed, and memory."""
    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
             "grid.color": "#e6e6e6", "grid.linewidth": 0.6}  # fmt: skip
    for axis, (label, title) in AXES.items():
        each = curves(found, axis)
        if not each:
            continue
        with mpl.rc_context(style):
            figure = Figure(figsize=(11.5, 5.0), layout="constrained")
            FigureCanvasAgg(figure)
            left, right = figure.subplots(1, 2)
            for method, points in each.items():
                _curve(left, method, points, "cpu", 1.0, floor="floor")
                _curve(right, method, points, "memory", 1e6, floor="floor_memory")
            left.set(xscale="log", yscale="log", xlabel=label, ylabel="CPU seconds")
            right.set(xscale="log", yscale="log", xlabel=label, ylabel="peak memory above the start, MB")
            if axis == "ranks":
                _name_processes((left, right), each)
            else:
                right.set_ylim(bottom=0.3)
            handles, labels = left.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right center", frameon=False)
            figure.suptitle(f"{title}: measured (solid), and the floor (dashed)", x=0.01, ha="left")
            figure.savefig(folder / f"scaling-{axis}.png", dpi=110)


def _curve(axes: Axes, method: str, points: Sequence[dict[str, Any]], key: str, unit: float, *, floor: str) -> None:
    colour, mark = COLOURS[method]
    sizes = [p["size"] for p in points]
    axes.plot(sizes, [p[key] / unit for p in points], color=colour, marker=mark, lw=1.8, ms=6, label=method)
    bound = [p[floor] / unit for p in points]
    if any(bound):
        axes.plot(sizes, bound, color=colour, ls=(0, (4, 2)), lw=1.0)


def _name_processes(panels: Sequence[Axes], each: dict[str, list[dict[str, Any]]]) -> None:
    """Ticks at the numbers of processes, and a word on those beyond the cores."""
    points = next(iter(each.values()))
    for panel in panels:
        panel.minorticks_off()
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xticks([p["size"] for p in points], [str(p["size"]) for p in points])
    crowded = [p for p in points if _crowded(p)]
    if crowded:
        panels[0].axvspan(1.05 * crowded[0]["facts"]["cores"], 1.1 * crowded[-1]["size"], color="#f3f3f3", zorder=0)
        panels[0].annotate("more processes\nthan cores", (1.1 * crowded[0]["facts"]["cores"], 0.97),
                           xycoords=("data", "axes fraction"), va="top", color="#6b6b6b")  # fmt: skip
