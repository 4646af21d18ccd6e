"""The commands and their options. What they do is imported when they run, so that `--help` answers at once."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated

import typer

from bayescope.cli.exits import exits, usage_errors

app = typer.Typer(
    name="bayescope",
    help="One model, any posterior, one honest answer: approximate Bayesian inference that is checked against NUTS.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command line on the process's arguments, and without any shows the help."""
    with usage_errors():
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="bayescope", standalone_mode=False))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bayescope {importlib.metadata.version('bayescope')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What holds for every command: nothing but `--version`."""


@app.command()
def compare(
    table: Annotated[Path, typer.Argument(help="A .csv or .tsv file with a header; all columns are numbers.")],
    target: Annotated[str, typer.Option(help="The column to predict: two or more classes.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the table (csv, markdown) and the pictures (png).")
    ] = None,
    posteriors: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: map, map_temperature, laplace, mean_field, variational, ep, nuts, metropolis. "
            "NUTS, the reference, is always fitted. Default: all but metropolis, and ep for two classes only.",
            show_default=False,
        ),
    ] = None,
    test_size: Annotated[float, typer.Option(help="Share of the rows to test on.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Of the split and of every random fit.")] = 0,
    link: Annotated[str, typer.Option(help="logit, or probit (two classes).")] = "logit",
    prior_precision: Annotated[
        str, typer.Option(help='A number, for standardised features, or "evidence": learn it from the training rows.')
    ] = "1.0",
    features: Annotated[
        str | None,
        typer.Option(help="Basis functions of the columns: rbf or polynomial. Default: none.", show_default=False),
    ] = None,
) -> None:
    """Fit every posterior of a Bayesian classifier to TABLE and judge each one against NUTS.

    Prints one table: test scores (NLL, Brier, ECE, AUROC), the distance to NUTS in predictions and in marginal
    standard deviations, log evidence, PSIS-LOO and seconds. Columns are standardised on the training rows.

    Exit codes: 0 done, 1 failed, 2 input that cannot be used, 130 interrupted.
    """
    with exits():
        from bayescope.cli.comparing import Settings, compare_table

        compare_table(table, target, out, Settings(posteriors, test_size, seed, link, prior_precision, features))


@app.command()
def gallery(
    out: Annotated[Path, typer.Option(help="Folder for the pictures (png).")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Draw this picture only; may be given several times. An unknown name lists all."),
    ] = None,
) -> None:
    """Draw the textbook pictures of approximate inference, each from bayescope's own fits.

    Exit codes: 0 done, 1 failed, 2 input that cannot be used, 130 interrupted.
    """
    with exits():
        from bayescope.files import usable_folder

        usable_folder("--out", out)
        from bayescope.gallery import draw_all
        from bayescope.progress import progress_bar

        with progress_bar("drawing") as report:
            paths = draw_all(out, only=only or None, progress=report)
        for path in paths:
            typer.echo(f"wrote {path}")
