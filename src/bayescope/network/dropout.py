"""Many passes at once through a network with dropout, each with masks of its own.

A mask is drawn for one row and shared by all rows of a pass, so that a pass is one function of its inputs and the
answer for a row does not depend on the others. The network stays in eval mode: nothing else in it is random.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network.draws import blocks, together, widest
from bayescope.network.dropout_calls import Call, DropoutCalls
from bayescope.network.forward import owned
from bayescope.network.inputs import call, count_rows, map_tensors, take_rows
from bayescope.network.vectorising import vectorising

# The value that a self-normalising network saturates at, −λα (Klambauer et al. 2017, Eq. 14): what alpha dropout sets.
SATURATION = -1.7580993408473766
# Rows on which it is found out where rows are in a tensor.
PROBES = 3


@final
@dataclass(frozen=True)
class Site:
    """A call of dropout, as one row sees it.

    Attributes:
        shape: of its mask.
        rate: r.
        alpha: whether it is alpha dropout.
        inner: where rows are folded together with other positions, whether the row runs fastest.
    """

    shape: torch.Size
    rate: float
    alpha: bool
    inner: bool = False

    def scales(self, uniform: Tensor, dtype: torch.dtype) -> Tensor:
        """What inputs are multiplied by, shape (S, *shape), from as many uniform numbers (S, size)."""
        kept = (uniform >= self.rate).unflatten(-1, self.shape or (1,)).reshape(-1, *self.shape).to(dtype)
        return kept if self.rate == 1 else kept * self._gain

    def apply(self, found: Call, scale: Tensor, rows: int) -> Tensor:
        """The result of the call, for N rows at once."""
        x = found.input
        scale = _spread(scale.to(x.dtype), x, rows, self)
        out = x.mul_(scale) if found.inplace else x * scale
        if not self.alpha or self.rate == 1:
            return out
        # a (x m + s (1 − m)) + b, with b = −a s r for mean 0; the mask m is scale/a
        shift = self._gain * SATURATION * (1.0 - self.rate) - SATURATION * scale
        return out.add_(shift) if found.inplace else out + shift

    @property
    def _gain(self) -> float:
        """1/(1 − r), which keeps the mean; for alpha dropout the one that keeps the variance too (Eq. 17)."""
        keep = 1.0 - self.rate
        return (keep * (1.0 + self.rate * SATURATION**2)) ** -0.5 if self.alpha else 1.0 / keep


def _spread(scale: Tensor, x: Tensor, rows: int, site: Site) -> Tensor:
    """The mask of one row for N rows of an input, wherever they are in it."""
    for axis, (mine, size) in enumerate(zip(scale.shape, x.shape, strict=True)):
        if mine in (1, size):
            continue
        if size != rows * mine:
            raise UnsupportedError(
                "model: expected dropout on a tensor that grows with the rows along one axis, got shape "
                f"{tuple(x.shape)} for {rows} rows and masks of {tuple(site.shape)} for one. Give inputs of one length."
            )
        place = axis + 1 if site.inner else axis
        scale = scale.unsqueeze(place).expand(*scale.shape[:place], rows, *scale.shape[place:]).flatten(axis, axis + 1)
    return scale


def dropout_sites(module: nn.Module, x: Any, off: Collection[int] = frozenset()) -> tuple[Site, ...] | None:
    """The calls of dropout at rates above 0 that a network makes, in the order of execution.

    Args:
        module: the network, in the state in which it is to be read.
        x: N rows, on the device of the module.
        off: calls that drop nothing, by their place.

    Returns:
        ``None`` where the rows are too much alike to show how they are folded together with other positions.

    Raises:
        UnsupportedError: if rows are mixed where a mask is applied, or a recurrent network has dropout inside.
    """
    return _with_folds(module, x, off)


def _calls(module: nn.Module, x: Any, off: Collection[int]) -> list[Call]:
    found: list[Call] = []

    def note(one: Call) -> Tensor:
        found.append(one._replace(input=one.input.clone()))
        return one.input

    with torch.no_grad(), DropoutCalls(note, off=off):
        call(module, owned(x, copy=True))
    return found


def _with_folds(module: nn.Module, x: Any, off: Collection[int]) -> tuple[Site, ...] | None:
    alone = _calls(module, take_rows(x, slice(0, 1)), off)
    sites = [Site(_mask_shape(found), found.rate, found.alpha) for found in alone]
    if count_rows(x) == 1 or not sites:
        return tuple(sites)
    a, b = take_rows(x, slice(0, 1)), map_tensors(_unlike_first, x)
    same, other = _calls(module, stacked(a, a, a), off), _calls(module, stacked(a, b, a), off)
    if not len(sites) == len(same) == len(other):
        raise UnsupportedError(
            f"model: expected the same calls of dropout for any number of rows, got {len(sites)} for one row and "
            f"{len(same)} for {PROBES}. Predict rows one at a time."
        )
    calls = zip(sites, alone, same, other, strict=True)
    folded = [_folded(site, one.input, before.input, after.input) for site, one, before, after in calls]
    return None if None in folded else tuple(site for site in folded if site is not None)


def _mask_shape(found: Call) -> torch.Size:
    return torch.Size([*found.input.shape[: found.kept], *[1] * (found.input.ndim - found.kept)])


def _unlike_first(rows: Tensor) -> Tensor:
    """A row unlike the first one: a moved one where numbers can be other ones, else one that is there, if any is."""
    if rows.is_floating_point():
        return rows[-1:] + 1.0
    place = int((rows != rows[:1]).flatten(1).any(1).int().argmax())  # 0, the first itself, where all are alike
    return rows[place : place + 1]


def stacked(*parts: Any) -> Any:
    """Inputs of several rows from inputs of one each, which have the same structure."""
    flat: list[list[Tensor]] = []
    for part in parts:
        flat.append([])
        map_tensors(flat[-1].append, part)
    joined = iter([torch.cat(each) for each in zip(*flat, strict=True)])
    return map_tensors(lambda _: next(joined), parts[0])


def _folded(site: Site, one: Tensor, before: Tensor, after: Tensor) -> Site | None:
    """The site with the way in which rows are folded: the one under which another second row changes that row alone.

    Args:
        site: of the call.
        one: the call's input for one row.
        before: for `PROBES` rows, all alike.
        after: for those rows, of which the second is another one.

    Returns:
        ``None`` where that row changes nothing, so that the way cannot be told.

    Raises:
        UnsupportedError: if rows are along no axis, along several, or mixed.
    """
    pairs = enumerate(zip(one.shape, before.shape, strict=True)) if one.ndim == before.ndim else ()
    axes = [axis for axis, (mine, size) in pairs if mine != size]
    if one.ndim != before.ndim or len(axes) > 1 or any(before.shape[axis] != PROBES * one.shape[axis] for axis in axes):
        raise UnsupportedError(
            "model: expected dropout on a tensor that grows with the rows along one axis, got shape "
            f"{tuple(one.shape)} for one row and {tuple(before.shape)} for {PROBES}. Let no row depend on the others."
        )
    if not axes:
        return site
    (axis,) = axes
    different = (before != after) & ~(before.isnan() & after.isnan())
    changed, positions = different.movedim(axis, 0), one.shape[axis]
    if positions > 1 and not changed.any():
        return None
    if not changed.unflatten(0, (PROBES, positions))[[0, 2]].any():
        return site
    if not changed.unflatten(0, (positions, PROBES))[:, [0, 2]].any():
        return Site(site.shape, site.rate, site.alpha, inner=True)
    raise UnsupportedError("model: expected rows that do not depend on each other, got some mixed before dropout.")


def random_outputs(
    module: nn.Module, x: Any, n: int, generator: torch.Generator, off: Collection[int] = frozenset()
) -> tuple[Tensor, int]:
    """f in n passes, each with masks of its own that all rows share, and how many calls of dropout a pass has.

    Passes and rows are taken in blocks; which ones changes nothing but rounding.

    Args:
        module: the network, in the state in which it is to be read.
        x: N rows, on the device of the module.
        n: passes.
        generator: on the CPU, so that the masks are the same on every device.
        off: calls that drop nothing, by their place.

    Returns:
        Shape (n, N, *positions, C), float64, and the number of sites.
    """
    with torch.no_grad():
        sites = dropout_sites(module, x, off)
        if sites is None:
            return _row_by_row(module, x, n, generator, off)
        if not sites:
            f = torch.cat([_deterministic(module, block) for block in blocks(x, 0)])
            return f.expand(n, *f.shape).clone(), 0
        reference = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
        size, sizes = reference.element_size(), [site.shape.numel() for site in sites]
        wide = widest(module, owned(take_rows(x, slice(0, 1)), copy=True))
        most, answers = together(x, 2 * size * sum(sizes), size * wide), []
        for first in range(0, n, most):
            uniform = torch.rand(min(most, n - first), sum(sizes), generator=generator).to(reference.device)
            drawn = zip(sites, uniform.split(sizes, -1), strict=True)
            scales = [site.scales(numbers, reference.dtype) for site, numbers in drawn]
            rows = blocks(x, size * wide * len(uniform))
            answers.append(torch.cat([_at(module, block, sites, scales, off) for block in rows], 1))
    return torch.cat(answers), len(sites)


def _row_by_row(
    module: nn.Module, x: Any, n: int, generator: torch.Generator, off: Collection[int]
) -> tuple[Tensor, int]:
    """The same masks for each row by itself, where nobody has to know how rows are folded."""
    state, parts, sites = generator.get_state(), [], 0
    for row in range(count_rows(x)):
        generator.set_state(state)
        f, sites = random_outputs(module, take_rows(x, slice(row, row + 1)), n, generator, off)
        parts.append(f)
    return torch.cat(parts, 1), sites


def _deterministic(module: nn.Module, x: Any) -> Tensor:
    with DropoutCalls(lambda found: found.input):
        return call(module, owned(x, copy=True)).to(torch.float64)


def _at(module: nn.Module, x: Any, sites: Sequence[Site], scales: Sequence[Tensor], off: Collection[int]) -> Tensor:
    """f at masks (S, ...) for each site, shape (S, N, *positions, C): vectorised over passes, or one by one."""
    rows = count_rows(x)

    def f(*of_pass: Tensor) -> Tensor:
        remaining = iter(zip(sites, of_pass, strict=True))

        def answer(found: Call) -> Tensor:
            site, scale = next(remaining)
            return site.apply(found, scale, rows)

        with DropoutCalls(answer, off=off):
            return call(module, owned(x, copy=True))

    try:
        with vectorising():
            outputs = torch.func.vmap(f)(*scales)
    except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
        outputs = torch.stack([f(*of_pass) for of_pass in zip(*scales, strict=True)])
    return outputs.to(torch.float64)
