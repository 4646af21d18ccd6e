"""Scikit-learn estimators."""

from bayescope.estimators.additive import NeuralAdditiveClassifier, NeuralAdditiveRegressor
from bayescope.estimators.features import RadialBasis
from bayescope.estimators.linear import BayesianLinearRegression
from bayescope.estimators.logistic import BayesianLogisticRegression

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "NeuralAdditiveClassifier",
    "NeuralAdditiveRegressor",
    "RadialBasis",
]
