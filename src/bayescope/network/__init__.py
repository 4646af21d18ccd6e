"""Networks: any ``nn.Module`` with some of its weights random, read once per batch into a tape."""

from bayescope.network.network import Network
from bayescope.network.recording import PartInfo, Recording

__all__ = ["Network", "PartInfo", "Recording"]
