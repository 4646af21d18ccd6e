"""A predictive draws its own numbers: means, intervals and what happened."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import LineCollection, PathCollection, PolyCollection

from bayescope.errors import InputError, InputTypeError
from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from bayescope.plots import predictions
from bayescope.predictive import Predictive
from bayescope.top_classes import TopClasses

ROWS = 23


def predictive(
    likelihood: Likelihood, outputs: int = 1, names: tuple[object, ...] = (), rows: int = ROWS
) -> Predictive:
    source = torch.Generator().manual_seed(outputs)
    mean = torch.randn(rows, outputs, dtype=torch.float64, generator=source)
    root = 0.5 * torch.randn(rows, outputs, outputs, dtype=torch.float64, generator=source)
    latent = GaussianLatent(mean, root @ root.mT, likelihood.integral(None, outputs))
    return Predictive(latent, likelihood, True, names=names)


def of_kind(panel, kind):
    return [found for found in panel.collections if isinstance(found, kind)]


def ends(lines: LineCollection) -> np.ndarray:
    """Where each row's line stands, and its lower and upper end, shape (rows, 3)."""
    return np.array([[path[0, 0], path[0, 1], path[1, 1]] for path in lines.get_segments()])


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Poisson()])
def test_numbers_are_sorted_by_their_mean_with_both_intervals(likelihood):
    p, y = predictive(likelihood, names=("visits",)), np.arange(ROWS)
    figure = p.plot(y, level=0.8)
    [panel] = figure.axes
    order = np.argsort(p.mean[:, 0])
    for lines, of in zip(of_kind(panel, LineCollection), ("outcome", "mean"), strict=True):
        low, high = p.interval(0.8, of=of)
        np.testing.assert_allclose(ends(lines), np.column_stack([np.arange(ROWS), low[order, 0], high[order, 0]]))
    means, happened = of_kind(panel, PathCollection)
    np.testing.assert_allclose(means.get_offsets()[:, 1], p.mean[order, 0])
    np.testing.assert_allclose(happened.get_offsets()[:, 1], y[order])
    assert figure.get_supylabel() == "visits"


def test_along_a_feature_predictions_are_a_curve_unless_it_repeats_itself():
    p, x = predictive(Gaussian(0.3)), pd.Series(np.random.default_rng(0).normal(size=ROWS), name="dose")
    figure = p.plot(x=x)
    [panel] = figure.axes
    [line] = panel.lines
    order = np.argsort(x.to_numpy())
    np.testing.assert_allclose(line.get_xydata(), np.column_stack([x, p.mean])[order])
    assert len(of_kind(panel, PolyCollection)) == 2
    assert figure.get_supxlabel() == "dose"
    for twice in (p.plot(x=np.round(x)), p.plot(x=x, curve=False)):
        assert not twice.axes[0].lines
        assert len(of_kind(twice.axes[0], LineCollection)) == 2


def test_two_classes_show_the_second_and_colour_what_happened():
    p = predictive(Bernoulli(), names=("no", "yes"))
    y = np.where(np.arange(ROWS) % 3 == 0, "yes", "no")
    [panel] = p.plot(y).axes
    order = np.argsort(p.probs[:, 1])
    low, high = p.interval(0.95)
    [lines] = of_kind(panel, LineCollection)
    np.testing.assert_allclose(ends(lines)[:, 1:], np.column_stack([low[order, 1], high[order, 1]]))
    happened = of_kind(panel, PathCollection)[1]
    np.testing.assert_array_equal(happened.get_offsets()[:, 1], (y[order] == "yes").astype(float))
    assert len(np.unique(happened.get_facecolors(), axis=0)) == 2


def test_more_classes_show_the_most_probable_one_and_mark_what_was_another():
    p = predictive(Categorical(), 3, names=("a", "b", "c"))
    best = p.probs.argmax(1)
    y = np.where(np.arange(ROWS) < 4, (best + 1) % 3, best)
    [panel] = p.plot(np.array(["a", "b", "c"])[y]).axes
    order = np.lexsort((p.probs.max(1), best))
    low, high = (np.take_along_axis(part, best[:, None], 1)[:, 0] for part in p.interval(0.95))
    [lines] = of_kind(panel, LineCollection)
    np.testing.assert_allclose(ends(lines)[:, 1:], np.column_stack([low, high])[order])
    means, wrong = of_kind(panel, PathCollection)
    np.testing.assert_allclose(means.get_offsets()[:, 1], p.probs.max(1)[order])
    assert sorted(wrong.get_offsets()[:, 1]) == sorted(p.probs.max(1)[:4])
    [along] = p.plot(x=np.arange(ROWS), level=None).axes
    np.testing.assert_allclose([line.get_ydata() for line in along.lines], p.probs.T)
    assert not of_kind(along, PolyCollection)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Bernoulli()])
