"""The options of a curvature: declared, documented and checked once, for every function that takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.layers.output_choice import OutputKeywords
from bayescope.network import Network, PartInfo
from bayescope.network.weights import matching
from bayescope.precision import STRUCTURES as BY_NAME
from bayescope.precision.kronecker import unfactored
from bayescope.precision.structure import StructureOptions
from bayescope.storage import stored

Kind = Literal["ggn", "fisher", "empirical_fisher", "hessian"]
# "samples" is for `laplace` alone.
StructureName = Literal["full", "block", "diagonal", "kfac", "ekfac", "low_rank", "samples"]
Blocks = Literal["layer", "tensor"] | Sequence[Sequence[str]]
OutputFactor = Literal["dense", "diagonal"]

STRUCTURES = cast(tuple[StructureName, ...], tuple(BY_NAME))
# Other words for them that are spelt in another way.
SYNONYMS = {"kron": "kfac", "kronecker": "kfac", "dense": "full", "lowrank": "low_rank", "diag": "diagonal"}
# Each kind with the structures that it can have. The Hessian is no sum of uᵀu, which the other structures stand on.
SUPPORTED: dict[str, Sequence[str]] = {
    "ggn": STRUCTURES,
    "fisher": STRUCTURES,
    "empirical_fisher": STRUCTURES,
    "hessian": tuple(name for name, structure in BY_NAME.items() if structure.hessian is not None),
}
DENSE, DIAGONAL = "dense", "diagonal"
FACTORS = (DENSE, DIAGONAL)


class CurvatureKeywords(OutputKeywords, total=False):
    """The keywords of `CurvatureOptions` and `OutputChoice`, for the signatures of functions."""

    curvature: Kind
    structure: StructureName
    blocks: Blocks
    rank: int | None
    cutoff: float | None
    sharing: Literal["expand", "reduce"]
    output_factor: OutputFactor | Mapping[str, OutputFactor]
    batch_size: int
    memory: int | None


@stored("curvature_options")
@final
@dataclass(frozen=True)
class CurvatureOptions:
    """The options of a curvature. Functions take them as keywords of the same names.

    Args:
        curvature: "ggn", Σ JᵀΛJ exactly; "fisher", with one drawn label an observation; "empirical_fisher"; "hessian".
        structure: "full", "block", "diagonal", "kfac", "ekfac" (the eigenvectors of "kfac", exact moments) or
            "low_rank".
        blocks: of the structure "block": "layer", "tensor", or a list of lists of parameter names or globs.
        rank: the number of eigenvalues of "low_rank".
        cutoff: instead of the rank, the share of the largest eigenvalue below which eigenvalues are left out.
        sharing: how "kfac" and "ekfac" treat positions that share weights (tokens, pixels): "expand" or "reduce".
        output_factor: Σ g gᵀ of "kfac" and "ekfac": "dense", or its diagonal alone, "diagonal", for a layer of so many
            outputs that a matrix of their square does not fit; a dict gives it to some layers, by name or glob.
        batch_size: rows at once, where the data are not in batches already; fewer where the plan says so.
        memory: the budget in bytes that the run may take; half of what is free by default.
    """

    curvature: str = "ggn"
    structure: str = "kfac"
    blocks: Blocks = "layer"
    rank: int | None = None
    cutoff: float | None = None
    sharing: str = "expand"
    output_factor: str | Mapping[str, str] = DENSE
    batch_size: int = 1024
    memory: int | None = None

    @property
    def keywords(self) -> CurvatureKeywords:
        """Return a dict to call another function with."""
        return cast(CurvatureKeywords, dict(vars(self)))

    def checked(self, *, sized: bool = True) -> CurvatureOptions:
        """The options themselves, if they go together.

        Args:
            sized: whether a low rank needs its size, which a plan can do without.

        Raises:
            OptionError: if a name is unknown.
            UnsupportedError: if kind and structure do not go together, or the structure does not take an option.
            InputError: if a number is out of its range.
        """
        checks.choice("curvature", self.curvature, SUPPORTED)
        check_structure(self.structure, STRUCTURES)
        if self.structure not in SUPPORTED[self.curvature]:
            pairs = "; ".join(f"{kind!r} with {', '.join(map(repr, names))}" for kind, names in SUPPORTED.items())
            raise UnsupportedError(
                f"structure: expected one that the curvature {self.curvature!r} can have, got {self.structure!r}. "
                f"Supported: {pairs}."
            )
        checks.choice("sharing", self.sharing, ("expand", "reduce"))
        for factor in self.output_factor.values() if isinstance(self.output_factor, Mapping) else (self.output_factor,):
            checks.choice("output_factor", factor, FACTORS)
        for name in ("blocks", "rank", "cutoff", "sharing", "output_factor"):
            if getattr(self, name) != getattr(CurvatureOptions, name) and name not in BY_NAME[self.structure].options:
                takes = " and ".join(repr(each.name) for each in BY_NAME.values() if name in each.options)
                raise UnsupportedError(
                    f"{name}: expected with the structure {takes}, got {self.structure!r}. Leave it out."
                )
        if "rank" in BY_NAME[self.structure].options and sized and (self.rank is None) == (self.cutoff is None):
            got = (
                "both. Leave one out"
                if self.rank is not None
                else "neither. Say how many eigenvalues to keep, such as rank=50"
            )
            raise InputError(f"structure {self.structure!r}: expected either rank= or cutoff=, got {got}.")
        if self.rank is not None:
            checks.count("rank", self.rank)
        if self.cutoff is not None:
            checks.fraction("cutoff", self.cutoff)
        memory = self.memory
        if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0):
            raise InputError(f"memory: expected a positive number of bytes, got {memory!r}.")
        return self


def check_structure(structure: object, supported: Iterable[str]) -> None:
    """Refuses a structure that is unknown.

    Raises:
        OptionError: the message lists the supported ones.
    """
    if structure not in (names := tuple(supported)):
        raise OptionError.unknown("structure", structure, names, meant=SYNONYMS.get(str(structure).lower()))


def output_factors(choice: str | Mapping[str, str], parts: Sequence[PartInfo]) -> tuple[str, ...]:
    """The output factor of each part of a network.

    Args:
        choice: one for all parts, or a dict by part, parameter or glob. Parts without an entry are "dense"; where
            several entries match, the last one counts.
        parts: of the network.

    Raises:
        OptionError: if a name stands for no part.
    """
    if not isinstance(choice, Mapping):
        return (choice,) * len(parts)
    found = [DENSE] * len(parts)
    for pattern, factor in choice.items():
        places = [place for place, part in enumerate(parts) if _stands_for(pattern, part)]
        if not places:
            raise OptionError.unknown("output_factor", pattern, [part.name for part in parts])
        for place in places:
            found[place] = factor
    return tuple(found)


def structure_options(
    network: Network, options: CurvatureOptions, diagonal_outputs: Sequence[bool]
) -> StructureOptions:
    """What a structure needs to know of a network and of the options.

    Args:
        network: as it was traced.
        options: of the curvature.
        diagonal_outputs: for each part, whether the diagonal stands for its output factor.
    """
    parameters = network.weights.parameters(network.module).values()
    return StructureOptions(
        network.parts, network.indices, block_indices(network, options.blocks), diagonal_outputs, options.rank,
        options.cutoff, options.sharing, all(parameter.dtype == torch.float64 for parameter in parameters),
    )  # fmt: skip


def block_indices(network: Network, blocks: Blocks) -> tuple[Tensor, ...]:
    """The flat positions of each block's weights; every weight is in one block.

    Args:
        network: whose weights they are.
        blocks: "layer" (a weight with the bias that belongs to it), "tensor" (a parameter), or a list of lists of
            parameter names and globs, such as ``[["0.*"], ["2.weight", "2.bias"]]``.

    Raises:
        OptionError: if a word or a name is unknown.
        InputError: if a parameter is in two blocks or in none.
        UnsupportedError: for blocks of one weight, or one block of all: those are structures of their own.
    """
    if isinstance(blocks, str):
        if blocks in ("weight", "scalar"):
            structure = {"weight": "diagonal", "scalar": "full"}[blocks]
            raise UnsupportedError(f"blocks: {blocks!r} blocks are the structure {structure!r}. Ask for that one.")
        if checks.choice("blocks", blocks, ("layer", "tensor")) == "layer":
            return tuple(network.indices)
    slices = dict(zip(network.weights.names, network.weights.slices, strict=True))
    named = [[name] for name in slices] if isinstance(blocks, str) else _named(blocks, list(slices))
    device = network.indices[0].device
    return tuple(
        torch.cat([torch.arange(slices[name].start, slices[name].stop, device=device) for name in block])
        for block in named
    )


def _named(blocks: Blocks, names: list[str]) -> list[list[str]]:
    """The parameters of each block, in the network's order."""
    if not isinstance(blocks, Sequence) or not all(isinstance(block, list | tuple) and block for block in blocks):
        raise InputTypeError(
            f"blocks: expected 'layer', 'tensor' or a list of lists of parameter names and globs, got {blocks!r}."
        )
    for pattern in (pattern for block in blocks for pattern in block):
        if not matching(pattern, names):
            raise OptionError.unknown("blocks", pattern, names)
    hits = [{hit for pattern in block for hit in matching(pattern, names)} for block in blocks]
    found = [[name for name in names if name in some] for some in hits]
    for name in names:
        count = sum(name in block for block in found)
        if count != 1:
            raise InputError(
                f"blocks: expected each parameter in one block, got {name!r} in {count}. "
                f"{'Add a block for it' if count == 0 else 'Take it out of the others'}."
            )
    return found


