"""Small fitted models and what a report computes of them, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from bayescope import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    NeuralAdditiveClassifier,
    NeuralAdditiveRegressor,
)
from bayescope.report import document, facts, judged, page_of
from tests.browser import DESKTOP

# What a browser would run, or a template would read, if any of it were taken as more than text.
HOSTILE = "</script><script>window.broken = 1</script>{{ 7 * 7 }} & %{x}"
HOSTILE_LABEL = '"><img src=x onerror="window.broken = 1"><b>bold</b>'


class Case(NamedTuple):
    """A fitted estimator, rows that it was not fitted to, and (X, y) that it was fitted to."""

    estimator: Any
    X: Any
    y: Any
    fitted: Any = None

    def judged(self) -> judged.Judged:
        return judged.Judged.of(self.estimator, self.X, self.y, 0)


def mixed(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A table with numbers, a column of hostile name, labels, missing values; and a signal in them."""
    generator = np.random.default_rng(seed)
    age = generator.uniform(20, 80, rows)
    dose = generator.normal(size=rows)
    kind = generator.choice(["plain", HOSTILE_LABEL, "rare"], rows, p=[0.6, 0.35, 0.05])
    signal = 0.06 * (age - 50) + 1.2 * dose * (age > 50) + 1.5 * (kind == "plain") - 0.8
    age[generator.random(rows) < 0.08] = np.nan
    frame = pd.DataFrame({"age": age, HOSTILE: dose, "kind": kind, "noise": generator.normal(size=rows)})
    return frame, signal


def additive_options() -> dict[str, Any]:
    return {"hidden": 8, "pair_hidden": 8, "epochs": 12, "interactions": [("age", HOSTILE)], "random_state": 0}


@pytest.fixture(scope="session")
def additive_classes() -> Case:
    X, signal = mixed(260, 0)
    y = pd.Series(np.where(signal + np.random.default_rng(1).logistic(size=260) > 0, "ill", "well"), name="outcome")
    model = NeuralAdditiveClassifier(**additive_options()).fit(X[:140], y[:140])
    return Case(model, X[140:], y[140:], (X[:140], y[:140]))


@pytest.fixture(scope="session")
def additive_numbers() -> Case:
    X, signal = mixed(260, 2)
    y = pd.Series(10.0 * signal + np.random.default_rng(3).normal(size=260), name="cost")
    return Case(
        NeuralAdditiveRegressor(**additive_options()).fit(X[:140], y[:140]), X[140:], y[140:], (X[:140], y[:140])
    )


@pytest.fixture(scope="session")
def logistic() -> Case:
    X, y = _blobs(2)
    return Case(BayesianLogisticRegression(standardize=True).fit(X[::2], y[::2]), X[1::2], y[1::2], (X[::2], y[::2]))


@pytest.fixture(scope="session")
def three_classes() -> Case:
    X, y = _blobs(3)
    return Case(BayesianLogisticRegression(standardize=True).fit(X[::2], y[::2]), X[1::2], y[1::2], (X[::2], y[::2]))


@pytest.fixture(scope="session")
def linear() -> Case:
    generator = np.random.default_rng(5)
    X = generator.normal(size=(160, 3))
    y = X @ np.array([2.0, -1.0, 0.0]) + 0.5 * generator.normal(size=160) + 30.0
    return Case(BayesianLinearRegression().fit(X[::2], y[::2]), X[1::2], y[1::2], (X[::2], y[::2]))


@pytest.fixture(scope="session")
def probit(logistic) -> Case:
    model = BayesianLogisticRegression(link="probit", posterior="ep").fit(logistic.X, logistic.y)
    return Case(model, logistic.X, logistic.y)


@pytest.fixture(scope="session")
def additive_full(additive_classes) -> Case:
    options = additive_options() | {"structure": "full"}
    model = NeuralAdditiveClassifier(**options).fit(additive_classes.X, additive_classes.y)
    return Case(model, additive_classes.X, additive_classes.y)


@pytest.fixture(scope="session")
def sampled(three_classes) -> Case:
    pytest.importorskip("arviz", reason="pip install 'bayescope[nuts]' brings ArviZ")
    options = {"posterior": "metropolis", "draws": 230, "tune": 100, "chains": 3, "random_state": 0}
    model = BayesianLogisticRegression(**options).fit(three_classes.X, three_classes.y)
    return Case(model, three_classes.X, three_classes.y)


@pytest.fixture(scope="session")
def facts_of() -> Callable[..., facts.Facts]:
    """Facts of a case, each computed once."""
    known: dict[int, facts.Facts] = {}

    def gather(case: Case, *, held_out: bool | None = True) -> facts.Facts:
        key = hash((id(case.estimator), held_out))
        if key not in known:
            known[key] = facts.gathered(
                case.estimator, case.judged(), reference=None, random_state=0, held_out=held_out
            )
        return known[key]

    return gather


def _blobs(classes: int) -> tuple[pd.DataFrame, pd.Series]:
    generator = np.random.default_rng(4)
    y = generator.integers(classes, size=200)
    X = generator.normal(size=(200, 3))
    X[:, 0] += 1.5 * y
    X[:, 1] -= 0.8 * (y == 1)
    return pd.DataFrame(X, columns=["width", "height", "noise"]), pd.Series(np.array(["a", "b", "c"])[y], name="kind")


# Pages in a browser ---------------------------------------------------------------------------------------------------
DRAWN = "[...document.querySelectorAll('[data-figure]')].every(chart => chart.dataset.drawn === 'yes')"


class Visit(NamedTuple):
    """A page that was opened, with what it complained of and what it asked for."""

    page: Any
    complaints: list[str]
    requests: list[str]


@pytest.fixture(scope="session")
def files(facts_of, tmp_path_factory, request) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("reports")

    def write(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(document(page_of(facts_of(request.getfixturevalue(name)))), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def visit(browser, files) -> Iterator[Callable[..., Visit]]:
    """Opens a page, once for each way of opening it: loading is what takes time."""
    open_ones: dict[tuple[object, ...], Visit] = {}

    def go(name: str, *, size: dict[str, int] = DESKTOP, scheme: str = "light", scripts: bool = True) -> Visit:
        way = (name, size["width"], scheme, scripts)
        if way not in open_ones:
            context = browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts)
            open_ones[way] = told = Visit(context.new_page(), [], [])
            told.page.on("console", lambda message: told.complaints.append(message.text))
            told.page.on("pageerror", lambda error: told.complaints.append(str(error)))
            context.route("**/*", lambda route: _local(route, told.requests))
            told.page.goto(files(name).as_uri())
            if scripts:
                until(told.page, DRAWN)
        return open_ones[way]

    yield go
    for told in open_ones.values():
        told.page.context.close()


def until(page: Any, expression: str) -> None:
    """Waits for something to be true. Playwright's own way of waiting is refused by the page's policy."""
    for _ in range(1200):  # a minute: machines that run the tests are busy
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def _local(route: Any, requests: list[str]) -> None:
    """Lets files through, and nothing else."""
    requests.append(route.request.url)
    if route.request.url.startswith(("file:", "data:", "blob:")):
        route.continue_()
    else:
        route.abort()
