"""The public names, each imported from its home: what `bayescope/__init__.py` reads and type checkers see."""

from bayescope import (
    density as density,
    distributed as distributed,
    errors as errors,
    integrations as integrations,
    layers as layers,
    metrics as metrics,
    plots as plots,
    precision as precision,
    storage as storage,
)
from bayescope.comparison import Comparison as Comparison, compare as compare
from bayescope.conformal import Conformal as Conformal, conformal as conformal
from bayescope.curvature import (
    Curvature as Curvature,
    CurvatureOptions as CurvatureOptions,
    Plan as Plan,
    fit_curvature as fit_curvature,
    plan as plan,
)
from bayescope.dropout.mc_dropout import mc_dropout as mc_dropout
from bayescope.ensembles.ensemble import ensemble as ensemble
from bayescope.estimators import (
    BayesianGeneralizedLinearModel as BayesianGeneralizedLinearModel,
    BayesianLinearRegression as BayesianLinearRegression,
    BayesianLogisticRegression as BayesianLogisticRegression,
    BayesianMLPClassifier as BayesianMLPClassifier,
    BayesianMLPRegressor as BayesianMLPRegressor,
    NeuralAdditiveClassifier as NeuralAdditiveClassifier,
    NeuralAdditiveRegressor as NeuralAdditiveRegressor,
    predict_distribution as predict_distribution,
    save as save,
)
from bayescope.estimators.scorers import scorers as scorers
from bayescope.gaussian_process.function_space import function_space as function_space
from bayescope.laplace.laplace import laplace as laplace
from bayescope.laplace.online import fit_evidence as fit_evidence
from bayescope.laplace.selection import Selection as Selection, select as select
from bayescope.laplace.tuning import tune_prior as tune_prior
from bayescope.layers import OutputChoice as OutputChoice
from bayescope.likelihoods import (
    Bernoulli as Bernoulli,
    Beta as Beta,
    Binomial as Binomial,
    BradleyTerry as BradleyTerry,
    Categorical as Categorical,
    Censored as Censored,
    Exponential as Exponential,
    Gamma as Gamma,
    Gaussian as Gaussian,
    HeteroscedasticGaussian as HeteroscedasticGaussian,
    Joint as Joint,
    LaplaceNoise as LaplaceNoise,
    LogNormal as LogNormal,
    MultivariateGaussian as MultivariateGaussian,
    NegativeBinomial as NegativeBinomial,
    Ordinal as Ordinal,
    Poisson as Poisson,
    StudentT as StudentT,
    Tweedie as Tweedie,
    Weibull as Weibull,
    WithOffset as WithOffset,
    ZeroInflatedPoisson as ZeroInflatedPoisson,
)
from bayescope.likelihoods.own import likelihood as likelihood
from bayescope.network.weights import largest_magnitude as largest_magnitude, largest_variance as largest_variance
from bayescope.posterior import (
    DrawsPosterior as DrawsPosterior,
    GaussianPosterior as GaussianPosterior,
    ImplicitPosterior as ImplicitPosterior,
    MixturePosterior as MixturePosterior,
    PointPosterior as PointPosterior,
    Posterior as Posterior,
    item_rewards as item_rewards,
)
from bayescope.predictive import Predictive as Predictive, most_informative as most_informative
from bayescope.priors import Prior as Prior
from bayescope.report import report as report
from bayescope.sampling.nuts import nuts as nuts
from bayescope.sampling.sgmcmc import sgmcmc as sgmcmc
from bayescope.sampling.swag import swag as swag
from bayescope.sparse_priors import Horseshoe as Horseshoe, LaplacePrior as LaplacePrior
from bayescope.storage import load as load
from bayescope.tables.dataset import TableDataset as TableDataset, open_table as open_table
from bayescope.training.fit_map import fit_map as fit_map
from bayescope.training.options import TrainingOptions as TrainingOptions
from bayescope.variational.variational import variational as variational

__version__: str
