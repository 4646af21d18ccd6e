"""Tapes: the Jacobian of a model on one batch, for each way that a reading can leave it behind."""

from bayescope.tape.classes import ClassTape
from bayescope.tape.computed import ComputedTape
from bayescope.tape.dense import DenseTape
from bayescope.tape.head import HeadTape
from bayescope.tape.joined import JoinedTape
from bayescope.tape.linear import LinearTape
from bayescope.tape.lookup import LookupTape
from bayescope.tape.outer import OuterTape
from bayescope.tape.selected import SelectedTape
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.sum import SumTape
from bayescope.tape.tape import FactoredTape, Tape, row_blocks
from bayescope.tape.unfold import Convolution
from bayescope.tape.zero import ZeroTape

__all__ = [
    "ClassTape",
    "ComputedTape",
    "Convolution",
    "DenseTape",
    "FactoredTape",
    "HeadTape",
    "JoinedTape",
    "LinearTape",
    "LookupTape",
    "OuterTape",
    "SelectedTape",
    "StreamedTape",
    "SumTape",
    "Tape",
    "ZeroTape",
    "row_blocks",
]
