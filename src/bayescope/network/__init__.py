"""Networks: any ``nn.Module`` with some of its weights random, read once per batch into a tape."""

from bayescope.network.batches import Batches, row_total, row_totals
from bayescope.network.dropout import dropout_calls, random_outputs, switched_on, switches_of
from bayescope.network.forward import compiled, reading
from bayescope.network.guard import unwrapped, with_output
from bayescope.network.inputs import (
    Inputs,
    call,
    count_rows,
    explained,
    first_not_finite,
    map_arrays,
    map_tensors,
    take_rows,
    tensors,
)
from bayescope.network.model import NetworkModel
from bayescope.network.network import Network
from bayescope.network.positions import ReadingLimits
from bayescope.network.priors import network_prior, prior_diagonal
from bayescope.network.random_weights import RandomWeights, passes_at
from bayescope.network.recording import Recording
from bayescope.network.rewrites import REWRITES
from bayescope.network.shards import Fingerprint, same_on_all, set_epoch
from bayescope.network.shards import Shard as Shard
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import pull_back
from bayescope.network.weights import Weights, largest_magnitude, largest_variance
from bayescope.precision.structure import PartInfo

__all__ = [
    "REWRITES",
    "Batches",
    "Fingerprint",
    "Inputs",
    "Network",
    "NetworkModel",
    "PartInfo",
    "RandomWeights",
    "ReadingLimits",
    "Recording",
    "Weights",
    "call",
    "compiled",
    "count_rows",
    "dropout_calls",
    "explained",
    "first_not_finite",
    "largest_magnitude",
    "largest_variance",
    "map_arrays",
    "map_tensors",
    "network_prior",
    "passes_at",
    "prior_diagonal",
    "pull_back",
    "random_outputs",
    "reading",
    "row_total",
    "row_totals",
    "same_on_all",
    "set_epoch",
    "substituted",
    "switched_on",
    "switches_of",
    "take_rows",
    "tensors",
    "unwrapped",
    "with_output",
]
