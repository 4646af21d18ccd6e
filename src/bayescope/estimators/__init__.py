"""Scikit-learn estimators."""

from bayescope.estimators.additive import NeuralAdditiveClassifier, NeuralAdditiveRegressor
from bayescope.estimators.features import RadialBasis
from bayescope.estimators.linear import BayesianLinearRegression
from bayescope.estimators.logistic import BayesianLogisticRegression
from bayescope.estimators.mlp import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "NeuralAdditiveClassifier",
    "NeuralAdditiveRegressor",
    "RadialBasis",
]
