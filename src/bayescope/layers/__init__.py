"""Layers that turn a model of one thing into the model that a likelihood asks for."""

from bayescope.layers.pairwise import Pairwise

__all__ = ["Pairwise"]
