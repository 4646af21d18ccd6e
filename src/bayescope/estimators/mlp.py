"""Bayesian multilayer perceptrons for tables, with any posterior of the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputTypeError, MemoryBudgetError, UnsupportedError
from bayescope.estimators.base import (
    BLOCK_NUMBERS,
    ClassWeight,
    Generator,
    MissingAttributeError,
    TableClassifier,
    TableEstimator,
)
from bayescope.estimators.exposure import refuse_exposure
from bayescope.estimators.inputs import EstimatorTable, InputMap
from bayescope.estimators.labels import class_labels, outcomes_of
from bayescope.estimators.mapped_rows import Canonical, MappedRows
from bayescope.estimators.mlp_learning import FIRST_NOISE, Learnt, Lesson, TrainingPace, learn
from bayescope.estimators.mlp_network import Activation, Architecture
from bayescope.estimators.mlp_posteriors import DRAWS, POSTERIORS, Kind, PosteriorName, Setting, chosen, infer
from bayescope.estimators.mlp_rows import NetworkRows
from bayescope.estimators.outcomes import OutcomeRegressor
from bayescope.estimators.priors import one_precision
from bayescope.estimators.table_rows import RowBlock, TableRows, TargetReader, row_offset, with_offset
from bayescope.estimators.targets import (
    Labels,
    Units,
    given_noise,
    noise_asked,
    number_likelihood,
    refuse_one_row,
    warn_if_overdispersed,
)
from bayescope.laplace.constant import warn_if_constant
from bayescope.layers.outputs import Rescaled
from bayescope.likelihoods import Gaussian, Likelihood, NumberLikelihoodName, OrderedLikelihoodName, WithOffset
from bayescope.posterior import DrawsPosterior, InputRows, Posterior
from bayescope.predictive import Predictive
from bayescope.storage import stored
from bayescope.tables.preprocessing import SPREAD_ROWS, EncodingName, Preprocessing, ScalingName, Table

# What to do where the network predicts the same for all rows.
TELL = "To tell which, fit once with prior_precision=0.1 and compare the scores on rows that were held out."
# Rows that are predicted at once.
MOST_ROWS = 2048


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
        """The inputs of the network, shape (N, D): X as numbers, scaled as they were when fitting.

        They are in an order of what they hold in the rows that were fitted, wherever the columns stood in the table.
        """
        return self._inputs(self._table(X))

    @property
    def input_names_(self) -> tuple[str, ...]:
        """The names of the network's inputs, such as "colour=red", in the order of `transform_inputs`."""
        check_is_fitted(self)
        return self._inputs.names

    @property
    def preprocessing_(self) -> Preprocessing:
        """From columns to the network's inputs."""
        check_is_fitted(self)
        return self._inputs.preprocessing

    def _inputs_of(self, table: Table, offset: object = None) -> InputRows:
        rows = self._inputs.read(table, linear=False)
        return replace(rows, offset=row_offset(offset, len(rows), 1))

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

    def _learn(
        self,
        rows: TableRows,
        likelihood: Likelihood,
        outputs: int,
        notes: Mapping[str, str],
        values: Canonical,
        *,
        units: Units | None = None,
        rescaled: Rescaled | None = None,
        learns: tuple[str, ...] = (),
    ) -> None:
        """Learns the network and its hyperparameters, finds the posterior and sets the learned attributes.

        Args:
            rows: the rows of the table.
            likelihood: p(y∣f), with the noise of standardised targets, or where the search for it begins.
            outputs: C.
            notes: on the targets, lines for a summary.
            values: makes the likelihood's canonical form of targets, standardised.
            units: of a regression whose targets are standardised.
            rescaled: the last layer of the networks, where outputs have an origin and a unit of their own.
            learns: the hyperparameters of the likelihood that are to be learnt.
        """
        kind, given = chosen(self.posterior, self.posterior_options, self.draws)
        if rows.held is None and not kind.streams:
            streaming = ", ".join(repr(name) for name, each in POSTERIORS.items() if each.streams)
            raise UnsupportedError(
                f"posterior: expected one of {streaming} for a table on disk, got {self.posterior!r}, which needs "
                "all rows in memory. Take one of those, or fit some of the rows as a data frame."
            )
        source = rows.generator(self.random_state)
        order = checks.seed_from(source)
        mapped = MappedRows.fit(
            rows, scaling=self.scaling, encoding=self.encoding, seed=order, by_content=True, sample_rows=SPREAD_ROWS
        )
        self._reader, self._inputs = rows.reader, mapped.inputs
        known = NetworkRows.of(mapped, values)
        schedule = TrainingPace.checked(known.rows, self.epochs, self.batch_size, self.lr, on_disk=rows.held is None)
        architecture = Architecture.checked(known.features, self.hidden, self.activation, outputs, rescaled)
        path, prior_path = self._paths(kind)
        seed = checks.seed_from(source)
        lesson = Lesson(
            architecture, known.data(schedule.batch_size, order), known.some, known.likelihood(likelihood),
            one_precision(self.prior_precision), learns, schedule, prior_path,
            checks.flag("progress", self.progress),
        )  # fmt: skip
        widest = max(architecture.features, *architecture.hidden, architecture.outputs)
        with known.threads(schedule.batch_size, widest), _width_explained(architecture, self.posterior_options):
            learnt = learn(lesson, seed, train=kind.from_trained)
            setting = self._setting(known, order + 1, units, lesson, learnt, checks.seed_from(source), path)
            posterior = infer(kind, setting, given)
            warn_if_constant(cast(Any, posterior).model, setting.likelihood, setting.rows, TELL)
            _warn_of_spread(setting)
        notes = {
            "network": str(architecture), **learnt.notes, **self._inputs.preprocessing.notes(), **notes,
            **known.notes(),
        }  # fmt: skip
        self._remember(posterior, kind, learnt, notes, checks.seed_from(source))

    def _setting(
        self,
        known: NetworkRows,
        order: int,
        units: Units | None,
        lesson: Lesson,
        learnt: Learnt,
        seed: int,
        path: Path | None,
    ) -> Setting:
        """What was learnt, in the targets' own unit."""
        make: Callable[[int], nn.Sequential] = lesson.another
        network, noise, plain = learnt.module, 1.0, learnt.likelihood.unweighted
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
                f"checkpoint: expected None for posterior={self.posterior!r}, which cannot resume from one, got "
                f"{self.checkpoint!r}."
            )
        return path, path.with_stem(f"{path.stem}-prior")

    def _generator(self) -> Generator:
        return self._seed

    def _predicted(self, rows: InputRows, **options: Any) -> Predictive[np.ndarray]:
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


