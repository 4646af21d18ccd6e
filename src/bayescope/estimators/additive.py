"""Neural additive models for tables: f(x) = b + Σ_j f_j(x_j) + Σ_jk f_jk(x_j, x_k), each effect with its band."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from bayescope.additive.fit import AdditiveOptions
from bayescope.additive.passes import ALL
from bayescope.errors import InputError, NotPositiveDefiniteError, UnsupportedError
from bayescope.estimators.additive_reading import AdditiveEstimator
from bayescope.estimators.additive_table import Outputs
from bayescope.estimators.base import (
    ClassWeight,
    MissingAttributeError,
    TableClassifier,
    probabilities,
)
from bayescope.estimators.exposure import refuse_exposure
from bayescope.estimators.labels import class_labels, column_names, outcomes_of
from bayescope.estimators.outcomes import OutcomeRegressor
from bayescope.estimators.table_rows import TableRows, TargetReader
from bayescope.estimators.targets import (
    Labels,
    Units,
    given_noise,
    noise_asked,
    number_likelihood,
    refuse_one_row,
    warn_if_overdispersed,
)
from bayescope.likelihoods import (
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NumberLikelihoodName,
    OrderedLikelihoodName,
    resolve,
)
from bayescope.storage import stored

LIKELIHOODS = ("gaussian", "heteroscedastic_gaussian")
# Where the search for the noise variance begins, as a share of y's variance.
FIRST_NOISE = 0.3


@final
@stored("NeuralAdditiveClassifier")
@dataclass(kw_only=True, eq=False, repr=False)
class NeuralAdditiveClassifier(TableClassifier, AdditiveEstimator):
    """A neural additive model of labels whose every effect has a band (LA-NAM; Bouchiat et al. 2024).

    f(x) = b + Σ_j f_j(x_j) + Σ_jk f_jk(x_j, x_k) + offset. The effect of a number is a net with one hidden layer, that
    of a category a free effect for each label, and a missing value has an effect of its own; all are centred over the
    data. Each has a prior precision that maximises Laplace's evidence, so that features which tell nothing are switched
    off, and labels that are rare or were never seen keep to their prior, with a wide band.

    Two classes have one f, the logit of ``classes_[1]``. More have one f each, p(y = k∣f) = softmax(f)_k. Labels that a
    row may have together are given as a matrix of 0 and 1, shape (N, C), and have one logit each.

    With more than 64 features, or fewer than two rows for each, features enter the model a few at a time, as long as
    log Z rises by more than the log of the prior odds against them; all others are switched off. The order of the
    columns does not matter.

    Rows of equal X, y and offset are one row with their summed weight, in an order of their own: the order of the rows
    does not matter, and a weight of 2 is the same as the row twice.

    Args:
        hidden: units of the net of each number; 3 H + 1 weights for one output.
        pair_hidden: units of a pair's net.
        interactions: pairs of features that have a term of their own: how many (the best of a ranking), "auto" for as
            many as raise the evidence, or a list of pairs of names, such as ``[("age", "dose")]``. Where there are more
            than 3,000 pairs, those are ranked that have a feature whose own effect is on, or two such features.
        ranking: what pairs are ranked by: "evidence", what log Z would gain by the pair, or "mutual_information", the
            dependence of the two features' own effects under the posterior (Bouchiat et al. 2024, section 4).
        posterior: "laplace", or "map" for the point alone: the plain neural additive model, without bands.
        structure: of the Laplace posterior: "block", terms independent of each other, or "full".
        numeric_transform: of the numbers: "standard" (less their mean, in standard deviations) or "quantile" (their
            normal scores: for long tails), or one of these for each column named, the others "standard".
        groups: columns, by name or position, whose labels have random effects: each label has an effect
            N(0, 1/δ) with a δ for the column that the evidence learns, as all columns of labels have, and
            `random_effects` lists them. A label that was never seen has mean 0 and that variance. Numbers in such a
            column are labels.
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        prior_precision: of the weights: "evidence" for one a net, or a layer of it, that maximises the evidence, or a
            positive number for all.
        intercept_prior_precision: of b.
        monotone: 1 for each feature whose effect never falls, −1 for one whose effect never rises, by name or position,
            such as ``{"age": 1, "price": -1}``. That holds over the whole line, for the mean of the effect, both ends
            of its band and each draw; the effect of a missing value is free. Such an effect is a sum of steps with
            weights of at least 0, and draws of its posterior are projected onto these (Lin & Dunson 2014). A
            monotone feature is in no pair; more than two classes of one label are refused.
        share_prior: which weights share a prior precision: those of a "layer", or of a whole "net".
        epochs: steps over all rows, at most: fitting ends where the evidence has come to rest.
        burn_in: epochs before the first update of the precisions.
        evidence_every: epochs from one update to the next.
        evidence_steps: fixed-point steps of an update.
        class_weight: what the weight of each row is multiplied by, for its class: "balanced", which gives all classes
            the same total weight, a dict from classes to positive numbers (1 for those left out), or ``None``. The
            probabilities are then those of the reweighted data, not of the data as they are. Rows with several labels
            take none.
        random_state: of the first weights, and of draws from the predictive: an int for the same model at every call.
        progress: whether to draw a bar while fitting, where a person can see it.

    Attributes:
        classes_: the labels, sorted; of several labels a row, their names or 0…C−1.
        posterior_: over the weights, by term; it answers for encoded rows.
        prior_precision_: of each term by its name: a number, or one for each of its layers where these may differ.
        log_evidence_: Laplace's log p(y∣X): by blocks a lower bound on the full structure's.
        pairs_: names of the pairs that have a term.
        ranking_: all pairs with their scores, best first, where they were ranked.
        trace_: log evidence, epoch by epoch.
        n_iter_: epochs.
        additive_: the encoding, the model and its fit: what `effects`, `surface`, `explain` and `importance` read;
            `bayescope.plots` draws what these give.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> import numpy as np
        >>> X = np.linspace(-2.0, 2.0, 60)[:, None]
        >>> model = NeuralAdditiveClassifier(random_state=0).fit(X, np.abs(X[:, 0]) > 1.0)
        >>> model.predict([[-1.8], [0.0], [1.8]])
        array([ True, False,  True])
        >>> effect = model.effects(0, grid=[0.0])
        >>> bool(effect.high[0] < 0.0)
        True
    """

    class_weight: ClassWeight = None

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None) -> None:
        rows = TableRows.of(
            self, X, y, sample_weight, offset, target=class_labels, labels=True, groups=self._group_columns
        )
        labels, rows = Labels.of(rows, self.class_weight, getattr(y, "columns", ()))
        if rows.held is None and offset is not None and labels.outputs > 1:
            raise UnsupportedError(
                f"offset: expected None for {labels.outputs} classes of a table on disk, each of which has one of its "
                f"own, got {offset!r}. Leave it out, or fit a data frame."
            )
        self.classes_, self._multilabel = labels.classes, labels.multilabel
        self._output_names, self._unit = labels.output_names, labels.unit
        outputs = Outputs.of_logits(labels.outputs)
        rows = self._distinct(rows, labels.outputs)
        self._learn(rows, labels.values, outputs, labels.likelihood, notes=labels.notes)

    def predict(self, X: object, *, offset: object = None, abstain: float | None = None) -> np.ndarray:
        """The most probable class of each row, shape (N,); of several labels those that are probable, 0/1, (N, C).

        Args:
            X: a table of the columns that were fitted.
            offset: added to f, as for `fit`.
            abstain: a probability between 0 and 1: ``None`` stands for a class, or for one of several labels, that is
                less probable than that, in an array of objects.
        """
        return self._decided(self.predict_proba(X, offset=offset), abstain)

    def predict_proba(self, X: object, *, offset: object = None) -> np.ndarray:
        """p(y = k∣x, data), averaged over the posterior, shape (N, K), columns as in ``classes_``."""
        return self._read(X, probabilities, offset)

    def predict_log_proba(self, X: object, *, offset: object = None) -> np.ndarray:
        """log p(y = k∣x, data), shape (N, K), without underflow where a row has one label."""
        return self._read(X, self._logs, offset)


@final
@stored("NeuralAdditiveRegressor")
@dataclass(kw_only=True, eq=False, repr=False)
class NeuralAdditiveRegressor(OutcomeRegressor, AdditiveEstimator):
    """A neural additive model of numbers whose every effect has a band (LA-NAM; Bouchiat et al. 2024).

    y = b + Σ_j f_j(x_j) + Σ_jk f_jk(x_j, x_k) + offset + noise. The effect of a number is a net with one hidden layer,
    that of a category a free effect for each label, and a missing value has an effect of its own; all are centred over
    the data. Each has a prior precision that maximises Laplace's evidence, so that features which tell nothing are
    switched off, and labels that are rare or were never seen keep to their prior, with a wide band.

    With more than 64 features, or fewer than two rows for each, features enter the model a few at a time, as long as
    log Z rises by more than the log of the prior odds against them; all others are switched off. The order of the
    columns does not matter.

    y is standardised inside; all answers are in its own unit. It may have several columns, shape (N, D), whose noise is
    independent. Rows of equal X, y and offset are one row with their summed weight, in an order of their own: the order
    of the rows does not matter, and a weight of 2 is the same as the row twice.

    Args:
        likelihood: "gaussian", or "heteroscedastic_gaussian" for a noise whose logarithm is an additive model too:
            outputs are then the means of all columns of y, followed by their log variances. Or another likelihood of
            numbers by its name, such as "poisson", or as a `Likelihood`: effects are then those on f, such as the log
            of the mean, and hyperparameters are learnt unless they are given. With "ordinal" the estimator is a
            classifier of ordered classes, as `BayesianGeneralizedLinearModel` is: effects are log odds of later
            classes, and cutpoints that are learnt take the place of b.
        hidden: units of the net of each number; 3 H + 1 weights for one output.
        pair_hidden: units of a pair's net.
        interactions: pairs of features that have a term of their own: how many (the best of a ranking), "auto" for as
            many as raise the evidence, or a list of pairs of names, such as ``[("age", "dose")]``. Where there are more
            than 3,000 pairs, those are ranked that have a feature whose own effect is on, or two such features.
        ranking: what pairs are ranked by: "evidence", what log Z would gain by the pair, or "mutual_information", the
            dependence of the two features' own effects under the posterior (Bouchiat et al. 2024, section 4).
        posterior: "laplace", or "map" for the point alone: the plain neural additive model, without bands.
        structure: of the Laplace posterior: "block", terms independent of each other, or "full".
        numeric_transform: of the numbers: "standard" (less their mean, in standard deviations) or "quantile" (their
            normal scores: for long tails), or one of these for each column named, the others "standard".
        groups: columns, by name or position, whose labels have random effects: each label has an effect
            N(0, 1/δ) with a δ for the column that the evidence learns, as all columns of labels have, and
            `random_effects` lists them. A label that was never seen has mean 0 and that variance. Numbers in such a
            column are labels.
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        prior_precision: of the weights: "evidence" for one a net, or a layer of it, that maximises the evidence, or a
            positive number for all.
        noise_variance: in y's unit squared: "evidence", a positive number, or one for each column of y.
        intercept_prior_precision: of b, in standard deviations of y.
        monotone: 1 for each feature whose effect never falls, −1 for one whose effect never rises, by name or position,
            such as ``{"age": 1, "price": -1}``. That holds over the whole line, for the mean of the effect, both ends
            of its band and each draw; the effect of a missing value is free. Such an effect is a sum of steps with
            weights of at least 0, and draws of its posterior are projected onto these (Lin & Dunson 2014). It is in
            no pair.
        share_prior: which weights share a prior precision: those of a "layer", or of a whole "net".
        epochs: steps over all rows, at most: fitting ends where the evidence has come to rest.
        burn_in: epochs before the first update of the precisions and the noise.
        evidence_every: epochs from one update to the next.
        evidence_steps: fixed-point steps of an update.
        random_state: of the first weights, and of draws from the predictive: an int for the same model at every call.
        progress: whether to draw a bar while fitting, where a person can see it.

    Attributes:
        likelihood_: p(y∣f), with the values that were learnt.
        noise_variance_: in y's unit squared: a number, or one for each column of y.
        posterior_: over the weights, by term; it answers for encoded rows.
        prior_precision_: of each term by its name: a number, or one for each of its layers where these may differ.
        log_evidence_: Laplace's log p(y∣X): by blocks a lower bound on the full structure's.
        pairs_: names of the pairs that have a term.
        ranking_: all pairs with their scores, best first, where they were ranked.
        trace_: log evidence and noise variance, of the standardised y, epoch by epoch.
        n_iter_: epochs.
        additive_: the encoding, the model and its fit: what `effects`, `surface`, `explain` and `importance` read;
            `bayescope.plots` draws what these give.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> import numpy as np
        >>> X = np.linspace(-2.0, 2.0, 60)[:, None]
        >>> model = NeuralAdditiveRegressor(random_state=0).fit(X, X[:, 0] ** 2)
        >>> mean, sd = model.predict([[1.5]], return_std=True)
        >>> bool(abs(mean[0] - 2.25) < 0.05)
        True
    """

    likelihood: NumberLikelihoodName | OrderedLikelihoodName | Likelihood = "gaussian"
    noise_variance: float | Sequence[float] | np.ndarray | Literal["evidence"] = "evidence"

    classes_: np.ndarray = field(init=False)
    _flat: bool = field(init=False)

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None, exposure: object = None) -> None:
        other = None if self._name in LIKELIHOODS else number_likelihood(self.likelihood)
        if other is not None and other.parts:
            raise UnsupportedError(
                "likelihood: expected one for all columns of y, got a joint one. Fit an additive model to each column, "
                "or take BayesianMLPRegressor or BayesianGeneralizedLinearModel."
            )

        def read(reader: TargetReader) -> TableRows:
            return TableRows.of(self, X, y, sample_weight, offset, exposure, groups=self._group_columns, target=reader)

        plain, rows = self._rows_of(Gaussian() if other is None else other, y, read)
        columns, self._flat = outcomes_of(plain, rows.targets)
        if exposure is not None:
            refuse_exposure(plain, columns)
        self._output_names, self._unit = self._output_names_of(column_names(y, columns))
        count, rows = rows.held and len(rows.held), self._distinct(rows, columns)
        units = Units.of(rows, plain)
        if other is not None:
            self._fit_outcome(rows, units, plain)
            return
        likelihood = self._likelihood(units, count or units.rows)
        if self._name == "heteroscedastic_gaussian":
            units.refuse_constant(self._name)
        asked = noise_asked(self.likelihood, self.noise_variance)
        learns = ("noise_variance",) if isinstance(asked, str) else ()
        with self._explained():
            self._learn(rows, units.standardised, self._outputs(units), likelihood, learns=learns)

    def _fit_outcome(self, rows: TableRows, units: Units, likelihood: Likelihood) -> None:
        """Fits another likelihood than a Gaussian's, whose intercepts begin at those of the best constant."""
        count, _ = outcomes_of(likelihood, rows.targets)
        self._output_names = self._output_names if count > 1 else ()
        self._unit = "log odds of later classes" if likelihood.name == "ordinal" else "f"
        self._refuse_intercept(likelihood)

        domain = likelihood.domain
        free = domain.kind == "numbers" and domain.low == -np.inf and domain.high == np.inf
        scale, logs = torch.from_numpy(units.scale), np.log(units.scale)
        if free:
            likelihood = likelihood.in_unit(1.0 / scale)

        def canonical(targets: np.ndarray) -> torch.Tensor:
            return units.standardised(targets) if free else likelihood.targets(targets, count)

        noise_asked(self.likelihood, self.noise_variance)
        learns = likelihood.learnable
        if learns:
            refuse_one_row(max(units.rows, 0 if rows.held is None else len(rows.held)))
        if learns and not domain.integer:
            units.refuse_constant(likelihood.name)
        if learns and rows.held is None:
            raise UnsupportedError(
                f"likelihood: expected values of {', '.join(learns)} for a table on disk, got 'evidence'. Give a "
                "likelihood with numbers, or fit some of the rows as a data frame."
            )
        blocks = [canonical(block.target) for block in rows.blocks(features=False)] if learns else []
        first = likelihood.starting(torch.cat(blocks)) if learns else likelihood
        outputs = (
            Outputs(units.scale, units.shift, units.exact * float(logs.sum())) if free else Outputs.of_logits(count)
        )
        origin = None if free else units.constant(first)
        self._learn(rows, canonical, outputs, first, learns=learns, origin=origin)
        if (fit := self.additive_.fit) is not None:
            problem = fit.problem
            warn_if_overdispersed(fit.at.likelihood, fit.linear.f[ALL], problem.targets[ALL], problem.weights[ALL])

    def _refuse_intercept(self, likelihood: Likelihood) -> None:
        """Refuses a prior of the intercept where there is none."""
        given = self.intercept_prior_precision
        if "cutpoints" in likelihood.learnable and given != AdditiveOptions.intercept_prior_precision:
            raise UnsupportedError(
                f"intercept_prior_precision: expected the default, since the cutpoints take the intercept's place, got "
                f"{given!r}. Leave it out."
            )

    @property
    def _name(self) -> str:
        """Of the likelihood that is asked for."""
        return self.likelihood if isinstance(self.likelihood, str) else resolve(self.likelihood).name

    @property
    def likelihood_(self) -> Likelihood:
        """p(y∣f), with the values of its hyperparameters that were learnt."""
        check_is_fitted(self)
        assert self.posterior_.likelihood is not None
        return self.posterior_.likelihood

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What a singular curvature means where each row has a variance of its own."""
        try:
            yield
        except NotPositiveDefiniteError as error:
            if self._name == "gaussian":
                raise
            raise NotPositiveDefiniteError(
                f"y: expected noise for likelihood={self.likelihood!r}, got rows that the features seem to tell "
                f"exactly, whose log variance has no bound. Use likelihood='gaussian'. ({error})"
            ) from None

    @property
    def noise_variance_(self) -> float | np.ndarray:
        """The noise variance in y's unit squared, a number or one an output."""
        check_is_fitted(self)
        likelihood = self.posterior_.likelihood
        if likelihood is None or likelihood.noise_variance is None:
            raise MissingAttributeError(
                f"noise_variance_: likelihood={self.likelihood!r} has one for each row. Ask predict_distribution(X)."
            )
        noise = likelihood.noise(self.additive_.model.scale).numpy()
        return float(noise[0]) if self._flat else noise.copy()

    def _output_names_of(self, names: list[str]) -> tuple[tuple[str, ...], str]:
        """The names of the outputs, where there are several, and their unit."""
        if self._name == "heteroscedastic_gaussian":
            named = [f"{what} of {name}" for what in ("mean", "log variance") for name in names]
            return tuple(named), f"{names[0] if len(names) == 1 else 'y'}, or its log variance"
        return ((), names[0]) if len(names) == 1 else (tuple(names), "y")

    def _outputs(self, units: Units) -> Outputs:
        """The unit of the outputs: those of y; a log variance is that of the standardised y, plus log scale²."""
        logs = np.log(units.scale)
        if self._name == "gaussian":
            return Outputs(units.scale, units.shift, float(logs.sum()))
        ones = np.ones_like(units.scale)
        return Outputs(np.append(units.scale, ones), np.append(units.shift, 2.0 * logs), float(logs.sum()))

    def _likelihood(self, units: Units, rows: int) -> Likelihood:
        """p(y∣f) of the standardised y."""
        given = given_noise(noise_asked(self.likelihood, self.noise_variance), units.scale, rows)
        if self._name == "gaussian":
            return Gaussian(FIRST_NOISE) if given is None else given
        if given is not None:
            raise InputError(
                f"noise_variance: expected 'evidence' for likelihood={self.likelihood!r}, which learns one for each "
                f"row, got {self.noise_variance!r}."
            )
        return HeteroscedasticGaussian()
