"""Random numbers of fits and queries, and of code that names no generator: never from torch's global generators."""

from bayescope.private_draws.code import DROPOUT, SIGNATURES, by_name, harmless_names
from bayescope.private_draws.modes import PrivateDraws, drawn_privately, draws_of, private_draws
from bayescope.private_draws.sources import (
    Cut,
    RandomSource,
    RecomputedError,
    by_process,
    by_row,
    drawing,
    for_all,
    generator_on,
    in_checkpoint,
    present_source,
    standard_normal,
)

__all__ = [
    "DROPOUT",
    "SIGNATURES",
    "Cut",
    "PrivateDraws",
    "RandomSource",
    "RecomputedError",
    "by_name",
    "by_process",
    "by_row",
    "drawing",
    "drawn_privately",
    "draws_of",
    "for_all",
    "generator_on",
    "harmless_names",
    "in_checkpoint",
    "present_source",
    "private_draws",
    "standard_normal",
]
