"""Densities in one dimension: Laplace's approximation and the Gaussians of least KL divergence in both directions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks, density
from bayescope.errors import InputError, recorded_warnings
from bayescope.explore.controls import Control
from bayescope.explore.surfaces import Part
from bayescope.explore.tables import Span, span
from bayescope.explore.written import script
from bayescope.gallery import exact
from bayescope.posterior import GaussianPosterior

POINTS = 401
INFINITE = "KL(q‖p) is infinite (∞) where q has mass outside the support of p."


def log_gamma(x: Tensor, shape: float) -> Tensor:
    """A gamma density of rate 1."""
    return ((shape - 1) * x.log() - x)[..., 0]


def log_beta(x: Tensor, a: float, b: float) -> Tensor:
    """A beta density."""
    return ((a - 1) * x.log() + (b - 1) * torch.log1p(-x))[..., 0]


def log_student(x: Tensor, degrees: float) -> Tensor:
    """Student's t."""
    return (-(degrees + 1) / 2 * torch.log1p(x.square() / degrees))[..., 0]


def log_skewed(x: Tensor, slope: float) -> Tensor:
    """A Gaussian that a sigmoid cuts off on the left."""
    return (-0.5 * x.square() + logsigmoid(slope * x + 4))[..., 0]


def log_mixture(x: Tensor, weight: float, distance: float, sd: float) -> Tensor:
    """Two Gaussians, the right one of width sd."""
    left = math.log(1 - weight) - 0.5 * (x + distance / 2).square()
    right = math.log(weight) - math.log(sd) - 0.5 * ((x - distance / 2) / sd).square()
    return torch.logaddexp(left, right)[..., 0]


def log_one_observation(x: Tensor, size: float) -> Tensor:
    """A weight with the prior N(½, 1) after one row: y = 1 at an input of this size, p(y = 1) = σ(size x)."""
    return (logsigmoid(size * x) - 0.5 * (x - 0.5).square())[..., 0]


def log_threshold(x: Tensor, slope: float) -> Tensor:
    """A threshold with the prior N(0, 10²): a stimulus was seen at 1 and not at −1."""
    return (logsigmoid(slope * (1 - x)) + logsigmoid(slope * (x + 1)) - 0.5 * (x / 10).square())[..., 0]


@final
@dataclass(frozen=True)
class Density:
    """A family of densities on the line.

    Attributes:
        title: its name.
        log_f: log f at points of shape (..., 1), and the parameters.
        parameters: of the family.
        view: what is shown.
        span: where it is integrated.
        start: where the search for a mode begins.
        transform: coordinates that suit it, or ``None``.
        picture: of the gallery.
        size: points that it is integrated on.
    """

    title: str
    log_f: Callable[..., Tensor]
    parameters: Mapping[str, Control]
    view: tuple[float, float]
    span: tuple[float, float]
    start: float
    transform: str | None = None
    picture: str = "laplace-in-one-dimension"
    size: int = 20_001

    @property
    def coordinates(self) -> str:
        """What the transformed coordinates are called in a title."""
        return {None: "", "positive": " in log x", "unit_interval": " in logit x"}[self.transform]

    @property
    def where(self) -> Control:
        """The start of a search for a mode, in the view and within the support."""
        (low, high), (first, last) = self.view, self.span
        edge = 1e-3 * (high - low)
        return Control("start", self.start, max(low, first + edge), min(high, last - edge))


DENSITIES: Mapping[str, Density] = {
    "gamma": Density(
        "Gamma(a, 1)", log_gamma, {"shape": Control("a", 2.5, 1.1, 8, 0.1)}, (-0.7, 14), (1e-9, 80), 1.0, "positive"
    ),
    "beta": Density(
        "Beta(a, b)",
        log_beta,
        {"a": Control("a", 2, 1.1, 10, 0.1), "b": Control("b", 5, 1.1, 10, 0.1)},
        (-0.2, 1.2),
        (1e-9, 1 - 1e-9),
        0.3,
        "unit_interval",
    ),
    "student": Density(
        "Student's t",
        log_student,
        {"degrees": Control("degrees", 3, 3, 30, 1)},
        (-6, 6),
        (-4000, 4000),
        0.2,
        size=160_001,
    ),
    "skewed": Density(
        "e^(−x²/2) σ(kx + 4)", log_skewed, {"slope": Control("k", 20, 0, 40, 1)}, (-4, 4), (-12, 12), 0.5
    ),
    "mixture": Density(
        "Two modes",
        log_mixture,
        {
            "weight": Control("weight of the right mode", 0.35, 0.02, 0.98, 0.01),
            "distance": Control("distance", 4.2, 0, 8, 0.1),
            "sd": Control("sd of the right mode", 0.7, 0.2, 2, 0.05),
        },
        (-6.5, 6.5),
        (-20, 20),
        -2.0,
        picture="kl-directions",
    ),
    "one-observation": Density(
        "One observation",
        log_one_observation,
        {"size": Control("size of its input", 25, 0, 40, 1)},
        (-3.5, 4.5),
        (-9, 10),
        0.5,
        picture="one-observation",
    ),
    "threshold": Density(
        "A threshold",
        log_threshold,
        {"slope": Control("slope", 5, 0.5, 12, 0.5)},
        (-4.2, 4.2),
        (-90, 90),
        0.2,
        picture="evidence-by-laplace",
    ),
}


