"""What both network estimators do: read tables, learn, find a posterior, and say what was learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.estimators.distinct_rows import DistinctRows
from bayescope.estimators.frames import FrameReader
from bayescope.estimators.mlp_learning import FIRST_NOISE, Learnt, Lesson, Schedule, learn
from bayescope.estimators.mlp_network import Architecture, Units
from bayescope.estimators.mlp_posteriors import DRAWS, Kind, Setting, chosen, infer
from bayescope.estimators.reading import PosteriorHolder, as_tensor, generator_from
from bayescope.likelihoods import Gaussian, Likelihood
from bayescope.likelihoods.weighted import Weighted
from bayescope.posterior import DrawsPosterior, Posterior
from bayescope.predictive import Predictive
from bayescope.tables import Column
from bayescope.tables.preprocessing import Preprocessing
from bayescope.threads import threads_for

# Rows that are predicted at once, and the numbers that their outputs at all draws may take.
MOST_ROWS, BLOCK_NUMBERS = 2048, 2**22


@final
@dataclass(frozen=True, eq=False)
class Targets:
    """What is to be predicted.

    Attributes:
        codes: for the preprocessing: classes 0…K−1, shape (N,), or numbers (N, D).
        values: in the likelihood's canonical form.
        likelihood: p(y∣f), with the noise of standardised targets, or where the search for it begins.
        outputs: C.
        notes: lines for a summary.
        units: of a regression.
        learns_noise: whether the noise variance is to be learnt.
    """

    codes: np.ndarray
    values: Tensor
    likelihood: Likelihood
    outputs: int
    notes: Mapping[str, str]
    units: Units | None = None
    learns_noise: bool = False


class MLPEstimator(PosteriorHolder):
    """A table, a network and its posterior."""

    posterior: str
    hidden: Any
    activation: str
    prior_precision: Any
    scaling: Any
    encoding: str
    categorical: Any
    epochs: int | None
    lr: float | None
    batch_size: int | None
    members: int
    rate: Any
    draws: int | None
    posterior_options: Any
    random_state: Any
    progress: bool
    checkpoint: Any

    preprocessing_: Preprocessing
    prior_precision_: float | dict[str, float]
    n_iter_: int
    n_features_in_: int
    _frames: FrameReader
    _samples: int | None
    _seed: int

    def predict_distribution(
        self,
        X: Any,
        *,
        integral: str | None = None,
        method: str | None = None,
        samples: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> Predictive:
        """The predictive distribution, with its epistemic and aleatoric parts and its intervals.

        The labels of a classifier are the codes 0…K−1 of ``classes_``; several labels a row are 0 and 1.

        Args:
            X: a table of the columns that were fitted.
            integral: over the latent f: "quadrature", "mackay", "monte_carlo" or "laplace_bridge"; the default is
                the most accurate one. Where there is a closed form it is used.
            method: "linearized" or "sampled".
            samples: how many draws, where there are any; ``draws``, or 200, by default.
            generator: for the draws; the same ones at every call by default.
        """
        return self._predicted(
            self.transform_inputs(X), integral=integral, method=method, samples=samples, generator=generator
        )

    def transform_inputs(self, X: Any) -> np.ndarray:
        """The inputs of the network, shape (N, D): X as numbers, scaled as they were when fitting."""
        check_is_fitted(self)
        return self.preprocessing_(self._frames.columns(self, X))

    @property
    def trace_(self) -> Mapping[str, Sequence[Any]]:
        """Numbers per epoch of the last training; for "laplace" those of a standardised y."""
        check_is_fitted(self)
        return self.posterior_.trace

    @property
    def module_(self) -> nn.Module:
        """The network, a copy: from `transform_inputs` to f, the logits or E(y∣f) in y's unit."""
        check_is_fitted(self)
        return cast(nn.Module, self.posterior_.model)

    def _columns(self, X: Any, y: Any) -> tuple[list[Column], int]:
        """The columns of the table to fit, whose names and kinds are learnt from it, and how many rows there are."""
        self._frames, columns = FrameReader.fit(self, X, y, categorical=self.categorical)
        return columns, len(columns[0].values)

    def _learn(self, rows: DistinctRows, targets: Targets) -> None:
        """Learns the network and its hyperparameters, finds the posterior and sets the learned attributes."""
        kind, given = chosen(self.posterior, self.posterior_options, self.draws)
        schedule = Schedule.checked(len(rows.weights), self.epochs, self.batch_size, self.lr)
        source = generator_from(self.random_state)
        self.preprocessing_, table = Preprocessing.fit(
            rows.columns, targets.codes, scaling=self.scaling, encoding=cast(Any, self.encoding), weights=rows.weights,
            random_state=checks.seed_from(source),
        )  # fmt: skip
        architecture = Architecture.checked(table.shape[1], self.hidden, self.activation, targets.outputs)
        path, prior_path = self._paths(kind)
        inputs = as_tensor(table)
        likelihood, (values,) = _weighted(targets.likelihood, [targets.values], rows.weights)
        seed = checks.seed_from(source)
        lesson = Lesson(
            architecture, (inputs, values), likelihood, self._precision(), targets.learns_noise, schedule, prior_path,
            checks.flag("progress", self.progress),
        )  # fmt: skip
        learnt = learn(lesson, seed, train=kind.continues)
        setting = self._setting(rows, targets, lesson, learnt, checks.seed_from(source), path)
        posterior = infer(kind, setting, given)
        notes = {"network": str(architecture), **learnt.notes, **self.preprocessing_.notes(), **targets.notes}
        self._remember(posterior, kind, learnt, notes, checks.seed_from(source))

    def _setting(
        self, rows: DistinctRows, targets: Targets, lesson: Lesson, learnt: Learnt, seed: int, path: Path | None
    ) -> Setting:
        """What was learnt, in the targets' own unit."""
        inputs, values = lesson.data
        likelihood, units = lesson.likelihood, targets.units
        make: Callable[[int], nn.Sequential] = lesson.architecture.network
        network, noise = learnt.module, 1.0
        if units is not None and learnt.noise_variances is not None:
            scales = torch.from_numpy(units.scale)
            noise = min(1.0, float(learnt.noise_variances.mean()))
            told = learnt.noise_variances * scales.square()
            plain = Gaussian(told if len(told) > 1 else told[0])
            likelihood, (values,) = _weighted(plain, [torch.from_numpy(rows.targets)], rows.weights)
            network, make = units.restored(network), units.maker(make)
        return Setting(
            network, make, (inputs, values), likelihood, learnt.precisions, lesson.schedule, self.members, self.rate,
            self.draws, seed, path, lesson.progress, noise,
        )  # fmt: skip

    def _remember(self, posterior: Posterior, kind: Kind, learnt: Learnt, notes: Mapping[str, str], seed: int) -> None:
        """Sets the learned attributes."""
        record = posterior.record
        trace = record.trace or learnt.trace
        told = replace(record, notes={**notes, **record.notes}, trace=trace)
        self.posterior_ = replace(cast(Any, posterior), record=told)
        one = len(set(learnt.precisions.values())) == 1 and not isinstance(self.prior_precision, str)
        precisions = dict(learnt.precisions)
        self.prior_precision_ = next(iter(precisions.values())) if one else precisions
        self.n_iter_ = max(1, len(trace.get("loss", ())))
        self._samples = (DRAWS if self.draws is None else self.draws) if kind.sampled else None
        self._seed = seed

    def _paths(self, kind: Kind) -> tuple[Path | None, Path | None]:
        """The files of the posterior's own training, and of the one before it."""
        if self.checkpoint is None:
            return None, None
        if not isinstance(self.checkpoint, str | Path):
            raise InputTypeError(f"checkpoint: expected a path or None, got {self.checkpoint!r}.")
        path = Path(self.checkpoint)
        if kind.expands:
            return None, path
        if not kind.trains:
            raise UnsupportedError(
                f"checkpoint: expected None for posterior={self.posterior!r}, which cannot go on from one, got "
                f"{self.checkpoint!r}."
            )
        return path, path.with_stem(f"{path.stem}-prior")

    def _precision(self) -> float | None:
        """The prior precision that was given, if one was."""
        if isinstance(self.prior_precision, str) and self.prior_precision == "evidence":
            return None
        try:
            return checks.positive_number("prior_precision", self.prior_precision)
        except InputError:
            raise InputError(
                f"prior_precision: expected a positive number for all weights or 'evidence', got "
                f"{self.prior_precision!r}."
            ) from None

    def _predicted(self, inputs: np.ndarray, **options: Any) -> Predictive:
        """Predictions of rows as the network takes them; draws are the same ones at every call."""
        if options.get("generator") is None:
            options["generator"] = self._seed
        if options.get("samples") is None and options.get("method") in (None, "sampled"):
            options["samples"] = self._samples
        return self.posterior_.predict(inputs, **options)

    def _read(self, X: Any, read: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        """Predicts rows in blocks that bound the memory, and joins what is read from each."""
        inputs, posterior = self.transform_inputs(X), self.posterior_
        draws = posterior.draws[..., 0].numel() if isinstance(posterior, DrawsPosterior) else self._samples or 1
        widest = max([inputs.shape[1], *self.hidden])
        size = min(MOST_ROWS, max(1, BLOCK_NUMBERS // (draws * widest)))
        starts = range(0, max(1, len(inputs)), size)
        with threads_for(size * draws * widest):
            return np.concatenate([read(self._predicted(inputs[start : start + size])) for start in starts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags


def first_noise(noise_variance: Any, scale: np.ndarray) -> tuple[Likelihood, bool]:
    """The likelihood of standardised targets, and whether its noise variance is to be learnt.

    Raises:
        InputError: if the noise variance is no positive number, nor one for each target.
        OptionError: if it is another word than "evidence".
    """
    if isinstance(noise_variance, str):
        checks.choice("noise_variance", noise_variance, ["evidence"])
        return Gaussian(FIRST_NOISE), True
    noise = checks.positive("noise_variance", noise_variance).numpy()
    if noise.shape not in ((), scale.shape):
        raise InputError(f"noise_variance: expected a number or {len(scale)} of them, got shape {noise.shape}.")
    told = noise / scale**2
    return Gaussian(told if len(told) > 1 else told[0]), False


def _weighted(
    likelihood: Likelihood, targets: Sequence[Tensor], weights: np.ndarray
) -> tuple[Likelihood, list[Tensor]]:
    """The likelihood and its targets, with weights where a row does not count once."""
    if (weights == 1.0).all():
        return likelihood, list(targets)
    column = torch.from_numpy(weights)
    return Weighted(likelihood, float(weights.mean())), [Weighted.join(each, column) for each in targets]
