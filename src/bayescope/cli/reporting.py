"""`bayescope report`: how far a model's answers can be trusted, as one page."""

from __future__ import annotations

from bayescope import checks
from bayescope.cli.answer import answer
from bayescope.cli.fitted_table import FittedTable, read_known_table
from bayescope.cli.model_files import load_model
from bayescope.cli.opening import open_source
from bayescope.cli.training_table import TrainingTable
from bayescope.cli.writing import check_file
from bayescope.errors import InputError, UnsupportedError, recorded_warnings
from bayescope.report import report
from bayescope_command.app import ReportOptions

SUFFIXES = (".html", ".htm")
REFERENCES = ("auto", "nuts", "none")
FITTED = "the rows that the model was fitted to: the page's scores flatter it. Give rows that it has not seen"


def report_table(options: ReportOptions) -> None:
    """Writes the report on a model and the rows of a table that has the target.

    Raises:
        InputError: if the model, the table, an option or the page's place cannot be used.
    """
    model, path, out, reference = options.model, options.table, options.out, options.reference
    checks.choice("--reference", reference, REFERENCES)
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out: expected a file name that ends in .html, got {str(out)!r}.")
    check_file(out, model, path)
    estimator, fitted = load_model(model)
    if not fitted.target:
        raise UnsupportedError(
            f"{model}: expected a model that `bayescope fit` saved, got one that Python saved, which does not tell its "
            "target. Report on it in Python: bayescope.report."
        )
    table = read_known_table(open_source(path, missing=fitted.missing, again=True), fitted)
    judged, kept, note = _judged_rows(table, fitted, options.held_out)
    with recorded_warnings(passed_on=False) as warned:
        report(
            estimator,
            judged.features,
            judged.outcome,
            out=out,
            title=options.title,
            reference=None if reference == "none" else reference,
            held_out=kept,
            random_state=options.seed,
        )
    notes = [*note, *warned]
    if table.without_target:
        notes.append(f"{table.without_target} rows without a target were left out")
    size = out.stat().st_size
    facts = {"report": str(out), "bytes": size, "rows": len(judged), "held_out": kept, "notes": notes}
    lines = [f"note: {each}" for each in notes]
    answer(facts, *lines, f"wrote {out} ({size / 1e6:.1f} MB)", as_json=options.as_json)


def _judged_rows(table: TrainingTable, fitted: FittedTable, said: bool) -> tuple[TrainingTable, bool | None, list[str]]:
    """The rows to judge by, whether they were kept from the fit, and what to say of that."""
    if table.digest() == fitted.digest:
        return table, False, [FITTED]
    if fitted.test_size > 0:
        train, test, _ = table.split(fitted.test_size, fitted.seed)
        if test is not None and train.digest() == fitted.digest:
            return test, True, [f"{len(train)} rows were fitted; the {len(test)} others are judged"]
    return table, True if said else None, []