@contextmanager
def _width_explained(architecture: Architecture, options: Mapping[str, Any] | None) -> Iterator[None]:
    """Says of a curvature that memory does not hold what to do about the table, if its structure was not chosen."""
    try:
        yield
    except MemoryBudgetError as error:
        if options or "the structure 'kfac'" not in str(error):
            raise
        hidden = tuple(architecture.hidden)
        raise MemoryBudgetError(
            f"X: expected a network whose curvature fits into memory, got {architecture.features:,} inputs and hidden="
            f"{hidden}: each layer needs matrices with as many rows and columns as it has inputs. Keep fewer "
            "columns or hidden units, or take a linear model."
        ) from error


def _less_offset(block: RowBlock) -> RowBlock:
    """The rows with their offset taken from the target."""
    columns = block.target.reshape(len(block), -1) - row_offset(block.offset, len(block), 1)
    return replace(block, target=columns.reshape(block.target.shape), offset=None)


@torch.no_grad()
def _warn_of_spread(setting: Setting) -> None:
    """Warns of overdispersed counts, by the rows in memory or the first block of those on disk."""
    inputs, targets = next(setting.rows())
    y, plain = targets.flatten(0, 1), setting.likelihood.unweighted
    if plain.domain.integer or plain.parts:
        weights = None if plain is setting.likelihood else y[:, -1]
        warn_if_overdispersed(plain, setting.network(inputs), y if weights is None else y[:, :-1], weights)


