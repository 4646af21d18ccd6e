"""The commands with their options. What they do is imported when they run, so that `--help` answers at once."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, final

import typer
from typer.core import TyperCommand

from bayescope_command.exits import UsageError, exits, process_exits

HELP = """One model, any posterior, one honest answer: approximate Bayesian inference that is checked against NUTS.

Tables are text (.csv, .tsv, .txt, .dat, also .gz), .xlsx or .parquet files with a header, a directory or a quoted glob
of files, or text on the standard input, named -. Separators, decimal commas and encodings of text are recognised.

Exit codes: 0 done, 1 failed, 2 input that cannot be used, 130 interrupted."""

SEEDS = 2**32
Options = TypeVar("Options")


def _seed(value: int) -> int:
    if not 0 <= value < SEEDS:
        raise typer.BadParameter(f"expected a whole number from 0 to {SEEDS - 1}, got {value}")
    return value


# --- what several commands take ---------------------------------------------------------------------------------------

Table = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE",
        help="Text (.csv, .tsv, .txt, .dat, also .gz), .xlsx or .parquet with a header, a directory or a quoted glob "
        "of files, or - for text.",
        show_default=False,
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `bayescope fit` wrote.", show_default=False)]
Target = Annotated[str, typer.Option(help="The column to predict.", show_default=False)]
GuessedTarget = Annotated[
    str | None,
    typer.Option(
        "--target", help="The column to predict. Default: one of a usual name, else the last.", show_default=False
    ),
]
Drop = Annotated[list[str] | None, typer.Option(help="Columns to leave out, as a,b or one by one.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Columns of numbers that are labels, such as codes, as a,b or one by one.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        help="What stands for a missing value beside an empty cell, NA, NaN, null and their like, as -999, or in one "
        "column alone, as 'glucose=0'; repeatable."
    ),
]
Dates = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns of dates, as a,b or one by one, which become their parts: days, month, weekday and hour. "
        "column=FORMAT names their format, such as 'sold=%d/%m/%Y'."
    ),
]
Sep = Annotated[
    str | None,
    typer.Option(help="What separates the cells of text, such as ';', or tab or space. Default: what its rows show."),
]
Decimal = Annotated[
    str | None, typer.Option(help="The decimal mark of text: a point or a comma. Default: what its cells show.")
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Of text, such as utf-8, latin-1 or utf-16. Default: what its bytes show."),
]
Sheet = Annotated[str | None, typer.Option(help="Of a spreadsheet: its name or number. Default: the first.")]
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
LikelihoodName = Annotated[
    str | None,
    typer.Option(
        help="What the target holds. Counts: poisson, negative_binomial, zero_inflated_poisson; successes of "
        "some --trials: binomial; classes numbered in their order, such as ratings: ordinal, ordinal_probit; amounts "
        "above 0: gamma, log_normal; amounts that may be 0: tweedie; lifetimes: weibull, exponential; shares between 0 "
        "and 1: beta; outliers: student_t, laplace_noise; others: gaussian, heteroscedastic_gaussian "
        "(additive models). Default: gaussian."
    ),
]
Posterior = Annotated[str | None, typer.Option(help="The approximation, by its name in Python. Default: the model's.")]
PriorPrecision = Annotated[
    str | None, typer.Option(help='A number, or "evidence": learn it from the rows, the default.')
]
Interactions = Annotated[
    str | None, typer.Option(help="Additive models: how many pairs of features have a term, or auto. Default: none.")
]
Weight = Annotated[str | None, typer.Option(help="The column that says how often each row counts.")]
Offset = Annotated[
    str | None, typer.Option(help="The column that is added to f: to log E[y] for counts, amounts and lifetimes.")
]
Exposure = Annotated[
    str | None,
    typer.Option(help="The column that says how long, or how much, each row was watched: E[y] is proportional to it."),
]
Trials = Annotated[
    str | None,
    typer.Option(
        help="With --likelihood binomial: the column that says of how many trials the target is the successes."
    ),
]
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
Digits = Annotated[
    str,
    typer.Option(
        help="known: round predictions to the digits that their standard errors leave known; full: keep all digits."
    ),
]
ChunkRows = Annotated[
    int, typer.Option(help="Rows that are read at a time. It bounds the memory and changes no prediction.")
]

# --- compare ----------------------------------------------------------------------------------------------------------

SavedModels = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="MODEL",
        help="Two or more files that `bayescope fit` wrote, to be judged on the rows of TABLE; none: fit every "
        "posterior.",
        show_default=False,
    ),
]
ComparedTarget = Annotated[
    str | None,
    typer.Option(help="The column to predict. The files of models that `bayescope fit` wrote name it."),
]
ComparisonFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the table (csv, markdown), the pictures (png) and report.html; of saved models, the page "
        "(.html), or the folder of report.html and comparison.csv."
    ),
]
ComparedModel = Annotated[
    str,
    typer.Option(help="linear, additive or mlp, as for fit. For linear classifiers NUTS is the reference."),
]
Posteriors = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names of the model's posteriors, such as laplace,ep, and of the baselines constant, "
        "logistic, map_temperature (classes), ridge (numbers) and poisson (counts). The reference is always fitted. "
        "Default: all that take seconds; an unknown name lists all."
    ),
]
TestSize = Annotated[float, typer.Option(help="Share of the rows to test on.")]
Link = Annotated[
    str | None, typer.Option(help="Linear models of classes: logit, the default, or probit (two classes).")
]
OnePrior = Annotated[
    str | None,
    typer.Option(
        help='A number, for standardised features, or "evidence": learn it from the training rows, the default.'
    ),
]
Features = Annotated[
    str | None,
    typer.Option(help="Linear models: basis functions of the columns, rbf or polynomial. Default: none."),
]

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
    typer.Option(
        help="Hold the posterior against the exact one for its training rows: auto (NUTS where that takes seconds), "
        "nuts or none."
    ),
]
TrainingTablePath = Annotated[
    Path | None,
    typer.Option(
        help="The table that the model was fitted to, which --reference needs, where TABLE has other rows.",
        show_default=False,
    ),
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

Port = Annotated[
    int, typer.Option(min=0, max=65_535, help="Where the page is served on this machine; 0 for any free one.")
]
Browser = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open the page in a browser, or only print its address.")
]

# --- the commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What every command takes that reads a table: how text is written, and the form of the answer."""

    sep: Sep = None
    decimal: Decimal = None
    encoding: Encoding = None
    sheet: Sheet = None
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(TableOptions):
    """What every command takes that reads a table to learn from it: what its columns hold."""

    categorical: Categorical = None
    drop: Drop = None
    missing: Missing = None
    dates: Dates = None


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


