"""The latent: a distribution of the model's outputs f at N inputs, and what it says about the outcomes y."""

from bayescope.latent.gaussian import GaussianLatent
from bayescope.latent.latent import DrawsLatent, Latent
from bayescope.latent.mixture import MixtureLatent

__all__ = ["DrawsLatent", "GaussianLatent", "Latent", "MixtureLatent"]
