"""Presets of the page: the rows, models and densities of the gallery's pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final

import numpy as np

from bayescope.explore.densities import DENSITIES
from bayescope.gallery import PICTURES, linear_models, network_posteriors, networks
from bayescope.plots import marks

State = dict[str, Any]


@final
@dataclass(frozen=True)
class Preset:
    """A state in which the page can begin.

    Attributes:
        name: a short name.
        title: the name on the page.
        state: makes the values of the page's controls.
        picture: the picture of the gallery whose caption is shown.
        caption: another caption.
    """

    name: str
    title: str
    state: Callable[[], State] = field(repr=False)
    picture: str = ""
    caption: str = ""


def _classes(X: np.ndarray, y: np.ndarray, view: marks.Span, **controls: Any) -> State:
    points = np.column_stack([X, y]).round(3).tolist()
    return {"kind": "classes", "points": points, "view": view, **controls}


def _numbers(x: np.ndarray, y: np.ndarray, view: marks.Span, **controls: Any) -> State:
    points = np.column_stack([np.ravel(x), np.ravel(y)]).round(3).tolist()
    return {"kind": "numbers", "points": points, "view": view, **controls}


def _scene(scene: linear_models.Scene, **controls: Any) -> State:
    prior_precision = scene.prior_precision
    return _classes(scene.X, scene.y, scene.span, **{"prior_precision": prior_precision, **controls})


def _borders() -> State:
    X, y = linear_models.Borders().data
    controls = {"model": "rbf", "bumps": "lattice", "side": 8, "width": 0.7, "prior_precision": 0.01}
    return _classes(X, y, linear_models.SPAN, posterior="variational", **controls)


def _network_moons() -> State:
    scene, problem = network_posteriors.moons()
    return _scene(scene, model="network", hidden=problem.widths[1])


def _banana() -> State:
    rows = networks.banana()
    X, y = rows.x.numpy(), rows.y.numpy()
    return _classes(X, y, ((-4.0, 4.0), (-3.2, 3.2)), model="network", hidden=10, prior_precision=0.3)


def _evidence() -> State:
    x, y, _, _ = linear_models.curve_rows()
    controls = {"model": "rbf", "bumps": "lattice", "side": 9, "width": 0.25}
    view = ((-1.0, 1.0), (-2.3, 2.3))
    return _numbers(x, y, view, noise_sd=linear_models.NOISE_SD, **controls)


def _gap() -> State:
    rows = networks.gap()
    x, y = rows.x.numpy(), rows.y.numpy()
    controls = {"model": "rbf", "bumps": "lattice", "side": 12, "width": 0.6, "prior_precision": 1.0}
    return _numbers(x, y, ((-3.0, 3.0), (-2.6, 2.6)), noise_sd=networks.NOISE_SD, **controls)


def _sine() -> State:
    problem = network_posteriors.curve()
    x, y = (np.asarray(each) for each in problem.data)
    controls = {"model": "network", "hidden": problem.widths[1], "prior_precision": problem.prior_precision}
    return _numbers(x, y, ((-7.0, 7.0), (-9.0, 9.0)), noise_sd=network_posteriors.NOISE_SD, **controls)


PRESETS: Sequence[Preset] = (
    Preset(
        "moons",
        "Two moons, 30 bumps",
        lambda: _scene(linear_models.moons(), model="rbf", bumps="points", count=30, width=0.6),
        "predictive-surfaces",
    ),
    Preset("blobs", "Overlapping blobs", lambda: _scene(linear_models.blobs(), model="linear"), "predictive-surfaces"),
    Preset("borders", "Many separating borders", _borders, "many-borders"),
    Preset("network-moons", "Two moons, a network", _network_moons, "network-moons"),
    Preset("banana", "A banana, a network", _banana, "network-banana"),
    Preset("evidence", "A curve of bumps", _evidence, "evidence-over-basis-functions"),
    Preset(
        "gap",
        "A curve with a gap",
        _gap,
        caption="Where there are no points the functions drawn from the posterior part, and the band of f opens.",
    ),
    Preset("sine", "A sine, a network", _sine, "network-sine"),
)


def _density(name: str) -> Preset:
    family = DENSITIES[name]
    parameters = {key: each.value for key, each in family.parameters.items()}
    state = {"kind": "density", "density": name, "parameters": parameters, "start": family.start}
    return Preset(name, family.title, lambda: {**state, "view": (family.view, (0.0, 1.0))}, family.picture)


@cache
def presets() -> list[Mapping[str, Any]]:
    """Return all presets with their states and captions."""
    return [
        {
            "name": preset.name,
            "title": preset.title,
            "caption": preset.caption or PICTURES[preset.picture].caption,
            "state": preset.state(),
        }
        for preset in [*PRESETS, *map(_density, DENSITIES)]
    ]
