"""What the linear estimators with a choice of posteriors do: they fit the named one and report it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.estimators.base import MissingAttributeError, generator_from
from bayescope.estimators.linear_posteriors import (
    FIRST_PRECISION,
    MATRICES,
    OBJECTIVES,
    SAMPLERS,
    PosteriorName,
    Task,
    fit_posterior,
    refuse_kink,
)
from bayescope.estimators.linear_reading import LinearEstimator
from bayescope.estimators.priors import NOTHING, prior_notes, weight_precision
from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import InterceptPrecision, maximise_group_evidence, weight_prior
from bayescope.linear.groups import WeightGroups
from bayescope.linear.hyperparameters import LearntUncertainty, learn_hyperparameters
from bayescope.linear.row_space import RowSpace
from bayescope.linear.table import RowTable
from bayescope.models import LinearModel
from bayescope.priors import Prior
from bayescope.process_state import threads_for


@dataclass(kw_only=True, eq=False, repr=False)
class ChosenPosterior(LinearEstimator):
    """A linear model under a posterior that is chosen by its name."""

    posterior: PosteriorName = "auto"
    draws: int | None = None
    tune: int | None = None
    chains: int | None = None

    n_iter_: int = field(init=False)

    @property
    def effective_parameters_(self) -> float:
        """How many of the weights the data determine, γ = Σ (1 − α_i Σ_ii), under a Gaussian posterior."""
        check_is_fitted(self)
        if self._effective_parameters is None:
            raise MissingAttributeError(f"effective_parameters_: a posterior by {self.posterior} does not define it.")
        return self._effective_parameters

    def _infer(
        self,
        data: RowTable,
        model: LinearModel,
        likelihood: Likelihood,
        row_notes: dict[str, str],
        intercept: InterceptPrecision,
    ) -> tuple[np.ndarray, np.ndarray, LearntUncertainty | None]:
        """Fits the named posterior and sets the learned attributes.

        Args:
            data: the rows.
            model: of the inputs.
            likelihood: p(y∣f).
            row_notes: lines for the summary.
            intercept: the prior precision of the intercepts.

        Returns:
            The weights (C, D), the intercepts (C,), and the uncertainty of the likelihood's hyperparameters, where the
            covariance of the weights includes it.
        """
        given = weight_precision(self.prior_precision, self._inputs.of_features, flat=intercept is None)
        sparse = self._sparse
        chains, generator = self._chain_options(), generator_from(self.random_state)
        origin, learnable = self._origin(likelihood), likelihood.learnable
        wide = LinearDensity(model, likelihood, Prior(), data)
        refuse_kink(wide, self.prior_precision, given, grouped=bool(self._inputs.groups))
        with threads_for(data.count * model.features):

            def learn(density: LinearDensity, first: WeightGroups, groups: WeightGroups) -> Tensor:
                nonlocal likelihood
                tune = partial(maximise_group_evidence, intercept_prior_precision=intercept)
                likelihood = learn_hyperparameters(density, lambda some: tune(some, first).mode)
                return torch.as_tensor(tune(density.with_likelihood(likelihood), groups).prior_precision)

            model, data, precision = self._learn_groups(model, data, given, partial(learn, wide))
            # Independent weights of the columns are not independent in any other coordinates.
            space = RowSpace.of(
                model,
                data,
                precision,
                matrices=MATRICES[self.posterior][precision is None],
                turned=self.posterior != "mean_field" and sparse is None,
                lifted=self.posterior not in ("map", *SAMPLERS),
            )
            precision = space.precision
            if precision is None and sparse is None and self._outputs_apart(model):
                every = WeightGroups.of_outputs(space.model)
                narrow = LinearDensity(space.model, likelihood, Prior(), space.table)
                precision = learn(narrow, every, every).clamp(max=NOTHING)
            first = FIRST_PRECISION if precision is None else precision
            density = LinearDensity(space.model, likelihood, weight_prior(space.model, first, intercept), space.table)
            task = Task(density, precision is None, intercept, generator, chains, learnable, sparse)
            fitted = fit_posterior(self.posterior, task)
            tuned_by = OBJECTIVES["laplace"] if given is None and precision is not None else fitted.tuned_by
            posterior, prior = space.lift(fitted.posterior, fitted.prior, intercept, generator)
        notes = {
            **self._inputs.notes(),
            **prior_notes(prior, model, tuned_by, centred=origin == "means", features=self._inputs.of_features),
            **row_notes,
        }
        self._effective_parameters = fitted.effective_parameters
        if fitted.effective_parameters is not None:
            notes["well-determined weights"] = f"{fitted.effective_parameters:.2f} of {model.outputs * model.features}"
        self.n_iter_ = max([1, *(len(steps) for steps in fitted.posterior.trace.values())])
        learnt = fitted.learnt and replace(fitted.learnt, moves=space.weights(fitted.learnt.moves))
        return *self._remember(model, posterior, prior, notes, given, fitted.shrinkage), learnt

    def _refuse_sparse(self, outputs: int) -> None:
        """Refuses a sparse prior of several columns of y.

        Raises:
            UnsupportedError: then.
        """
        if outputs > 1 and self._sparse is not None:
            raise UnsupportedError(
                f"prior_precision: expected 'evidence', 'ard' or numbers for {outputs} outcomes, which have units of "
                f"their own, got {self.prior_precision!r}, whose scales are for all weights of a feature together. Fit "
                "a model to each column of y, as scikit-learn's MultiOutputRegressor does."
            )

    def _chain_options(self) -> dict[str, int]:
        """The options of the samplers that were given.

        Raises:
            UnsupportedError: if there are some and the posterior is not sampled.
        """
        options = {"draws": self.draws, "tune": self.tune, "chains": self.chains}
        given = {name: checks.count(name, value) for name, value in options.items() if value is not None}
        if given and self.posterior not in SAMPLERS:
            raise UnsupportedError(
                f"{', '.join(given)}: expected None for posterior={self.posterior!r}, which draws no chains; it is for "
                f"{' and '.join(map(repr, SAMPLERS))}."
            )
        return given
