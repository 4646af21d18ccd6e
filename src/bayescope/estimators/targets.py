"""What is to be predicted, as a pass over the rows finds it: classes and their weights, or the unit of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast, final, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import BayescopeWarning, InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators.base import ClassWeight
from bayescope.estimators.labels import factorized, ordered_labels, outcomes_of
from bayescope.estimators.table_rows import RowBlock, TableRows, TargetReader
from bayescope.layers.outputs import Rescaled
from bayescope.likelihoods import (
    Bernoulli,
    Binomial,
    Categorical,
    ClassLikelihoodName,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NumberLikelihoodName,
    OrderedLikelihoodName,
    Ordinal,
    OwnOfSeveral,
    WithOffset,
    resolve,
)
from bayescope.likelihoods.censoring import INTERVAL, middle
from bayescope.processes import warn_once
from bayescope.tables import Column
from bayescope.tables.column_sums import ColumnMoments, LabelsSeen

# Counts whose Pearson statistic is more than this a row vary more than their likelihood says.
OVERDISPERSED = 2.0
# The names of likelihoods of numbers, and of classes.
NUMBERS: tuple[NumberLikelihoodName, ...] = get_args(NumberLikelihoodName)
OF_CLASSES: tuple[str, ...] = get_args(ClassLikelihoodName)
# More ordered classes than this are rather numbers.
MOST_ORDERED = 50
# Numbers that differ by no more than this share of the largest are one number, but for rounding.
ROUNDING = 4.0 * np.finfo(np.float64).eps


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a table.

    Attributes:
        classes: sorted; of several labels a row, their names.
        multilabel: whether a row has several labels.
        likelihood: p(y∣f).
        outputs: how many outputs f has.
        notes: lines for a summary.
    """

    classes: np.ndarray
    multilabel: bool
    likelihood: Likelihood
    outputs: int
    notes: Mapping[str, str]

    @classmethod
    def of(cls, rows: TableRows, class_weight: ClassWeight, names: Sequence[object] = ()) -> tuple[Labels, TableRows]:
        """The labels, and the rows with codes 0…K−1 for their targets and weights times their class's.

        Args:
            rows: with labels for targets.
            class_weight: as the estimators take it.
            names: of several labels a row.

        Raises:
            InputError: if there is one class alone: of several labels a row, in any of them.
            UnsupportedError: if there are class weights for rows with several labels.
        """
        if rows.held is not None and rows.held.target.ndim == 2:
            return cls._several(rows.held.target, class_weight, names), rows
        if rows.held is None:
            classes, counts = _counted(rows)
        else:
            classes, codes = factorized(rows.held.target)
            counts = np.bincount(codes, rows.held.weights)
        if len(classes) < 2:
            raise InputError(f"y: expected at least two classes, got one class, {classes[0]}.")
        known = classes.tolist()
        factors = class_factors(class_weight, known, np.arange(len(known)), counts)
        places = {label: code for code, label in enumerate(known)}

        def coded(block: RowBlock) -> RowBlock:
            if rows.held is not None:
                found = codes
            else:
                order, labels = pd.factorize(block.target)
                found = np.array([places[label] for label in labels.tolist()], dtype=np.int64)[order]
            weights = block.weights if class_weight is None else block.weights * factors[found]
            return replace(block, target=found, weights=weights)

        two = len(known) == 2
        notes = class_notes(class_weight, known, factors)
        labels = cls(classes, False, Bernoulli() if two else Categorical(), 1 if two else len(known), notes)
        return labels, rows.changed(coded, weighted=class_weight is not None)

    @classmethod
    def _several(cls, codes: np.ndarray, class_weight: ClassWeight, names: Sequence[object]) -> Labels:
        if class_weight is not None:
            raise UnsupportedError(
                "class_weight: expected None for several labels per row, which do not form one class, got "
                f"{class_weight!r}. Use sample_weight."
            )
        count = codes.shape[1]
        classes = np.asarray(names if len(names) else np.arange(count))
        _refuse_constant(codes, classes)
        return cls(classes, True, Bernoulli(), count, {})

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several: the classes."""
        return () if self.outputs == 1 and not self.multilabel else tuple(map(str, self.classes.tolist()))

    @property
    def unit(self) -> str:
        """What f is measured in, as effects are reported."""
        if self.multilabel:
            return "logit"
        return f"logit of {self.classes.tolist()[1]!r}" if self.outputs == 1 else "logit, classes centred"

    def values(self, codes: np.ndarray) -> Tensor:
        """Codes in the canonical form of the likelihood."""
        return self.likelihood.targets(codes, self.outputs)


def _counted(rows: TableRows) -> tuple[np.ndarray, np.ndarray]:
    """The classes of a table on disk, sorted, and how often each is there, by weight."""
    seen = LabelsSeen(rows.roles[0])
    for block in rows.blocks(features=False):
        seen.add(Column(seen.name, "categorical", block.target), block.weights)
    seen = rows.joined(seen)
    if not seen.tally:
        raise rows.nobody()
    encoding = seen.encoding()
    return _array(encoding.categories), encoding.counts


def _refuse_constant(codes: np.ndarray, names: np.ndarray) -> None:
    """Refuses a label that all rows have, or none: nothing tells it from the other."""
    constant = (codes == codes[0]).all(axis=0)
    if constant.any():
        place = int(np.argmax(constant))
        raise InputError(
            f"y: expected both 0 and 1 in each column of labels, got {codes[0, place]:g} in all rows of column "
            f"{names.tolist()[place]!r}. Leave the column out: no row tells 0 from 1."
        )


def _array(labels: Sequence[object]) -> np.ndarray:
    """Numbers as such, where that keeps each as it is; others as objects."""
    text = any(isinstance(label, str) for label in labels)
    numbers = np.array(labels, dtype=object if text else None)
    return numbers if numbers.tolist() == list(labels) else np.array(labels, dtype=object)


@final
@dataclass(frozen=True, eq=False)
class Units:
    """The unit of the targets of a regression: y = shift + scale · z, for each of D outcomes.

    Attributes:
        shift: the means, shape (D,).
        scale: the standard deviations, 1 where there is none, shape (D,).
        rows: how many rows these are of.
        varies: whether no outcome is one number but for rounding.
        exact: the share of the rows whose number is known and not an interval, by weight.
        offset: the mean of what is added to f, shape (D,); 0 if it was taken from y.
    """

    shift: np.ndarray
    scale: np.ndarray
    rows: int
    varies: bool
    exact: float
    offset: np.ndarray

    @classmethod
    def of(cls, rows: TableRows, likelihood: Likelihood) -> Units:
        """Read the targets alone, once: of a likelihood of any numbers less their offset.

        Raises:
            InputError: if no row counts, the square of a target leaves floating point, or all counts are 0.
        """
        seen: list[ColumnMoments] = []
        largest, exact = np.zeros(1), 1.0
        outputs, flat = outcomes_of(likelihood, rows.targets)
        for block in rows.blocks(features=False):
            y = block.target.reshape(len(block), -1)
            if flat and y.shape[1] == INTERVAL:
                exact = float(np.average(y[:, 0] == y[:, 1], weights=block.weights))
                y = middle(torch.from_numpy(y)).numpy()
            around = y
            if block.offset is not None:
                added = block.offset.reshape(len(block), -1)
                around = y - added if likelihood.domain.low == -np.inf else np.hstack([y, added])
            largest = np.maximum(largest, np.abs(y).max(0, initial=0.0))
            seen = [reduce(ColumnMoments.joined, [*seen, ColumnMoments.of(around, block.weights)])]
        parts = [part for part in rows.of_parts((seen, largest)) if part[0]]
        if not any(part[0][0].size.any() for part in parts):
            raise rows.nobody()
        moments = reduce(ColumnMoments.joined, (part[0][0] for part in parts))
        largest = np.maximum.reduce([part[1] for part in parts])
        farthest = moments.farthest.max()
        if farthest > checks.FARTHEST:
            raise InputError(
                f"{rows.target_name}: expected numbers whose squares are floats, got one of {farthest:.3g} in size. "
                "Divide them by a constant."
            )
        domains = [part.domain for part in likelihood.parts or [likelihood] * outputs]
        bounded = np.array([each.integer or each.atom for each in domains])
        empty = np.flatnonzero(bounded & (moments.mean[:outputs] == 0))
        if len(empty):
            column = f" of column {empty[0]}" if outputs > 1 else ""
            raise InputError(
                f"y: expected numbers of which one is not 0, got 0 in all rows{column}, from which nothing can be "
                "learnt. Take BayesianGeneralizedLinearModel, whose intercept has a prior."
            )
        of_y = slice(len(largest))
        varies = bool(((moments.high - moments.low)[of_y] > ROUNDING * largest).all())
        offset = moments.mean[len(largest) :] if len(moments.mean) > len(largest) else np.zeros(1)
        return cls(moments.mean[of_y], moments.scale[of_y], int(moments.size[0]), varies, exact, offset)

    def constant(self, likelihood: Likelihood) -> Tensor:
        """f without its offset near that of the best constant, shape (D,), for lifetimes per event."""
        row = torch.from_numpy(self.shift)[None]
        each = row.split(1 if likelihood.domain.joined == INTERVAL else row.shape[1], 1)  # four means are no interval
        found = torch.cat([likelihood.constant(y) for y in each]) - torch.from_numpy(self.offset)
        return found - math.log(max(self.exact, 1.0 / (self.rows + 1)))

    def warn_if_constant(self, learns: Sequence[str]) -> None:
        """Warns of hyperparameters that are to be learnt of a y without any spread.

        Warns:
            BayescopeWarning: then.
        """
        if learns and not self.varies:
            warn_once(
                f"y: expected numbers that vary, got one number, {self.shift[0]:.6g}, in all rows of a column, which "
                f"leaves no noise to learn {', '.join(learns)} from: predictions are that number, with next to no "
                "spread. Give values if y is known to be noisy.",
                BayescopeWarning,
            )

    def refuse_constant(self, name: str) -> None:
        """Refuses to learn the noise of an additive model from a y without any.

        Raises:
            InputError: then.
        """
        if not self.varies:
            raise InputError(
                f"y: expected numbers that vary for likelihood={name!r}, got a constant column, which has no noise to "
                "learn. Leave it out, give a value of what is learnt, or take likelihood='gaussian'."
            )

    def standardised(self, targets: np.ndarray) -> Tensor:
        """z of y, shape (N, D)."""
        return torch.from_numpy((targets.reshape(len(targets), -1) - self.shift) / self.scale)

    def given(self, standardised: Tensor) -> Tensor:
        """y of z, shape (N, D)."""
        return standardised * torch.from_numpy(self.scale) + torch.from_numpy(self.shift)

    def notes(self) -> dict[str, str]:
        """What a summary says of them."""
        each = (
            f"less {shift:.6g}, divided by {scale:.6g}" for shift, scale in zip(self.shift, self.scale, strict=True)
        )
        return {"y inside the network": "; ".join(each)}

    def restored(self, network: nn.Sequential) -> nn.Sequential:
        """A network for z as one for y, of the same layers."""
        return nn.Sequential(*network, Rescaled.of(self.shift, self.scale))

    def maker(self, make: Callable[[int], nn.Sequential]) -> Callable[[int], nn.Sequential]:
        """The same for a function that makes networks from seeds."""
        return lambda seed: self.restored(make(seed))


def given_noise(noise_variance: object, scale: np.ndarray, rows: int) -> Gaussian | None:
    """The likelihood of standardised targets whose noise variance is given; ``None`` stands for "evidence".

    Args:
        noise_variance: in y's unit squared: "evidence", a positive number, or one for each column of y.
        scale: y's unit in standard deviations, shape (D,).
        rows: how many there are.

    Raises:
        InputError: if the noise variance is no positive number, nor one for each target, or is to be learnt of one row.
        OptionError: if it is another word than "evidence".
    """
    if isinstance(noise_variance, str):
        checks.choice("noise_variance", noise_variance, ["evidence"])
        refuse_one_row(rows)
        return None
    noise = checks.positive("noise_variance", noise_variance).numpy()
    if noise.shape not in ((), scale.shape):
        raise InputError(f"noise_variance: expected a number or {len(scale)} of them, got shape {noise.shape}.")
    standardised = noise / scale**2
    return Gaussian(standardised if len(standardised) > 1 else standardised[0])


def number_likelihood(given: NumberLikelihoodName | OrderedLikelihoodName | Likelihood) -> Likelihood:
    """The likelihood of numbers or ordered classes that is asked for; hyperparameters of a name are to be learnt.

    Raises:
        OptionError: if it is another word.
        UnsupportedError: if y is a class, or needs several outputs.
    """
    if isinstance(given, str) and given not in OF_CLASSES:
        checks.choice("likelihood", given, (*NUMBERS, *get_args(OrderedLikelihoodName)))
    likelihood = resolve(given)
    if isinstance(given, str):
        likelihood = likelihood.with_hyperparameters(**dict.fromkeys(likelihood.hyperparameters, "evidence"))
    if likelihood.domain.kind not in ("numbers", "ordered"):
        raise UnsupportedError(
            f"likelihood: expected one of numbers, got {likelihood.name!r}. Use BayesianLogisticRegression or another "
            "classifier for classes."
        )
    if isinstance(likelihood, HeteroscedasticGaussian | OwnOfSeveral):
        raise UnsupportedError(
            f"likelihood: expected one with an output for each outcome, got {likelihood.name!r}, which has more. Train "
            "a network of your own by fit_evidence."
        )
    return likelihood


def ordered_rows(
    likelihood: Likelihood, name: object, read: Callable[[TargetReader], TableRows]
) -> tuple[np.ndarray, Likelihood, TableRows]:
    """Ordered classes, shape (K,), the likelihood of so many, and the rows with the codes 0…K−1 for targets.

    Cutpoints that are to be learnt are those between the classes that occur; others are between the categories, or the
    numbers 0…K−1.

    Args:
        likelihood: p(y∣f).
        name: y as the caller gave it: values, or the name of their column.
        read: the rows, by the reader of the targets in memory.

    Raises:
        InputError: if there is one class alone, there are very many, or the cutpoints are of another number of classes.
    """
    categories: np.ndarray | None = None

    def labels(y: object, count: int) -> np.ndarray:
        nonlocal categories
        values, categories = ordered_labels(name, y, count)
        return values

    rows = read(labels)
    if not likelihood.learnable:
        count = 1 + likelihood.known("cutpoints").numel()
        if categories is not None and len(categories) != count:
            raise InputError(
                f"cutpoints: expected {len(categories) - 1}, one between each two categories, got {count - 1}."
            )
        rows = rows.changed(lambda block: replace(block, target=1.0 * block.target))
        return np.arange(count) if categories is None else categories, likelihood, rows
    here = [np.unique(block.target) for block in rows.blocks(features=False)]
    found = np.unique(np.concatenate([each for part in rows.of_parts(here) for each in part]))
    classes = found if categories is None else categories[found]
    if len(classes) < 2:
        raise InputError(f"y: expected at least two ordered classes, got one class, {classes[0]}.")
    if len(classes) > MOST_ORDERED:
        raise InputError(
            f"y: expected at most {MOST_ORDERED} ordered classes, got {len(classes)} different numbers. Cut them into "
            "classes, or take a likelihood of numbers."
        )
    rows = rows.changed(lambda block: replace(block, target=1.0 * np.searchsorted(found, block.target)))
    return classes, replace(cast(Ordinal, likelihood), classes=len(classes)), rows


def noise_asked(likelihood: Likelihood | str, noise_variance: object) -> object:
    """The noise variance that an estimator is asked for: that of a Gaussian likelihood with one, or the parameter.

    Raises:
        InputError: if both are given.
    """
    gaussian = (
        likelihood in ("gaussian", "heteroscedastic_gaussian")
        if isinstance(likelihood, str)
        else (isinstance(likelihood, Gaussian | HeteroscedasticGaussian))
    )
    if not gaussian and noise_variance != "evidence":
        raise InputError(
            f"noise_variance: expected 'evidence' beside likelihood={likelihood!r}, which has none, got "
            f"{noise_variance!r}. Leave it out."
        )
    if not isinstance(likelihood, Gaussian) or not isinstance(likelihood.noise_variance, Tensor):
        return noise_variance
    if not isinstance(noise_variance, str):
        raise InputError(
            f"noise_variance: expected 'evidence' beside {likelihood!r}, which has one, got {noise_variance!r}. Give "
            "it once."
        )
    return likelihood.noise_variance


def warn_if_overdispersed(likelihood: Likelihood, f: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
    """Warns of counts that vary much more about their fitted means than a likelihood without a dispersion allows.

    Pearson's statistic Σ (y − E(y∣f))²/Var(y∣f) is about 1 a row where the likelihood is right (McCullagh & Nelder
    1989, section 4.5).

    Args:
        likelihood: p(y∣f).
        f: outputs at the fitted weights, shape (N, D).
        y: canonical targets, shape (N, D).
        weights: how often each row counts, shape (N,).

    Warns:
        BayescopeWarning: if it is above `OVERDISPERSED`.
    """
    if isinstance(likelihood, WithOffset):
        f, y, likelihood = likelihood.moved(f, y), likelihood.outcomes(y), likelihood.likelihood
    for d, part in enumerate(likelihood.parts):
        warn_if_overdispersed(part, f[:, d : d + 1], y[:, d : d + 1], weights)
    if not likelihood.domain.integer or "dispersion" in likelihood.hyperparameters or likelihood.learnable:
        return
    mean, variance = likelihood.conditional(f)
    remedy = "Take likelihood='negative_binomial', which learns the dispersion."
    if isinstance(likelihood, Binomial):
        remedy = "Add what the trials of a row share: columns, or random effects by groups=."
        if y.shape != f.shape:  # successes and trials; the moments are of one trial
            y, trials = y[:, :1], y[:, 1:]
            mean, variance = trials * mean, trials * variance
    each = ((y - mean).square() / variance).mean(-1)
    ratio = float(each.mean() if weights is None else (each @ weights) / weights.sum())
    if ratio > OVERDISPERSED:
        warn_once(
            f"likelihood={likelihood.name!r} gives y {ratio:.3g} times less variance than it has about its means: "
            f"intervals are too narrow, and log probabilities low. {remedy}",
            BayescopeWarning,
        )


def refuse_one_row(rows: int) -> None:
    """Refuses to learn a noise variance of a single row.

    Raises:
        InputError: in words that scikit-learn's check_estimator looks for.
    """
    if rows < 2:
        raise InputError(
            "X: Found array with 1 sample(s) while a minimum of 2 is required to learn how much y varies. Give a value "
            "of what is learnt, such as noise_variance=."
        )


def class_factors(
    class_weight: ClassWeight, classes: Sequence[Any], codes: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    """How much more a row counts by its class, shape (K,).

    "balanced" is scikit-learn's N/(K N_k), with the sums of the rows' weights for N and N_k, so that all classes count
    alike and all rows as much as before.

    Args:
        class_weight: "balanced", a number for each class that is not to have 1, or ``None``.
        classes: the K labels.
        codes: of the rows, 0…K−1, shape (N,).
        weights: of the rows, shape (N,); 1 by default.

    Raises:
        OptionError: if it is another word, or names a class that does not occur.
        InputTypeError: if it is neither a word nor a dict.
        InputError: if a number is not positive.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str):
        checks.choice("class_weight", class_weight, ["balanced"])
        counts = np.bincount(codes, weights, minlength=len(classes))
        return np.asarray(counts.sum() / (len(classes) * counts))
    if not isinstance(class_weight, Mapping):
        raise InputTypeError(
            f"class_weight: expected None, 'balanced' or a dict from classes to numbers, got {class_weight!r}."
        )
    factors, known = np.ones(len(classes)), list(classes)
    for label, factor in class_weight.items():
        if label not in known:
            raise OptionError.unknown("class_weight", label, known)
        factors[known.index(label)] = checks.positive_number(f"class_weight of {label!r}", factor)
    return factors


def weight_notes(total: float, rows: int) -> dict[str, str]:
    """What a summary says of the rows' weights."""
    return {"rows": f"{rows}, which count as {total:.6g} by their weights"}


def class_notes(class_weight: ClassWeight, classes: Sequence[Any], factors: np.ndarray) -> dict[str, str]:
    """What a summary says of ``class_weight``."""
    if class_weight is None:
        return {}
    each = ", ".join(f"{label} × {factor:.4g}" for label, factor in zip(classes, factors.tolist(), strict=True))
    return {"class weights": f"{each}; probabilities are those of the data reweighted so"}
