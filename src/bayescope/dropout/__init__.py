"""Monte Carlo dropout: a network whose dropout stays on, as an approximation of Bayesian inference."""
