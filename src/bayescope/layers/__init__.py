"""Layers: variational ones, and those that turn a model of one thing into the model that a likelihood asks for."""

from bayescope.layers.output_choice import OutputChoice as OutputChoice
from bayescope.layers.outputs import Pairwise
from bayescope.layers.variational import (
    Conv1dVariational,
    Conv2dVariational,
    Conv3dVariational,
    EmbeddingVariational,
    LinearVariational,
    deterministic,
    kl,
)

__all__ = [
    "Conv1dVariational",
    "Conv2dVariational",
    "Conv3dVariational",
    "EmbeddingVariational",
    "LinearVariational",
    "Pairwise",
    "deterministic",
    "kl",
]
