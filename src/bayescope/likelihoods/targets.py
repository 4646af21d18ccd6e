"""Labels beside a network's outputs: what fits them, in canonical form, and which row does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import BayescopeWarning, InputError, warn
from bayescope.likelihoods.likelihood import Likelihood
from bayescope.likelihoods.row_columns import Weighted

# What rows of probabilities in single precision may miss a sum of 1 by.
SUM_TOLERANCE = 1e-3


@final
class LabelError(InputError):
    """A label outside the domain of its likelihood.

    Args:
        expected: what it had to be.
        got: the label.
        row: where it is, counted from the first label that the likelihood was given.
        advice: what to do.
        place: where it is, in words, if not in that row.
    """

    def __init__(self, expected: str, got: str, row: int, advice: str, place: str = "") -> None:
        super().__init__(expected, got, row, advice, place)

    def __str__(self) -> str:
        expected, got, row, advice, place = self.args
        return f"y: expected {expected}, got {got} in {place or f'row {row}'}. {advice}"

    def within(self, columns: Sequence[str]) -> LabelError:
        """The same with the names of the columns of y: of a single one, or of that in which the label is."""
        expected, got, row, advice, place = self.args
        column = columns[int(place.rpartition(" ")[2])] if place and len(columns) > 1 else columns[0]
        return LabelError(expected, got, row, advice, f"row {row} of column {column!r}")

    def at(self, first: int, positions: int) -> LabelError:
        """The same in the data as a whole, of which ``first`` labels came before, ``positions`` of them a row."""
        expected, got, row, advice, place = self.args
        _, comma, column = place.partition(",")
        return LabelError(expected, got, row, advice, place_of(first + row, positions) + comma + column)


def place_of(observation: int, positions: int) -> str:
    """The row of an observation, and its position in the row where there are several, in words."""
    row, position = divmod(observation, positions)
    return f"row {row}" if positions == 1 else f"row {row}, position {position}"


def numbers_in_columns(y: ArrayLike, columns: int, outputs: int) -> Tensor:
    """Targets that are numbers, or labels of 0 and 1, in float64 of shape (N, columns).

    Args:
        y: shape (N, columns), or (N,) for one column.
        columns: how many there have to be.
        outputs: C, for the message.

    Raises:
        InputError: if the shape does not fit or a number is not finite.
    """
    values = checks.float64("y", y)
    if values.ndim == 1 and columns == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] != columns:
        expected = "(N,)" if columns == 1 else f"(N, {columns})"
        raise InputError(
            f"y: expected shape {expected} for {outputs} output{'s' * (outputs > 1)}, got {tuple(values.shape)}."
        )
    return values


def labels_in_rows(y: ArrayLike, expected: str = "class labels of", classes: int = 0) -> Tensor:
    """Labels, one a row, in float64 of shape (N,).

    Args:
        y: shape (N,) or (N, 1).
        expected: what they are, for the message.
        classes: how many there are, where probabilities of them are labels too.

    Raises:
        InputError: if the shape does not fit or a label is not finite.
    """
    labels = checks.float64("y", y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        advice = " Give y.argmax(1) for one-hot labels." if labels.shape[1:] == (classes,) else " Give one a row."
        soft = f", or probabilities of shape (N, {classes})" if classes else ""
        raise InputError(f"y: expected {expected} shape (N,){soft}, got {tuple(labels.shape)}.{advice}")
    return labels


def read_targets(likelihood: Likelihood, targets: ArrayLike, shape: Sequence[int], first: int = 0) -> Tensor:
    """The labels of outputs (N, *positions, C) in canonical form, one for each position of each row.

    Args:
        likelihood: p(y∣f).
        targets: of shape (N, *positions) for classes, else (N, *positions, C), as probabilities of classes are.
        shape: (N, *positions, C), that of the outputs.
        first: how many labels came before these in the data, for the row that a message names.

    Raises:
        InputError: if the outputs have no column for C, the labels do not fit them, or one is outside the domain.
    """
    if likelihood.mean_weight is not None:
        given, weights = likelihood.as_given(torch.as_tensor(targets))
        if weights is not None:
            rows = read_targets(likelihood.unweighted, given, shape, first)
            return Weighted.join(rows, weights.repeat_interleave(len(rows) // max(1, len(weights))))
    if len(shape) < 2:
        raise InputError(
            f"model: expected outputs of shape (N, C) or (N, …, C), got {tuple(shape)}. Give it one column for one "
            "output."
        )
    lead = torch.Size(shape[:-1])
    y = targets if len(lead) == 1 else _in_rows(torch.as_tensor(targets), torch.Size(shape))
    positions = lead[1:].numel()
    wrong = torch.isnan if likelihood.domain.joined else _not_finite
    if isinstance(y, Tensor) and wrong(y).any():
        index = torch.nonzero(wrong(y))[0]
        place = place_of(first + int(index[0]), positions)
        raise InputError(f"y: expected finite numbers, got {y[tuple(index)].item()} in {place}. Leave such rows out.")
    try:
        soft = likelihood.soft_targets(y, shape[-1])
        rows = likelihood.targets(y, shape[-1]) if soft is None else soft
    except LabelError as error:
        raise InputError(str(error.at(first, positions))) from None
    if rows.shape[0] != lead.numel():
        raise InputError(f"y: expected {lead.numel()} labels, one for each output, got {rows.shape[0]}.")
    return rows


def _not_finite(y: Tensor) -> Tensor:
    return ~torch.isfinite(y)


def warn_of_probabilities(likelihood: Likelihood, f: Tensor) -> None:
    """Warns of outputs that have been through a softmax, which the categorical likelihood takes for logits.

    Log probabilities are logits, and pass.

    Warns:
        BayescopeWarning: if all numbers are between 0 and 1 and those of each row sum to 1.
    """
    if likelihood.domain.kind != "classes" or not f.numel() or f.min() < 0 or f.max() > 1:
        return
    if (f.to(torch.float64).sum(-1) - 1.0).abs().max() <= SUM_TOLERANCE:
        warn(
            "model: expected logits for the categorical likelihood, got outputs that look like probabilities: each row "
            "is between 0 and 1 and sums to 1. Take the softmax off the end of the network.",
            BayescopeWarning,
        )


def _in_rows(y: Tensor, shape: torch.Size) -> Tensor:
    """Labels with their positions among the rows."""
    lead = shape[:-1]
    if y.shape[: len(lead)] == lead:
        return y.reshape(lead.numel(), *y.shape[len(lead) :])
    if y.shape == (shape[0], *shape[2:]):
        raise InputError(
            f"model: expected outputs of shape (N, …, C), the classes last, got {tuple(shape)} for labels of shape "
            f"{tuple(y.shape)}. Say which axis the classes are on: classes_dim=1."
        )
    raise InputError(
        f"y: expected one label for each of the positions {tuple(lead)} of the outputs, got shape {tuple(y.shape)}."
    )
