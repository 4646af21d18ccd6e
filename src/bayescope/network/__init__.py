"""Networks: any ``nn.Module`` with some of its weights random, read once per batch into a tape."""

from bayescope.network.batches import Batches
from bayescope.network.draws import parameters_and_constants, values_at, widest
from bayescope.network.dropout import (
    Call,
    attention_in_calls,
    dropout_calls,
    random_outputs,
    recurrent_refused,
    switched_on,
    switches_of,
)
from bayescope.network.fingerprint import Fingerprint
from bayescope.network.forward import owned, reading
from bayescope.network.guard import check_readable, private
from bayescope.network.inputs import (
    call,
    count_rows,
    described,
    explained,
    first_not_finite,
    leaves,
    map_arrays,
    map_tensors,
    take_rows,
    tensors,
)
from bayescope.network.interception import Rewrites
from bayescope.network.model import NetworkModel
from bayescope.network.network import Network
from bayescope.network.positions import Question, by_cotangent, by_pair
from bayescope.network.priors import by_parameter, network_prior, owners, prior_diagonal
from bayescope.network.random_weights import RandomWeights, passes_at
from bayescope.network.recording import PartInfo, Recording
from bayescope.network.rewrites import OF_WEIGHTS, REWRITES
from bayescope.network.row_dropout import compiled, drawing
from bayescope.network.same_network import require_same_function, require_same_shapes, require_same_weights
from bayescope.network.shards import same_on_all, set_epoch
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import pull_back, vectorising
from bayescope.network.weights import LargestMagnitude, LargestVariance, Weights, largest_magnitude, largest_variance
from bayescope.network.wrappers import unwrapped

__all__ = [
    "OF_WEIGHTS",
    "REWRITES",
    "Batches",
    "Call",
    "Fingerprint",
    "LargestMagnitude",
    "LargestVariance",
    "Network",
    "NetworkModel",
    "PartInfo",
    "Question",
    "RandomWeights",
    "Recording",
    "Rewrites",
    "Weights",
    "attention_in_calls",
    "by_cotangent",
    "by_pair",
    "by_parameter",
    "call",
    "check_readable",
    "compiled",
    "count_rows",
    "described",
    "drawing",
    "dropout_calls",
    "explained",
    "first_not_finite",
    "largest_magnitude",
    "largest_variance",
    "leaves",
    "map_arrays",
    "map_tensors",
    "network_prior",
    "owned",
    "owners",
    "parameters_and_constants",
    "passes_at",
    "prior_diagonal",
    "private",
    "pull_back",
    "random_outputs",
    "reading",
    "recurrent_refused",
    "require_same_function",
    "require_same_shapes",
    "require_same_weights",
    "same_on_all",
    "set_epoch",
    "substituted",
    "switched_on",
    "switches_of",
    "take_rows",
    "tensors",
    "unwrapped",
    "values_at",
    "vectorising",
    "widest",
]
