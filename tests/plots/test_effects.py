"""Pictures of effects show the numbers they were given, in the panel where they belong."""

from __future__ import annotations

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PolyCollection, QuadMesh

from bayescope.additive import Effect, MissingEffect, Surface, effect, explain, importance, surface
from bayescope.errors import InputError, InputTypeError
from bayescope.plots import additive as additive_pictures
from bayescope.plots import effect as effect_curve
from bayescope.plots import effect_surface, explanation, style
from bayescope.plots import effects as effect_curves
from bayescope.plots import importance as importance_bars
from bayescope.tables import read_table
from tests.additive.fitted import encoded, fitted, frame

CLASSES = ["low", "middle", "high"]


def titles(figure):
    return [panel.get_title("left") for panel in figure.axes]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def plain(mean, sd=0.1, *, grid=None, missing=None, categorical=False):
    mean = np.asarray(mean, dtype=float)
    grid = np.linspace(0, 1, len(mean)) if grid is None else grid
    density = np.full(len(mean), 1 / max(len(mean), 1))
    return Effect("x", grid, mean, np.full_like(mean, sd), mean - sd, mean + sd, density, 0.95, categorical, missing)


def test_curves_and_bands_are_the_effects():
    shown = [effect(fitted(), name) for name in ("dose", "age")]
    figure = effect_curves(shown, unit="mmHg")
    assert titles(figure) == ["dose", "age"]
    for panel, one in zip(figure.axes, shown, strict=True):
        curve = panel.lines[1]
        np.testing.assert_array_equal(curve.get_xdata(), one.grid)
        np.testing.assert_array_equal(curve.get_ydata(), one.mean)
        [band] = [drawn for drawn in panel.collections if isinstance(drawn, PolyCollection)]
        vertices = band.get_paths()[0].vertices
        assert vertices[:, 1].max() == pytest.approx(one.high.max())
        assert vertices[:, 1].min() == pytest.approx(one.low.min())
    assert figure.get_supylabel() == "mmHg"
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_labels_are_dots_with_bars_and_missing_values_stand_apart():
    kind = effect(fitted(), "kind")
    [panel] = effect_curve(kind).axes
    np.testing.assert_array_equal(panel.lines[1].get_ydata(), kind.mean)
    assert ticks(panel.xaxis) == ["blue", "green", "red"]
    age = effect(fitted(), "age")
    [panel] = effect_curve(age).axes
    assert age.missing is not None
    marks = [line for line in panel.lines if line.get_marker() == "D"]
    assert [line.get_ydata().item() for line in marks] == [pytest.approx(float(age.missing.mean))]
    assert marks[0].get_xdata().item() > age.grid[-1]
    assert ticks(panel.xaxis)[-1] == "missing"


def test_the_density_lies_at_the_foot_and_adds_up():
    age = effect(fitted(), "age")
    [panel] = effect_curve(age).axes
    heights = np.array([bar.get_height() for bar in panel.patches])
    assert heights.max() < 0.13
    assert age.missing is not None
    shares = np.histogram(age.grid, len(heights) - 1, weights=age.density)[0]
    expected = np.array([*shares, age.missing.density])
    np.testing.assert_allclose(heights / heights.max(), expected / expected.max())
    low = panel.get_ylim()[0]
    assert min(age.low.min(), float(age.missing.low)) > low + 0.12 * (panel.get_ylim()[1] - low)


def test_several_outputs_have_a_colour_and_a_name_each():
    shown = effect(fitted("categorical"), "age")
    figure = effect_curve(shown, outputs=CLASSES)
    curves = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(shown.grid)]
    assert [line.get_color() for line in curves] == list(style.CLASS_COLOURS[:3])
    for place, line in enumerate(curves):
        np.testing.assert_array_equal(line.get_ydata(), shown.mean[:, place])
    assert legend(figure) == [*CLASSES, "density of the data"]
    assert legend(effect_curve(shown, outputs=np.arange(3)))[:3] == ["0", "1", "2"]
    assert legend(effect_curve(shown))[:3] == ["output 0", "output 1", "output 2"]
    with pytest.raises(InputError, match="outputs: expected 3 names, got 2"):
        effect_curve(shown, outputs=["a", "b"])