@final
@dataclass(frozen=True)
class DensityTask:
    """A density with its parameters, and where its approximations start.

    Attributes:
        density: its name.
        parameters: by name.
        start: of Laplace and of variational inference.
        view: what is shown.
    """

    density: str
    parameters: Mapping[str, float]
    start: float
    view: Span

    @classmethod
    def read(cls, question: Mapping[str, Any]) -> DensityTask:
        """Return the task that a question of the page describes.

        Raises:
            InputError: if a value cannot be used.
        """
        name = checks.choice("density", question.get("density"), DENSITIES)
        family, given = DENSITIES[name], question.get("parameters")
        if not isinstance(given, Mapping) or set(given) != set(family.parameters):
            raise InputError(f"parameters: expected {list(family.parameters)}, got {given!r}. Give each of them.")
        values = {key: control.read(key, given[key]) for key, control in family.parameters.items()}
        start = family.where.read("start", question.get("start"))
        return cls(name, values, start, span(question.get("view")))

    @property
    def log_f(self) -> Callable[[Tensor], Tensor]:
        """The log density with its parameters."""
        return partial(DENSITIES[self.density].log_f, **self.parameters)

    def code(self) -> str:
        """Python code that computes the approximations."""
        family = DENSITIES[self.density]
        source = inspect.getsource(family.log_f).strip()
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        imports = {
            "import torch",
            "from functools import partial",
            "from torch import Tensor",
            "import bayescope as bs",
        }
        needed = {"logsigmoid(": "from torch.nn.functional import logsigmoid", "math.": "import math"}
        imports |= {line for mark, line in needed.items() if mark in source}
        start = f"start = torch.tensor([{self.start!r}], dtype=torch.float64)"
        made = f"log_f = partial({family.log_f.__name__}, {given})\n{start}"
        options = "" if family.transform is None else f", transform={family.transform!r}"
        fits = 'fits = {"Laplace": bs.density.laplace(log_f, start)}\n'
        if family.transform is not None:
            fits += f'fits["Laplace{family.coordinates}"] = bs.density.laplace(log_f, start{options})\n'
        seeking = f"bs.density.variational(log_f, 1, start=start{options}, generator=0)"
        fits += f'fits["min KL(q‖p){family.coordinates}"] = {seeking}\n'
        fits += "for name, q in fits.items():\n    print(name, float(q.mean), float(q.sd))\n"
        fits += 'print("log Z by Laplace:", float(fits["Laplace"].log_evidence()))'
        ends = ", ".join(map(repr, family.span))
        grid = "# The Gaussian of least KL(p‖q) has the mean and the sd of p.\n"
        grid += f"x = torch.linspace({ends}, {family.size}, dtype=torch.float64)\n"
        grid += "p = torch.softmax(log_f(x[:, None]), 0)\nmean = p @ x\n"
        grid += 'print("min KL(p‖q)", float(mean), float(p @ (x - mean) ** 2) ** 0.5)'
        return script(frozenset(imports), source, made, fits, grid)


def density_answers(task: DensityTask) -> Iterator[Part]:
    """Yield the density and its approximations as one part."""
    family, log_f = DENSITIES[task.density], task.log_f
    p = exact.grid(log_f, family.span, size=family.size)
    x = np.linspace(*task.view[0], POINTS)
    start = torch.tensor([task.start], dtype=torch.float64)
    with recorded_warnings(passed_on=False) as messages:
        fits = [_fit(p, x, *each) for each in _approximations(family, log_f, start, p)]
    inside = (x > family.span[0]) & (x < family.span[1])
    log_p = np.full(len(x), -np.inf)
    log_p[inside] = exact.curve(log_f, x[inside]) - p.log_normaliser
    yield {
        "part": "density",
        "x": _numbers(x),
        **_curves("p", log_p),
        **_moments(p.mean, p.covariance),
        "log_z": p.log_normaliser,
        "fits": fits,
        "note": INFINITE if any(fit["kl_qp"] == "∞" for fit in fits) else "",
        "warnings": messages,
    }


def _approximations(
    family: Density, log_f: Callable[[Tensor], Tensor], start: Tensor, p: exact.Grid
) -> Iterator[tuple[str, str, GaussianPosterior]]:
    transform: Any = family.transform
    yield "laplace", "Laplace", density.laplace(log_f, start)
    if transform is not None:
        yield "transformed", f"Laplace{family.coordinates}", density.laplace(log_f, start, transform=transform)
    seeking = density.variational(log_f, 1, start=start, transform=transform, generator=0)
    yield "seeking", f"min KL(q‖p){family.coordinates}", seeking
    yield "covering", "min KL(p‖q)", exact.moment_match(p)


def _fit(p: exact.Grid, x: np.ndarray, name: str, title: str, q: GaussianPosterior) -> Part:
    on_grid = q.log_prob(p.points)
    outside = float((on_grid + p.log_cell).exp().sum()) < 1 - 1e-4
    log_z = float(q.log_evidence()) if name in ("laplace", "transformed") else None
    return {
        "name": name,
        "title": title,
        **_curves("q", q.log_prob(torch.from_numpy(x)[:, None]).numpy()),
        **_moments(q.mean, q.covariance),
        "log_z": log_z,
        "kl_qp": "∞" if outside else p.kl_from(on_grid),
        "kl_pq": p.kl_to(on_grid),
    }


def _curves(name: str, log_density: np.ndarray) -> Part:
    return {name: _numbers(np.exp(log_density)), f"log_{name}": _numbers(log_density)}


def _moments(mean: Tensor, covariance: Tensor) -> Part:
    return {"mean": float(mean[0]), "sd": float(covariance[0, 0].sqrt())}


def _numbers(values: np.ndarray) -> list[float | None]:
    """Numbers with the digits that a picture shows; ``None`` for those that are not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]


def described() -> Mapping[str, Any]:
    """The controls of each family."""
    return {
        name: {
            "parameters": {key: asdict(each) for key, each in family.parameters.items()},
            "where": asdict(family.where),
        }
        for name, family in DENSITIES.items()
    }