class _Command(TyperCommand):
    """A command that refuses an option whose value is left out: the next option would be taken for the value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name: option for option in self.params for name in option.opts if name.startswith("--")}
        for name, value in pairwise(takewhile(lambda word: word != "--", args)):
            if name in names and value in names and not getattr(names[name], "is_flag", False):
                raise UsageError(f"{name}: expected a value, got the option {value}", ctx)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def command(name: str, work: str) -> Callable[[type[Options]], type[Options]]:
    """A class decorator: the fields of a dataclass are the options of a command, and its docstring is the help.

    Args:
        name: of the command.
        work: what takes the options, as "module:function" of `bayescope.cli`, which is imported when the command runs.
    """
    module, _, function = work.partition(":")

    def register(options: type[Options]) -> type[Options]:
        def run_with(**given: object) -> None:
            asked = options(**given)
            worker = getattr(importlib.import_module(f"bayescope.cli.{module}"), function)
            with exits():
                worker(asked)

        signature = inspect.signature(options, eval_str=True)
        # The help shows a command's own options before those that it shares with others.
        owners = [inspect.get_annotations(base) for base in options.__mro__]
        ordered = sorted(
            signature.parameters.values(), key=lambda each: [each.name in own for own in owners].index(True)
        )
        run_with.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
        run_with.__doc__ = options.__doc__
        app.command(name, cls=_Command)(run_with)
        return options

    return register


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What holds for every command: nothing but `--version`."""


@command("fit", "fitting:fit_table")
@final
@dataclass(frozen=True, kw_only=True)
class FitOptions(TrainingOptions):
    """Fit a model to TABLE, say how well it predicts held-out rows, and save it in one file.

    Columns are numbers where all cells are, else labels; missing values are welcome. Rows without a target are left
    out. Features are standardised, which is the unit of the priors.
    """

    table: Table
    target: Target
    out: ModelFile
    model: ModelName = "additive"
    task: Task = "auto"
    likelihood: LikelihoodName = None
    posterior: Posterior = None
    prior_precision: PriorPrecision = None
    interactions: Interactions = None
    weight: Weight = None
    offset: Offset = None
    exposure: Exposure = None
    trials: Trials = None
    given: Given = None
    seed: Seed = 0
    test_size: HeldOutShare = 0.2
    refit: Refit = True
    resume: Resume = False
    stream: Stream = None


