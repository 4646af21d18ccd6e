"""Bayesian linear regression."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from bayescope import checks
from bayescope.estimators.inputs import InputMap
from bayescope.estimators.priors import USELESS, positive_number, prior_notes, warn_of_far_intercept, weight_precision
from bayescope.estimators.reading import PosteriorReader, as_tensor, detached, noted
from bayescope.inference_mode import outside_inference_mode
from bayescope.likelihoods import Gaussian
from bayescope.linear.conjugate import conjugate, tune_scales
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import effective_parameters, weight_prior
from bayescope.models import LinearModel
from bayescope.priors import Prior
from bayescope.threads import threads_for


@final
class BayesianLinearRegression(RegressorMixin, PosteriorReader):  # type: ignore[misc]
    """y = w·x + b + noise, with the exact posterior of w and b and the exact evidence.

    The prior is w ~ N(0, 1/prior_precision) and b ~ N(0, 1/intercept_prior_precision), independent of the noise. It has
    units: x and y are used as given unless ``standardize=True``, which scales x alone.

    Args:
        prior_precision: of the weights: a positive number, one for each feature (of the model's inputs, after
            ``features``), a `Prior` with either and mean 0, or "evidence": the one that maximises the evidence.
        noise_variance: in y's unit squared, a positive number or "evidence".
        intercept_prior_precision: of b. Where y lies far from 0 in units of 100 it has to be lower.
        features: a map of the inputs: ``None``, "rbf" (`RadialBasis`), "polynomial" (degree 2) or a scikit-learn
            transformer, which is cloned and fitted.
        fit_intercept: whether there is b.
        standardize: whether to centre and scale the inputs first; they are then in standard deviations.
        random_state: of the "rbf" centres and of draws from the predictive.

    Attributes:
        posterior_: over the flat weights (w, then b).
        coef_: the posterior mean of w, shape (D,).
        intercept_: the posterior mean of b, a number.
        prior_precision_: the prior precision of the weights, a number or one a feature.
        noise_variance_: the noise variance.
        log_evidence_: log p(y∣X), exact.
        effective_parameters_: how many weights the data determine, γ = Σ (1 − α_i Σ_ii).
        weight_names_: of the flat weights.
        n_features_in_: columns of X.
        feature_names_in_: their names, if X had some.

    Examples:
        >>> model = BayesianLinearRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9])
        >>> mean, sd = model.predict([[4.0]], return_std=True)
        >>> bool(abs(mean[0] - 3.9) < 0.1)
        True
    """

    def __init__(
        self,
        *,
        prior_precision: Any = "evidence",
        noise_variance: Any = "evidence",
        intercept_prior_precision: float = 1e-4,
        features: Any = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        random_state: Any = None,
    ) -> None:
        self.prior_precision = prior_precision
        self.noise_variance = noise_variance
        self.intercept_prior_precision = intercept_prior_precision
        self.features = features
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.random_state = random_state

    @outside_inference_mode
    def fit(self, X: Any, y: Any) -> BayesianLinearRegression:
        """Finds the posterior of the weights, after the scales that are to be learnt.

        Args:
            X: a table of numbers, shape (N, D).
            y: N numbers.

        Raises:
            InputError: if an input or an option cannot be used.

        Warns:
            ConvergenceWarning: if the evidence has no maximum.
            BayescopeWarning: if the intercept's prior holds it back.
        """
        rows = 2 if isinstance(self.noise_variance, str) else 1
        X, y = validate_data(self, detached(X), detached(y), dtype=np.float64, y_numeric=True, ensure_min_samples=rows)
        self._inputs, table = InputMap.fit(
            X,
            self._names_in(),
            standardize=checks.flag("standardize", self.standardize),
            features=self.features,
            random_state=self.random_state,
        )
        model = LinearModel(table.shape[1], 1, checks.flag("fit_intercept", self.fit_intercept))
        inputs, intercept = as_tensor(table), self._intercept_precision()
        with threads_for(table.size):
            precision, noise, tuned_by = self._scales(model, inputs, y, intercept)
            prior = weight_prior(model, precision, intercept)
            posterior = conjugate(model, Gaussian(noise), prior, inputs, y)
        self.effective_parameters_ = effective_parameters(model, prior, posterior.precision)
        self.prior_precision_ = float(precision) if precision.ndim == 0 else precision.numpy().copy()
        self.noise_variance_ = noise
        weights, bias = model.unflat(posterior.mean)
        self.coef_ = weights[0].numpy().copy()
        self.intercept_ = 0.0 if bias is None else float(bias)
        self.weight_names_ = (*self._inputs.names, *["intercept"] * model.bias)
        learnt = ", which maximises the evidence" if isinstance(self.noise_variance, str) else ""
        notes = {
            **self._inputs.notes(),
            **prior_notes(prior, model, tuned_by),
            "noise variance": f"{noise:.6g}{learnt}",
            "well-determined weights": f"{self.effective_parameters_:.2f} of {model.features}",
        }
        self.posterior_ = noted(posterior, notes)
        warn_of_far_intercept(self.intercept_, intercept)
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """E[y∣x, data] of each row, shape (N,), and on request the standard deviation of y, noise included."""
        read = self._read(X, lambda predictive: np.concatenate([predictive.mean, predictive.variance], axis=1))
        return (read[:, 0], np.sqrt(read[:, 1])) if return_std else read[:, 0]

    def _intercept_precision(self) -> float:
        return positive_number("intercept_prior_precision", self.intercept_prior_precision)

    def _scales(
        self, model: LinearModel, inputs: Tensor, y: np.ndarray, intercept: float
    ) -> tuple[Tensor, float, str | None]:
        """The prior precision, a number or one a feature, the noise variance, and what the first maximises."""
        precision = weight_precision(self.prior_precision, model.features)
        noise = None
        if isinstance(self.noise_variance, str):
            checks.choice("noise_variance", self.noise_variance, ["evidence"])
        else:
            noise = positive_number("noise_variance", self.noise_variance)
        if precision is not None and noise is not None:
            return precision, noise, None
        # Precisions α_j on x_j are the precision 1 on x_j/√α_j.
        scaled = inputs if precision is None else inputs * precision.rsqrt()
        likelihood = Gaussian()
        scales = tune_scales(
            LinearDensity(model, likelihood, Prior(), scaled, likelihood.targets(y, 1)),
            intercept_prior_precision=intercept,
            prior_precision=None if precision is None else 1.0,
            noise_variance=noise,
        )
        if precision is not None:
            return precision, scales.noise_variance, None
        learnt = torch.tensor(scales.prior_precision, dtype=torch.float64)
        return learnt, scales.noise_variance, "the evidence" + (USELESS if scales.useless else "")
