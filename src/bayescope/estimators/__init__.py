"""Scikit-learn estimators.

``__all__`` has what users call; the other names are for the rest of the library and its tests.
"""

from bayescope.estimators.additive import NeuralAdditiveClassifier, NeuralAdditiveRegressor
from bayescope.estimators.base import BLOCK_NUMBERS as BLOCK_NUMBERS
from bayescope.estimators.features import RadialBasis
from bayescope.estimators.generalized import BayesianGeneralizedLinearModel
from bayescope.estimators.linear import BayesianLinearRegression
from bayescope.estimators.logistic import BayesianLogisticRegression
from bayescope.estimators.mapped_rows import MappedRows as MappedRows
from bayescope.estimators.mlp import BayesianMLPClassifier, BayesianMLPRegressor
from bayescope.estimators.mlp_rows import NetworkRows as NetworkRows
from bayescope.estimators.pipelines import predict_distribution, save
from bayescope.estimators.scorers import add_names
from bayescope.estimators.table_rows import TableRows as TableRows

__all__ = [
    "BayesianGeneralizedLinearModel",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "NeuralAdditiveClassifier",
    "NeuralAdditiveRegressor",
    "RadialBasis",
    "predict_distribution",
    "save",
]

add_names()
