"""Tapes: the Jacobian of a model on one batch, for each form in which a reading can leave it."""

from bayescope.tape.last_layer import ClassTape, HeadTape, LastHessian, LinearTape
from bayescope.tape.lookup import LookupTape
from bayescope.tape.outer import OuterTape
from bayescope.tape.streamed import StreamedTape
from bayescope.tape.tape import (
    ComputedTape,
    DenseTape,
    FactoredTape,
    JoinedTape,
    SelectedTape,
    SumTape,
    Tape,
    block_bytes,
    block_limit,
    row_blocks,
)
from bayescope.tape.unfold import Convolution

__all__ = [
    "ClassTape",
    "ComputedTape",
    "Convolution",
    "DenseTape",
    "FactoredTape",
    "HeadTape",
    "JoinedTape",
    "LastHessian",
    "LinearTape",
    "LookupTape",
    "OuterTape",
    "SelectedTape",
    "StreamedTape",
    "SumTape",
    "Tape",
    "block_bytes",
    "block_limit",
    "row_blocks",
]
