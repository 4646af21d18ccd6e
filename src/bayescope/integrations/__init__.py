"""Posteriors for other packages: callbacks for the trainers of Lightning and Hugging Face, a model for BoTorch."""

from bayescope.integrations.botorch import botorch_model
from bayescope.integrations.trainers import LightningPosterior, TrainerPosterior

__all__ = ["LightningPosterior", "TrainerPosterior", "botorch_model"]
