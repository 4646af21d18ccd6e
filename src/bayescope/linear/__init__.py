"""Inference for linear models: the mode, the evidence, Laplace, variational inference, EP, the conjugate case."""
