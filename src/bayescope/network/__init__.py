"""Networks: any ``nn.Module`` with some of its weights random, read once per batch into a tape."""

from bayescope.network.network import Network, PartInfo
from bayescope.network.recording import Recording

__all__ = ["Network", "PartInfo", "Recording"]