def test_several_outputs_and_labels_have_a_panel_each(likelihood):
    p = predictive(likelihood, 3, names=("a", "b", "$c$"))
    y = (np.arange(3 * ROWS).reshape(ROWS, 3) % 4 == 0).astype(int)
    figure = p.plot(y)
    assert [panel.get_title("left") for panel in figure.axes] == ["a", "b", "$c$"]
    order = np.argsort(p.mean[:, 0])
    for k, panel in enumerate(figure.axes):
        means, happened = of_kind(panel, PathCollection)
        np.testing.assert_allclose(means.get_offsets()[:, 1], p.mean[order, k])
        np.testing.assert_allclose(happened.get_offsets()[:, 1], y[order, k])


def test_of_many_rows_some_are_drawn_evenly_chosen_and_the_picture_says_so():
    p = predictive(Gaussian(0.3), rows=1001)
    figure = p.plot(most=11)
    means = of_kind(figure.axes[0], PathCollection)[0].get_offsets()[:, 1]
    np.testing.assert_allclose(means, np.sort(p.mean[:, 0])[::100])
    assert "11 of 1,001 rows" in figure.texts[1].get_text()
    classes = predictive(Categorical(), 4, rows=150)
    assert "100 of 150 rows" in classes.plot(level=None).texts[1].get_text()


def test_the_top_classes_are_drawn_as_the_classes_that_they_are():
    p = predictive(Categorical(), 4)
    top = dataclasses.replace(p, arrays=False, top=TopClasses.of(p.latent.mean, 2))
    y = torch.from_numpy(p.probs.argmax(1))
    figure = top.plot(y, level=None)
    means, wrong = of_kind(figure.axes[0], PathCollection)
    np.testing.assert_allclose(np.sort(means.get_offsets()[:, 1]), np.sort(p.probs.max(1)))
    assert not len(wrong.get_offsets())
    assert [text.get_text() for text in figure.legends[0].get_texts()][:-1] == [str(k) for k in np.unique(y)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": [[1.0, 2.0], [3.0]]}, "y: expected one outcome for each prediction, got rows of different lengths"),
        ({"y": np.zeros(4)}, r"y: expected shape \(23, 1\), got \(4, 1\)"),
        ({"x": np.zeros((ROWS, 2))}, r"x: expected 23 numbers.*got shape \(23, 2\)"),
        ({"x": [0.0, np.nan, *range(ROWS - 2)]}, r"x: expected finite numbers, got nan in row 1"),
        ({"y": np.full(ROWS, np.nan)}, "y: expected finite numbers, got nan"),
        ({"curve": True}, r"curve: expected None or False without x="),
        ({"level": 1.5}, "level"),
        ({"most": 0}, "most"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        predictive(Gaussian(0.3)).plot(**options)


@pytest.mark.parametrize(("y", "message"), [(3, "labels"), (1.5, "whole|labels|integer")])
def test_what_is_no_class_is_refused(y, message):
    with pytest.raises(InputError, match=message):
        predictive(Categorical(), 3).plot(np.full(ROWS, y), level=None)


def test_what_has_no_rows_or_no_numbers_is_refused():
    p = predictive(Gaussian(0.3))
    with pytest.raises(InputError, match="expected at least one row"):
        p[:0].plot()
    with pytest.raises(InputError, match="expected one answer a row"):
        dataclasses.replace(predictive(Gaussian(0.3), rows=24), shape=(6, 4)).plot()
    with pytest.raises(InputTypeError, match="x: expected numbers"):
        p.plot(x=["a"] * ROWS)
    with pytest.raises(InputTypeError, match=r"predictions: expected Predictive, got ndarray\. Pass q\.predict"):
        predictions(p.mean)
