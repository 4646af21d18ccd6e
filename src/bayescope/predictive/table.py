"""A predictive as a table: the columns of `Predictive.to_frame`, and its first rows in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bayescope import notebook
from bayescope.errors import InputError

if TYPE_CHECKING:
    from bayescope.predictive.predictive import Predictive

Columns = dict[str, Any]
# A notebook shows the probability of each of this many classes; of more, that of the most probable one.
MOST_CLASSES = 10


def columns_of(p: Predictive, classes: object, outputs: Sequence[str] | None, level: float | None) -> Columns:
    """The columns of `Predictive.to_frame`, by name, of a predictive that answers in arrays."""
    imputed = {"imputed": p.imputed} if p.imputed is not None and p.imputed.any() else {}
    if not p.likelihood.discrete:
        _refuse_given("classes", classes, "a regression")
        return _of_numbers(p, outputs, level) | imputed
    _refuse_given("outputs", outputs, "classes")
    information = {"entropy": p.entropy, "mutual_information": p.mutual_information}
    if p.top is not None:
        return _of_top(p, p.names if classes is None else classes, level) | information | imputed
    labels = _names("classes", classes, p.probs.shape[1], p.names or range(p.probs.shape[1]))
    several = p.likelihood.domain.kind == "binary" and p.latent.mean.shape[1] > 1
    columns = _of_labels(p, labels, level) if several else _of_classes(p, labels, level)
    return columns | information | imputed


def _of_classes(p: Predictive, labels: np.ndarray, level: float | None) -> Columns:
    probs = np.asarray(p.probs)
    best = probs.argmax(axis=1)[:, None]

    def of_best(values: Any) -> np.ndarray:
        return np.take_along_axis(values, best, axis=1)[:, 0]

    columns: Columns = {"predicted": labels[best[:, 0]]}
    columns |= {f"p({label})": probs[:, k] for k, label in enumerate(labels.tolist())}
    if level is not None:
        low, high = p.interval(level, of="mean")
        columns |= {"low": of_best(low), "high": of_best(high)}
    return columns | {"epistemic_sd": of_best(np.sqrt(p.epistemic))}


def _of_top(p: Predictive, names: object, level: float | None) -> Columns:
    """The most probable classes of each row by name, or by number where they have no names."""
    classes, labels = np.asarray(p.classes), np.asarray(names)
    if labels.size and (labels.ndim != 1 or len(labels) <= classes.max(initial=-1)):
        raise InputError(
            f"classes: expected a name for each of at least {classes.max() + 1} classes, got shape {labels.shape}. "
            "Give the names of all classes."
        )
    each = {"class": labels[classes] if labels.size else classes, "p": np.asarray(p.probs)}
    if level is not None:
        each["low"], each["high"] = p.interval(level, of="mean")
    return _side_by_side(each, [f"{k + 1}: " for k in range(classes.shape[1])]) | {"remaining": p.remaining}


def _of_labels(p: Predictive, labels: np.ndarray, level: float | None) -> Columns:
    each = {"probability": p.probs}
    if level is not None:
        each["low"], each["high"] = p.interval(level, of="mean")
    each["epistemic_sd"] = np.sqrt(p.epistemic)
    return _side_by_side(each, [f"{label}: " for label in labels.tolist()])


def _of_numbers(p: Predictive, outputs: Sequence[str] | None, level: float | None) -> Columns:
    each = {"mean": p.mean, "sd": np.sqrt(p.variance)}
    if level is not None:
        each["low"], each["high"] = p.interval(level, of="outcome")
    each |= {"epistemic_sd": np.sqrt(p.epistemic), "aleatoric_sd": np.sqrt(p.aleatoric)}
    count = p.mean.shape[1]
    names = _names("outputs", outputs, count, p.names or [f"y{place}" for place in range(count)])
    return _side_by_side(each, [""] if count == 1 else [f"{name}: " for name in names.tolist()])


def _side_by_side(each: dict[str, Any], prefixes: Sequence[str]) -> Columns:
    """The columns of one label or output after those of another."""
    return {prefix + name: values[:, k] for k, prefix in enumerate(prefixes) for name, values in each.items()}


def _names(name: str, given: object, count: int, default: Sequence[Any]) -> np.ndarray:
    names = np.asarray(default if given is None else given)
    if names.shape != (count,):
        raise InputError(f"{name}: expected {count} names, got shape {names.shape}. Give one for each.")
    if len(set(map(str, names.tolist()))) < count:
        raise InputError(f"{name}: expected names that differ, got {names.tolist()}. Rename those that are alike.")
    return names


def _refuse_given(name: str, given: object, what: str) -> None:
    if given is not None:
        raise InputError(f"{name}: expected None for {what}, got {given!r}. Leave it out.")


# In a notebook --------------------------------------------------------------------------------------------------------
def first_rows(p: Predictive) -> str:
    """The summary and the first rows as HTML; what takes long for many rows or classes is left out, and named."""
    if p.shape is not None and len(p.shape) > 1:
        shape = " × ".join(map(str, p.mean.shape))
        return notebook.summary(p.summary(), notebook.note(f"Arrays such as mean and variance have the shape {shape}."))
    head = replace(p[: notebook.ROWS], arrays=True)
    frame, left_out = _first_columns(head)
    return notebook.summary(p.summary(), notebook.table(pd.DataFrame(frame), rows=len(p)), left_out)


def _first_columns(p: Predictive) -> tuple[Columns, str]:
    """The columns that are cheap, and a note on the others."""
    if not p.likelihood.discrete:
        return columns_of(p, None, None, 0.95), ""
    if p.top is not None:
        return _of_top(p, p.names, None), ""
    if (count := p.latent.mean.shape[1]) > MOST_CLASSES and p.likelihood.domain.kind == "classes":
        probs = np.asarray(p.probs)
        best = probs.argmax(1)
        labels = _names("classes", None, count, p.names or range(count))
        columns = {"predicted": labels[best], "probability": probs.max(1), "entropy": p.entropy}
        return columns, notebook.note(f"The most probable of {count} classes. to_frame() has all, and intervals.")
    domain = p.likelihood.domain
    level = 0.95 if domain.elementwise or domain.kind == "ordered" else None
    left_out = "" if level else notebook.note("Intervals take longer for three classes and more: to_frame() has them.")
    return columns_of(p, None, None, level), left_out
