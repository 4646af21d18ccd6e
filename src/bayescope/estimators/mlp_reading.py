"""What both network estimators do: read tables, learn, find a posterior, and say what was learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from bayescope import checks
from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.estimators.base import BLOCK_NUMBERS, Generator, TableEstimator
from bayescope.estimators.inputs import EstimatorTable, InputMap
from bayescope.estimators.mapped_rows import Canonical, MappedRows
from bayescope.estimators.mlp_learning import Learnt, Lesson, TrainingPace, learn
from bayescope.estimators.mlp_network import Activation, Architecture
from bayescope.estimators.mlp_posteriors import DRAWS, POSTERIORS, Kind, PosteriorName, Setting, chosen, infer
from bayescope.estimators.mlp_rows import NetworkRows
from bayescope.estimators.priors import one_precision
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import Units
from bayescope.laplace.constant import warn_if_constant
from bayescope.likelihoods import Gaussian, Likelihood
from bayescope.posterior import DrawsPosterior, InputRows, Posterior
from bayescope.predictive import Predictive
from bayescope.tables.preprocessing import SPREAD_ROWS, EncodingName, Preprocessing, ScalingName, Table

# What to do where the network predicts the same for all rows.
TELL = "To tell which, fit once with prior_precision=0.1 and compare the scores on rows that were held out."
# Rows that are predicted at once.
MOST_ROWS = 2048


@final
@dataclass(frozen=True, eq=False)
class Goal:
    """What is to be predicted.

    Attributes:
        likelihood: p(y∣f), with the noise of standardised targets, or where the search for it begins.
        outputs: C.
        notes: lines for a summary.
        values: makes the likelihood's canonical form of targets, standardised.
        units: of a regression.
        learns_noise: whether the noise variance is to be learnt.
    """

    likelihood: Likelihood
    outputs: int
    notes: Mapping[str, str]
    values: Canonical
    units: Units | None = None
    learns_noise: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class MLPEstimator(TableEstimator):
    """A table, a network and its posterior."""

    _several_targets: ClassVar[bool] = True

    posterior: PosteriorName = "laplace"
    hidden: Sequence[int] = (50, 50)
    activation: Activation = "tanh"
    prior_precision: float | Literal["evidence"] = "evidence"
    scaling: ScalingName | None = "standard"
    encoding: EncodingName = "one_hot"
    epochs: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    members: int = 5
    rate: float | Literal["concrete"] = 0.1
    draws: int | None = None
    posterior_options: Mapping[str, Any] | None = None
    progress: bool = False
    checkpoint: str | Path | None = None

    prior_precision_: float | dict[str, float] = field(init=False)
    n_iter_: int = field(init=False)
    _inputs: InputMap = field(init=False)
    _samples: int | None = field(init=False)
    _seed: int = field(init=False)

    def transform_inputs(self, X: object) -> np.ndarray:
        """The inputs of the network, shape (N, D): X as numbers, scaled as they were when fitting."""
        return self._inputs(self._table(X))

    @property
    def preprocessing_(self) -> Preprocessing:
        """From columns to the network's inputs."""
        check_is_fitted(self)
        return self._inputs.preprocessing

    def _inputs_of(self, table: Table, offset: object = None) -> InputRows:
        return self._inputs.read(table, linear=False)

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

    def _learn(self, rows: TableRows, goal: Goal) -> None:
        """Learns the network and its hyperparameters, finds the posterior and sets the learned attributes."""
        kind, given = chosen(self.posterior, self.posterior_options, self.draws)
        if rows.held is None and not kind.streams:
            streaming = ", ".join(repr(name) for name, each in POSTERIORS.items() if each.streams)
            raise UnsupportedError(
                f"posterior: expected one of {streaming} for a table on disk, got {self.posterior!r}, which needs "
                "all rows in memory. Take one of those, or fit some of the rows as a data frame."
            )
        source = rows.generator(self.random_state)
        order = checks.seed_from(source)
        mapped = MappedRows.fit(rows, scaling=self.scaling, encoding=self.encoding, seed=order, sample_rows=SPREAD_ROWS)
        self._reader, self._inputs = rows.reader, mapped.inputs
        known = NetworkRows.of(mapped, goal.values)
        schedule = TrainingPace.checked(known.rows, self.epochs, self.batch_size, self.lr, on_disk=rows.held is None)
        architecture = Architecture.checked(known.features, self.hidden, self.activation, goal.outputs)
        path, prior_path = self._paths(kind)
        seed = checks.seed_from(source)
        lesson = Lesson(
            architecture, known.data(schedule.batch_size, order), known.some, known.likelihood(goal.likelihood),
            one_precision(self.prior_precision), goal.learns_noise, schedule, prior_path,
            checks.flag("progress", self.progress),
        )  # fmt: skip
        widest = max(architecture.features, *architecture.hidden, architecture.outputs)
        with known.threads(schedule.batch_size, widest):
            learnt = learn(lesson, seed, train=kind.from_trained)
            setting = self._setting(known, order + 1, goal, lesson, learnt, checks.seed_from(source), path)
            posterior = infer(kind, setting, given)
            warn_if_constant(cast(Any, posterior).model, setting.likelihood, setting.rows, TELL)
        notes = {
            "network": str(architecture), **learnt.notes, **self._inputs.preprocessing.notes(), **goal.notes,
            **known.notes(),
        }  # fmt: skip
        self._remember(posterior, kind, learnt, notes, checks.seed_from(source))

    def _setting(
        self, known: NetworkRows, order: int, goal: Goal, lesson: Lesson, learnt: Learnt, seed: int, path: Path | None,
    ) -> Setting:  # fmt: skip
        """What was learnt, in the targets' own unit."""
        plain, units = goal.likelihood, goal.units
        make: Callable[[int], nn.Sequential] = lesson.another
        network, noise = learnt.module, 1.0
        if units is not None and learnt.noise_variances is not None:
            scales = torch.from_numpy(units.scale)
            noise = min(1.0, float(learnt.noise_variances.mean()))
            variances = learnt.noise_variances * scales.square()
            plain = Gaussian(variances if len(variances) > 1 else variances[0])
            network, make = units.restored(network), units.maker(make)
        data = known.data(lesson.schedule.batch_size, order, units and units.given)
        return Setting(
            network, make, data, known.likelihood(plain), learnt.precisions, lesson.schedule, self.members, self.rate,
            self.draws, seed, path, lesson.progress, noise,
        )  # fmt: skip

    def _remember(self, posterior: Posterior, kind: Kind, learnt: Learnt, notes: Mapping[str, str], seed: int) -> None:
        """Sets the attributes that end in an underscore."""
        record = posterior.record
        trace = record.trace or learnt.trace
        described = replace(record, notes={**notes, **record.notes}, trace=trace)
        reader = EstimatorTable.of(self, self._reader, self._inputs, linear=False)
        self.posterior_ = replace(cast(Any, posterior), record=described, reader=reader)
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

    def _generator(self) -> Generator:
        return self._seed

    def _predicted(self, rows: InputRows, **options: Any) -> Predictive:
        """Predictions of rows as the network takes them; draws are the same ones at every call."""
        if options.get("samples") is None and options.get("method") in (None, "sampled"):
            options["samples"] = self._samples
        return self.posterior_.predict(rows, **{"generator": self._seed, **options})

    def _block(self, rows: InputRows) -> tuple[int, int]:
        posterior = self.posterior_
        draws = posterior.draws[..., 0].numel() if isinstance(posterior, DrawsPosterior) else self._samples or 1
        widest = max([rows.values.shape[1], *self.hidden])
        size = min(MOST_ROWS, max(1, BLOCK_NUMBERS // (draws * widest)))
        return size, size * draws * widest

    def _read_rows(self, rows: InputRows, read: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        if len(rows):
            return TableEstimator._read_rows(self, rows, read)
        # A network has to be called on a row; what it says of any has the shapes.
        return read(self._predicted(InputRows(np.zeros((1, rows.values.shape[1])))))[:0]
