"""`bayescope compare`: from a file to a table on the screen and files in a folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from bayescope.cli.show import show, stdout
from bayescope.cli.table import read_table
from bayescope.comparison import compare
from bayescope.comparison.comparison import FILES
from bayescope.errors import BayescopeWarning, InputError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.files import usable_folder


class Settings(NamedTuple):
    """The options of the command, as typed."""

    posteriors: str | None
    test_size: float
    seed: int
    link: str
    prior_precision: str
    features: str | None


def compare_table(path: Path, target: str, out: Path | None, settings: Settings) -> None:
    """Compares the posteriors on a table, prints the result, and writes it where a folder is named.

    Args:
        path: the table.
        target: its column to predict.
        out: the folder, or ``None`` to print only.
        settings: all else.

    Raises:
        InputError: if the table, an option or the folder cannot be used; before any fit, and before anything is
            written.
    """
    if out is not None:
        usable_folder("--out", out, FILES)
    template = BayesianLogisticRegression(
        link=settings.link,
        prior_precision=_prior_precision(settings.prior_precision),
        features=settings.features,
        standardize=True,
    )
    names = None if settings.posteriors is None else [name.strip() for name in settings.posteriors.split(",")]
    table = read_table(path, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)  # they stand in the footnotes
        comparison = compare(
            template,
            table.features,
            table.target,
            posteriors=names,
            test_size=settings.test_size,
            random_state=settings.seed,
            progress=True,
        )
    console = stdout()
    show(comparison, console)
    if out is None:
        console.print("Pictures and files: add --out DIR.")
    for file in comparison.save(out) if out is not None else []:
        console.print(f"wrote {file}", soft_wrap=True)


def _prior_precision(text: str) -> float | str:
    if text == "evidence":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f'--prior-precision: expected a positive number or "evidence", got {text!r}.') from None
