"""The pictures show the numbers they were given, in the panel where they belong."""

import matplotlib as mpl
import numpy as np
import pytest
import torch
from scipy import stats

from bayescope import metrics
from bayescope.plots import (
    agreement,
    calibration_curves,
    decision_surfaces,
    marginals,
    moment_agreement,
    most_disputed,
    reliability_curves,
    style,
)
from bayescope.posterior import DrawsPosterior, GaussianPosterior, MixturePosterior, PointPosterior, Record
from bayescope.precision import DensePrecision

NAMES = ["width", "height", "intercept"]
COVARIANCE = torch.tensor([[1.0, 0.6, 0.0], [0.6, 2.0, 0.3], [0.0, 0.3, 0.5]], dtype=torch.float64)
MEAN = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def gaussian(mean=MEAN, covariance=COVARIANCE):
    return GaussianPosterior(mean, DensePrecision(torch.linalg.inv(covariance)), Record("laplace"))


def posteriors():
    draws = gaussian().sample(4000, generator=0).reshape(4, 1000, 3)
    return {
        "map": PointPosterior(MEAN, Record("map")),
        "laplace": gaussian(),
        "nuts": DrawsPosterior(draws, Record("nuts")),
    }


def titles(figure):
    return [panel.get_title("left") for panel in figure.axes]


def line(panel, name):
    """The data of the line in a posterior's colour."""
    [found] = [drawn for drawn in panel.lines if drawn.get_color() == style.colour(name)]
    return np.asarray(found.get_xdata(), dtype=float), np.asarray(found.get_ydata(), dtype=float)


def test_marginals_are_the_exact_densities_in_the_panels_of_their_weights():
    figure = marginals(posteriors(), reference="nuts", names=NAMES, chosen=[2, 0])
    assert titles(figure) == ["intercept", "width"]
    for panel, index in zip(figure.axes, [2, 0], strict=True):
        x, density = line(panel, "laplace")
        exact = stats.norm.pdf(x, MEAN[index].item(), COVARIANCE[index, index].sqrt().item())
        np.testing.assert_allclose(density, exact, atol=1e-12)
        assert line(panel, "map")[0].tolist() == [MEAN[index].item()] * 2


def test_the_histogram_is_a_density_of_the_reference():
    figure = marginals(posteriors(), reference="nuts", names=NAMES, chosen=[1])
    bars = [bar for bar in figure.axes[0].patches if bar.get_width() > 0]
    area = sum(bar.get_width() * bar.get_height() for bar in bars)
    centre = sum(bar.get_width() * bar.get_height() * (bar.get_x() + bar.get_width() / 2) for bar in bars)
    assert area == pytest.approx(1.0)
    assert centre == pytest.approx(MEAN[1].item(), abs=0.1)


def test_forms_without_a_closed_marginal_are_outlined_from_their_draws():
    each = posteriors()
    each["mixture"] = MixturePosterior(
        torch.tensor([0.5, 0.5]).log().double(), [gaussian(), gaussian(MEAN + 4)], Record("laplace")
    )
    [panel] = marginals(each, reference="nuts", names=NAMES, chosen=[0]).axes
    outline = panel.patches[-1].get_path().vertices
    assert outline[:, 0].min() < -1
    assert outline[:, 0].max() > 5


def test_most_disputed_are_those_whose_place_or_width_differ_worst_first():
    shifted = gaussian(MEAN + torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64))
    narrow = gaussian(covariance=COVARIANCE * torch.tensor([[1, 1, 0.1], [1, 1, 0.1], [0.1, 0.1, 0.01]]))
    each = {"laplace": shifted, "variational": narrow, "nuts": gaussian()}
    assert most_disputed(each, "nuts") == [2, 1, 0]  # log 10, 3/√2, 0
    assert most_disputed(each, "nuts", most=1) == [2]
    assert most_disputed({"map": PointPosterior(MEAN + 1, Record("map")), "nuts": gaussian()}, "nuts")[0] == 2


def predictions(classes=2, rows=200):
    source = np.random.default_rng(0)
    table = source.dirichlet(np.ones(classes), size=rows)
    return {"map": table, "nuts": 0.5 * table + 0.5 / classes}, source.integers(classes, size=rows)


@pytest.mark.parametrize("classes", [2, 3])
def test_reliability_points_are_the_bins(classes):
    probs, y = predictions(classes)
    figure = reliability_curves(probs, y)
    assert titles(figure) == ["MAP", "NUTS"]
    for panel, table in zip(figure.axes, probs.values(), strict=True):
        diagram = metrics.reliability(table, y)
        filled = diagram.count > 0
        [points] = panel.collections
        expected = np.column_stack([diagram.confidence, diagram.accuracy])[filled]
        np.testing.assert_allclose(points.get_offsets(), expected)
        bands = {(round(bar.get_y(), 9), round(bar.get_y() + bar.get_height(), 9)) for bar in panel.patches}
        assert bands >= {
            (round(low, 9), round(high, 9)) for low, high in zip(diagram.low[filled], diagram.high[filled], strict=True)
        }
        assert panel.get_title("right") == f"ECE {metrics.ece(table, y):.3f}"


