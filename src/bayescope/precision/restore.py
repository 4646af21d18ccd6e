"""From a state back to the precision that it was taken of."""

from __future__ import annotations

from collections.abc import Callable

from bayescope.errors import OptionError
from bayescope.precision.block import BlockPrecision
from bayescope.precision.corrected import EigenvalueCorrectedPrecision
from bayescope.precision.covariance import LowRankCovariance
from bayescope.precision.dense import DensePrecision
from bayescope.precision.diagonal import DiagonalPrecision
from bayescope.precision.kronecker import KroneckerPrecision
from bayescope.precision.low_rank import LowRankPrecision
from bayescope.precision.precision import Precision
from bayescope.precision.state import State


def restore(state: State) -> Precision:
    """The precision with this state, `Precision.state` the other way round.

    Raises:
        OptionError: if the structure is unknown.
        InputError: if tensors are missing, or their shapes do not fit.
        NotPositiveDefiniteError: if a matrix that was positive definite is not.
    """
    if state.structure not in _STRUCTURES:
        raise OptionError.unknown("structure", state.structure, _STRUCTURES)
    return _STRUCTURES[state.structure](state)


def _block(state: State) -> BlockPrecision:
    indices = [state.shared[f"indices {i}"] for i in range(len(state.parts))]
    blocks = [restore(part) for part in state.parts]
    return BlockPrecision(blocks, indices, sum(index.shape[0] for index in indices), name=state.name)


_STRUCTURES: dict[str, Callable[[State], Precision]] = {
    "full": DensePrecision.from_state,
    "block": _block,
    "diagonal": DiagonalPrecision.from_state,
    "kfac": KroneckerPrecision.from_state,
    "ekfac": EigenvalueCorrectedPrecision.from_state,
    "low_rank": LowRankPrecision.from_state,
    "low_rank_covariance": LowRankCovariance.from_state,
}
