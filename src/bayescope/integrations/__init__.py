"""Other packages and ours: callbacks for trainers, a model for BoTorch, networks of PyTorch Geometric."""

from bayescope.integrations.botorch import botorch_model
from bayescope.integrations.graphs import GraphNetwork
from bayescope.integrations.trainers import LightningPosterior, TrainerPosterior

__all__ = ["GraphNetwork", "LightningPosterior", "TrainerPosterior", "botorch_model"]