@command("check", "checking:check_table")
@final
@dataclass(frozen=True, kw_only=True)
class CheckOptions(TrainingOptions):
    """Say all that is wrong or suspicious with TABLE at once, and print the command that fits it.

    Types, missing values, ids, codes, dates, leaks, constants and duplicates, with the options that help.
    """

    table: Table
    target: GuessedTarget = None
    task: Task = "auto"


@command("predict", "predicting:predict_table")
@final
@dataclass(frozen=True, kw_only=True)
class PredictOptions(TableOptions):
    """Predict every row of TABLE, with how sure the model is.

    Of classes: predicted, p(class) of each, low and high of the predicted one's probability, epistemic_sd, entropy and
    mutual_information. Of numbers: mean, sd, low, high, epistemic_sd and aleatoric_sd.
    """

    model: Model
    table: Table
    out: Predictions
    level: Level = 0.95
    abstain: Abstain = None
    keep: Keep = None
    digits: Digits = "known"
    chunk_rows: ChunkRows = 65_536
    formulas: Formulas = False


@command("compare", "comparing:compare_files")
@final
@dataclass(frozen=True, kw_only=True)
class CompareOptions(TrainingOptions):
    """Fit every posterior of a model to TABLE and judge each one against NUTS, where it takes seconds.

    If you give saved models before TABLE, they are scored on the same rows of it: the scores of each model, paired
    differences with their intervals, and which one is better, or that the rows show no clear difference. If they were
    fitted to this table with --no-refit, the rows that were held out are used.

    Prints one table: test scores (of classes NLL, Brier, ECE, AUROC, of ordered ones CRPS too; of numbers NLL, CRPS,
    RMSE, coverage), the distance to NUTS or what stands in for it, log evidence, PSIS-LOO and seconds, with plain
    baselines beside. Columns are standardised on the training rows.
    """

    models: SavedModels = None
    table: Table
    target: ComparedTarget = None
    out: ComparisonFolder = None
    model: ComparedModel = "linear"
    task: Task = "auto"
    likelihood: LikelihoodName = None
    posteriors: Posteriors = None
    test_size: TestSize = 0.25
    seed: Seed = 0
    link: Link = None
    prior_precision: OnePrior = None
    features: Features = None
    given: Given = None

    def __post_init__(self) -> None:
        """Asks for the target where no model's file may name it."""
        if not self.models and self.target is None:
            raise UsageError("Missing option '--target'.")


@command("report", "reporting:report_table")
@final
@dataclass(frozen=True, kw_only=True)
class ReportOptions(TableOptions):
    """Judge a model on TABLE and write a page on how far its answers can be trusted.

    Of the table that the model was fitted to with --no-refit, only the held-out rows are judged.
    """

    model: Model
    table: Judged
    out: Page
    title: Title = None
    reference: Reference = "auto"
    training: TrainingTablePath = None
    held_out: HeldOut = False
    seed: Seed = 0


@command("effects", "drawing_effects:draw_effects")
@final
@dataclass(frozen=True, kw_only=True)
class EffectsOptions:
    """Draw what an additive model learnt of each feature, each effect with its band."""

    model: Model
    out: EffectsFolder
    feature: Feature = None
    level: BandLevel = 0.95
    formulas: Formulas = False
    as_json: AsJson = False


@command("info", "model_files:describe")
@final
@dataclass(frozen=True, kw_only=True)
class InfoOptions:
    """Tell what a model's file says of itself: what was fitted, to what, by which version."""

    model: Model
    as_json: AsJson = False


@command("explore", "exploring:explore")
@final
@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Open a page on which points are added, dragged and relabelled, and every posterior answers at once.

    The page is served on this machine alone and asks nothing of any network. Ctrl-C ends it.
    """

    port: Port = 0
    browser: Browser = True


@app.command()
def gallery(out: GalleryFolder, only: Only = None) -> None:
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
