"""Bayesian logistic and probit regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, final

import numpy as np

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators.base import ClassWeight, TableClassifier
from bayescope.estimators.frames import columns_by_name
from bayescope.estimators.labels import one_class
from bayescope.estimators.linear_choice import ChosenPosterior
from bayescope.estimators.linear_posteriors import BY_SUMS, CHOICES, POSTERIORS, refuse_all_rows
from bayescope.estimators.priors import WEAK_INTERCEPT, intercept_precision
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.targets import Labels
from bayescope.likelihoods import Bernoulli, Likelihood
from bayescope.models import LinearModel
from bayescope.storage import stored
from bayescope.tables.dataset import opened


@final
@stored("BayesianLogisticRegression")
@dataclass(kw_only=True, eq=False, repr=False)
class BayesianLogisticRegression(TableClassifier, ChosenPosterior):
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
            "auto" learns. With "ard" (automatic relevance determination) each column of the table has its own, learnt
            by maximising Laplace's evidence; a column whose precision goes to infinity is switched off (Tipping & Faul
            2003). "horseshoe" and "laplace", or a `Horseshoe` or `LaplacePrior`, are sparse priors, by "variational",
            "mean_field" or "nuts"; "auto" is "variational". Numbers have units: those of the model's inputs, which are
            standardised by default.
        groups: columns, by name or position, whose labels have random effects: each label has an effect N(0, 1/α) with
            an α for the column that Laplace's evidence learns, apart from the precision of the other weights. A label
            that was never seen has mean 0 and that variance; so has a missing one where none was missing.
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
        coef_: the posterior mean of W, shape (1, D) for two classes, else (K, D), of the inputs (standardised unless
            ``standardize=False``), those of ``groups`` last: 0 for those that are switched off, the others in the order
            of ``weight_names_``.
        intercept_: the posterior mean of f where these inputs are 0, shape (1,) or (K,).
        prior_precision_: the prior precision of the weights, a number or one a feature: infinite where it is switched
            off. `relevance` has it by column of the table.
        group_precision_: that of the random effects, by the column in ``groups``. `random_effects` has the levels.
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
    class_weight: ClassWeight = None

    def _fit(self, X: object, y: object, sample_weight: object, offset: object = None) -> None:
        checks.choice("posterior", self.posterior, CHOICES)
        if opened(X) is not None:
            refuse_all_rows(self.posterior)
        rows = TableRows.of(
            self, X, y, sample_weight, target=one_class, labels=True, numbers=True, groups=self._group_columns
        )
        labels, rows = Labels.of(rows, self.class_weight)
        self.classes_, self._multilabel = labels.classes, False
        likelihood = self._likelihood(labels)
        data, notes = self._table_of(rows, likelihood, labels.outputs, spread=self.posterior in BY_SUMS)
        model = LinearModel(len(self._inputs.names), labels.outputs, checks.flag("fit_intercept", self.fit_intercept))
        intercept = intercept_precision(self.intercept_prior_precision) or WEAK_INTERCEPT
        self.coef_, self.intercept_, _ = self._infer(data, model, likelihood, {**notes, **labels.notes}, intercept)

    def partial_fit(  # type: ignore[override]  # scikit-learn's order for classifiers
        self, X: object, y: object, classes: object = None, sample_weight: object = None
    ) -> Self:
        """Learns from more rows: the Gaussian posterior becomes the prior.

        The first call is `fit`; the units of the inputs and the prior precision stay as its rows have them. Each part's
        posterior is an approximation, so the answer depends a little on how the rows are parted.

        Args:
            X: a table of the columns that were fitted, in memory.
            y: N labels.
            classes: all labels that later calls may have; rows of each have to be in the first call.
            sample_weight: as for `fit`.

        Raises:
            InputError: if a label is none of the first call's, or ``classes`` are others than these.
            UndefinedQuantityError: if the posterior is no single Gaussian, such as "nuts" or "map".
            UnsupportedError: with ``class_weight``, or under a sparse prior.
        """
        if self.class_weight is not None:
            raise UnsupportedError(
                f"class_weight: expected None for partial_fit, got {self.class_weight!r}. Give sample_weight=."
            )
        known = getattr(self, "classes_", None)
        if classes is not None:
            labels: Any = columns_by_name(X, y=y)[1]
            known = one_class(labels, len(labels)) if known is None else known
            if set(np.unique(np.asarray(classes))) != set(np.unique(known)):
                raise InputError(
                    f"classes: expected those of the first call, {np.unique(known).tolist()}, got "
                    f"{np.asarray(classes).tolist()}. Begin with rows of every class."
                )
        return super().partial_fit(X, y, sample_weight)

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
        """p(y∣f) of two classes, or of more with a softmax."""
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