@pytest.mark.parametrize(
    "shown",
    [
        plain([]),
        plain([], missing=MissingEffect(np.array(0.1), np.array(0.1), np.array(0.0), np.array(0.2), 1.0)),
        plain([0.5], grid=np.array([3.0])),
        plain([0.0, 0.0], sd=0.0),
        plain([0.1] * 9, grid=np.array([f"a long name {place}" for place in range(9)], object), categorical=True),
    ],
    ids=["nothing", "all missing", "one number", "a point", "many labels"],
)
def test_corner_cases_are_drawn(shown):
    effect_curve(shown).draw_without_rendering()


def test_pictures_take_names_and_units_from_what_they_show():
    told = {"outputs": tuple(CLASSES), "unit": "logit"}
    additive = fitted("categorical")
    curves = effect_curve(replace(effect(additive, "age"), **told))
    assert legend(curves)[:3] == CLASSES
    assert curves.get_supylabel() == "logit"
    many = importance_bars(replace(importance(additive), **told))
    assert legend(many)[:3] == CLASSES
    assert many.axes[0].get_xlabel() == "mean absolute contribution: logit"
    one = explanation(replace(explain(additive, encoded(frame(3))), **told), output=1)
    assert one.texts[0].get_text() == "One prediction and its reasons: middle"
    assert one.axes[0].get_xlabel() == "logit"
    both = effect_surface(replace(surface(additive, ("age", "dose")), **told), output=2)
    assert both.texts[0].get_text() == "age and dose: high"
    assert both.axes[-1].get_ylabel() == "logit"
    long = effect_curve(effect(fitted(), "age"), unit="a unit " * 9).get_supylabel()
    assert long.startswith("a unit a unit")
    assert len(long) == 24
    assert effect_curve(replace(effect(fitted(), "age"), unit="mmHg"), unit="kPa").get_supylabel() == "kPa"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (effect_curves, r"effects: expected a list of effects, got Additive\. Pass \[model\.effects\(name\)"),
        (effect_curve, r"effects: expected Effect, got Additive\. Pass \[model\.effects\(name\)"),
        (effect_surface, r"expected Surface, got Additive\. Pass model\.surface\(a, b\)"),
        (explanation, r"expected Explanation, got Additive\. Pass model\.explain\(X\)"),
        (importance_bars, r"expected Importance, got Additive\. Pass model\.importance\(\)"),
    ],
)
def test_what_is_no_answer_of_a_model_is_refused(draw, message):
    with pytest.raises(InputTypeError, match=message):
        draw(fitted())


def test_nothing_is_refused():
    with pytest.raises(InputError, match="effects: expected at least one effect"):
        effect_curves([])


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_surfaces_show_mean_and_sd(kind):
    shown = surface(fitted(kind), ("age", "dose"))
    output = 0 if kind == "gaussian" else 2
    figure = effect_surface(shown, output=output)
    assert titles(figure)[:2] == ["mean", "standard deviation"]
    for panel, values in zip(figure.axes, (shown.mean, shown.sd), strict=False):
        [mesh] = [drawn for drawn in panel.collections if isinstance(drawn, QuadMesh)]
        expected = values if values.ndim == 2 else values[..., output]
        np.testing.assert_array_equal(mesh.get_array().reshape(expected.T.shape), expected.T)
        assert (panel.get_xlabel(), panel.get_ylabel()) == ("age", "dose")
    with pytest.raises(InputError, match="output"):
        effect_surface(shown, output=3)


def test_surfaces_of_labels_have_their_names():
    labels = np.array(["a", "b"], object)
    mean = np.arange(6.0).reshape(2, 3)
    shown = Surface(
        ("kind", "dose"), labels, np.arange(3.0), mean, 0 * mean, mean, mean, np.full((2, 3), 1 / 6), 0.9, False
    )
    panel = effect_surface(shown).axes[0]
    assert ticks(panel.xaxis) == ["a", "b"]


