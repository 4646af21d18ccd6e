"""Additive models with learnt precisions against the plain ones: effects, and one prediction's reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bayescope.additive.additive import Additive, fit_additive
from bayescope.additive.effects import Effect, effect
from bayescope.additive.explanation import Explanation, explain
from bayescope.additive.fit import AdditiveOptions
from bayescope.additive.observed import RowsInMemory
from bayescope.additive.terms import EncodedRows
from bayescope.gallery.page import Canvas, Picture
from bayescope.likelihoods import Bernoulli, Gaussian
from bayescope.plots.additive import bars, draw_bars, draw_effect
from bayescope.plots.style import COLOURS, INK
from bayescope.tables import TableEncoding, read_table

# The plain model is trained with this weight decay for all of its weights, and the noise that the data have.
WEAK = 0.1
MODELS = {"map": AdditiveOptions(posterior="map", prior_precision=WEAK), "laplace": AdditiveOptions()}


# Four effects, one of them nothing -----------------------------------------------------------------------------------
ROWS = 1000
# The effects before they are centred; the noise has variance 1.
TRUTHS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "x1": ("$8(x-1/2)^2$", lambda x: 8 * (x - 0.5) ** 2),
    "x2": ("$0.1e^{4-8x}$", lambda x: 0.1 * np.exp(4 - 8 * x)),
    "x3": ("$5e^{-2(2x-1)^2}$", lambda x: 5 * np.exp(-2 * (2 * x - 1) ** 2)),
    "x4": ("nothing", np.zeros_like),
}


@cache
def four_features() -> tuple[pd.DataFrame, np.ndarray]:
    """Four independent features, even on (0, 1), and y."""
    source = np.random.default_rng(0)
    frame = pd.DataFrame(source.random((ROWS, len(TRUTHS))), columns=list(TRUTHS))
    f = sum(function(frame[name].to_numpy()) for name, (_, function) in TRUTHS.items())
    return frame, f + source.normal(size=ROWS)


def effects() -> dict[str, dict[str, Effect]]:
    """The effects by model and feature: at the mode of the plain model, and with learnt precisions."""
    frame, targets = four_features()
    columns, y = read_table(frame), torch.from_numpy(targets)
    encoding = TableEncoding.fit(columns)
    mean, sd = y.mean(), y.std()
    rows = EncodedRows.of(encoding.encode(columns))
    data = RowsInMemory(rows, ((y - mean) / sd)[:, None], torch.ones_like(y), sd[None], mean[None], math.log(float(sd)))
    noise = {"map": float(sd) ** -2, "laplace": 0.5}
    fits = {name: fit_additive(encoding, data, Gaussian(noise[name]), options) for name, options in MODELS.items()}
    return {name: {feature: effect(fit, feature) for feature in TRUTHS} for name, fit in fits.items()}


def truth(feature: str, at: np.ndarray) -> np.ndarray:
    """The true effect, centred over the data."""
    function = TRUTHS[feature][1]
    return function(at) - function(four_features()[0][feature].to_numpy()).mean()


def draw_effects(found: Mapping[str, Mapping[str, Effect]] | None = None) -> Figure:
    """A row a model, a column a feature; without an argument the models are fitted."""
    found = effects() if found is None else found
    last = list(TRUTHS)[-1]
    width = max(float(np.abs(end).max()) for end in (found["laplace"][last].low, found["laplace"][last].high))
    wrong = float(np.abs(found["map"][last].mean).max())
    page = Canvas(
        4.9,
        "A feature that does nothing is switched off by its own precision",
        f"y = Σ f(x) + noise of variance 1 on {ROWS:,} rows, four nets of 97 weights. Above: the mode under one "
        f"precision ({WEAK:g}) for all weights. Below: a precision for each layer, learnt by the evidence, "
        f"and 95 % bands. Dotted: the truth. Of x4 the plain model says up to {wrong:.2f}; below, its band covers 0 "
        f"within ±{width:.4f}.",
    )
    headings = [f"{feature}: {formula}" for feature, (formula, _) in TRUTHS.items()]
    panels = page.panels(2, len(TRUTHS), headings, below=0.5, gap=(0.3, 0.3), left=0.75)
    for row, (name, title) in enumerate((("map", "Plain (MAP)"), ("laplace", "Laplace, learnt"))):
        for axes, (feature, one) in zip(panels[row * len(TRUTHS) :], found[name].items(), strict=False):
            axes.plot(one.grid, truth(feature, one.grid), color=INK, lw=1.2, ls=":", zorder=3)
            draw_effect(axes, one, tint=COLOURS[name])
            axes.set(ylim=(-3.4, 5.0), xlim=(0, 1))
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            axes.tick_params(labelbottom=name == "laplace", labelleft=feature == "x1")
            axes.set_xlabel(feature if name == "laplace" else "")
        box = panels[row * len(TRUTHS)].get_position()
        look: dict[str, Any] = {
            "rotation": 90,
            "va": "center",
            "fontsize": 9.5,
            "color": COLOURS[name],
            "weight": "bold",
        }
        page.figure.text(0.02, 0.5 * (box.y0 + box.y1), title, **look)
    return page.figure


# One patient's risk --------------------------------------------------------------------------------------------------
PATIENTS = 1500
# The log-odds' constant, at which one patient in ten dies.
CONSTANT = -3.75
UNITS = ("medical", "surgical", "cardiac", "burns")


@cache
def ward() -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """A table like that of an intensive care unit: measurements, the true contributions, and who died.

    Lactate is missing more often where it is low; weekday and sodium do nothing.
    """
    source = np.random.default_rng(0)
    age = np.clip(source.normal(62, 16, PATIENTS), 18, 98).round(1)
    lactate = np.exp(source.normal(0.5, 0.6, PATIENTS)).round(2)
    coma = 15 - np.minimum(source.geometric(0.35, PATIENTS) - 1, 12)
    unit = source.choice(UNITS, PATIENTS, p=[0.5, 0.3, 0.18, 0.02])
    frame = pd.DataFrame(
        {
            "age": age,
            "lactate": np.where(source.random(PATIENTS) < 0.5 / (1 + np.exp(lactate - 2)), np.nan, lactate),
            "coma scale": coma.astype(float),
            "heart rate": source.normal(90, 18, PATIENTS).round(1),
            "unit": unit,
            "sodium": source.normal(139, 4, PATIENTS).round(1),
            "weekday": source.choice(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], PATIENTS),
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
            "sodium": np.zeros(PATIENTS),
            "weekday": np.zeros(PATIENTS),
        }
    )
    died = source.random(PATIENTS) < 1 / (1 + np.exp(-CONSTANT - parts.to_numpy().sum(1)))
    return frame, parts - parts.mean(), died.astype(np.int64)


def patient() -> int:
    """The oldest patient of the rarest unit whose lactate is missing."""
    frame = ward()[0]
    asked = frame["lactate"].isna() & (frame["unit"] == UNITS[-1])
    return int(np.argmax(frame["age"].where(asked, 0.0).to_numpy()))


def explanations() -> dict[str, Explanation]:
    """The contributions to every patient's risk by model, with learnt precisions and without."""
    frame, _, died = ward()
    columns, likelihood = read_table(frame), Bernoulli()
    encoding = TableEncoding.fit(columns)
    rows, one = EncodedRows.of(encoding.encode(columns)), torch.ones(1, dtype=torch.float64)
    weights = torch.ones(len(died), dtype=torch.float64)
    data = RowsInMemory(rows, likelihood.targets(died, 1), weights, one, 0 * one)

    def fitted(options: AdditiveOptions) -> Additive:
        return fit_additive(encoding, data, likelihood, options)

    return {name: explain(fitted(options), rows, columns=columns) for name, options in MODELS.items()}


