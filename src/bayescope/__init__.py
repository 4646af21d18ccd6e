"""bayescope: one model, any posterior, one honest answer.

Estimators for tables, inference for any log density, and a comparison of every posterior against NUTS. Whatever the
approximation, the answer is a `Posterior` whose `predict` gives a `Predictive`.
"""

import bayescope_command.process  # noqa: F401  # from here on a signal ends `python -m bayescope` in one line

# isort: split
from importlib.metadata import version

from bayescope import density, distributed, errors, layers, metrics, precision, storage
from bayescope.comparison import Comparison, compare
from bayescope.conformal import Conformal, conformal
from bayescope.curvature import Curvature, CurvatureOptions, Plan, fit_curvature, plan
from bayescope.dropout.mc_dropout import mc_dropout
from bayescope.ensembles.ensemble import ensemble
from bayescope.estimators import (
    BayesianGeneralizedLinearModel,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    NeuralAdditiveClassifier,
    NeuralAdditiveRegressor,
)
from bayescope.gaussian_process.function_space import function_space
from bayescope.laplace.laplace import laplace
from bayescope.laplace.online import fit_evidence
from bayescope.laplace.selection import Selection, select
from bayescope.laplace.tuning import tune_prior
from bayescope.likelihoods import (
    Bernoulli,
    Beta,
    Binomial,
    BradleyTerry,
    Categorical,
    Censored,
    Exponential,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Joint,
    LaplaceNoise,
    LogNormal,
    MultivariateGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    Tweedie,
    Weibull,
    WithOffset,
    ZeroInflatedPoisson,
)
from bayescope.likelihoods.own import likelihood
from bayescope.network.weights import largest_magnitude, largest_variance
from bayescope.posterior import (
    DrawsPosterior,
    GaussianPosterior,
    ImplicitPosterior,
    MixturePosterior,
    PointPosterior,
    Posterior,
)
from bayescope.predictive import Predictive, most_informative
from bayescope.priors import Prior
from bayescope.report import report
from bayescope.sampling.nuts import nuts
from bayescope.sampling.sgmcmc import sgmcmc
from bayescope.sampling.swag import swag
from bayescope.sparse_priors import Horseshoe, LaplacePrior
from bayescope.storage import load
from bayescope.tables.dataset import TableDataset, open_table
from bayescope.training.fit_map import fit_map
from bayescope.training.options import TrainingOptions
from bayescope.variational.variational import variational

__version__ = version("bayescope")

__all__ = [
    "BayesianGeneralizedLinearModel",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "Bernoulli",
    "Beta",
    "Binomial",
    "BradleyTerry",
    "Categorical",
    "Censored",
    "Comparison",
    "Conformal",
    "Curvature",
    "CurvatureOptions",
    "DrawsPosterior",
    "Exponential",
    "Gamma",
    "Gaussian",
    "GaussianPosterior",
    "HeteroscedasticGaussian",
    "Horseshoe",
    "ImplicitPosterior",
    "Joint",
    "LaplaceNoise",
    "LaplacePrior",
    "LogNormal",
    "MixturePosterior",
    "MultivariateGaussian",
    "NegativeBinomial",
    "NeuralAdditiveClassifier",
    "NeuralAdditiveRegressor",
    "Ordinal",
    "Plan",
    "PointPosterior",
    "Poisson",
    "Posterior",
    "Predictive",
    "Prior",
    "Selection",
    "StudentT",
    "TableDataset",
    "TrainingOptions",
    "Tweedie",
    "Weibull",
    "WithOffset",
    "ZeroInflatedPoisson",
    "compare",
    "conformal",
    "density",
    "distributed",
    "ensemble",
    "errors",
    "fit_curvature",
    "fit_evidence",
    "fit_map",
    "function_space",
    "laplace",
    "largest_magnitude",
    "largest_variance",
    "layers",
    "likelihood",
    "load",
    "mc_dropout",
    "metrics",
    "most_informative",
    "nuts",
    "open_table",
    "plan",
    "precision",
    "report",
    "select",
    "sgmcmc",
    "storage",
    "swag",
    "tune_prior",
    "variational",
]
