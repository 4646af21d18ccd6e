"""Monte Carlo dropout: a network whose dropout stays on, as an approximation of Bayesian inference."""

from bayescope.dropout.mc_dropout import mc_dropout

__all__ = ["mc_dropout"]
