"""Densities on the line: their Laplace approximation and the Gaussians of least KL in both directions."""

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
from bayescope.errors import BayescopeError, InputError, recorded_warnings
from bayescope.explore.surfaces import Part
from bayescope.explore.tables import Span, span
from bayescope.explore.written import script
from bayescope.gallery import exact
from bayescope.posterior import GaussianPosterior

POINTS = 401
# KL(q‖p) is infinite where q has mass that p has not: then this is said.
INFINITE = "KL(q‖p) is infinite (—) where q has mass outside of p's support."


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
class Parameter:
    """A number that a slider sets.

    Attributes:
        title: what the slider is called.
        value: where it begins.
        low: its least value.
        high: its largest.
        step: from one value to the next.
    """

    title: str
    value: float
    low: float
    high: float
    step: float


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
    parameters: Mapping[str, Parameter]
    view: tuple[float, float]
    span: tuple[float, float]
    start: float
    transform: str | None = None
    picture: str = "laplace-in-one-dimension"
    size: int = 20_001

    @property
    def inside(self) -> tuple[float, float]:
        """Where a search may start: in the view, and within the support."""
        (low, high), (first, last) = self.view, self.span
        edge = 1e-3 * (high - low)
        return max(low, first + edge), min(high, last - edge)


DENSITIES: Mapping[str, Density] = {
    "gamma": Density(
        "Gamma(a, 1)", log_gamma, {"shape": Parameter("a", 2.5, 1.1, 8, 0.1)}, (-0.7, 14), (1e-9, 80), 1.0, "positive"
    ),
    "beta": Density(
        "Beta(a, b)",
        log_beta,
        {"a": Parameter("a", 2, 1.1, 10, 0.1), "b": Parameter("b", 5, 1.1, 10, 0.1)},
        (-0.2, 1.2),
        (1e-9, 1 - 1e-9),
        0.3,
        "unit_interval",
    ),
    "student": Density(
        "Student's t",
        log_student,
        {"degrees": Parameter("degrees", 3, 3, 30, 1)},
        (-6, 6),
        (-4000, 4000),
        0.2,
        size=160_001,
    ),
    "skewed": Density(
        "e^(−x²/2) σ(kx + 4)", log_skewed, {"slope": Parameter("k", 20, 0, 40, 1)}, (-4, 4), (-12, 12), 0.5
    ),
    "mixture": Density(
        "Two modes",
        log_mixture,
        {
            "weight": Parameter("weight of the right mode", 0.35, 0.02, 0.98, 0.01),
            "distance": Parameter("distance", 4.2, 0, 8, 0.1),
            "sd": Parameter("sd of the right mode", 0.7, 0.2, 2, 0.05),
        },
        (-6.5, 6.5),
        (-20, 20),
        -2.0,
        picture="kl-directions",
    ),
    "one-observation": Density(
        "One observation",
        log_one_observation,
        {"size": Parameter("size of its input", 25, 0, 40, 1)},
        (-3.5, 4.5),
        (-9, 10),
        0.5,
        picture="one-observation",
    ),
    "threshold": Density(
        "A threshold",
        log_threshold,
        {"slope": Parameter("slope", 5, 0.5, 12, 0.5)},
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
    def read(cls, said: Mapping[str, Any]) -> DensityTask:
        """The task that a request names.

        Raises:
            InputError: if a value cannot be used.
        """
        name = checks.choice("density", said.get("density"), DENSITIES)
        family, given = DENSITIES[name], said.get("parameters")
        if not isinstance(given, Mapping) or set(given) != set(family.parameters):
            raise InputError(f"parameters: expected {list(family.parameters)}, got {given!r}. Give each of them.")
        values = {}
        for key, parameter in family.parameters.items():
            values[key] = _between(key, given[key], parameter.low, parameter.high)
        start = _between("start", said.get("start"), *family.inside)
        return cls(name, values, start, span(said.get("view")))

    @property
    def log_f(self) -> Callable[[Tensor], Tensor]:
        """The log density with its parameters."""
        return partial(DENSITIES[self.density].log_f, **self.parameters)

    def code(self) -> str:
        """Python that finds the approximations."""
        family = DENSITIES[self.density]
        source = inspect.getsource(family.log_f).strip()
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        name = family.log_f.__name__
        imports = {
            "import torch",
            "from functools import partial",
            "from torch import Tensor",
            "import bayescope as bs",
        }
        needed = {"logsigmoid(": "from torch.nn.functional import logsigmoid", "math.": "import math"}
        imports |= {line for mark, line in needed.items() if mark in source}
        start = f"start = torch.tensor([{self.start!r}], dtype=torch.float64)"
        made = f"log_f = partial({name}, {given})\n{start}"
        options = "" if self._bounded is None else f", transform={self._bounded!r}"
        fits = "laplace = bs.density.laplace(log_f, start)\n"
        if self._bounded:
            fits += f"transformed = bs.density.laplace(log_f, start{options})\n"
        fits += f"seeking = bs.density.variational(log_f, 1, start=start{options}, generator=0)"
        told = 'print("Laplace:", float(laplace.mean), float(laplace.sd), float(laplace.log_evidence()))\n'
        told += 'print("min KL(q‖p):", float(seeking.mean), float(seeking.sd))'
        return script(frozenset(imports), source, made, fits, told)

    @property
    def _bounded(self) -> str | None:
        return DENSITIES[self.density].transform


def density_answers(task: DensityTask) -> Iterator[Part]:
    """The density and its approximations as one part."""
    family, log_f = DENSITIES[task.density], task.log_f
    # Fine where it is seen, and wide enough to hold all of its mass.
    p = exact.grid(log_f, family.span, size=family.size)
    x = np.linspace(*task.view[0], POINTS)
    start = torch.tensor([task.start], dtype=torch.float64)
    with recorded_warnings(passed_on=False) as told:
        fits = [_fit(p, x, *each) for each in _approximations(family, log_f, start, p)]
    inside = (x > family.span[0]) & (x < family.span[1])
    log_p = np.full(len(x), -np.inf)
    log_p[inside] = exact.curve(log_f, x[inside]) - p.log_normaliser
    infinite = any(fit["kl_qp"] is None for fit in fits)
    yield {
        "part": "density",
        "x": _numbers(x),
        "p": _numbers(np.exp(log_p)),
        "log_p": _numbers(log_p),
        "mean": float(p.mean[0]),
        "sd": float(p.covariance[0, 0].sqrt()),
        "log_z": p.log_normaliser,
        "fits": fits,
        "note": INFINITE if infinite else "",
        "warnings": list(told),
    }


def _approximations(
    family: Density, log_f: Callable[[Tensor], Tensor], start: Tensor, p: exact.Grid
) -> Iterator[tuple[str, str, GaussianPosterior]]:
    transform: Any = family.transform
    coordinates = {None: "", "positive": " in log x", "unit_interval": " in logit x"}[transform]
    yield "laplace", "Laplace", density.laplace(log_f, start)
    if transform is not None:
        yield "transformed", f"Laplace{coordinates}", density.laplace(log_f, start, transform=transform)
    seeking = density.variational(log_f, 1, start=start, transform=transform, generator=0)
    yield "seeking", f"min KL(q‖p){coordinates}", seeking
    yield "covering", "min KL(p‖q)", exact.moment_match(p)


def _fit(p: exact.Grid, x: np.ndarray, name: str, title: str, q: GaussianPosterior) -> Part:
    points = torch.from_numpy(x)[:, None]
    log_q = q.log_prob(points).numpy()
    on_grid = q.log_prob(p.points)
    kl_qp = p.kl_from(on_grid)
    outside = float((on_grid + p.log_cell).exp().sum()) < 1 - 1e-4
    try:
        log_z: float | None = float(q.log_evidence())
    except BayescopeError:
        log_z = None
    return {
        "name": name,
        "title": title,
        "q": _numbers(np.exp(log_q)),
        "log_q": _numbers(log_q),
        "mean": float(q.mean[0]),
        "sd": float(q.covariance[0, 0].sqrt()),
        "log_z": log_z,
        "kl_qp": None if outside else kl_qp,
        "kl_pq": p.kl_to(on_grid),
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Numbers with the digits that a picture shows; ``None`` for those that are not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]


def _between(name: str, value: Any, low: float, high: float) -> float:
    number = float(checks.float64(name, value))
    if not low <= number <= high:
        raise InputError(f"{name}: expected a number from {low:g} to {high:g}, got {number:g}. Move it there.")
    return number


def described() -> Mapping[str, Any]:
    """All families as the page draws their controls."""
    return {
        name: {
            "title": family.title,
            "parameters": {key: asdict(each) for key, each in family.parameters.items()},
            "view": (family.view, (0.0, 1.0)),
            "start": family.start,
            "inside": family.inside,
        }
        for name, family in DENSITIES.items()
    }
