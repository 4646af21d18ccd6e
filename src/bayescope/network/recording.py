"""A recording: one forward pass of a network, ready to be asked for the Jacobian under any cotangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.network.forward import cotangents, forward, owned, reading
from bayescope.network.inputs import count_rows
from bayescope.network.parts import Reading
from bayescope.network.rowwise import rowwise
from bayescope.network.sites import MatrixSite
from bayescope.tape import HeadTape, JoinedTape

if TYPE_CHECKING:
    from bayescope.network.network import Network


@final
class Recording:
    """One batch read by a network.

    Attributes:
        rows: N.
        outputs: f, shape (N, ..., C), detached, in float32 at least.
    """

    def __init__(self, network: Network, inputs: Any) -> None:
        self.rows = count_rows(inputs)
        self._network = network
        with reading(network.module):
            self._inputs = owned(inputs, copy=network.treatment.overwrites_inputs)
            # Weights that are read row by row run the network again, on inputs as they were.
            run_on = owned(self._inputs, copy=True) if network.treatment.overwrites_inputs else self._inputs
            self._f, self._sites = forward(network.module, network.recorded, run_on, network.treatment.overwritten)
        self.outputs = checked_outputs(self._f, self.rows).detach().to(tape_dtype(self._f))
        if any(site.overwritten for site in self._sites):
            raise InputError("inputs: the network changes activations in place that it did not when it was traced.")

    def tape(self, seeds: Tensor) -> JoinedTape:
        """The rows u_nk = ∂(s_nkᵀ f_n)/∂θ; may be asked for again, with other cotangents.

        Args:
            seeds: the cotangents s_nk, shape (K, N, ..., C), or (K, 1, ..., C) where all rows share them.

        Raises:
            InputError: if they have another shape.
        """
        shape = tuple(self.outputs.shape)
        if seeds.ndim != 1 + len(shape) or seeds.shape[1] not in (1, self.rows) or seeds.shape[2:] != shape[1:]:
            raise InputError(f"seeds: expected shape (K, *{shape}), got {tuple(seeds.shape)}.")
        with torch.inference_mode(False):
            read = self._read(owned(seeds, copy=False))
            tapes = tuple(part.tape(read) for part in self._network.treatment.parts)
        return JoinedTape(tapes, self._network.indices, self._network.dim)

    def head_tape(self, hessian_diagonal: Tensor, hessian_sum: Tensor, root: Callable[[], Tensor]) -> JoinedTape:
        """The tape of a last layer under roots of Λ_n, whose second moments come from Λ_n itself.

        Args:
            hessian_diagonal: Λ_ncc, shape (N, C); where the outputs have positions, each is a row of its own.
            hessian_sum: Σ_n Λ_n, shape (C, C).
            root: the function that returns the roots' columns, shape (K, N, C).

        Raises:
            UnsupportedError: if the random weights are not those of one linear layer whose output is f.
        """
        if not self._is_head():
            raise UnsupportedError("head_tape: expected the weights of one linear layer whose output is f itself.")
        (site,) = cast(list[MatrixSite], self._sites)
        activations = site.inputs.reshape(-1, 1, 1, site.inputs.shape[-1]).to(self.outputs)
        moments = hessian_diagonal.to(self.outputs), hessian_sum.to(self.outputs)
        tape = HeadTape(activations, *moments, root, site.bias is not None)
        return JoinedTape((tape,), self._network.indices, self._network.dim)

    def _is_head(self) -> bool:
        return self._network.head and len(self._sites) == 1 and self._sites[0].shape == self._f.shape

    def _read(self, seeds: Tensor) -> Reading:
        # At a head the cotangents of the site are the seeds: there is nothing to pull back.
        if self._is_head():
            gradients: list[Tensor | None] = [seeds]
        else:
            seeds = seeds.expand(-1, self.rows, *self._f.shape[1:]).to(self._f)
            gradients = cotangents(self._f, [site.target for site in self._sites], seeds)
        module, inputs = self._network.module, self._inputs
        return Reading(
            rows=self.rows,
            outputs=len(seeds),
            uses=self._network.treatment.uses(self._sites, gradients, self.rows, self.outputs.dtype),
            like=self.outputs,
            rowwise=lambda names: rowwise(module, names, inputs, seeds),
        )


def checked_outputs(f: Tensor, rows: int) -> Tensor:
    """f as it is.

    Raises:
        InputError: if its shape is not (N, ..., C).
    """
    if f.ndim == 1 and f.shape == (rows,):
        raise InputError(f"model: expected outputs of shape (N, C), got {tuple(f.shape)}. Add .unsqueeze(-1).")
    if f.ndim < 2 or f.shape[0] != rows:
        raise InputError(f"model: expected outputs of shape ({rows}, ..., C) for {rows} rows, got {tuple(f.shape)}.")
    return f


def tape_dtype(f: Tensor) -> torch.dtype:
    """That of f, float32 at least."""
    return torch.promote_types(f.dtype, torch.float32)
