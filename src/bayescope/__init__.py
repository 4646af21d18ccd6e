"""bayescope: one model, any posterior, one honest answer.

Estimators for tables, inference for any log density, and a comparison of every posterior against NUTS. Whatever the
approximation, the answer is a `Posterior` whose `predict` gives a `Predictive`.
"""

from importlib.metadata import version

from bayescope import density, errors, metrics, precision
from bayescope.comparison import Comparison, compare
from bayescope.curvature import Curvature, Plan, fit_curvature, plan
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.network.weights import largest_magnitude, largest_variance
from bayescope.posterior import DrawsPosterior, GaussianPosterior, MixturePosterior, PointPosterior, Posterior
from bayescope.predictive import Predictive
from bayescope.priors import Prior

__version__ = version("bayescope")

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "Bernoulli",
    "Categorical",
    "Comparison",
    "Curvature",
    "DrawsPosterior",
    "Gaussian",
    "GaussianPosterior",
    "MixturePosterior",
    "Plan",
    "PointPosterior",
    "Posterior",
    "Predictive",
    "Prior",
    "compare",
    "density",
    "errors",
    "fit_curvature",
    "largest_magnitude",
    "largest_variance",
    "metrics",
    "plan",
    "precision",
]
