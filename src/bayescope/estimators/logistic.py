"""Bayesian logistic and probit regression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, final

from sklearn.utils.validation import check_is_fitted

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.estimators.base import ClassWeight, MissingAttributeError, TableClassifier, generator_from
from bayescope.estimators.labels import one_class
from bayescope.estimators.linear_posteriors import (
    BY_SUMS,
    CHOICES,
    FIRST_PRECISION,
    MATRICES,
    POSTERIORS,
    SAMPLERS,
    PosteriorName,
    Task,
    fit_posterior,
    refuse_all_rows,
)
from bayescope.estimators.linear_reading import LinearEstimator
from bayescope.estimators.priors import intercept_precision, prior_notes, weight_precision
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import Labels
from bayescope.likelihoods import Bernoulli, Likelihood
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import weight_prior
from bayescope.linear.row_space import RowSpace
from bayescope.linear.table import RowTable
from bayescope.models import LinearModel
from bayescope.process_state import threads_for
from bayescope.storage import stored
from bayescope.tables.dataset import opened

# Of the default prior of f at the inputs' means: f is in log odds, without a unit, and 10 of them are a rate of 5e-5.
# A flat prior would not do: if a plane separates the classes, the range of b that does grows with the length of w, and
# the evidence as a function of the weights' precision α rises as α^{-1/2} for ever.
INTERCEPT_PRECISION = 0.01


@final
@stored("BayesianLogisticRegression")
@dataclass(kw_only=True, eq=False, repr=False)
class BayesianLogisticRegression(TableClassifier, LinearEstimator):
    """Logistic or probit regression with a posterior over its weights.

    Two classes have one output f = w·x + b and p(y = classes_[1]∣f) = σ(f) or Φ(f). More classes have one weight
    vector each, p(y = k∣f) = softmax(f)_k, so that renaming the classes renames the answer and changes nothing else.

    The prior is w ~ N(0, 1/prior_precision), and N(0, 10²) for f at the means of the inputs (Gelman et al. 2008 take a
    Cauchy of that scale): with the default options the answer does not depend on the units or the origin of x. Columns
    of labels are encoded as numbers. Where a number is missing, the column's mean stands in for it, and an extra column
    of 0 and 1 marks it. A value that is missing when predicting, in a column without gaps, and a label that was never
    seen are integrated over what the training rows say of them: their variance is part of the epistemic variance.

    Args:
        link: "logit" or "probit" (two classes only).
        posterior: "map" (a point), "laplace", "variational" (Gaussian, full covariance), "mean_field" (Gaussian,
            diagonal), "ep" (expectation propagation, two classes only), "nuts" or "metropolis" (draws). "laplace" warns
            where averaging over it adds more than 0.007 nats a row to the mode's log loss on the training rows. By the
            same test "auto" takes "laplace" where it would not warn, and otherwise "ep" for two classes in memory and
            "variational" for more, or where the evidence of "ep" has no maximum; the summary says which.
        prior_precision: of the weights: a positive number, one for each feature (of the model's inputs, after
            ``features``), a `Prior` with either and mean 0, or "evidence": learnt by maximising Laplace's evidence,
            the evidence lower bound, or expectation propagation's evidence; "map", "nuts" and "metropolis" take what
            "auto" learns.
            Numbers have units: those of the model's inputs, which are standardised by default.
        intercept_prior_precision: a positive number for b ~ N(0, 1/intercept_prior_precision), where b is f at inputs
            0; ``None`` for N(0, 10²) at the inputs' means.
        features: a map of the inputs: ``None``, "rbf" (`RadialBasis`), "polynomial" (degree 2) or a scikit-learn
            transformer, which is cloned and fitted.
        fit_intercept: whether there is b.
        standardize: whether columns of numbers are centred and divided by their standard deviations first; with
            ``False`` one prior precision means different things for columns of different units.
        categorical: columns of numbers that are labels, by name or position. Text, truth values and what a frame calls
            categorical are labels anyway.
        encoding: of labels: "one_hot", a column of 0 and 1 for each (one column for truth values); "ordinal", their
            position; or "target", the share of each class among the rows that have them.
        class_weight: what the weight of each row is multiplied by, for its class: "balanced", which gives all classes
            the same total weight, a dict from classes to positive numbers (1 for those left out), or ``None``. The
            probabilities are then those of the reweighted data, not of the data as they are.
        random_state: of the samplers and of the "rbf" centres: an int for the same answer at every call.
        draws: kept draws a chain; like the next two it is for "nuts" and "metropolis", ``None`` for their defaults.
        tune: warm-up draws a chain.
        chains: how many chains.

    Attributes:
        classes_: the labels, sorted.
        posterior_: over the flat weights (W row-major, then b); it reads tables as the estimator does. By default
            its b is f at the inputs' means.
        coef_: the posterior mean of W, shape (1, D) for two classes, else (K, D), of the model's inputs (standardised
            unless ``standardize=False``), in the order of ``weight_names_``.
        intercept_: the posterior mean of f where these inputs are 0, shape (1,) or (K,).
        prior_precision_: the prior precision of the weights, a number or one a feature.
        log_evidence_: log p(y∣X), where the posterior defines it.
        elbo_: a lower bound on it, for "variational" and "mean_field".
        effective_parameters_: how many weights the data determine, γ = Σ (1 − α_i Σ_ii), for Gaussian posteriors.
        weight_names_: of the flat weights.
        n_iter_: steps of the fit.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> import numpy as np
        >>> X, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array(["no", "no", "yes", "yes"])
        >>> model = BayesianLogisticRegression().fit(X, y)
        >>> model.predict([[3.0]])
        array(['yes'], dtype='<U3')
    """

    link: Literal["logit", "probit"] = "logit"
    posterior: PosteriorName = "auto"
    class_weight: ClassWeight = None
    draws: int | None = None
    tune: int | None = None
    chains: int | None = None

    n_iter_: int = field(init=False)
    _effective_parameters: float | None = field(init=False)

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None) -> None:
        checks.choice("posterior", self.posterior, CHOICES)
        if opened(X) is not None:
            refuse_all_rows(self.posterior)
        rows = TableRows.of(self, X, y, sample_weight, target=one_class, labels=True, numbers=True)
        labels, rows = Labels.of(rows, self.class_weight)
        self.classes_, self._multilabel = labels.classes, False
        likelihood = self._likelihood(labels)
        data, notes = self._table_of(rows, likelihood, labels.outputs, spread=self.posterior in BY_SUMS)
        bias = checks.flag("fit_intercept", self.fit_intercept)
        self._infer(
            data, LinearModel(len(self._inputs.names), labels.outputs, bias), likelihood, {**notes, **labels.notes}
        )

    @property
    def effective_parameters_(self) -> float:
        """How many of the weights the data determine, γ = Σ (1 − α_i Σ_ii), under a Gaussian posterior."""
        check_is_fitted(self)
        if self._effective_parameters is None:
            raise MissingAttributeError(f"effective_parameters_: a posterior by {self.posterior} does not define it.")
        return self._effective_parameters

    @property
    def _two_classes_only(self) -> bool:
        return self.link == "probit" or self.posterior == "ep"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not self._two_classes_only
        return tags

    @property
    def _class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_.tolist())) if len(self.classes_) > 2 else ()

    def _likelihood(self, labels: Labels) -> Likelihood:
        """p(y∣f)."""
        likelihood = Bernoulli(self.link)
        if labels.outputs == 1:
            return likelihood
        if self._two_classes_only:
            several = [name for name in POSTERIORS if name != "ep"]
            option = "link='probit'" if self.link == "probit" else "posterior='ep'"
            raise UnsupportedError(
                f"{option}: Only binary classification is supported. The type of the target is multiclass, with "
                f"{labels.outputs} classes. For those use link='logit' with one of {', '.join(map(repr, several))}."
            )
        return labels.likelihood

    def _infer(self, data: RowTable, model: LinearModel, likelihood: Likelihood, row_notes: dict[str, str]) -> None:
        """Fits the named posterior and sets the learned attributes."""
        precision = weight_precision(self.prior_precision, model.features)
        intercept = intercept_precision(self.intercept_prior_precision) or INTERCEPT_PRECISION
        given, generator = self._chain_options(), generator_from(self.random_state)
        with threads_for(data.count * model.features):
            # Independent weights of the columns are not independent in any other coordinates.
            space = RowSpace.of(
                model,
                data,
                precision,
                matrices=MATRICES[self.posterior][precision is None],
                turned=self.posterior != "mean_field",
                lifted=self.posterior not in ("map", *SAMPLERS),
            )
            first = FIRST_PRECISION if space.precision is None else space.precision
            density = LinearDensity(space.model, likelihood, weight_prior(space.model, first, intercept), space.table)
            task = Task(density, precision is None, intercept, generator, given)
            fitted = fit_posterior(self.posterior, task)
            posterior, prior = space.lift(fitted.posterior, fitted.prior, intercept, generator)
        notes = {
            **self._inputs.notes(),
            **prior_notes(prior, model, fitted.tuned_by, centred=self._origin() == "means"),
            **row_notes,
        }
        self._effective_parameters = fitted.effective_parameters
        if fitted.effective_parameters is not None:
            notes["well-determined weights"] = f"{fitted.effective_parameters:.2f} of {model.outputs * model.features}"
        self.n_iter_ = max([1, *(len(steps) for steps in fitted.posterior.trace.values())])
        self.coef_, self.intercept_ = self._remember(model, posterior, prior, notes, precision)

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