def _stands_for(pattern: str, part: PartInfo) -> bool:
    return bool(matching(pattern, (part.name, *part.parameters)))


@stored("curvature_fallback")
@final
@dataclass(frozen=True)
class Fallback:
    """A part of a network that the structure asked for cannot treat, and what it got instead.

    Attributes:
        structure: "full" or "diagonal".
        reason: why.
    """

    structure: str
    reason: str

    def __str__(self) -> str:
        return f"{self.structure}: {self.reason}"


def fallbacks_of(network: Network, structure: str) -> dict[str, Fallback]:
    """By the name of the part, those that are no sum of outer products; none where the structure needs no such form."""
    if not BY_NAME[structure].rotates:
        return {}
    return {
        part.name: Fallback(
            unfactored(part),
            part.reason or _reason(network, part),
        )
        for part in network.parts
        if not part.factored
    }


def _reason(network: Network, part: PartInfo) -> str:
    """Why a part that no other reason is known for is no sum of outer products."""
    weights = network.weights
    for name, shape, count in zip(weights.names, weights.shapes, weights.counts, strict=True):
        if name in part.parameters and count < shape.numel():
            return f"some of {name!r} is fixed"
    owners = {name.rpartition(".")[0] for name in part.parameters}
    for name, parameter in network.module.named_parameters():
        if name not in weights.names and parameter.ndim > 1 and name.rpartition(".")[0] in owners:
            return f"{name!r}, the matrix beside it, is fixed"
    return f"{part.kind} weights are no matrix that meets its inputs"
