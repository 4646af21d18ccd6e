"""Sampling for networks: NUTS, stochastic-gradient MCMC, SWAG, and their diagnosis in function space."""
