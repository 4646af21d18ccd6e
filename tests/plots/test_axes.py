"""Every picture goes into the axes that a caller gives, as it is drawn in a figure of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope import plots
from bayescope.additive import effect, explain, importance, surface
from bayescope.errors import InputError
from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Gaussian
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.predictive import Predictive
from tests.additive.fitted import encoded, fitted, frame

SOURCE = np.random.default_rng(0)
LOGITS = SOURCE.normal(size=(40, 3))
LOGS = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
Y = SOURCE.integers(0, 3, 40)
PLANE = SOURCE.normal(size=(40, 2))


def gaussian(scale: float) -> GaussianPosterior:
    return GaussianPosterior(torch.zeros(3).double(), DensePrecision(scale * torch.eye(3).double()), Record("laplace"))


def surely(at: np.ndarray) -> np.ndarray:
    odds = np.column_stack([at[:, 0], at[:, 1], -at[:, 0]])
    return np.exp(odds) / np.exp(odds).sum(1, keepdims=True)


class Case(NamedTuple):
    """A picture, drawn with further options, and how many panels it has."""

    draw: Callable[..., Any]
    panels: int


MOMENTS = {name: (LOGITS[:, 0] + shift, np.full(40, 1.0 + shift)) for name, shift in (("nuts", 0), ("ep", 0.1))}
TRACES = {"map": {"nll": [3.0, 2.0, 1.0], "elbo": [-4.0, -3.0, -2.0]}}
POSTERIORS = {"nuts": gaussian(1.0), "laplace": gaussian(2.0)}
CASES = {
    "agreement": Case(
        lambda **o: plots.agreement({"nuts": LOGS, "map": LOGS, "ep": LOGS}, reference="nuts", classes="abc", **o), 2
    ),
    "calibration_curves": Case(
        lambda **o: plots.calibration_curves({"map": np.array([0.2, 0.6])}, np.array([0.25, 0.75]), 40, **o), 1
    ),
    "decision_surfaces": Case(
        lambda **o: plots.decision_surfaces({"map": surely}, PLANE, Y, names=["u", "v"], classes="abc", **o), 1
    ),
    "effect": Case(lambda **o: plots.effect(effect(fitted(), "age"), **o), 1),
    "effects": Case(lambda **o: plots.effects([effect(fitted(), name) for name in ("age", "kind")], **o), 2),
    "effect_surface": Case(lambda **o: plots.effect_surface(surface(fitted(), ("age", "dose")), **o), 2),
    "explanation": Case(lambda **o: plots.explanation(explain(fitted(), encoded(frame(3))), **o), 1),
    "importance": Case(lambda **o: plots.importance(importance(fitted()), **o), 1),
    "marginals": Case(
        lambda **o: plots.marginals(POSTERIORS, reference="nuts", names=["a", "$b$", "c"], chosen=[2, 1], **o), 2
    ),
    "moment_agreement": Case(lambda **o: plots.moment_agreement(MOMENTS, reference="nuts", target="y", **o), 1),
    "predictions": Case(
        lambda **o: plots.predictions(
            Predictive(GaussianLatent(torch.zeros(4, 2), torch.eye(2).expand(4, 2, 2), "exact"), Gaussian(1.0)),
            **o,
        ),
        2,
    ),
    "reliability_curves": Case(lambda **o: plots.reliability_curves({"map": np.exp(LOGS)}, Y, **o), 1),
    "training_curves": Case(lambda **o: plots.training_curves(TRACES, **o), 2),
}


def numbers(panel: Axes) -> list[np.ndarray]:
    """The coordinates of all lines and points of a panel."""
    offsets = [np.asarray(collection.get_offsets()) for collection in panel.collections]
    return [line.get_xydata() for line in panel.lines] + offsets


def test_every_picture_takes_axes() -> None:
    drawing = {name for name in plots.__all__ if "ax" in inspect.signature(getattr(plots, name)).parameters}
    assert drawing == set(CASES) == set(plots.__all__) - {"most_disputed"}


@pytest.mark.parametrize("name", CASES)
def test_it_is_drawn_into_the_axes_that_are_given(name: str) -> None:
    draw, count = CASES[name]
    alone = draw()
    figure = Figure()
    axes = figure.subplots(2, 2).ravel()[:count]
    given = axes[0] if count == 1 else axes
    assert draw(ax=given) is given
    assert not figure.texts  # no header
    for theirs, ours in zip(alone.axes[:count], axes, strict=True):
        for expected, drawn in zip(numbers(theirs), numbers(ours), strict=True):
            np.testing.assert_allclose(drawn, expected)
        np.testing.assert_allclose([*ours.get_xlim(), *ours.get_ylim()], [*theirs.get_xlim(), *theirs.get_ylim()])
        assert ours.get_xlabel() or ours.get_ylabel()
    assert bool(alone.legends) == (axes[0].get_legend() is not None)


@pytest.mark.parametrize("name", CASES)
def test_axes_that_do_not_fit_are_refused(name: str) -> None:
    draw, count = CASES[name]
    with pytest.raises(
        InputError, match=rf"ax: expected .*, got {count + 1}\. Take those of plt\.subplots\(1, {count}\)"
    ):
        draw(ax=list(Figure().subplots(1, count + 1)))
    with pytest.raises(InputError, match=r"ax: expected .*, got Figure"):
        draw(ax=Figure())


def test_names_on_given_axes_are_drawn_as_they_are() -> None:
    axes = Figure().subplots(1, 2)
    CASES["marginals"].draw(ax=axes)
    assert [panel.get_title("left") for panel in axes] == ["c", "$b$"]
    drawn = [text for text in axes[1].findobj(mpl.text.Text) if "$" in text.get_text()]
    assert not any(text.get_parse_math() for text in drawn)


def test_a_figure_shows_itself_at_the_size_of_a_screen() -> None:
    figure = CASES["training_curves"].draw()
    assert isinstance(figure, Figure)
    png, size = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    width, height = figure.get_size_inches()
    assert size == {"width": round(96 * width), "height": round(96 * height)}
