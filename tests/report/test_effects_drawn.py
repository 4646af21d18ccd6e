"""How effects are drawn: steps, points of labels, scales, legends; and which columns are suspicious."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bayescope import NeuralAdditiveClassifier, plots
from bayescope.plots.additive import most_frequent, stairs
from bayescope.report import effect_charts, judged, reasons
from bayescope.report.suspects import suspects
from tests.browser import needs_a_browser


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = 400
    towns = np.array([f"a town with a long name {place:02d}" for place in range(20)])
    shares = np.arange(20, 0, -1) / 210
    frame = pd.DataFrame(
        {
            "switch": generator.integers(0, 2, rows),
            "rooms": generator.integers(1, 9, rows),
            "length": generator.normal(size=rows),
            "town": generator.permutation(towns)[generator.choice(20, rows, p=shares)],
        }
    )
    return frame, np.digitize(frame["rooms"] + generator.normal(size=rows), [3, 6])


@pytest.fixture(scope="module")
def model(table) -> NeuralAdditiveClassifier:
    return NeuralAdditiveClassifier(hidden=4, epochs=8, interactions=[], random_state=0).fit(*table)


def test_few_numbers_are_steps_and_others_a_curve(model):
    switch, rooms, length = (model.effects(name) for name in ("switch", "rooms", "length"))
    assert switch.steps
    assert switch.grid.tolist() == [0, 1]
    assert rooms.steps
    assert rooms.grid.tolist() == list(range(1, 9))
    assert not length.steps
    assert len(length.grid) == 100
    assert not model.effects("switch", grid=[0.0, 0.5, 1.0]).steps
    assert model.effects("rooms", grid=[2, 7]).steps
    assert rooms.density.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("grid", [[0.0, 1.0], [1.0, 2.0, 5.0], [3.0]])
def test_stairs_are_flat_about_each_number(grid):
    at, which = stairs(np.array(grid))
    assert len(at) == 2 * len(grid)
    assert (np.diff(at) >= 0).all()
    for place, value in enumerate(grid):
        low, high = at[which == place]
        assert low < value < high
    assert (at[1:-1:2] == at[2::2]).all()


def test_labels_come_most_frequent_first_and_none_is_lost(model, table):
    counts = table[0]["town"].value_counts()
    curve = model.effects("town")
    figure = effect_charts.effect(curve, 0, (-3.0, 3.0))
    texts = figure.layout["yaxis"]["ticktext"]
    assert len(texts) == 12
    assert all(len(text) <= 30 for text in texts)
    assert counts.index[0][-7:] in texts[0]
    assert f"{len(counts) - 12} more labels" in figure.caption
    assert {row[0].text for row in figure.table.rows} == set(counts.index)
    first = most_frequent(curve, 12)
    assert first.density.tolist() == sorted(curve.density, reverse=True)[:12]
    assert first.mean.shape == (12, 3)


def test_scales_are_the_effects_own_and_a_common_one(model):
    curve = model.effects("length")
    figure = effect_charts.effect(curve, 0, (-100.0, 100.0))
    low, high = figure.layout["yaxis"]["range"]
    assert high - low == pytest.approx(20.0)  # a tenth at least, so that nothing does not fill the panel
    assert figure.layout["meta"] == {"axis": "yaxis", "own": [low, high], "common": [-100.0, 100.0]}
    wide = effect_charts.effect(model.effects("rooms"), 0, (-1.0, 1.0)).layout["yaxis"]["range"]
    assert wide[0] <= model.effects("rooms").low.min()
    assert wide[1] >= model.effects("rooms").high.max()


def test_several_classes_have_a_legend_on_paper_too(model):
    for name in ("switch", "town"):
        assert [key[0] for key in effect_charts.effect(model.effects(name), 0, (-1.0, 1.0)).key] == ["0", "1", "2"]


def test_importance_lists_all_terms():
    rng = np.random.default_rng(0)
    names = tuple(f"term {place}" for place in range(34))
    mean = rng.random(34)
    ranking = type(
        "Ranking", (), {"names": names, "mean": mean, "low": mean, "high": mean, "at_mean": mean, "unit": "f"}
    )
    ranking.order = np.argsort(-mean)
    bars, more = effect_charts.importance(ranking)
    assert more is not None
    assert {*[bar.name for bar in bars.bars], *[row[0].text for row in more.rows]} == set(names)


def test_terms_without_a_picture_are_named(model, table, monkeypatch):
    monkeypatch.setattr(reasons, "MOST_EFFECTS", 1)
    rows = judged.Judged.of(model, *table, 0)
    moved = reasons.influence(model, rows, 0)
    assert {one.feature for one in moved.effects} | set(moved.silent) | set(moved.others) == set(table[0].columns)


def test_pictures_on_paper_take_one_scale_or_their_own(model, table):
    curves = [model.effects(name) for name in ("rooms", "switch", "town")]
    one, own = plots.effects(curves), plots.effects(curves, one_scale=False)
    ends = [[axes.get_ylim() for axes in figure.axes[:3]] for figure in (one, own)]
    assert len({*ends[0]}) == 1
    assert len({*ends[1]}) == 3
    assert one.axes[2].get_title(loc="left") == f"town (12 of {table[0]['town'].nunique()})"


@needs_a_browser
def test_the_switch_gives_all_effects_one_scale(visit):
    page = visit("additive_classes").page
    ranges = """[...document.querySelectorAll('[data-figure^="effect"]')].map(chart => {
        const { layout } = chart, name = layout.meta.axis;
        return layout[name].range.map(end => Number(end.toPrecision(4))).join(' ');
    })"""
    own = page.evaluate(ranges)
    assert len(set(own)) == len(own)
    page.locator(".one-scale").check()
    assert len(set(page.evaluate(ranges))) == 1
    page.locator(".one-scale").uncheck()
    assert page.evaluate(ranges) == own


def _judged(frame: pd.DataFrame, y: np.ndarray, classes: tuple[str, ...]) -> judged.Judged:
    columns = tuple(
        judged.Column(name, "numeric" if pd.api.types.is_numeric_dtype(values) else "categorical", np.array(values))
        for name, values in frame.items()
    )
    return judged.Judged(frame, y, np.arange(len(y)), columns, columns, y, classes, "y")


def test_leaks_names_of_rows_and_constants_are_told_in_words():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 200)
    frame = pd.DataFrame(
        {
            "honest": generator.normal(size=200) + 2 * y,
            "leak": y + generator.random(200),
            "code": np.where(y == 1, "p", "q").astype(object),
            "number": np.arange(5000, 5200).astype(float),
            "same": np.ones(200),
            "rooms": generator.integers(1, 5, 200).astype(float),
        }
    )
    said = suspects(_judged(frame, y, ("no", "yes")))
    assert [line.split("\u2019")[0][1:] for line in said] == ["leak", "code", "number", "same"]
    assert said[0].endswith("alone separates the classes: is it known at prediction time?")
    amount = 3.0 * frame["honest"].to_numpy()
    said = suspects(_judged(frame[["honest", "rooms"]], amount, ()))
    assert len(said) == 1
    assert "honest" in said[0]
    assert suspects(_judged(frame[:20], y[:20], ("no", "yes")))[0].startswith("\u2018same")
