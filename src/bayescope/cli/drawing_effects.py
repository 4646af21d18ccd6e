"""`bayescope effects`: what an additive model learnt of each feature, as pictures and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bayescope import checks, plots
from bayescope.additive.effects import Effect, Surface, long_frame
from bayescope.cli.answer import answer, verbatim
from bayescope.cli.header import hint, split_names
from bayescope.cli.model_files import load_model
from bayescope.cli.writing import check_files, write_text
from bayescope.errors import InputError, UnsupportedError
from bayescope.files import only_writer, staged
from bayescope.plots import style
from bayescope.progress import progress_bar
from bayescope.storage import answering
from bayescope_command.app import EffectsOptions

# Panels of one picture; a model of more features has several.
PANELS = 12
LISTED_TERMS = 15
FILES = ("effects.csv", "importance.csv", "importance.png", "pairs.csv")


def draw_effects(options: EffectsOptions) -> None:
    """Writes the effects of an additive model into a folder: all files, or none.

    Raises:
        InputError: if the model, a feature or the folder cannot be used.
        UnsupportedError: if the model is not additive.
    """
    out = options.out
    check_files(out, FILES, options.model)
    checks.fraction("--level", options.level)
    with only_writer("--out", out / FILES[0]):
        facts = _drawn(options)
    answer(facts, *_lines(facts), *(f"wrote {out / name}" for name in facts["files"]), as_json=options.as_json)


def _drawn(options: EffectsOptions) -> dict[str, Any]:
    model, out, level = options.model, options.out, options.level
    estimator, table = load_model(model)
    if not hasattr(estimator, "effects"):
        raise UnsupportedError(
            f"{model}: expected an additive model, whose effects add up, got {type(estimator).__name__}. Fit one with "
            "bayescope fit --model additive; what moves the predictions of this one stands in bayescope report."
        )
    with answering(estimator), progress_bar("computing") as report:
        names = _features(options.feature or (), list(table.kinds), estimator)
        importance = estimator.importance(level=level)
        effects = []
        for done, name in enumerate(names):
            report(done, len(names), name)
            effects.append(estimator.effects(name, level=level))
        pairs = [pair for pair in estimator.pairs_ if set(pair) & set(names)]
        surfaces = [estimator.surface(*pair, level=level) for pair in pairs]
    with staged(out) as stage:
        tables = {"effects": pd.concat(map(_effect_rows, effects)), "importance": importance.as_frame()}
        if surfaces:
            tables["pairs"] = pd.concat(map(_surface_rows, surfaces))
        for name, table_rows in tables.items():
            write_text(table_rows, stage / f"{name}.csv", formulas=options.formulas)
        style.save(plots.importance(importance), stage / "importance.png")
        for name, figure in _pictures(effects, surfaces):
            style.save(figure, stage / f"{name}.png")
        files = sorted(file.name for file in stage.iterdir())
    return {
        "folder": str(out),
        "files": files,
        "features": names,
        "pairs": [list(pair) for pair in pairs],
        "unit": effects[0].unit,
        "level": level,
        "importance": importance.as_frame().to_dict(orient="records"),
    }


def _features(given: Sequence[str], known: list[str], estimator: Any) -> list[str]:
    """Those that were asked for, or all, those that matter most first."""
    names = split_names(given, known)
    for name in names:
        if name not in known:
            raise InputError(f"--feature: expected a feature of the model, got {name!r}; {hint(name, known)}")
    if names:
        return names
    found = estimator.importance()
    ranked = [found.names[term] for term in found.order]
    return sorted(known, key=lambda name: ranked.index(name) if name in ranked else len(ranked))


def _pictures(effects: Sequence[Effect], surfaces: Sequence[Surface]) -> Iterator[tuple[str, Any]]:
    """Pictures by the names of their files."""
    parts = [effects[start : start + PANELS] for start in range(0, len(effects), PANELS)]
    for place, part in enumerate(parts, 1):
        yield "effects" if len(parts) == 1 else f"effects-{place}", plots.effects(part)
    for place, surface in enumerate(surfaces, 1):
        for output in range(max(1, len(surface.outputs))):
            several = f"-{output + 1}" if surface.outputs else ""
            yield f"pair-{place}{several}", plots.effect_surface(surface, output=output)


def _effect_rows(effect: Effect) -> pd.DataFrame:
    """One row a grid point and output; a missing value's is last, with an empty value."""
    values, parts = list(effect.grid), [effect.mean, effect.sd, effect.low, effect.high]
    density = effect.density
    if effect.missing is not None:
        gone = effect.missing
        values.append(None)
        ends = (gone.mean, gone.sd, gone.low, gone.high)
        parts = [np.append(part, np.asarray(at)[None], axis=0) for part, at in zip(parts, ends, strict=True)]
        density = np.append(density, gone.density)
    return _rows({"feature": effect.feature, "value": values, "density": density}, parts, effect.outputs)


def _surface_rows(surface: Surface) -> pd.DataFrame:
    """One row a pair of grid points and output."""
    first, second = (grid.ravel() for grid in np.meshgrid(surface.grid_a, surface.grid_b, indexing="ij"))
    parts = [
        part.reshape(len(first), *part.shape[2:]) for part in (surface.mean, surface.sd, surface.low, surface.high)
    ]
    a, b = surface.features
    keys = {"first": a, "second": b, "first_value": first, "second_value": second, "density": surface.density.ravel()}
    return _rows(keys, parts, surface.outputs)


def _rows(keys: dict[str, Any], parts: Sequence[np.ndarray], outputs: Sequence[str]) -> pd.DataFrame:
    """The four parts (n,) or (n, C) as columns, output after output."""
    frame = long_frame(keys, dict(zip(("mean", "sd", "low", "high"), parts, strict=True)), outputs)
    return pd.concat([part for _, part in frame.groupby("output", sort=False)]) if "output" in frame else frame


def _lines(facts: dict[str, Any]) -> list[RenderableType]:
    """The importance of the terms, as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text("term", style="dim"))
    several = bool(facts["importance"]) and "output" in facts["importance"][0]
    for heading in [*(["of"] if several else []), "mean effect", f"{100 * facts['level']:g} % interval"]:
        table.add_column(Text(heading, style="dim"), justify="right", no_wrap=True)
    for term in facts["importance"][:LISTED_TERMS]:
        cells = [verbatim(str(term[name])) for name in ("term", *(["output"] if several else []))]
        table.add_row(*cells, f"{term['mean']:.3g}", f"{term['low']:.3g} to {term['high']:.3g}")
    more = len(facts["importance"]) - LISTED_TERMS
    return [
        Text("How much each term moves a prediction, on average over the data", style="bold"),
        f"in the unit of the linear predictor: {facts['unit']}",
        table,
        *([f"and {more} more in importance.csv"] if more > 0 else []),
    ]
