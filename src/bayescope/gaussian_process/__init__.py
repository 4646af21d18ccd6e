"""The linearised network as a Gaussian process: Laplace's posterior with its arithmetic over data, not over weights."""
