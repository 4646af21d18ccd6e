"""Variational inference for networks: a Gaussian over the weights, trained up the evidence lower bound."""

from bayescope.variational.variational import variational

__all__ = ["variational"]
