"""Laplace's approximation for networks: posteriors, their evidence, and what is learnt from it."""
