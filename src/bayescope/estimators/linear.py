"""Bayesian linear regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, cast, final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators.base import TableRegressor
from bayescope.estimators.labels import column_names, numbers_for, outcomes_of
from bayescope.estimators.linear_choice import ChosenPosterior
from bayescope.estimators.linear_posteriors import BY_SUMS, CHOICES, refuse_all_rows
from bayescope.estimators.priors import USELESS, intercept_precision, prior_notes, weight_precision
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import refuse_one_row
from bayescope.likelihoods import Gaussian
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import effective_parameters, weight_prior
from bayescope.linear.groups import WeightGroups
from bayescope.linear.regression import Scales, conjugate, tune_group_scales, tune_scales_of_each
from bayescope.linear.row_space import RowSpace
from bayescope.linear.table import RowTable
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, noted
from bayescope.priors import Prior
from bayescope.process_state import threads_for
from bayescope.storage import stored
from bayescope.tables.dataset import opened

# Matrices of P×P numbers that a fit has at once: the Gram matrix with its eigenvectors and what finds these, later a
# curvature, and a precision with its factor.
MATRICES = 9


@final
@stored("BayesianLinearRegression")
@dataclass(kw_only=True, eq=False, repr=False)
class BayesianLinearRegression(TableRegressor, ChosenPosterior):
    """y = w·x + b + noise, with the exact posterior of w and b and the exact evidence.

    The prior is w ~ N(0, 1/prior_precision), independent of the noise, and flat for b, which is integrated out exactly:
    with the default options the answer does not depend on the units or the origin of x and y. Columns of labels are
    encoded as numbers. Where a number is missing, the column's mean stands in for it, and an extra column of 0 and 1
    marks it. A value that is missing when predicting, in a column without gaps, and a label that was never seen are
    integrated over what the training rows say of them: their variance is part of the epistemic variance.

    Several columns of y have regressions of their own, which share the inputs: each has its own prior precision, noise
    and flat b, and the answers of a fit to that column alone. `MultivariateGaussian` has noise that is correlated among
    columns, in `BayesianGeneralizedLinearModel`.

    Args:
        prior_precision: of the weights: a positive number, one for each feature (of the model's inputs, after
            ``features``), a `Prior` with either and mean 0, or "evidence": the one that maximises the evidence. With
            "ard" (automatic relevance determination) each column of the table has its own, learnt likewise; a column
            whose precision goes to infinity is switched off (Tipping & Faul 2003). The noise is then the one that is
            learnt with one precision for all: with one each, chance would explain noise, and all of it where columns
            outnumber rows. "horseshoe" and "laplace", or a `Horseshoe` or `LaplacePrior`, are sparse priors. The
            noise under "horseshoe" maximises the evidence lower bound, for more columns than rows, too. Numbers have
            units: those of y per unit of the model's inputs, which are standardised by default.
        posterior: "auto", which is exact; under a sparse prior "auto" stands for "variational" (Gaussian, full
            covariance), and "mean_field" (Gaussian, diagonal) and "nuts" (draws, at the noise of "variational") may be
            chosen.
        groups: columns, by name or position, whose labels have random effects: each label has an effect
            N(0, 1/α) with an α for the column that the evidence learns, apart from the precision of the other weights.
            A label that was never seen has mean 0 and that variance; so has a missing one where none was missing.
        noise_variance: in y's unit squared, a positive number, one for each column of y, or "evidence".
        intercept_prior_precision: ``None`` for a flat prior of b, of density 1, or a positive number for
            b ~ N(0, 1/intercept_prior_precision), the value at inputs 0.
        features: a map of the inputs: ``None``, "rbf" (`RadialBasis`), "polynomial" (degree 2) or a scikit-learn
            transformer, which is cloned and fitted.
        fit_intercept: whether there is b.
        standardize: whether columns of numbers are centred and divided by their standard deviations first; with
            ``False`` one prior precision means different things for columns of different units.
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        encoding: of labels: "one_hot", a column of 0 and 1 for each (one column for truth values); "ordinal", their
            position; or "target", the mean of y among the rows that have them.
        draws: kept draws a chain, for "nuts".
        tune: its warm-up draws a chain.
        chains: how many.
        random_state: of the "rbf" centres, of "nuts" and of draws from the predictive.

    Attributes:
        posterior_: over the flat weights (w, then b); it reads tables as the estimator does. By default its b is f at
            the inputs' means.
        coef_: the posterior mean of w, shape (D,), of the inputs (standardised unless ``standardize=False``), those of
            ``groups`` last: 0 for those that are switched off, the others in the order of ``weight_names_``. Of y with
            K columns, also K = 1, it has shape (K, D).
        intercept_: the posterior mean of f where these inputs are 0, a number, or shape (K,).
        prior_precision_: the prior precision of the weights, a number or one a feature: infinite where it is switched
            off; of several columns of y shape (K,) or (K, D). `relevance` has it by column of the table.
        group_precision_: that of the random effects, by the column in ``groups``; of several columns of y shape (K,).
            `random_effects` has the levels.
        noise_variance_: the noise variance, a number, or shape (K,).
        log_evidence_: log p(y∣X), exact, the sum over the columns of y; a sparse prior has a lower bound in its place,
            ``posterior_.elbo``.
        effective_parameters_: how many weights the data determine, γ = Σ (1 − α_i Σ_ii); not by "nuts".
        weight_names_: of the flat weights.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> model = BayesianLinearRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9])
        >>> mean, sd = model.predict([[4.0]], return_std=True)
        >>> bool(abs(mean[0] - 3.9) < 0.1)
        True
    """

    _several_targets: ClassVar[bool] = True

    noise_variance: float | Sequence[float] | np.ndarray | Literal["evidence"] = "evidence"

    noise_variance_: float | np.ndarray = field(init=False)
    _flat: bool = field(init=False)
    _outcomes: tuple[str, ...] = field(init=False)

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None) -> None:
        self._refuse_choice()
        if opened(X) is not None:
            refuse_all_rows(self.posterior)
        reader = partial(numbers_for, Gaussian(), y)
        rows = TableRows.of(self, X, y, sample_weight, target=reader, numbers=True, groups=self._group_columns)
        outputs, self._flat = outcomes_of(Gaussian(), rows.targets)
        self._outcomes = tuple(column_names(y, outputs)) if outputs > 1 else ()
        self._refuse_sparse(outputs)
        data, notes = self._table_of(rows, Gaussian(), outputs, spread=self.posterior in BY_SUMS)
        self._learn(data, notes, outputs)

    @property
    def _class_names(self) -> tuple[str, ...]:
        # Files of earlier versions, which had one column of y, have no names.
        return getattr(self, "_outcomes", ())

    def _outputs_apart(self, model: LinearModel) -> bool:
        return model.outputs > 1

    def _learn(self, data: RowTable, row_notes: dict[str, str], outputs: int) -> None:
        """Finds the posterior and sets the learned attributes."""
        if isinstance(self.noise_variance, str):
            refuse_one_row(data.count)
        model = LinearModel(len(self._inputs.names), outputs, checks.flag("fit_intercept", self.fit_intercept))
        intercept, noise = intercept_precision(self.intercept_prior_precision), self._given_noise(outputs)
        given = weight_precision(self.prior_precision, self._inputs.of_features)
        with threads_for(data.count * model.features * model.outputs):
            learnt_noise = noise

            def learn(first: WeightGroups, groups: WeightGroups) -> Tensor:
                nonlocal learnt_noise
                density = LinearDensity(model, Gaussian(), Prior(), data)

                def search(some: WeightGroups, known: list[float] | None) -> list[Scales]:
                    return [
                        tune_group_scales(
                            density,
                            some.of_output(c),
                            intercept_prior_precision=intercept,
                            noise_variance=None if known is None else known[c],
                            output=c,
                        )
                        for c in range(outputs)
                    ]

                if noise is None and self._by_relevance:
                    learnt_noise = [scales.noise_variance for scales in search(first, None)]
                found = search(groups, learnt_noise)
                learnt_noise = [scales.noise_variance for scales in found]
                precisions = torch.stack([torch.as_tensor(scales.prior_precision) for scales in found])
                return precisions if outputs > 1 else precisions[0]

            if self._sparse is not None:
                self._infer_sparse(data, model, intercept, noise, row_notes)
                return
            narrow, rows, precision = self._learn_groups(model, data, given, learn)
            grouped = learnt_noise is not noise
            space = RowSpace.of(narrow, rows, precision, matrices=MATRICES, apart=True)
            alpha, noises, tuned_by = self._scales(space.model, space.table, space.precision, intercept, learnt_noise)
            tuned_by = "the evidence" if grouped and given is None else tuned_by
            likelihood = Gaussian(noises if outputs > 1 else noises[0])
            prior = weight_prior(space.model, alpha, intercept)
            posterior = conjugate(LinearDensity(space.model, likelihood, prior, space.table))
            self._effective_parameters = effective_parameters(space.model, prior, posterior.precision)
            posterior, prior = space.lift(posterior, prior, intercept)
        self._report(narrow, posterior, prior, noises, tuned_by, row_notes, given)

    def _infer_sparse(
        self,
        data: RowTable,
        model: LinearModel,
        intercept: float | None,
        noise: list[float] | None,
        notes: dict[str, str],
    ) -> None:
        """Variational inference or NUTS under a sparse prior: no posterior is exact then."""
        likelihood = Gaussian("evidence" if noise is None else noise[0])
        weights, intercepts, _ = self._infer(data, model, likelihood, notes, intercept)
        found = self.posterior_.likelihood
        assert found is not None
        variance = float(found.known("noise_variance"))
        self._shape(weights, intercepts, [variance])
        learnt = ", learnt from the training rows" if noise is None else ""
        posterior = cast(GaussianPosterior | DrawsPosterior, self.posterior_)
        self.posterior_ = noted(posterior, {"noise variance": f"{variance:.6g}{learnt}"})

    def _shape(self, weights: np.ndarray, intercepts: np.ndarray, noises: list[float]) -> None:
        """Sets the learned attributes of each column of y, without a first dimension for a y of shape (N,)."""
        self.coef_, self.intercept_, self.noise_variance_ = weights, intercepts, np.array(noises)
        if self._flat:
            self.coef_, self.intercept_, self.noise_variance_ = weights[0], float(intercepts[0]), noises[0]

    def _report(
        self,
        model: LinearModel,
        posterior: GaussianPosterior,
        prior: Prior,
        noises: list[float],
        tuned_by: str | None,
        row_notes: dict[str, str],
        given: Tensor | None,
    ) -> None:
        """Sets the learned attributes."""
        self.n_iter_ = 1
        learnt = ", which maximises the evidence" if isinstance(self.noise_variance, str) else ""
        notes = {
            **self._inputs.notes(),
            **prior_notes(prior, model, tuned_by, features=self._inputs.of_features),
            "noise variance": ", ".join(f"{noise:.6g}" for noise in noises) + learnt,
            "well-determined weights": f"{self.effective_parameters_:.2f} of {model.outputs * model.features}",
            **row_notes,
        }
        self._shape(*self._remember(model, posterior, prior, notes, given), noises)

    def _refuse_choice(self) -> None:
        """Refuses a choice of the posterior under a Gaussian prior, for which it is exact.

        Raises:
            OptionError: if there is no such posterior.
            UnsupportedError: for any but "auto".
        """
        checks.choice("posterior", self.posterior, CHOICES)
        if self._sparse is None and self.posterior != "auto":
            raise UnsupportedError(
                f"posterior: expected 'auto' under a Gaussian prior, whose posterior is exact, got {self.posterior!r}. "
                "Leave it out, or take BayesianGeneralizedLinearModel."
            )
        self._chain_options()

    def _given_noise(self, outputs: int) -> list[float] | None:
        """The noise variance of each column of y; ``None`` where it is to be learnt.

        Raises:
            InputError: if there is another number of them, or one is not positive.
        """
        if isinstance(self.noise_variance, str):
            checks.choice("noise_variance", self.noise_variance, ["evidence"])
            return None
        if np.ndim(self.noise_variance) == 0:
            return [checks.positive_number("noise_variance", self.noise_variance)] * outputs
        each = checks.positive("noise_variance", self.noise_variance)
        if each.shape != (outputs,):
            raise InputError(
                f"noise_variance: expected a positive number, or {outputs} of them, one for each column of y, got "
                f"shape {tuple(each.shape)}."
            )
        return cast(list[float], each.tolist())

    def _scales(
        self,
        model: LinearModel,
        data: RowTable,
        precision: Tensor | None,
        intercept: float | None,
        noises: list[float] | None,
    ) -> tuple[Tensor, list[float], str | None]:
        """The prior precision, a number, one a feature or for each output, the noise variances, and what was maximised.

        The last is for the precision; ``None`` where that is known.
        """
        if precision is not None and noises is not None:
            return precision, noises, None
        found = tune_scales_of_each(
            LinearDensity(model, Gaussian(), Prior(), data),
            intercept_prior_precision=intercept,
            prior_precision=None if precision is None else 1.0,
            noise_variance=noises,
            # Precisions α_j on x_j are the precision 1 on x_j/√α_j.
            scale=None if precision is None else precision.rsqrt().expand(model.features),
        )
        noises = [scales.noise_variance for scales in found]
        if precision is not None:
            return precision, noises, None
        learnt = torch.tensor([[scales.prior_precision] for scales in found], dtype=torch.float64)
        useless = sum(scales.useless for scales in found)
        some = f", for {useless} of {len(found)} columns of y" if useless and len(found) > 1 else ""
        return learnt, noises, "the evidence" + some + USELESS * bool(useless)