def test_agreement_shows_log_odds_against_the_references():
    probs, _ = predictions()
    figure = agreement({name: np.log(table) for name, table in probs.items()}, reference="nuts", classes=["no", "yes"])
    assert titles(figure) == ["MAP"]
    [points] = figure.axes[0].collections
    odds = [np.log(probs[name][:, 1] / probs[name][:, 0]) for name in ("nuts", "map")]
    np.testing.assert_allclose(points.get_offsets(), np.column_stack(odds), atol=1e-9)


def test_agreement_of_three_classes_shows_each_class():
    probs, _ = predictions(3)
    figure = agreement(
        {name: np.log(table) for name, table in probs.items()}, reference="nuts", classes=["a", "b", "c"]
    )
    [points] = figure.axes[0].collections
    np.testing.assert_allclose(points.get_offsets()[:, 1], np.log(probs["map"] / (1 - probs["map"])).ravel(), atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_surfaces_cover_the_data_and_beyond(classes):
    source = np.random.default_rng(0)
    X, y = source.normal(size=(50, 2)) * [1, 100], np.arange(50) % classes
    asked = []

    def predict(at):
        asked.append(at)
        odds = np.column_stack([at[:, 0] * k for k in range(classes)])
        return np.exp(odds) / np.exp(odds).sum(1, keepdims=True)

    names = [f"kind {k}" for k in range(classes)]
    figure = decision_surfaces({"map": predict, "nuts": predict}, X, y, names=["width", "height"], classes=names)
    assert titles(figure)[:2] == ["MAP", "NUTS"]
    assert (asked[0].min(0) < X.min(0)).all()
    assert (asked[0].max(0) > X.max(0)).all()
    drawn = np.concatenate(
        [cloud.get_offsets() for cloud in figure.axes[0].collections if len(cloud.get_offsets()) > 1]
    )
    assert sorted(map(tuple, drawn)) == sorted(map(tuple, X))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_contours_lie_where_the_probability_of_the_second_class_is_theirs():
    X, y = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 2

    def predict(at):
        p = 1 / (1 + np.exp(-4 * (at[:, 0] - 0.25)))
        return np.column_stack([1 - p, p])

    figure = decision_surfaces({"map": predict}, X, y, names=["u", "v"], classes=["a", "b"])
    contours = next(drawn for drawn in figure.axes[0].collections if len(getattr(drawn, "levels", [])) == 3)
    half = contours.get_paths()[1].vertices
    np.testing.assert_allclose(half[:, 0], 0.25, atol=1e-2)
    sure = contours.get_paths()[2].vertices
    np.testing.assert_allclose(sure[:, 0], 0.25 + np.log(9) / 4, atol=1e-2)


def test_no_global_state_is_touched(tmp_path):
    before = dict(mpl.rcParams)
    style.save(reliability_curves(*predictions()), tmp_path / "picture.png")
    assert dict(mpl.rcParams) == before
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_posteriors_have_a_look_of_their_own_and_strangers_a_neutral_one():
    assert set(style.COLOURS) == set(style.LABELS)
    assert len(set(style.COLOURS.values())) == len(style.COLOURS)
    assert style.label("stochastic_gradient") == "stochastic gradient"
    assert style.colour("stochastic_gradient") not in style.COLOURS.values()


def test_long_names_keep_their_ends():
    assert style.shorten("short") == "short"
    shortened = style.shorten("a_very_long_feature_name_with_an_ending")
    assert len(shortened) == 24
    assert shortened.startswith("a_very_long")
    assert shortened.endswith("ending")


def test_calibration_draws_the_shares_below_quantiles_and_the_binomial_band():
    levels = np.array([0.25, 0.5, 0.75])
    figure = calibration_curves({"laplace": np.array([0.25, 0.5, 1.0])}, levels, 8)
    [panel] = figure.axes
    np.testing.assert_allclose(panel.lines[-1].get_ydata(), [0.25, 0.5, 1.0])
    band = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == stats.binom.ppf(0.975, 8, 0.75) / 8
    assert panel.get_title(loc="right") == "furthest 0.250"


def test_agreement_of_numbers_is_in_the_references_sds():
    moments = {
        "nuts": (np.array([0.0, 1.0]), np.array([1.0, 2.0])),
        "laplace": (np.array([1.0, 3.0]), np.array([0.5, 2.0])),
    }
    figure = moment_agreement(moments, reference="nuts", target="weight")
    [panel] = figure.axes
    np.testing.assert_allclose(panel.collections[0].get_offsets(), [[1.0, 0.5], [1.0, 1.0]])
    low, high = panel.get_ylim()
    assert low * high == pytest.approx(1.0)
    assert low < 0.5
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["0.5", "1", "2"]


def test_the_name_of_an_axis_stands_beside_the_panels_and_not_in_the_header() -> None:
    p = np.random.default_rng(0).dirichlet((1.0, 1.0), 60)
    figure = reliability_curves({"map": p, "laplace": p}, p.argmax(1))
    figure.draw_without_rendering()
    label, subtitle = figure._supylabel.get_window_extent(), figure.texts[1].get_window_extent()
    assert label.y1 < subtitle.y0