def test_bars_of_a_prediction_sum_to_the_total():
    table = frame(5, seed=4)
    table.loc[1, "age"] = np.nan
    shown = explain(fitted(), encoded(table), columns=read_table(table))
    lines = additive_pictures.bars(shown, 1, most=2)
    assert [line.name for line in lines[-3:]] == ["2 others together", "intercept", "total"]
    assert sum(line.value for line in lines[:-1]) == pytest.approx(lines[-1].value, abs=1e-12)
    sizes = np.abs(shown.contributions[1])
    assert abs(lines[0].value) == sizes.max()
    assert lines[2].interval is None, "nobody knows how the others move together"
    assert lines[-1].interval == (shown.total_low[1], shown.total_high[1])
    names = [line.name for line in additive_pictures.bars(shown, 1)]
    assert "age = missing" in names
    assert f"kind = {table['kind'][1]}" in names
    drawn = explanation(shown, 1)
    widths = [bar.get_width() for bar in drawn.axes[0].patches]
    assert widths == [line.value for line in additive_pictures.bars(shown, 1)]
    assert ticks(drawn.axes[0].yaxis) == names


def test_bars_of_a_class_and_of_an_offset():
    import torch

    shown = explain(fitted("categorical"), encoded(frame(3), torch.ones(3, 3).double() * torch.arange(3)))
    lines = additive_pictures.bars(shown, 2, output=1)
    assert lines[-1].value == shown.total[2, 1]
    assert lines[0].value in shown.contributions[2, :, 1]
    shown = explain(fitted(), encoded(frame(3), torch.full((3, 1), 0.5).double()))
    lines = additive_pictures.bars(shown, 0)
    assert (lines[-2].name, lines[-2].value) == ("offset", 0.5)
    assert lines[0].name in ("age", "dose", "kind", "age & dose"), "no values were given"


@pytest.mark.parametrize("call", [{"row": 5}, {"row": -1}, {"output": 1}, {"most": 0}])
def test_rows_and_outputs_that_are_not_there_are_refused(call):
    with pytest.raises(InputError, match=next(iter(call))):
        explanation(explain(fitted(), encoded(frame(5))), **call)


def test_importance_bars_are_the_means_and_intervals():
    shown = importance(fitted())
    figure = importance_bars(shown, most=3)
    [panel] = figure.axes
    order = shown.order[:3]
    assert [bar.get_width() for bar in panel.patches] == shown.mean[order].tolist()
    assert ticks(panel.yaxis) == [shown.names[place] for place in order]
    ends = panel.collections[0].get_segments()
    np.testing.assert_allclose([[end[0][0], end[1][0]] for end in ends], np.stack([shown.low, shown.high], 1)[order])
    many = importance_bars(importance(fitted("categorical")), outputs=CLASSES)
    assert len(many.axes[0].patches) == 4 * 3
    assert legend(many)[:3] == CLASSES


def test_no_global_state_is_touched():
    before = dict(mpl.rcParams)
    effect_curve(effect(fitted(), "age"))
    assert dict(mpl.rcParams) == before


DOLLARS = "100% $_ or 20% $"


def test_names_are_drawn_as_they_are_also_with_dollar_signs_and_backslashes(tmp_path):
    names = [DOLLARS, r"$\frac$", "^$_$"]
    model = fitted()
    shown = [replace(effect(model, "dose"), feature=name) for name in names]
    labels = [plain(np.arange(3.0), grid=names, categorical=True)]
    bars_of = importance(model)
    figures = [
        effect_curves(shown, unit=DOLLARS),
        effect_curves(labels, unit=DOLLARS),
        importance_bars(replace(bars_of, names=[DOLLARS] * len(bars_of.names)), unit=DOLLARS),
    ]
    for figure in figures:
        style.save(figure, tmp_path / "p.png")
        drawn = [text for text in figure.findobj(mpl.text.Text) if "$" in text.get_text()]
        assert drawn
        assert not any(text.get_parse_math() for text in drawn)
