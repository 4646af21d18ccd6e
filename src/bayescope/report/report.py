"""The report: what a model learnt, how good it is and how far its uncertainty can be trusted, in one HTML file.

The file's content security policy names its three scripts by their SHA-256 and allows no address: no script that came
in with a name or a value of the caller's table would run, and nothing can be fetched or sent.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sklearn.utils.validation import check_is_fitted

from bayescope import checks
from bayescope.comparison import Comparison
from bayescope.errors import InputError
from bayescope.estimators.pipelines import Wrapped
from bayescope.files import staged
from bayescope.plots.numbers import count
from bayescope.report.blocks import Block, Decisions, Explorer, Figure, Figures, Folded, Page, WhatIf
from bayescope.report.comparing import comparison_page
from bayescope.report.facts import Facts, gathered
from bayescope.report.judged import Judged, RowNames
from bayescope.report.reference import TrainingRows, reference_choice
from bayescope.report.sections import sections
from bayescope.report.verdict import verdict

SUFFIXES = (".html", ".htm")
PACKAGE = "bayescope.report"
PLOTLY, SCRIPT, THEME, STYLE = "plotly-basic.min.js", "report.js", "theme.js", "report.css"
# Blocks whose data are on the page, with the script that reads them; the explorer's is part of `SCRIPT`.
SCRIPTS: dict[type[Block], tuple[str, str | None]] = {
    Explorer: ("explorer", None),
    WhatIf: ("whatif", "whatif.js"),
    Decisions: ("decisions", "decisions.js"),
}
_PERCENT = re.compile(r"(?<=\d) %")

# Before Python 3.12 only the class of this system's paths can be derived from, which type checkers cannot follow.
if TYPE_CHECKING:
    _SystemPath = Path
else:
    _SystemPath = type(Path())


@final
class WrittenReport(_SystemPath):
    """The path of a report, which notebooks show as the report itself."""

    @property
    def path(self) -> Path:
        """The file, as a plain path."""
        return Path(self)

    def _repr_html_(self) -> str | None:
        """Return the report in a frame of its own, or ``None`` where the file is gone."""
        if not self.is_file():
            return None
        page = html.escape(self.read_text(encoding="utf-8"))
        # Without allow-same-origin the page's scripts cannot reach the notebook.
        frame = 'sandbox="allow-scripts" style="width: 100%; height: 640px; border: 0"'
        return f'<iframe title="{html.escape(self.name)}" {frame} srcdoc="{page}"></iframe>'


def report(
    estimator: Any,
    X: object,
    y: object,
    *,
    out: str | Path,
    title: str | None = None,
    reference: str | None = "auto",
    held_out: bool | None = None,
    training: tuple[object, object] | tuple[object, object, object] | None = None,
    random_state: int = 0,
) -> WrittenReport:
    """Judges a fitted estimator on a table and writes what was found as one HTML file that needs nothing else.

    It says how good the predictions are (with bootstrap intervals over the rows), whether their uncertainty holds
    (reliability or coverage, against what chance would do to a calibrated model), where the model doubts, what moves
    its predictions, why single rows are predicted as they are, its evidence and priors, and how to get it all again.
    For a linear or an additive model the file predicts rows whose values its reader chooses; for classes it has a
    threshold with what decisions are worth; for chains it says whether the sampler has settled. A first paragraph
    says in words how far the uncertainty can be trusted; it is derived from what was measured.

    Of more than 20,000 rows a random 20,000 are judged; the file says so.

    Args:
        estimator: a fitted classifier or regressor of bayescope, with one label or number a row; or scikit-learn's
            ``Pipeline``, search or ``TransformedTargetRegressor`` around one. The file then speaks of the columns that
            the pipeline's steps make of X, and of y as it is transformed, and says so among the model's notes.
        X: the table, with the columns that were fitted.
        y: what happened, for each row.
        out: the file to write, which ends in .html; one of that name is replaced.
        title: the page's heading, by default the estimator's name and what it predicts.
        reference: "auto" holds the posterior of a logistic or an additive model, or Laplace's of a network, against
            the exact one for its training rows (of the linearised model where predictions are linearised), by NUTS
            where that takes seconds and by importance sampling elsewhere, and says in one sentence how wrong it is, or
            why nobody knows; "nuts" insists on NUTS; ``None`` leaves it out.
        held_out: whether these rows were kept from the fit. Only the caller knows; the file says it, or that it is
            unknown.
        training: the rows that the estimator was fitted to, (X, y) or (X, y, sample_weight), which ``reference`` needs.
        random_state: the seed of everything that is drawn.

    Returns:
        The file's path; a notebook shows the report itself.

    Raises:
        InputTypeError: if the estimator is not one of bayescope's.
        InputError: if the rows or an option cannot be used, or the file cannot be written.
        UnsupportedError: if rows have several targets, or "nuts" is asked for where it cannot be.
        MissingDependencyError: if "nuts" is asked for and is not installed.

    Examples:
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from bayescope import BayesianLogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = BayesianLogisticRegression().fit(X[::2], y[::2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report(model, X[1::2], y[1::2], out=f"{folder}/iris.html", held_out=True, reference=None).name
        'iris.html'
    """
    return write_report(
        estimator, X, y, out=out, title=title, reference=reference, held_out=held_out, training=training,
        random_state=random_state,
    )  # fmt: skip


def write_report(
    estimator: Any,
    X: object,
    y: object,
    *,
    out: str | Path,
    title: str | None,
    reference: str | None,
    held_out: bool | None,
    training: tuple[object, ...] | None,
    random_state: int,
    row_names: RowNames | None = None,
    command: str = "",
) -> WrittenReport:
    """What `report` does, for rows that a command has read.

    Args:
        estimator: as for `report`, as what follows.
        X: the table.
        y: what happened.
        out: the file to write.
        title: the page's heading.
        reference: what the posterior is held against.
        held_out: whether the rows were kept from the fit.
        training: the rows that the estimator was fitted to.
        random_state: the seed.
        row_names: how a reader finds the rows; by default as X calls them.
        command: the shell commands that write the page again; none for a call from Python.
    """
    path = _file(out)
    reference_choice(reference)
    held_out = None if held_out is None else checks.flag("held_out", held_out)
    seed = checks.count("random_state", random_state, least=0)
    wrapped = Wrapped.of(estimator)
    check_is_fitted(wrapped.estimator)
    judged = Judged.of(
        wrapped.estimator,
        wrapped.table(X),
        wrapped.targets(y),
        seed,
        row_names=RowNames.of(X) if row_names is None else row_names,
    )
    facts = gathered(
        wrapped.estimator, judged, reference=reference, random_state=seed, held_out=held_out,
        training=_training_rows(wrapped, training),
    )  # fmt: skip
    notes = (*wrapped.notes(), *facts.fitted.notes)
    facts = replace(facts, fitted=replace(facts.fitted, notes=notes), command=command)
    return _written(page_of(facts, title), path)


def _training_rows(wrapped: Wrapped, training: object) -> TrainingRows | None:
    """The rows that the estimator itself was fitted to, of those that the model was.

    Raises:
        InputError: if they are not (X, y) or (X, y, sample_weight).
    """
    if training is None:
        return None
    if not isinstance(training, tuple | list) or len(training) not in (2, 3):
        raise InputError(f"training: expected (X, y) or (X, y, sample_weight), got {type(training).__name__}.")
    X, y, *weights = training
    given = None if not weights or weights[0] is None else np.asarray(weights[0], dtype=np.float64)
    return TrainingRows(wrapped.table(X), wrapped.targets(y), given)


def write_comparison(comparison: Comparison, path: str | Path, *, title: str | None = None) -> WrittenReport:
    """Writes a comparison of posteriors as one HTML file that needs nothing else.

    Args:
        comparison: as `bayescope.compare` returns it.
        path: the file to write, which ends in .html; one of that name is replaced.
        title: the page's heading.

    Returns:
        The file's path; a notebook shows the page itself.

    Raises:
        InputError: if the file cannot be written.
    """
    return write_page(comparison_page(comparison, title or "Every posterior, against the reference"), path)


def write_page(page: Page, path: str | Path) -> WrittenReport:
    """Writes a page as one HTML file that needs nothing else.

    Args:
        page: what it holds.
        path: the file to write, which ends in .html; one of that name is replaced.

    Returns:
        The file's path; a notebook shows the page itself.

    Raises:
        InputError: if the file cannot be written.
    """
    return _written(page, _file(path))


def page_of(facts: Facts, title: str | None = None) -> Page:
    """The page that says the facts."""
    judged, fitted = facts.judged, facts.fitted
    held = {True: "held-out rows", False: "training rows", None: "rows"}[facts.held_out]
    rows = count(len(judged), held.removesuffix("s"))
    today = datetime.now(tz=UTC).date().isoformat()
    return Page(
        title or f"How well is {judged.target} predicted?",
        f"{fitted.model} · {fitted.posterior} posterior · {rows}",
        verdict(facts),
        sections(facts),
        f"bayescope {dict(fitted.versions)['bayescope']} · {today} · seed {facts.random_state}",
    )


def _written(page: Page, path: Path) -> WrittenReport:
    with staged(path.parent) as stage:
        (stage / path.name).write_text(document(page), encoding="utf-8")
    return WrittenReport(path)


def _file(out: str | Path) -> Path:
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"out: expected a file that ends in .html, got {str(out)!r}. Name one, such as report.html.")
    if path.is_dir():
        raise InputError(f"out: expected a file, got the folder {path}. Name a file in it.")
    return path


def document(page: Page) -> str:
    """The HTML of a page with everything it needs inside."""
    figures = {figure.name: {"data": figure.data, "layout": figure.layout} for figure in _figures(page)}
    live = {type(block): block for block in _blocks(page) if isinstance(block, Explorer | WhatIf | Decisions)}
    names = [PLOTLY, SCRIPT, *(script for block in live if (script := SCRIPTS[block][1]) is not None)]
    scripts = [_asset(name) for name in names]
    text: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            policy=_policy([_asset(THEME), *scripts]),
            style=Markup(_asset(STYLE)),
            scripts=[Markup(text) for text in scripts],
            theme=Markup(_asset(THEME)),
            data={"figure": _json(figures), **{SCRIPTS[kind][0]: _json(block.payload) for kind, block in live.items()}},
        )
    )
    return text


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _json(value: Mapping[str, Any]) -> Markup:
    """JSON that no text inside can end early: neither </script> nor <!-- survives as such."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _blocks(page: Page) -> Iterator[Block]:
    """All blocks, also those that are folded away."""
    waiting = [block for section in page.sections for block in section.blocks]
    while waiting:
        block = waiting.pop(0)
        yield block
        waiting += block.blocks if isinstance(block, Folded) else ()


def _figures(page: Page) -> Iterator[Figure]:
    for block in _blocks(page):
        if isinstance(block, Figures):
            yield from block.figures
        elif isinstance(block, Explorer):
            yield block.figure


@cache
def _asset(name: str) -> str:
    return (files(PACKAGE) / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_unbroken,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _unbroken(value: object) -> Any:
    """Text whose percent signs stay with their numbers."""
    return _PERCENT.sub("\u00a0%", value) if type(value) is str else value