@final
@stored("BayesianMLPClassifier", without=("checkpoint",))
@dataclass(kw_only=True, eq=False, repr=False)
class BayesianMLPClassifier(TableClassifier, MLPEstimator):
    """A multilayer perceptron of labels with a posterior over its weights.

    Two classes have one output f, the logit of ``classes_[1]``. More have one each, p(y = k∣f) = softmax(f)_k. Labels
    that a row may have together are given as a matrix of 0 and 1, shape (N, C), and have one logit each.

    By default one prior precision a layer is learnt first. Laplace's evidence proposes precisions while networks are
    trained on four fifths of the rows (Immer et al. 2021b), one network from low precisions and one from high ones. The
    network that predicts the last fifth best is trained on with all rows, under its precisions: the evidence alone
    would sometimes prefer a network that predicts the same for all rows. Of a table with more rows 2,500 are taken for
    this. Then the posterior is found by the function of the library that has its name, with those precisions:
    "laplace", "last_layer" and "function_space" expand at the trained network, and "map", "variational", "mc_dropout",
    "swag", "sgmcmc" and "nuts" go on from it. "ensemble" trains further networks beside it, each of which has first
    learnt under low precisions. "variational" gives KL(q∥p) the weight 0.1: the maximum of the evidence lower bound
    itself, ``posterior_options={"kl_weight": 1.0}``, is too nearly linear a network on hundreds of rows.

    Where the labels have no noise, so that nearly every training row is classified correctly (digits), "laplace" is
    underconfident: the evidence does not notice. Take "last_layer" or "ensemble", or a temperature below 1.

    Rows in memory of equal X and y are one row with their summed weight, in an order of their own, and inputs are in an
    order of what they hold: the order of rows and columns does not matter, and a weight of 2 is the same as the row
    twice. On disk the order of the columns does not matter.

    Args:
        posterior: "laplace" (Kronecker-factored GGN, linearised), "last_layer" (the same over the last layer alone),
            "map" (a point), "variational", "mc_dropout", "ensemble", "swag", "sgmcmc", "nuts" (small networks; minutes)
            or "function_space" (Laplace as a Gaussian process).
        hidden: units of each hidden layer; ``()`` for a linear model.
        activation: "tanh", "relu", "sigmoid", "softplus", "silu" or "gelu".
        prior_precision: of weights and biases: "evidence" for one a layer, learnt as above whichever the
            posterior, or a positive number for all. Its unit is that of the scaled inputs.
        scaling: of numbers: "standard" (less their mean, in standard deviations), "quantile" (their normal scores), or
            ``None`` to take them as they are.
        encoding: of labels: "one_hot", "ordinal" or "target".
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        class_weight: what the weight of each row is multiplied by, for its class: "balanced", which gives all classes
            the same total weight, a dict from classes to positive numbers (1 for those left out), or ``None``. The
            probabilities are then those of the reweighted data, not of the data as they are. Rows with several labels
            take none.
        epochs: how often each training by Adam reads the rows; ``None`` chooses by their number, at least 30, or 5 for
            a table on disk. "map" and a network that "laplace" expands at are trained by L-BFGS instead, on all rows
            at once, if there are at most 4,000 and neither epochs nor lr nor batch_size is given.
        lr: the first step size of Adam; ``None`` for 0.02. It falls to 0.
        batch_size: the most rows of a minibatch; ``None`` for 32, 128 in tables of over 4,000 rows, and 512 on disk.
        members: of the posterior "ensemble".
        rate: of dropout before hidden layers, for the posterior "mc_dropout".
        draws: of the weights: those that "sgmcmc" and "nuts" keep a chain, and those that predictions by "variational",
            "mc_dropout" and "swag" average over; ``None`` for 200, and 1000 of "nuts".
        posterior_options: further arguments of the function that has the posterior's name, such as
            ``{"structure": "full"}`` or ``{"temperature": 0.1}`` of `laplace`.
        random_state: of the first weights, the order of the rows and all draws: an int for the same model at every fit.
        progress: whether to draw a bar while training, where a person can see it.
        checkpoint: a file that trainings are saved to. An interrupted fit that is called again with the same data and
            parameters, an int for ``random_state`` among them, goes on from it; others are refused. A training before
            the posterior's own is saved beside it, under the name with "-prior", and the search for prior precisions
            under names with "-search-1" and "-search-2".

    Attributes:
        classes_: the labels, sorted; of several labels a row, their names or 0…C−1.
        posterior_: over the weights; it reads the tables that the estimator reads.
        module_: the network, a copy.
        prior_precision_: a number, or that of each layer by its name in ``module_``.
        log_evidence_: log p(y∣X) as Laplace's posteriors have it.
        elbo_: a lower bound on it, for "variational".
        preprocessing_: from columns to the network's inputs.
        trace_: numbers per epoch of the last training.
        n_iter_: its epochs.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> import numpy as np
        >>> X = np.linspace(-2.0, 2.0, 60)[:, None]
        >>> model = BayesianMLPClassifier(hidden=(10,), random_state=0).fit(X, np.abs(X[:, 0]) > 1.0)
        >>> model.predict([[-1.8], [0.0], [1.8]])
        array([ True, False,  True])
    """

    class_weight: ClassWeight = None

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None) -> None:
        rows = TableRows.of(self, X, y, sample_weight, target=class_labels, labels=True)
        labels, rows = Labels.of(rows, self.class_weight, getattr(y, "columns", ()))
        self.classes_, self._multilabel = labels.classes, labels.multilabel
        self._learn(rows.distinct(), labels.likelihood, labels.outputs, labels.notes, labels.values)


