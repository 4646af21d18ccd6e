"""Questions about points on the page: the estimator that answers each, and the Python code that fits it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, cast, final, get_args

import numpy as np
from sklearn.metrics.pairwise import rbf_kernel

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError, recorded_warnings
from bayescope.explore.controls import CONTROLS
from bayescope.explore.written import Written, call, script
from bayescope.gallery.linear_models import FLAT

Kind = Literal["classes", "numbers"]
ModelName = Literal["linear", "polynomial", "rbf", "network", "additive"]
PosteriorName = Literal[
    "map", "laplace", "last_layer", "variational", "mean_field", "ep", "mc_dropout", "ensemble", "nuts"
]  # fmt: skip
Span = tuple[tuple[float, float], tuple[float, float]]

LINEAR = ("linear", "polynomial", "rbf")
MOST_POINTS = 2_000
# Coordinates stay below this size, and views above its inverse, so that squares and differences are floats.
MOST_SIZE = 1e6
# The options of posteriors that would take minutes by default.
NETWORK_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "laplace": {"posterior_options": {"structure": "full"}},
    "variational": {"posterior_options": {"kl_weight": 1.0}},
    "nuts": {"draws": 150, "posterior_options": {"tune": 150, "chains": 2, "max_depth": 6}},
}
LINEAR_OPTIONS: Mapping[str, Mapping[str, Any]] = {"nuts": {"draws": 500, "tune": 300, "chains": 2}}
OFFERED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(LINEAR, ("map", "laplace", "variational", "mean_field", "ep", "nuts")),
    "network": ("map", "laplace", "last_layer", "variational", "mc_dropout", "ensemble", "nuts"),
    "additive": ("map", "laplace"),
}
ONE_MODE = "The posterior of a linear model has one mode: all members of an ensemble would be the same point."
NO_UNITS = "MC dropout drops hidden units, and this model has none."
NO_LAYERS = "This model has one layer: Laplace already approximates all of it."
LAPLACE_ONLY = "bayescope fits additive models by Laplace's approximation."
WHY_NOT: Mapping[str, Mapping[str, str]] = {
    **{name: {"ensemble": ONE_MODE, "mc_dropout": NO_UNITS, "last_layer": NO_LAYERS} for name in LINEAR},
    "network": {
        "mean_field": "For networks, VI already takes independent weights. Choose VI.",
        "ep": "Expectation propagation is for models that are linear in their weights.",
    },
    "additive": dict.fromkeys(
        ("last_layer", "variational", "mean_field", "ep", "mc_dropout", "ensemble", "nuts"), LAPLACE_ONLY
    ),
}
NO_NUTPIE = "NUTS needs nutpie: pip install 'bayescope[nuts]'."


def why_not(model: str, posterior: str) -> str | None:
    """Return why a posterior is not offered for a model, ``None`` if it is offered."""
    if posterior == "nuts" and importlib.util.find_spec("nutpie") is None:
        return NO_NUTPIE
    return None if posterior in OFFERED[model] else WHY_NOT[model][posterior]


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """Points, a model and its posterior.

    Attributes:
        kind: whether the last number of a point is a class, 0 or 1, or a number.
        points: (x₁, x₂, class) or (x, y) each.
        view: what is shown, ((low, high) of the first coordinate, (low, high) of the second).
        model: of f.
        posterior: of its weights.
        prior_precision: of the weights.
        temperature: T, by which the log likelihood is divided: each row has the weight 1/T.
        noise_sd: of numbers.
        degree: of the polynomial.
        bumps: whether the radial basis functions lie on a lattice over the view or on some of the points.
        side: centres of the lattice along each axis.
        count: centres that are points.
        width: of a radial basis function.
        hidden: units of the network, or of each net of the additive model.
    """

    kind: Kind
    points: tuple[tuple[float, ...], ...]
    view: Span
    model: ModelName = "linear"
    posterior: PosteriorName = "laplace"
    bumps: Literal["lattice", "points"] = "lattice"
    prior_precision: float = CONTROLS["prior_precision"].value
    temperature: float = CONTROLS["temperature"].value
    noise_sd: float = CONTROLS["noise_sd"].value
    degree: int = int(CONTROLS["degree"].value)
    side: int = int(CONTROLS["side"].value)
    count: int = int(CONTROLS["count"].value)
    width: float = CONTROLS["width"].value
    hidden: int = int(CONTROLS["hidden"].value)

    @classmethod
    def read(cls, question: Mapping[str, Any]) -> Self:
        """Return the task that a question of the page describes.

        Raises:
            InputError: if a value cannot be used.
            UnsupportedError: if the posterior is not offered for the model.
        """
        kind = checks.choice("kind", question.get("kind"), get_args(Kind))
        given = {field.name: question[field.name] for field in fields(cls) if field.name in question}
        given |= {name: CONTROLS[name].read(name, value) for name, value in given.items() if name in CONTROLS}
        given |= {"points": _points(question.get("points"), kind), "view": span(question.get("view"))}
        task = cls(**given)
        checks.choice("model", task.model, get_args(ModelName))
        checks.choice("posterior", task.posterior, get_args(PosteriorName))
        checks.choice("bumps", task.bumps, ("lattice", "points"))
        reason = why_not(task.model, task.posterior)
        if reason is not None:
            raise UnsupportedError(
                f"posterior: expected one of {OFFERED[task.model]}, got {task.posterior!r}. {reason}"
            )
        return task

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """X of shape (N, 2) or (N, 1), and y."""
        table = np.array(self.points, dtype=np.float64).reshape(len(self.points), 3 if self.kind == "classes" else 2)
        return table[:, :-1], table[:, -1].astype(int) if self.kind == "classes" else table[:, -1]

    @property
    def weights(self) -> np.ndarray | None:
        """1/T for each row, ``None`` at T = 1."""
        return None if self.temperature == 1.0 else np.full(len(self.points), 1.0 / self.temperature)

    @property
    def is_linear(self) -> bool:
        """Whether f is linear in the weights."""
        return self.model in LINEAR

    def estimator(self) -> Written:
        """The estimator that answers, not yet fitted."""
        if self.model == "additive":
            return self._additive()
        if self.model == "network":
            return self._network()
        options: dict[str, Any] = {"posterior": self.posterior, "prior_precision": self.prior_precision}
        features = self._features()
        if features is not None:
            options = {"features": features, **options}
        options |= {**FLAT, **LINEAR_OPTIONS.get(self.posterior, {}), "random_state": 0}
        if self.kind == "classes":
            return call("bayescope", "BayesianLogisticRegression", **options)
        noise = call("bayescope", "Gaussian", noise_variance=_tidy(self.noise_sd**2))
        return call("bayescope", "BayesianGeneralizedLinearModel", likelihood=noise, **options)

    def _features(self) -> Written | None:
        if self.model == "linear":
            return None
        if self.model == "polynomial":
            return call("sklearn.preprocessing", "PolynomialFeatures", degree=self.degree, include_bias=False)
        if self.bumps == "points":
            return call("bayescope.estimators", "RadialBasis", centres=self.count, width=self.width)
        kernel = Written(rbf_kernel, "rbf_kernel", frozenset({"from sklearn.metrics.pairwise import rbf_kernel"}))
        options = {"Y": self._lattice(), "gamma": Written(1 / (2 * self.width**2), f"1 / (2 * {self.width}**2)")}
        text = ", ".join(f'"{name}": {each.text}' for name, each in options.items())
        needed = frozenset({"import numpy as np"})
        keywords = Written({name: each.value for name, each in options.items()}, f"{{{text}}}", needed)
        return call("sklearn.preprocessing", "FunctionTransformer", func=kernel, kw_args=keywords)

    def _lattice(self) -> Written:
        """Centres that are evenly spaced over the view, shape (side², 2) or (side, 1)."""
        lines = [f"np.linspace({low}, {high}, {self.side})" for low, high in self.view]
        values = [np.linspace(low, high, self.side) for low, high in self.view]
        if self.kind == "numbers":
            return Written(values[0][:, None], f"{lines[0]}[:, None]")
        grid = np.stack(np.meshgrid(*values), -1).reshape(-1, 2)
        return Written(grid, f"np.stack(np.meshgrid({', '.join(lines)}), -1).reshape(-1, 2)")

    def _network(self) -> Written:
        options: dict[str, Any] = {"hidden": (self.hidden,), "posterior": self.posterior}
        options |= {"prior_precision": self.prior_precision, "scaling": None, "random_state": 0}
        options |= NETWORK_OPTIONS.get(self.posterior, {})
        if self.kind == "classes":
            return call("bayescope", "BayesianMLPClassifier", **options)
        return call("bayescope", "BayesianMLPRegressor", noise_variance=_tidy(self.noise_sd**2), **options)

    def _additive(self) -> Written:
        options: dict[str, Any] = {"posterior": self.posterior, "prior_precision": self.prior_precision}
        options |= {"hidden": self.hidden, "random_state": 0}
        if self.kind == "classes":
            return call("bayescope", "NeuralAdditiveClassifier", **options)
        noise = call("bayescope", "Gaussian", noise_variance=_tidy(self.noise_sd**2))
        return call("bayescope", "NeuralAdditiveRegressor", likelihood=noise, **options)

    def code(self) -> str:
        """Python that fits this task and predicts at its points."""
        estimator, (X, y) = self.estimator(), self.rows
        weights = "" if self.weights is None else f", sample_weight=np.full(len(y), 1 / {self.temperature})"
        remark = "" if self.weights is None else f"  # temperature {self.temperature}: each row counts 1/T times"
        data = f"X = np.array({X.tolist()})\ny = np.array({y.tolist()})"
        fit = f"model = {estimator.text}\nmodel.fit(X, y{weights}){remark}"
        mean = "p.probs[:, 1]" if self.kind == "classes" else "p.mean[:, 0]"
        shown = f"p = model.predict_distribution(X)\nmean, sd = {mean}, p.epistemic[:, -1] ** 0.5\n"
        shown += "print(np.column_stack([mean, sd]).round(3))"
        if self.posterior == "laplace":
            shown += '\nprint("log evidence:", model.log_evidence_)'
        return script(estimator.imports | {"import numpy as np"}, data, fit, shown)


class Fitted(NamedTuple):
    """An estimator after its fit, and what the library warned of."""

    estimator: Any
    warnings: tuple[str, ...]


@lru_cache(maxsize=64)
def fitted(task: Task) -> Fitted:
    """Return the fitted estimator of a task; the latest ones are cached."""
    estimator, (X, y) = task.estimator().value, task.rows
    with recorded_warnings(passed_on=False) as messages, warnings.catch_warnings():
        estimator.fit(X, y, sample_weight=task.weights)
    return Fitted(estimator, tuple(messages))


def span(view: object) -> Span:
    """Return ((low, high), (low, high)) of a question, as tuples."""
    table = np.asarray(checks.float64("view", view))
    if table.shape != (2, 2) or (np.diff(table) < 1 / MOST_SIZE).any() or (abs(table) > MOST_SIZE).any():
        raise InputError(
            f"view: expected ((low, high), (low, high)) within ±{MOST_SIZE:g}, got {view!r}. Give increasing numbers."
        )
    return cast(Span, tuple(map(tuple, table.tolist())))


def _points(points: object, kind: Kind) -> tuple[tuple[float, ...], ...]:
    size = 3 if kind == "classes" else 2
    if not isinstance(points, list):
        raise InputError(f"points: expected a list, got {type(points).__name__}. Send a list of points.")
    if len(points) > MOST_POINTS:
        raise InputError(f"points: expected at most {MOST_POINTS}, got {len(points)}. Delete some.")
    table = np.asarray(checks.float64("points", points)) if points else np.empty((0, size))
    if table.ndim != 2 or table.shape[1] != size:
        raise InputError(f"points: expected {size} numbers each, got shape {table.shape}. Send whole points.")
    if (abs(table) > MOST_SIZE).any():
        raise InputError(f"points: expected numbers within ±{MOST_SIZE:g}, got {abs(table).max():g}. Rescale them.")
    if kind == "classes" and set(table[:, 2]) != {0.0, 1.0}:
        raise InputError("points: expected points of both classes. Add a point of the class that is missing.")
    if kind == "numbers" and len(table) < 2:
        raise InputError(f"points: expected at least two, got {len(table)}. Add a point.")
    return tuple(map(tuple, table.tolist()))


def _tidy(value: float) -> float:
    """A square without the rounding of its last digits."""
    return float(f"{value:.12g}")
