"""What if: the page's own arithmetic, in a real browser, against the model's predictive distribution."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bayescope import BayesianLogisticRegression, BayesianMLPClassifier
from bayescope.errors import UnsupportedError
from bayescope.latent.latent import QUANTILE_NODES
from bayescope.report import judged, reasons, summands, whatif
from tests.browser import needs_a_browser

CASES = ["additive_classes", "additive_numbers", "additive_full", "logistic", "probit", "three_classes", "linear"]


@pytest.mark.parametrize("name", CASES)
def test_the_sum_on_grids_is_f(name, request):
    """At the points of the grids mean and covariance are the model's; between them they are close."""
    case = request.getfixturevalue(name)
    rows = case.judged()
    places = np.arange(len(rows))
    found = summands.as_sum(case.estimator, rows, places)
    at = found.positions(rows, places)
    whole = ~np.isnan(at).any(axis=1)
    mean, covariance = found.at(at[whole])
    predictive = case.estimator.predict_distribution(rows.rows(places[whole]))
    latent, spread = np.asarray(predictive.latent_mean), np.asarray(predictive.latent_cov)
    if latent.shape[1] > 1:
        centred = np.eye(latent.shape[1]) - 1.0 / latent.shape[1]
        latent, spread = latent @ centred, centred @ spread @ centred
    # Linear models are exact; a curve between points of a grid of 80, and 20 by 20 for a pair, is not.
    near = 0.03 if name.startswith("additive") else 1e-6
    assert whole.sum() > 40
    np.testing.assert_allclose(mean, latent, atol=near * latent.std())
    np.testing.assert_allclose(covariance, spread, atol=2 * near * spread.max())


def test_summands_are_the_parts_that_rows_are_explained_by(additive_classes):
    rows = additive_classes.judged()
    places = np.flatnonzero(~np.isnan(rows.columns[0].values))[:20]
    found = summands.as_sum(additive_classes.estimator, rows, places)
    at = found.positions(rows, places)
    told = reasons.explanations(additive_classes.estimator, rows, places)
    for summand, name in zip(found.summands[1:], told.names, strict=True):
        assert summand.name == name
        part = told.parts[:, told.names.index(name), 0]
        mean = summands._interpolation(summand, at) @ summand.mean[:, 0]
        np.testing.assert_allclose(mean, part, atol=0.05 * np.abs(told.parts).max())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"features": "polynomial"}, "mix columns"), ({"posterior": "metropolis", "draws": 50, "tune": 50}, "draws")],
)
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
def test_what_is_no_gaussian_sum_is_said_in_words(logistic, options, said):
    model = BayesianLogisticRegression(**options, random_state=0).fit(logistic.X, logistic.y)
    rows = judged.Judged.of(model, logistic.X, logistic.y, 0)
    told = whatif.what_if(model, rows, reasons.explanations(model, rows, np.arange(10)))
    assert isinstance(told, str)
    assert said in told


def test_a_network_is_no_sum():
    with pytest.raises(UnsupportedError, match="not a sum over columns"):
        summands._summands(BayesianMLPClassifier(), None, None)


def _chosen(page, place: int) -> tuple[list[list[float]], list[float]]:
    """The page's prediction of a row, with all its digits, and its variances of f."""
    page.locator("#whatif-start").select_option(str(place))
    body = page.locator("#whatif-body")
    return json.loads(body.get_attribute("data-values")), json.loads(body.get_attribute("data-variance"))


