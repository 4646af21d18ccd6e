"""The arguments and options of the commands, with what `--help` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SEEDS = 2**32


def _seed(value: int) -> int:
    if not 0 <= value < SEEDS:
        raise typer.BadParameter(f"expected a whole number from 0 to {SEEDS - 1}, got {value}")
    return value


# --- what several commands take ---------------------------------------------------------------------------------------

Table = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE",
        help="A .csv, .tsv (also .gz) or .parquet file with a header, a directory or a quoted glob of files, or - for "
        "text.",
        show_default=False,
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `bayescope fit` wrote.", show_default=False)]
Target = Annotated[str, typer.Option(help="The column to predict.", show_default=False)]
Drop = Annotated[list[str] | None, typer.Option(help="Columns to leave out, as a,b or one by one.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Columns of numbers that are labels, such as codes, as a,b or one by one.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        help="What stands for a missing value beside an empty cell, NA, NaN, null and their like; repeatable."
    ),
]
Seed = Annotated[int, typer.Option(callback=_seed, help="Of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the standard output, and nothing else.")]

Formulas = Annotated[
    bool,
    typer.Option(
        "--formulas",
        help="Leave names and labels that begin with =, +, - or @ as they are. Spreadsheets take them for formulas, so "
        "that text files have an apostrophe before them.",
    ),
]

# --- fit --------------------------------------------------------------------------------------------------------------

ModelFile = Annotated[
    Path, typer.Option(help="The model's file, by convention .bayes; it is there when all is done.", show_default=False)
]
ModelName = Annotated[
    str,
    typer.Option(
        help="additive: a curve with a band for each feature, which says why; linear: the fastest; mlp: a network, for "
        "what features do together."
    ),
]
Task = Annotated[str, typer.Option(help="auto, classification or regression.")]
Posterior = Annotated[str | None, typer.Option(help="The approximation, by its name in Python. Default: the model's.")]
PriorPrecision = Annotated[
    str | None, typer.Option(help='A number, or "evidence": learn it from the rows, the default.')
]
Interactions = Annotated[
    str | None, typer.Option(help="Additive models: how many pairs of features have a term, or auto. Default: none.")
]
Weight = Annotated[str | None, typer.Option(help="The column that says how often each row counts.")]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any other parameter of the estimator as name=value, such as --set hidden=16; repeatable. An unknown name "
        "lists all.",
    ),
]
HeldOutShare = Annotated[
    float, typer.Option(help="Share of the rows that are held out, to judge a fit to the others; 0 for none.")
]
Refit = Annotated[
    bool,
    typer.Option(help="Then fit all rows, and save that; or save the judged model, which has not seen those held out."),
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Read the table a block of rows at a time, which bounds the memory. Default: for directories, globs and "
        "Parquet files of 500 MB and more.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Carry on an interrupted fit of a network from the checkpoint beside --out; other fits are short.",
    ),
]

# --- predict ----------------------------------------------------------------------------------------------------------

Predictions = Annotated[
    Path,
    typer.Option(
        help="A .csv, .tsv (also .gz) or .parquet file, or - for text on the standard output.", show_default=False
    ),
]
Level = Annotated[float, typer.Option(help="Probability of the intervals; 0 for none, which is faster.")]
Abstain = Annotated[
    float | None, typer.Option(help="Give no class where the most probable one is less probable than this.")
]
Keep = Annotated[list[str] | None, typer.Option(help="Columns to copy, as a,b or one by one.")]
ChunkRows = Annotated[
    int, typer.Option(help="Rows that are read at a time. It bounds the memory and changes no prediction.")
]

# --- compare ----------------------------------------------------------------------------------------------------------

ComparisonFolder = Annotated[
    Path | None, typer.Option(help="Folder for the table (csv, markdown), the pictures (png) and report.html.")
]
Posteriors = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated: map, map_temperature, laplace, mean_field, variational, ep, nuts, metropolis. NUTS, the "
        "reference, is always fitted. Default: all but metropolis, and ep for two classes only."
    ),
]
TestSize = Annotated[float, typer.Option(help="Share of the rows to test on.")]
Link = Annotated[str, typer.Option(help="logit, or probit (two classes).")]
OnePrior = Annotated[
    str, typer.Option(help='A number, for standardised features, or "evidence": learn it from the training rows.')
]
Features = Annotated[str | None, typer.Option(help="Basis functions of the columns: rbf or polynomial. Default: none.")]

# --- report, effects, gallery -----------------------------------------------------------------------------------------

Judged = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE", help="Rows with the target, which the model has not seen; as for fit.", show_default=False
    ),
]
Page = Annotated[Path, typer.Option(help="The page, .html; it needs no network.", show_default=False)]
Title = Annotated[str | None, typer.Option(help="Of the page.")]
Reference = Annotated[
    str,
    typer.Option(help="Compare the posterior with NUTS: auto (where it takes about a minute at most), nuts or none."),
]
HeldOut = Annotated[bool, typer.Option("--held-out", help="Say on the page that none of the rows were fitted.")]
EffectsFolder = Annotated[
    Path, typer.Option(help="Folder for the pictures (png) and the tables (csv).", show_default=False)
]
Feature = Annotated[
    list[str] | None,
    typer.Option(help="Features, as a,b or one by one. Default: all, those that matter most first."),
]
BandLevel = Annotated[float, typer.Option(help="Probability of the bands.")]
GalleryFolder = Annotated[Path, typer.Option(help="Folder for the pictures (png).", show_default=False)]
Only = Annotated[list[str] | None, typer.Option(help="Draw this picture only; repeatable. An unknown name lists all.")]