@final
@stored("BayesianMLPRegressor", without=("checkpoint",))
@dataclass(kw_only=True, eq=False, repr=False)
class BayesianMLPRegressor(OutcomeRegressor, MLPEstimator):
    """A multilayer perceptron of numbers with a posterior over its weights: y ~ p(y∣f(x)), by default f plus noise.

    By default one prior precision a layer and the noise variance are learnt first. Laplace's evidence proposes them
    while networks are trained on four fifths of the rows (Immer et al. 2021b), one network from low precisions and one
    from high ones. The network that predicts the last fifth best is trained on with all rows, under its precisions. Of
    a table with more rows 2,500 are taken for this. Then the posterior is found by the function of the library that has
    its name, with those precisions and that noise: "laplace", "last_layer" and "function_space" expand at the trained
    network, and "map", "variational", "mc_dropout", "swag", "sgmcmc" and "nuts" go on from it. "ensemble" trains
    further networks beside it, each of which has first learnt under low precisions. "variational" gives KL(q∥p) the
    weight 0.1: the maximum of the evidence lower bound itself, ``posterior_options={"kl_weight": 1.0}``, is too nearly
    linear a network on hundreds of rows.

    y is standardised inside; all answers are in its own unit. It may have several columns, shape (N, D), which share
    the hidden layers and have independent noise. Rows in memory of equal X and y are one row with their summed weight,
    in an order of their own, and inputs are in an order of what they hold: the order of rows and columns does not
    matter, and a weight of 2 is the same as the row twice. On disk the order of the columns does not matter.

    Args:
        posterior: "laplace" (Kronecker-factored GGN, linearised), "last_layer" (the same over the last layer alone),
            "map" (a point), "variational", "mc_dropout", "ensemble", "swag", "sgmcmc", "nuts" (small networks; minutes)
            or "function_space" (Laplace as a Gaussian process).
        hidden: units of each hidden layer; ``()`` for a linear model.
        activation: "tanh", "relu", "sigmoid", "softplus", "silu" or "gelu".
        prior_precision: of weights and biases: "evidence" for one a layer, learnt as above whichever the
            posterior, or a positive number for all. Its unit is that of the scaled inputs and the standardised y.
        likelihood: what y is given f: "gaussian", or the name of another likelihood of numbers, such as "poisson", or a
            `Likelihood`. Its hyperparameters are learnt unless they are given. With "ordinal" the estimator is a
            classifier of ordered classes, as `BayesianGeneralizedLinearModel` is.
        noise_variance: of a Gaussian, in y's unit squared: "evidence", a positive number, or one for each column of y.
            Of several columns the evidence learns one for the standardised y, shared out as their squared residuals
            are.
        scaling: of numbers: "standard" (less their mean, in standard deviations), "quantile" (their normal scores), or
            ``None`` to take them as they are.
        encoding: of labels: "one_hot", "ordinal" or "target".
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        epochs: how often each training by Adam reads the rows; ``None`` chooses by their number, at least 30, or 5 for
            a table on disk. "map" and a network that "laplace" expands at are trained by L-BFGS instead, on all rows
            at once, if there are at most 4,000 and neither epochs nor lr nor batch_size is given.
        lr: the first step size of Adam; ``None`` for 0.02. It falls to 0.
        batch_size: the most rows of a minibatch; ``None`` for 32, 128 in tables of over 4,000 rows, and 512 on disk.
        members: of the posterior "ensemble".
        rate: of dropout before hidden layers, for the posterior "mc_dropout".
        draws: of the weights: those that "sgmcmc" and "nuts" keep a chain, and those that predictions by "variational",
            "mc_dropout" and "swag" average over; ``None`` for 200, and 1000 of "nuts".
        posterior_options: further arguments of the function that has the posterior's name, such as
            ``{"structure": "full"}`` of `laplace`.
        random_state: of the first weights, the order of the rows and all draws: an int for the same model at every fit.
        progress: whether to draw a bar while training, where a person can see it.
        checkpoint: a file that trainings are saved to. An interrupted fit that is called again with the same data and
            parameters, an int for ``random_state`` among them, goes on from it; others are refused. A training before
            the posterior's own is saved beside it, under the name with "-prior", and the search for prior precisions
            under names with "-search-1" and "-search-2".

    Attributes:
        posterior_: over the weights; it reads the tables that the estimator reads.
        module_: the network, a copy, with outputs in y's unit.
        likelihood_: p(y∣f), with the values that were learnt.
        noise_variance_: of a Gaussian, in y's unit squared: a number, or one for each column of y.
        prior_precision_: a number, or that of each layer by its name in ``module_``.
        log_evidence_: log p(y∣X) as Laplace's posteriors have it, y in its own unit.
        elbo_: a lower bound on it, for "variational".
        preprocessing_: from columns to the network's inputs.
        trace_: numbers per epoch of the last training; that of "laplace" is of the standardised y.
        n_iter_: its epochs.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> import numpy as np
        >>> X = np.linspace(-2.0, 2.0, 60)[:, None]
        >>> model = BayesianMLPRegressor(hidden=(10,), random_state=0).fit(X, X[:, 0] ** 2)
        >>> mean, sd = model.predict([[1.5]], return_std=True)
        >>> bool(abs(mean[0] - 2.25) < 0.2)
        True
    """

    likelihood: NumberLikelihoodName | OrderedLikelihoodName | Likelihood = "gaussian"
    noise_variance: float | Sequence[float] | np.ndarray | Literal["evidence"] = "evidence"

    classes_: np.ndarray = field(init=False)
    _flat: bool = field(init=False)
    _outputs: int = field(init=False)

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None, exposure: object = None) -> None:
        likelihood = number_likelihood(self.likelihood)

        def read(reader: TargetReader) -> TableRows:
            return TableRows.of(self, X, y, sample_weight, offset, exposure, target=reader)

        likelihood, rows = self._rows_of(likelihood, y, read)
        self._outputs, self._flat = outcomes_of(likelihood, rows.targets)
        if exposure is not None:
            refuse_exposure(likelihood, self._outputs)
        if rows.added.given is not None and isinstance(likelihood, Gaussian):
            rows = rows.changed(_less_offset)
        count, rows = rows.held and len(rows.held), rows.distinct()
        units = Units.of(rows, likelihood)
        if not isinstance(likelihood, Gaussian):
            self._fit_outcome(rows, units, likelihood)
            return
        given = given_noise(noise_asked(self.likelihood, self.noise_variance), units.scale, count or units.rows)
        noisy = Gaussian(FIRST_NOISE) if given is None else given
        learns = ("noise_variance",) if given is None else ()
        self._learn(rows, noisy, self._outputs, units.notes(), units.standardised, units=units, learns=learns)

    def _fit_outcome(self, rows: TableRows, units: Units, likelihood: Likelihood) -> None:
        """Fits another likelihood than a Gaussian's, whose outputs begin at those of the best constant."""
        # Of successes and trials there is one output
        shift, scale = (torch.from_numpy(each[: self._outputs]).clone() for each in (units.shift, units.scale))
        for part, some in likelihood.by_column:
            if part.domain.low > -math.inf or part.domain.kind == "ordered":
                shift[some], scale[some] = units.constant(likelihood)[some], 1.0
        noise_asked(self.likelihood, self.noise_variance)
        learns = likelihood.learnable
        if learns:
            refuse_one_row(max(units.rows, 0 if rows.held is None else len(rows.held)))
            units.warn_if_constant(() if likelihood.domain.integer else learns)
            targets = torch.cat([self._canonical(likelihood, block.target) for block in rows.blocks(features=False)])
            likelihood = likelihood.starting(targets)
        if rows.added.given is not None:
            likelihood, rows = WithOffset(likelihood), rows.changed(with_offset)
        values = partial(self._canonical, likelihood)
        self._learn(rows, likelihood, self._outputs, {}, values, rescaled=Rescaled.of(shift, scale), learns=learns)
        found = cast(Likelihood, self.posterior_.likelihood)
        if isinstance(found, WithOffset):
            self.posterior_ = replace(cast(Any, self.posterior_), likelihood=found.likelihood)

    def _canonical(self, likelihood: Likelihood, targets: np.ndarray) -> Tensor:
        return likelihood.targets(targets, self._outputs)

    @property
    def likelihood_(self) -> Likelihood:
        """p(y∣f), with the values of its hyperparameters that were learnt."""
        check_is_fitted(self)
        assert self.posterior_.likelihood is not None
        return self.posterior_.likelihood.unweighted

    @property
    def noise_variance_(self) -> float | np.ndarray:
        """The noise variance in y's unit squared, a number or one for each column of y; of a Gaussian likelihood."""
        likelihood = self.likelihood_
        if not isinstance(likelihood, Gaussian):
            raise MissingAttributeError(
                f"noise_variance_: a {likelihood.name} likelihood has none. Ask for likelihood_."
            )
        noise: np.ndarray = likelihood.noise(torch.zeros(self._outputs, dtype=torch.float64)).numpy()
        return float(noise[0]) if self._flat else noise.copy()