def error_and_coverage(reasons: Explanation) -> tuple[float, float]:
    """The root mean square error of contributions, and the share of true contributions inside their intervals."""
    true = ward()[1][list(reasons.names)].to_numpy()
    inside = (reasons.low <= true) & (true <= reasons.high)
    return float(np.sqrt(((reasons.contributions - true) ** 2).mean())), float(inside.mean())


def draw_local(found: Mapping[str, Explanation] | None = None) -> Figure:
    """A panel a model; without an argument the models are fitted."""
    _, parts, died = ward()
    found = explanations() if found is None else found
    row = patient()
    (plain, _), (laplace, coverage) = (error_and_coverage(found[name]) for name in MODELS)
    page = Canvas(
        4.6,
        "A reason with its interval says how far to believe it",
        f"Contributions to one patient's log-odds of dying, from {PATIENTS:,} patients of a made-up intensive care "
        f"unit ({100 * died.mean():.0f} % died). Diamonds: the truth. Lactate was not measured, few patients have "
        "burns, sodium and weekday do nothing. Over all patients the contributions are off by "
        f"{plain:.2f} (plain) and {laplace:.2f} (root mean square); {100 * coverage:.0f} % of "
        "the true ones lie in their 95 % intervals.",
    )
    headings = [("Plain (MAP)", COLOURS["map"]), ("Laplace, precisions learnt", COLOURS["laplace"])]
    panels = page.panels(1, 2, headings, below=0.5, gap=(0.3, 0.4), left=1.75, bottom=0.6)
    order = np.argsort(-np.abs(found["laplace"].contributions[row]), kind="stable")
    ends = [
        end
        for reasons in found.values()
        for end in (reasons.low[row].min(), reasons.high[row].max(), reasons.intercept, reasons.total_low[row])
    ]
    for axes, name in zip(panels, MODELS, strict=True):
        reasons = found[name]
        draw_bars(axes, bars(reasons, row, order=order))
        true = parts.iloc[row][[reasons.names[term] for term in order]].to_numpy()
        axes.plot(true, np.arange(len(true)), "D", color="white", mec=INK, mew=0.9, ms=4.5, zorder=4)
        axes.set(xlim=(1.1 * min(ends), 1.15 * max(ends)), xlabel="log-odds")
        axes.tick_params(labelleft=name == "map")
    return page.figure


EFFECTS = Picture(
    "additive-effects",
    "A feature that does nothing, switched off",
    "Under one precision for all weights every net of an additive model bends to the noise a little, while precisions "
    "learnt by the evidence switch off the net of a feature that does nothing, with a band of next to no width at 0.",
    "Bouchiat, Immer, Yèche, Rätsch & Fortuin (2024), Improving neural additive models with Bayesian principles",
    draw_effects,
)
LOCAL = Picture(
    "additive-local-explanations",
    "One prediction's reasons, with intervals",
    "A plain additive model gives every reason as a number, also those that are noise, while Laplace's posterior with "
    "learnt precisions gives next to nothing to features that do nothing and a wide interval to what few rows tell.",
    "Bouchiat, Immer, Yèche, Rätsch & Fortuin (2024), Improving neural additive models with Bayesian principles",
    draw_local,
)
