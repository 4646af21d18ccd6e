"""The treatment of a network: what a trace has settled, and how it is applied to later batches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.network.layout import Layout
from bayescope.network.notes import Computing
from bayescope.network.parts import Part, Use
from bayescope.network.sites import Site


@final
@dataclass(frozen=True, eq=False)
class Treatment:
    """How the sites of a network are read.

    Attributes:
        parts: the sets of weights that are read together.
        layouts: for each key of a site the layouts of its occurrences, in the order of execution.
        overwritten: the sites whose inputs the network writes over.
        overwrites_inputs: whether it writes over what it is given.
        row_numbers: how many numbers one row's cotangents are at all sites together, and its U of the parameters that
            are read row by row, when each output has a cotangent.
        outputs: the shape (*positions, C) that one row's f had.
        computing: what is noted of calls that take weights alone.
    """

    parts: tuple[Part, ...]
    layouts: Mapping[Hashable, tuple[Layout, ...]]
    overwritten: frozenset[Hashable]
    overwrites_inputs: bool
    row_numbers: int
    outputs: torch.Size
    computing: Computing

    def uses(
        self, sites: Sequence[Site], gradients: Sequence[Tensor | None], rows: int, dtype: torch.dtype
    ) -> dict[Hashable, list[Use]]:
        """The sites that f depends on, with their cotangents and layouts, by key.

        Raises:
            InputError: if the batch takes another way through the network than the one it was traced on.
        """
        found: dict[Hashable, list[tuple[Site, Tensor | None]]] = {}
        for site, gradient in zip(sites, gradients, strict=True):
            found.setdefault(site.key, []).append((site, gradient))
        uses: dict[Hashable, list[Use]] = {}
        for key, occurrences in found.items():
            if all(gradient is None for _, gradient in occurrences):
                continue
            layouts = self._layouts(key, occurrences[0][0], len(occurrences))
            uses[key] = [
                _use(site, gradient, layout, rows, dtype)
                for (site, gradient), layout in zip(occurrences, layouts, strict=True)
                if gradient is not None
            ]
        return uses

    def _layouts(self, key: Hashable, site: Site, count: int) -> Sequence[Layout]:
        layouts = self.layouts.get(key, ())
        if layouts and len(set(layouts)) == 1:  # so that a recurrent network may be read at any length
            return layouts[:1] * count
        if len(layouts) != count:
            raise InputError(
                f"inputs: the network uses {site.views[0].name!r} in another way than on the batch that it was traced "
                "on. Trace it on a batch like this one."
            )
        return layouts


def _use(site: Site, gradient: Tensor, layout: Layout, rows: int, dtype: torch.dtype) -> Use:
    if not layout.fits(site.shape, rows):
        raise InputError(
            f"inputs: the tensor at {site.views[0].name!r} has shape {tuple(site.shape)}, in which {rows} rows were "
            f"expected along dimension {layout.dim}. Trace the network on a batch like this one."
        )
    return Use(site, gradient.to(dtype), layout)
