"""The answer of `bs.compare`: one table, its footnotes, and the pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bayescope import plots
from bayescope.comparison.columns import best_cells, columns, written
from bayescope.comparison.contenders import Fitted
from bayescope.comparison.outcome import Outcome
from bayescope.comparison.split import Split
from bayescope.files import staged
from bayescope.plots import style
from bayescope.tables import read_table

# What a comparison may write, so that a folder can be checked before the fits.
FILES = (
    "comparison.csv",
    "comparison.md",
    "reliability.png",
    "agreement.png",
    "marginals.png",
    "decision_surface.png",
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Every posterior of one model on one table.

    Attributes:
        table: one row a posterior. Columns: ``nll``, ``brier``, ``ece`` and ``auroc`` of the test rows;
            ``tv_to_REFERENCE``, the mean total variation between the predictives; ``sd_error``, the largest relative
            error of a marginal standard deviation; ``log_evidence`` in nats, with ``evidence_kind`` "estimate" or
            "lower bound"; ``loo``, the PSIS-LOO log predictive density summed over the training rows, and
            ``loo_warnings``, the rows whose k̂ is above 0.7; ``fit_seconds`` and ``predict_seconds``. NaN where a
            quantity is undefined; `footnotes` says why.
        reference: the name of the row that the others are compared with.
        footnotes: what a reader of the table has to know, one line each.
        outcomes: the fitted contenders and their predictions, by name.
        split: the training and test rows.
    """

    table: pd.DataFrame
    reference: str
    footnotes: tuple[str, ...]
    outcomes: Mapping[str, Outcome]
    split: Split

    @property
    def title(self) -> str:
        """What was compared on what, in one line."""
        rows, tested, features = len(self.split.X_train), len(self.split.X_test), self.split.X_train.shape[1]
        return f"{len(self.table)} posteriors, {rows} training rows, {tested} test rows, {features} features"

    def to_markdown(self) -> str:
        """The table with its best values in bold, and the footnotes, in Markdown."""
        shown = columns(self.reference)
        rows = [[style.label(str(name))] for name in self.table.index]
        for column in shown:
            best = best_cells(self.table, column, self.reference)
            for row, cell, bold in zip(rows, written(self.table, column), best, strict=True):
                row.append(f"**{cell}**" if bold else cell)
        lines = [["posterior", *(column.label for column in shown)], ["---", *(["---:"] * len(shown))], *rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "\n".join(f"- {note}" for note in self.footnotes)
        return f"# {self.title}\n\n{text}\n\n{notes}\n"

    def figures(self) -> dict[str, Figure]:
        """The pictures by name: reliability, agreement, marginals, and for two features of numbers decision_surface."""
        split, log_probs = self.split, {name: outcome.log_probs for name, outcome in self.outcomes.items()}
        probs = {name: outcome.probs for name, outcome in self.outcomes.items()}
        drawn = {"reliability": plots.reliability_curves(probs, split.y_test)}
        if len(self.outcomes) > 1:
            drawn["agreement"] = plots.agreement(log_probs, reference=self.reference, classes=split.classes)
            drawn["marginals"] = self._marginals()
        if split.X_train.shape[1] == 2 and _complete_numbers(split.X_train):
            drawn["decision_surface"] = plots.decision_surfaces(
                {name: partial(self._surface, outcome.fitted) for name, outcome in self.outcomes.items()},
                split.X_train.to_numpy(dtype=np.float64),
                split.y_train,
                names=[str(name) for name in split.X_train.columns],
                classes=split.classes,
            )
        return drawn

    def save(self, directory: str | Path) -> list[Path]:
        """Writes comparison.csv, comparison.md and a PNG a picture; all of them or, if one fails, none.

        Args:
            directory: where to; it is made if it is missing, and files of these names in it are replaced.

        Returns:
            The files' paths.

        Raises:
            InputError: if the directory cannot be written to, or has a folder of one of these names.
        """
        with staged(directory) as stage:
            self.table.to_csv(stage / "comparison.csv")
            (stage / "comparison.md").write_text(self.to_markdown(), encoding="utf-8")
            for name, figure in self.figures().items():
                style.save(figure, stage / f"{name}.png")
            names = sorted(file.name for file in stage.iterdir())
        return [Path(directory) / name for name in names]

    def __repr__(self) -> str:
        return self.to_markdown()

    def _marginals(self) -> Figure:
        fitted = {name: outcome.fitted for name, outcome in self.outcomes.items()}
        posteriors = {name: each.posterior for name, each in fitted.items() if each.posterior is not None}
        return plots.marginals(
            posteriors,
            reference=self.reference,
            names=fitted[self.reference].weight_names,
            chosen=plots.most_disputed(posteriors, self.reference),
        )

    def _surface(self, fitted: Fitted, at: np.ndarray) -> np.ndarray:
        return fitted.probs(pd.DataFrame(at, columns=self.split.X_train.columns))


def _complete_numbers(table: pd.DataFrame) -> bool:
    """Whether all columns are of numbers, without gaps."""
    return all(column.kind == "numeric" and not np.isnan(column.values).any() for column in read_table(table))
