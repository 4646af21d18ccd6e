"""One patient's risk and its reasons: the plain additive model's bars beside bars with intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope.additive.explanation import Explanation, explain
from bayescope.gallery import additive, canvas
from bayescope.gallery.picture import Picture
from bayescope.plots.contributions import bars, draw_bars
from bayescope.plots.style import COLOURS, INK

ROWS = 1500
SEED = 0
# The log-odds' constant, at which one patient in ten dies.
CONSTANT = -3.75
MODELS = {"map": "Plain (MAP)", "laplace": "Laplace, precisions learnt"}
UNITS = ("medical", "surgical", "cardiac", "burns")


def ward() -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """A table like that of an intensive care unit: measurements, the true contributions, and who died.

    Lactate is missing more often where it is low; weekday and sodium do nothing.
    """
    source = np.random.default_rng(SEED)
    age = np.clip(source.normal(62, 16, ROWS), 18, 98).round(1)
    lactate = np.exp(source.normal(0.5, 0.6, ROWS)).round(2)
    coma = 15 - np.minimum(source.geometric(0.35, ROWS) - 1, 12)
    unit = source.choice(UNITS, ROWS, p=[0.5, 0.3, 0.18, 0.02])
    frame = pd.DataFrame(
        {
            "age": age,
            "lactate": np.where(source.random(ROWS) < 0.5 / (1 + np.exp(lactate - 2)), np.nan, lactate),
            "coma scale": coma.astype(float),
            "heart rate": source.normal(90, 18, ROWS).round(1),
            "unit": unit,
            "sodium": source.normal(139, 4, ROWS).round(1),
            "weekday": source.choice(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ROWS),
        }
    )
    rate = frame["heart rate"].to_numpy()
    parts = pd.DataFrame(
        {
            "age": 1.6 / (1 + np.exp((68 - age) / 6)),
            "lactate": np.where(frame["lactate"].isna(), -0.3, 1.8 * np.tanh((lactate - 2) / 2)),
            "coma scale": 0.22 * (15 - coma),
            "heart rate": 0.9 * ((rate - 85) / 30) ** 2,
            "unit": pd.Series(unit).map(dict(zip(UNITS, (0.3, 0.0, -0.3, 0.8), strict=True))).to_numpy(),
            "sodium": np.zeros(ROWS),
            "weekday": np.zeros(ROWS),
        }
    )
    died = source.random(ROWS) < 1 / (1 + np.exp(-CONSTANT - parts.to_numpy().sum(1)))
    return frame, parts - parts.mean(), died.astype(np.int64)


def patient(frame: pd.DataFrame) -> int:
    """The oldest one of the rarest unit whose lactate is missing."""
    asked = frame["lactate"].isna() & (frame["unit"] == UNITS[-1])
    return int(np.argmax(frame["age"].where(asked, 0.0).to_numpy()))


def explanations() -> dict[str, Explanation]:
    """Of all patients, by model."""
    frame, _, died = ward()
    table = additive.Table.of(frame, died)
    fits = {name: additive.classification(table, plain=name == "map") for name in MODELS}
    return {name: explain(fit, table.rows, columns=table.columns) for name, fit in fits.items()}


def error(shown: Explanation, parts: pd.DataFrame) -> float:
    """The root of the mean squared distance of contributions to the true ones."""
    return float(np.sqrt(((shown.contributions - parts[list(shown.names)].to_numpy()) ** 2).mean()))


def coverage(shown: Explanation, parts: pd.DataFrame) -> float:
    """The share of the true contributions that lie in their intervals."""
    true = parts[list(shown.names)].to_numpy()
    return float(((shown.low <= true) & (true <= shown.high)).mean())


def draw_local(found: Mapping[str, Explanation] | None = None) -> Figure:
    """A panel a model; without an argument the models are fitted."""
    frame, parts, died = ward()
    found = explanations() if found is None else found
    row = patient(frame)
    plain, laplace = (error(found[name], parts) for name in MODELS)
    figure, top = canvas.page(
        4.6,
        "A reason with its interval says how far to believe it",
        f"Contributions to one patient's log-odds of dying, from {ROWS:,} patients of a made-up intensive care unit "
        f"({100 * died.mean():.0f} % died). Diamonds: the truth. Lactate was not measured, few patients have burns, "
        "sodium and weekday do nothing. Over all patients the contributions are off by "
        f"{plain:.2f} (plain) and {laplace:.2f} (root mean square); {100 * coverage(found['laplace'], parts):.0f} % of "
        "the true ones lie in their 95 % intervals.",
    )
    cells = canvas.grid(figure, 1, 2, top=top + 0.5, gap=(0.3, 0.4), left=1.75, bottom=0.6)
    order = np.argsort(-np.abs(found["laplace"].contributions[row]), kind="stable")
    ends = [
        end
        for shown in found.values()
        for end in (shown.low[row].min(), shown.high[row].max(), shown.intercept, shown.total_low[row])
    ]
    for column, name in enumerate(MODELS):
        axes = figure.add_subplot(cells[0, column])
        canvas.heading(axes, MODELS[name], COLOURS[name])
        _panel(axes, found[name], parts.iloc[row], row, order)
        axes.set(xlim=(1.1 * min(ends), 1.15 * max(ends)), xlabel="log-odds")
        axes.tick_params(labelleft=column == 0)
    return figure


def _panel(axes: Axes, shown: Explanation, parts: pd.Series, row: int, order: np.ndarray) -> None:
    draw_bars(axes, bars(shown, row, order=order))
    true = parts[[shown.names[term] for term in order]].to_numpy()
    axes.plot(true, np.arange(len(true)), "D", color="white", mec=INK, mew=0.9, ms=4.5, zorder=4)


LOCAL = Picture(
    "additive-local-explanations",
    "One prediction's reasons, with intervals",
    "A plain additive model gives every reason as a number, also those that are noise, while Laplace's posterior with "
    "learnt precisions gives next to nothing to features that do nothing and a wide interval to what few rows tell.",
    "Bouchiat, Immer, Yèche, Rätsch & Fortuin (2024), Improving neural additive models with Bayesian principles",
    draw_local,
)
