"""Bayesian generalised linear models: counts, amounts and other outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, cast, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.estimators.exposure import refuse_exposure
from bayescope.estimators.labels import column_names, outcomes_of
from bayescope.estimators.linear_choice import ChosenPosterior
from bayescope.estimators.linear_posteriors import BY_SUMS, CHOICES, refuse_all_rows
from bayescope.estimators.outcomes import OutcomeRegressor
from bayescope.estimators.priors import WEAK_INTERCEPT, intercept_precision
from bayescope.estimators.table_rows import TableRows, TargetReader, with_offset
from bayescope.estimators.targets import number_likelihood, refuse_one_row, warn_if_overdispersed
from bayescope.likelihoods import (
    Likelihood,
    NumberLikelihoodName,
    OrderedLikelihoodName,
    WithOffset,
    normal_quantile,
)
from bayescope.linear.density import Again
from bayescope.linear.evidence import InterceptPrecision
from bayescope.linear.hyperparameters import LearntUncertainty
from bayescope.linear.table import Batch, RowTable
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior
from bayescope.storage import stored
from bayescope.tables.dataset import opened

# About this many rows tell whether counts are overdispersed.
SPREAD_ROWS = 20_000


@final
@stored("BayesianGeneralizedLinearModel")
@dataclass(kw_only=True, eq=False, repr=False)
class BayesianGeneralizedLinearModel(OutcomeRegressor, ChosenPosterior):
    """A generalised linear model, y ~ p(y∣f) with f = w·x + b, with a posterior over its weights.

    The likelihood p(y∣f) says what y is: counts ("poisson", "negative_binomial"), amounts ("gamma", "log_normal"),
    lifetimes ("weibull", "exponential"), numbers with outliers ("student_t", "laplace_noise"), ordered classes
    ("ordinal"). Its hyperparameters, such as a scale, are learnt by maximising the log evidence together with the prior
    precision (McCullagh & Nelder 1989, Generalized Linear Models; MacKay 1992). A full covariance of the weights
    includes their uncertainty, by Laplace's approximation of both together; otherwise, and if the log density has a
    kink, predictions take them as known.

    Ordered classes are numbers or an ordered categorical, and cutpoints that are learnt take the place of b. The
    estimator is then a classifier, for scikit-learn too: `predict` gives the most probable class, `predict_proba` the
    probabilities and `score` the accuracy. Of classes that are numbers, ``predict_proba(X) @ classes_`` is the mean.

    The prior is w ~ N(0, 1/prior_precision), and flat for b: with the default options the answer does not depend on the
    units or the origin of x, nor on the unit of y where the mean is eᶠ. For numbers between two bounds, and where all y
    are at a bound, such as counts of 0, f at the inputs' means is N(0, 10²) instead. The weights of each of several
    outcomes have precisions of their own, and each outcome its own such b: neither the unit of one nor their order
    changes anything, and outcomes that share no hyperparameter have the answers of separate fits. Columns of labels are
    encoded as numbers. Where a number is missing, the column's mean stands in for it, and an extra column of 0 and 1
    marks it. A value that is missing when predicting, in a column without gaps, and a label that was never seen are
    integrated over what the training rows say of them: their variance is part of the epistemic variance.

    Args:
        likelihood: the name of a likelihood, whose hyperparameters are then learnt, or a `Likelihood`, such as
            ``NegativeBinomial(dispersion=0.5)``. Classes without an order have `BayesianLogisticRegression`.
        posterior: "map" (a point), "laplace", "variational" (Gaussian, full covariance), "mean_field" (Gaussian,
            diagonal), "ep" (expectation propagation), "nuts" or "metropolis" (draws); "auto" takes "laplace", and a
            better one where averaging over Laplace's adds more than 0.007 nats a row to the mode's log loss on the
            training rows. The hyperparameters are those of Laplace's evidence. "laplace_noise", whose log density has a
            kink, takes neither "map" nor "laplace": "auto" is then "ep", or "variational" for several outcomes,
            censored rows and large tables, and each learns the scale by its own evidence or bound.
        prior_precision: of the weights: a positive number, one for each feature (of the model's inputs, after
            ``features``), a `Prior` with either and mean 0, "evidence": learnt by maximising the log evidence, or
            "ard": one that is learnt for each feature of the table. "horseshoe" and "laplace", or a `Horseshoe` or
            `LaplacePrior`, are sparse priors of one outcome, as in `BayesianLogisticRegression`. Numbers have units:
            those of the model's inputs, which are standardised by default. What is learnt is learnt for each outcome;
            of several outcomes it is Laplace's evidence that is maximised, whatever the posterior. With 0 the prior of
            all weights and of b is flat: the mode and the hyperparameters are the maximum of the likelihood, and the
            covariance is the inverse of the observed information.
        groups: columns, by name or position, whose levels have random effects, as in `BayesianLogisticRegression`.
        intercept_prior_precision: a positive number for b ~ N(0, 1/intercept_prior_precision), where b is f at inputs
            0; ``None`` for the default.
        features: a map of the inputs: ``None``, "rbf" (`RadialBasis`), "polynomial" (degree 2) or a scikit-learn
            transformer, which is cloned and fitted.
        fit_intercept: whether there is b.
        standardize: whether columns of numbers are centred and divided by their standard deviations first.
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        encoding: of labels: "one_hot", a column of 0 and 1 for each (one column for truth values); "ordinal", their
            position; or "target", the mean of y among the rows that have them.
        random_state: of the samplers and of the "rbf" centres: an int for the same answer at every call.
        draws: kept draws a chain; like the next two it is for "nuts" and "metropolis", ``None`` for their defaults.
        tune: warm-up draws a chain.
        chains: how many chains.

    Attributes:
        classes_: of ordered classes, the K classes in their order.
        likelihood_: p(y∣f), with the values that were learnt.
        hyperparameters_: their values by the names that the likelihood's class has, numbers; of K outcomes shape (K,),
            one for each (a `MultivariateGaussian`'s covariance has (K, K), and `Joint` numbers of its parts).
        posterior_: over the flat weights (W row-major, then b); it reads tables as the estimator does. By default
            its b is f at the inputs' means.
        coef_: the posterior mean of w, shape (D,), of K outcomes (K, D), of the inputs (standardised unless
            ``standardize=False``), those of ``groups`` last.
        intercept_: the posterior mean of f where these inputs are 0, a number or shape (K,).
        prior_precision_: the prior precision of the weights, a number or one a feature; of K outcomes, whose weights
            have precisions of their own where these are learnt, shape (K,) or (K, D).
        group_precision_: that of the random effects, by the column in ``groups``; of K outcomes shape (K,).
        log_evidence_: log p(y∣X), where the posterior defines it.
        elbo_: a lower bound on it, for "variational" and "mean_field".
        effective_parameters_: how many weights the data determine, γ = Σ (1 − α_i Σ_ii), for Gaussian posteriors.
        weight_names_: of the flat weights.
        n_iter_: steps of the fit.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> model = BayesianGeneralizedLinearModel(likelihood="poisson")
        >>> model = model.fit([[0.0], [1.0], [2.0], [3.0]] * 5, [1, 3, 7, 20] * 5)
        >>> bool(abs(model.predict([[2.0]])[0] - 7.3) < 0.1)
        True
    """

    _several_targets: ClassVar[bool] = True

    likelihood: NumberLikelihoodName | OrderedLikelihoodName | Likelihood = "gaussian"

    classes_: np.ndarray = field(init=False)
    likelihood_: Likelihood = field(init=False)
    _flat: bool = field(init=False)
    _outcomes: tuple[str, ...] = field(init=False)
    _cutpoints: np.ndarray | None = field(init=False)

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None, exposure: object = None) -> None:
        checks.choice("posterior", self.posterior, CHOICES)
        if opened(X) is not None:
            refuse_all_rows(self.posterior)
        likelihood = number_likelihood(self.likelihood)

        def read(reader: TargetReader) -> TableRows:
            groups = self._group_columns
            return TableRows.of(self, X, y, sample_weight, offset, exposure, target=reader, numbers=True, groups=groups)

        likelihood, rows = self._rows_of(likelihood, y, read)
        outputs, self._flat = outcomes_of(likelihood, rows.targets)
        self._outcomes = tuple(column_names(y, outputs)) if outputs > 1 else ()
        if exposure is not None:
            refuse_exposure(likelihood, outputs)
        if rows.added.given is not None:
            likelihood, rows = WithOffset(likelihood), rows.changed(with_offset)
        data, notes = self._table_of(rows, likelihood, outputs, spread=self.posterior in BY_SUMS)
        if likelihood.learnable:
            refuse_one_row(data.count)
        cutpoints = "cutpoints" in likelihood.learnable
        bias = checks.flag("fit_intercept", self.fit_intercept) and not cutpoints
        model = LinearModel(len(self._inputs.names), outputs, bias)
        self._refuse_sparse(outputs)
        weights, intercepts, learnt = self._infer(
            data, model, likelihood, notes, self._intercept(likelihood, data, outputs)
        )
        fitted = cast(Likelihood, self.posterior_.likelihood)
        _warn_of_spread(data, fitted, torch.from_numpy(weights), torch.from_numpy(intercepts))
        self.likelihood_ = self._without_offset()
        self.coef_, self.intercept_ = (weights, intercepts) if self._outcomes else (weights[0], float(intercepts[0]))
        self._cutpoints = self._cutpoints_at_zero(learnt) if cutpoints else None

    def coefficients(self, *, level: float = 0.95) -> pd.DataFrame:
        """The coefficients, one line each, of several outcomes one for each of them; the intercept comes last.

        Learnt cutpoints between ordered classes take its place, in lines such as ``"low | high"``: log odds, or
        probits, of the classes up to there, at inputs 0. Features that the evidence switched off have none, and
        `random_effects` has those of groups. The standard deviations include the uncertainty of the likelihood's
        hyperparameters, if these were learnt and the posterior has a full covariance.

        Args:
            level: the probability of the intervals, which are central.

        Returns:
            The columns ``name``, ``class`` (of several), ``mean``, ``sd``, ``low``, ``high`` and ``per``: the change of
            the column, in its own unit, by which f changes by the coefficient: the column's standard deviation where
            it was standardised, else 1. A point has no sd: NaN.
        """
        table = ChosenPosterior.coefficients(self, level=level)
        if self._cutpoints is None:
            return table
        mean, sd = self._cutpoints
        reach = normal_quantile(0.5 + 0.5 * level) * sd
        low, high = mean - reach, mean + reach
        each = {"name": self._constants, "mean": mean, "sd": sd, "low": low, "high": high, "per": 1.0}
        return pd.concat([table, pd.DataFrame(each)], ignore_index=True)

    @property
    def _constants(self) -> tuple[str, ...]:
        if self._cutpoints is None:
            return ("intercept",)
        return tuple(f"{low} | {high}" for low, high in pairwise(self.classes_.tolist()))

    def _cutpoints_at_zero(self, learnt: LearntUncertainty | None) -> np.ndarray:
        """The cutpoints at inputs 0 and their sds, shape (2, K − 1): c_k − b, where b is f at inputs 0.

        Together with θ they have Laplace's covariance, so that Var[c − b] = Var[c] − 2 Cov[c, b] + Var[b].
        """
        cutpoints, model = self.likelihood_.known("cutpoints"), self._model
        mean = cutpoints.numpy() - self.intercept_
        if learnt is None:
            return np.stack([mean, np.full(mean.shape, np.nan)])
        centre = np.zeros(model.features) if self._inputs.centre is None else self._inputs.centre
        origin = -torch.from_numpy(centre)[None]
        names = ("cutpoints",)
        slope = torch.autograd.functional.jacobian(
            lambda u: self.likelihood_.at_unconstrained(names, u).known("cutpoints"),
            self.likelihood_.unconstrained(names),
        )
        of_cutpoints = slope @ learnt.root
        of_origin = learnt.root.mT @ learnt.moves @ origin[0]
        posterior = self.posterior_
        if isinstance(posterior, GaussianPosterior):
            variance = model.variance(origin, posterior.mean, posterior.precision)[0]
        else:
            variance = model.forward(origin, cast(DrawsPosterior, posterior).flat).var(0)[0]
        variance = variance + of_cutpoints.square().sum(1) - 2.0 * of_cutpoints @ of_origin
        return np.stack([mean, variance.sqrt().numpy()])

    @property
    def hyperparameters_(self) -> dict[str, float | np.ndarray]:
        """The values of the likelihood's hyperparameters, by name."""
        found: dict[str, float | np.ndarray] = {}
        for name in self.likelihood_.hyperparameters:
            value = self.likelihood_.known(name)
            found[name] = value.numpy().copy() if value.ndim else float(value)
        return found

    def _without_offset(self) -> Likelihood:
        """p(y∣f) of the posterior, which predicts at outputs to which the offset has been added."""
        posterior = cast(GaussianPosterior, self.posterior_)
        found = posterior.likelihood
        assert found is not None
        if isinstance(found, WithOffset):
            found = found.likelihood
            changes: dict[str, Any] = {"likelihood": found}
            if isinstance(posterior.infer, Again):
                changes["infer"] = replace(posterior.infer, likelihood=found)
            self.posterior_ = replace(posterior, **changes)
        return found

    @property
    def _class_names(self) -> tuple[str, ...]:
        return self._outcomes

    def _outputs_apart(self, model: LinearModel) -> bool:
        return model.outputs > 1

    def _intercept(self, likelihood: Likelihood, data: RowTable, outputs: int) -> InterceptPrecision:
        """The prior precisions of the intercepts; ``None`` if all are flat.

        Where f is in log odds, and where all rows are at a bound of y, the likelihood has no mode without a prior.
        """
        given = intercept_precision(self.intercept_prior_precision)
        if "cutpoints" in likelihood.learnable:
            if given is not None:
                raise UnsupportedError(
                    f"intercept_prior_precision: expected None, since the cutpoints take the intercept's place, got "
                    f"{given:g}. Leave it out."
                )
            return None
        if given is not None or (np.ndim(cast(Any, self.prior_precision)) == 0 and self.prior_precision == 0):
            return given
        modes = _have_modes(likelihood, data, outputs)
        return None if bool(modes.all()) else torch.where(modes, 0.0, WEAK_INTERCEPT)


def _have_modes(likelihood: Likelihood, data: RowTable, outputs: int) -> Tensor:
    """Whether each outcome has a mode without a prior, shape (C,): one side has no bound, and a row is at none."""
    domains = [part.domain for part in likelihood.parts or [likelihood] * outputs]
    bounds = torch.tensor([[each.low, each.high] for each in domains], dtype=torch.float64)

    def inside(rows: Batch) -> tuple[Tensor]:
        y = likelihood.outcomes(rows.targets) if isinstance(likelihood, WithOffset) else rows.targets
        return ((y.reshape(len(y), outputs, -1, 1) != bounds[:, None]).all(-1).any(-1).double().sum(0),)

    numbers = torch.tensor([each.kind == "numbers" for each in domains])
    return (data.sum(inside, size=outputs)[0] > 0) & bounds.isinf().any(1) & numbers


def _warn_of_spread(data: RowTable, likelihood: Likelihood, weights: Tensor, intercepts: Tensor) -> None:
    """Warns of overdispersed counts in a table that this process has in memory, at a posterior mean."""
    if data.memory is None or data.processes.count > 1:
        return
    X, y, counts = data.memory.every(max(1, data.count // SPREAD_ROWS), 0)
    f = X @ weights.mT + intercepts
    warn_if_overdispersed(likelihood, f, y, counts)