@needs_a_browser
@pytest.mark.parametrize("name", ["additive_classes", "additive_numbers", "logistic", "three_classes", "linear"])
def test_the_page_predicts_as_the_model_does(visit, facts_of, request, name):
    """The tolerance is that of f, through the link's steepest slope, and of the integral.

    The page keeps roots as 16-bit integers and interpolates: its f differs from the model's by what `difference` says,
    measured on these rows. ∣∂p/∂mean∣ ≤ ¼, ∣∂p/∂sd∣ ≤ ¼ and so ∣Δp∣ ≤ (Δmean + Δsd) / 4; of an interval's end, with
    z = 1.96, (Δmean + z Δsd) / 4. For three classes the page's integral has 4,096 quasi-random nodes, whose error in a
    probability is below 5e-4. The ends of intervals are quantiles over n nodes, 4,096 here and `QUANTILE_NODES` there:
    those of fewer nodes have a share of 0.025 ± 3 √(0.025 · 0.975 / n) beyond them, which the Gaussian's density there,
    0.058, makes a number of sds of f.
    """
    case, told = request.getfixturevalue(name), facts_of(request.getfixturevalue(name))
    data, page = told.what_if, visit(name).page
    assert not isinstance(data, str)
    off = data["difference"]["mean"] + 1.96 * data["difference"]["sd"]
    steepest = 0.25 if told.judged.classes else 1.0
    places = [place for place, row in enumerate(data["rows"]) if None not in row][:12:3]
    near, far = 1e-6, 1e-6
    if name == "three_classes":
        near, far = 5e-4, 0.25 * 3 * np.sqrt(0.025 * 0.975 / QUANTILE_NODES) / 0.058
    predictive = case.estimator.predict_distribution(told.judged.rows(told.explanations.places[places]))
    mean = np.asarray(predictive.mean)
    low, high = (np.asarray(end) for end in predictive.interval(0.95, of="mean"))
    scale = max(1.0, float(np.abs(mean).max()))
    for row, place in enumerate(places):
        values, variance = _chosen(page, place)
        sd = np.sqrt(max(variance))
        for value, end, error in zip(np.array(values).T, (mean, low, high), (near, far * sd, far * sd), strict=True):
            np.testing.assert_allclose(value, end[row], atol=steepest * off + error * scale)


@needs_a_browser
def test_sliders_fields_and_menus_move_the_prediction(visit):
    told = visit("additive_classes")
    page = told.page
    page.locator("#whatif-start").select_option("")
    answer, body = page.locator(".whatif .answer"), page.locator("#whatif-body")
    before, table = answer.text_content(), body.text_content()
    kind = page.locator(".control select").first
    other = next(o for o in kind.locator("option").all() if o.get_attribute("value") != kind.input_value())
    kind.select_option(other.get_attribute("value"))
    assert answer.text_content() != before
    assert body.text_content() != table
    slider = page.get_by_role("slider", name="age")
    field = page.get_by_label("age, as a number")
    was = answer.text_content(), float(field.input_value())
    slider.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert float(field.input_value()) > was[1]
    assert answer.text_content() != was[0]
    field.fill("1e9")
    field.press("Enter")
    assert float(field.input_value()) < 81.0
    assert "age = " in body.text_content()
    assert told.complaints == []


@needs_a_browser
def test_the_sum_shown_is_the_prediction(visit):
    page = visit("additive_numbers").page
    page.locator("#whatif-start").select_option("1")
    cells = page.locator("#whatif-body table").last.locator("tr td.number").all_text_contents()
    values = [float(text.split(" ")[0].replace("−", "-").replace("+", "")) for text in cells]
    assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.02 * max(map(abs, values)))
    shown = json.loads(page.locator("#whatif-body").get_attribute("data-values"))[0][0]
    assert values[-1] == pytest.approx(shown, abs=0.01 * max(map(abs, values)))


@needs_a_browser
def test_the_explained_row_can_be_changed(visit):
    page = visit("additive_classes").page
    page.locator("tr[data-place='3'] button").click()
    page.get_by_role("button", name="Change its values").click()
    assert page.locator("#whatif-start").input_value() == "3"
    assert page.evaluate("document.activeElement.id") == "whatif-start"


@needs_a_browser
def test_the_sum_of_another_class_can_be_chosen(visit):
    page = visit("three_classes").page
    table = page.locator("#whatif-body table").last
    before = table.text_content()
    page.locator("#whatif-output").select_option("0")
    assert "adds for a" in table.text_content() != before
