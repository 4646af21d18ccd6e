"""The commands. What they do is imported when they run, so that `--help` answers at once."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated, NoReturn

import typer

from bayescope_command import options
from bayescope_command.exits import exits, process_exits

HELP = """One model, any posterior, one honest answer: approximate Bayesian inference that is checked against NUTS.

Tables are .csv, .tsv (also .gz) or .parquet files with a header, a directory or a quoted glob of such files, or text on
the standard input, named -.

Exit codes: 0 done, 1 failed, 2 input that cannot be used, 130 interrupted."""

app = typer.Typer(
    name="bayescope", help=HELP, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


def run() -> NoReturn:
    """Runs the command that the process's arguments name, and ends with its exit code."""
    with process_exits():
        code = app(sys.argv[1:] or ["--help"], prog_name="bayescope", standalone_mode=False)
    sys.exit(code)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bayescope {importlib.metadata.version('bayescope')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What holds for every command: nothing but `--version`."""


@app.command()
def fit(
    table: options.Table,
    target: options.Target,
    out: options.ModelFile,
    model: options.ModelName = "additive",
    task: options.Task = "auto",
    posterior: options.Posterior = None,
    prior_precision: options.PriorPrecision = None,
    interactions: options.Interactions = None,
    categorical: options.Categorical = None,
    drop: options.Drop = None,
    weight: options.Weight = None,
    missing: options.Missing = None,
    given: options.Given = None,
    seed: options.Seed = 0,
    test_size: options.HeldOutShare = 0.2,
    refit: options.Refit = True,
    resume: options.Resume = False,
    stream: options.Stream = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit a model to TABLE, say how well it predicts held-out rows, and save it in one file.

    Columns are numbers where all cells are, else labels; missing values are welcome. Rows without a target are left
    out. Features are standardised, which is the unit of the priors.
    """
    from bayescope.cli.fitting import fit_table
    from bayescope.cli.models import FitSettings
    from bayescope.cli.training_table import Roles

    with exits():
        roles = Roles(target, drop or (), categorical or (), weight)
        settings = FitSettings(
            roles, task, model, posterior, prior_precision, interactions, given or (), seed, missing or (), test_size,
            refit, resume, as_json, stream,
        )  # fmt: skip
        fit_table(table, out, settings)


@app.command()
def predict(
    model: options.Model,
    table: options.Table,
    out: options.Predictions,
    level: options.Level = 0.95,
    abstain: options.Abstain = None,
    keep: options.Keep = None,
    chunk_rows: options.ChunkRows = 65_536,
    formulas: options.Formulas = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict every row of TABLE, with how sure the model is.

    Of classes: predicted, p(class) of each, low and high of the predicted one's probability, epistemic_sd, entropy and
    mutual_information. Of numbers: mean, sd, low, high, epistemic_sd and aleatoric_sd.
    """
    from bayescope.cli.predicting import predict_table

    with exits():
        predict_table(
            model,
            table,
            out,
            level=level,
            abstain=abstain,
            keep=keep or (),
            chunk_rows=chunk_rows,
            as_json=as_json,
            formulas=formulas,
        )


@app.command()
def compare(
    table: options.Table,
    target: options.Target,
    out: options.ComparisonFolder = None,
    posteriors: options.Posteriors = None,
    test_size: options.TestSize = 0.25,
    seed: options.Seed = 0,
    link: options.Link = "logit",
    prior_precision: options.OnePrior = "1.0",
    features: options.Features = None,
    categorical: options.Categorical = None,
    drop: options.Drop = None,
    missing: options.Missing = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit every posterior of a Bayesian classifier to TABLE and judge each one against NUTS.

    Prints one table: test scores (NLL, Brier, ECE, AUROC), the distance to NUTS in predictions and in marginal standard
    deviations, log evidence, PSIS-LOO and seconds. Columns are standardised on the training rows.
    """
    from bayescope.cli.comparing import compare_table
    from bayescope.cli.training_table import Roles

    with exits():
        compare_table(
            table,
            out,
            roles=Roles(target, drop or (), categorical or ()),
            missing=missing or (),
            posteriors=posteriors,
            test_size=test_size,
            seed=seed,
            link=link,
            prior_precision=prior_precision,
            features=features,
            as_json=as_json,
        )


@app.command()
def report(
    model: options.Model,
    table: options.Judged,
    out: options.Page,
    title: options.Title = None,
    reference: options.Reference = "auto",
    held_out: options.HeldOut = False,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Judge a model on TABLE and write a page on how far its answers can be trusted.

    Of the table that the model was fitted to with --no-refit, only the held-out rows are judged.
    """
    from bayescope.cli.reporting import report_table

    with exits():
        report_table(model, table, out, title=title, reference=reference, held_out=held_out, seed=seed, as_json=as_json)


@app.command()
def effects(
    model: options.Model,
    out: options.EffectsFolder,
    feature: options.Feature = None,
    level: options.BandLevel = 0.95,
    formulas: options.Formulas = False,
    as_json: options.AsJson = False,
) -> None:
    """Draw what an additive model learnt of each feature, each effect with its band."""
    from bayescope.cli.drawing_effects import draw_effects

    with exits():
        draw_effects(model, out, features=feature or (), level=level, as_json=as_json, formulas=formulas)


@app.command()
def info(model: options.Model, as_json: options.AsJson = False) -> None:
    """Tell what a model's file says of itself: what was fitted, to what, by which version."""
    from bayescope.cli.model_files import describe

    with exits():
        describe(model, as_json=as_json)


@app.command()
def gallery(out: options.GalleryFolder, only: options.Only = None) -> None:
    """Draw the textbook pictures of approximate inference, each from bayescope's own fits."""
    from bayescope.files import usable_folder
    from bayescope.gallery import draw_all
    from bayescope.progress import progress_bar

    with exits():
        usable_folder("--out", out)
        with progress_bar("drawing") as report:
            paths = draw_all(out, only=only or None, progress=report)
        for path in paths:
            typer.echo(f"wrote {path}")
