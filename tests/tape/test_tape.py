"""Every verb of every tape is the dense answer from its own Jacobian."""

import pytest
import torch

from bayescope.tape import (
    ComputedTape,
    Convolution,
    DenseTape,
    FactoredTape,
    HeadTape,
    JoinedTape,
    LastHessian,
    LinearTape,
    LookupTape,
    OuterTape,
    SelectedTape,
    StreamedTape,
    SumTape,
    Tape,
    block_limit,
)


class Source:
    """Draws tensors of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(7)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=self.dtype, generator=self.generator)

    def tokens(self, rows: int, positions: int, entries: int) -> torch.Tensor:
        return torch.randint(entries, (rows, positions), generator=self.generator)

    def order(self, size: int) -> torch.Tensor:
        return torch.randperm(size, generator=self.generator)


def outer(s, n, *, k=3, t=1, g=1, o=4, d=3, bias=False, shared=False):
    return OuterTape(s.normal(n, t, g, d), s.normal(k, 1 if shared else n, t, g, o), bias)


def outer_strided(s, n):
    """Activations and cotangents whose memory has the positions last, as a convolution leaves them."""
    return OuterTape(
        s.normal(1, 3, n, 9).permute(2, 3, 0, 1), s.normal(2, n, 1, 4, 9).permute(0, 1, 4, 2, 3), bias=True
    )


def lookup(s, n, *, padding=None, t=6):
    return LookupTape(s.tokens(n, t, 5), s.normal(3, n, t, 2), 5, padding)


def convolution(s, n, *, bias=False, groups=1, transposed=False):
    shape = (4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2)
    geometry = Convolution.of(s.normal(*shape), 2, 1, 1, groups, transposed=transposed)
    if transposed:
        return geometry.tape(s.normal(n, 4, 3, 4), s.normal(2, n, 6, 5, 6))
    return geometry.tape(s.normal(n, 4, 5, 6), s.normal(2, n, 6, 3, 4), bias=bias)


def shared_convolution(s, n):
    return Convolution.of(s.normal(3, 2, 2)).tape(s.normal(n, 2, 4), s.normal(2, 1, 3, 3), bias=True)


def head(s, n, *, bias=True):
    root = s.normal(3, n, 4)
    hessian = LastHessian(root.square().sum(0), lambda: torch.einsum("knc,knd->cd", root, root), lambda: root)
    return HeadTape(s.normal(n, 1, 1, 5), hessian, bias)


def joined(s, n):
    unused = outer(s, n, t=0, o=2, d=1)
    parts = (outer(s, n, bias=True), lookup(s, n), DenseTape(s.normal(n, 3, 2)), unused)
    order = s.order(sum(part.dim for part in parts))
    return JoinedTape(parts, order.split([part.dim for part in parts]), len(order))


def computed(s, n):
    u = s.normal(n, 3, 7)
    return ComputedTape(n, 3, 7, lambda rows: u[rows].clone())


FACTORED = {
    "one position": outer,
    "one position, bias": lambda s, n: outer(s, n, bias=True),
    "one output": lambda s, n: outer(s, n, k=1, o=1, bias=True),
    "one output, positions": lambda s, n: outer(s, n, k=1, t=4, bias=True),
    "shared cotangents": lambda s, n: outer(s, n, bias=True, shared=True),
    "shared cotangents, positions": lambda s, n: outer(s, n, t=3, shared=True),
    "shared cotangents, many positions": lambda s, n: outer(s, n, t=9, shared=True),
    "few positions": lambda s, n: outer(s, n, t=3, bias=True),
    "many positions": lambda s, n: outer(s, n, t=9, bias=True),
    "groups": lambda s, n: outer(s, n, g=2, bias=True),
    "groups, few positions": lambda s, n: outer(s, n, t=4, g=2),
    "groups, many positions": lambda s, n: outer(s, n, t=7, g=3, o=1, d=1, bias=True),
    "positions last": outer_strided,
    "uses joined": lambda s, n: OuterTape.join([outer(s, n, t=2, bias=True), outer(s, n, t=1, bias=True)]),
    "bias alone": lambda s, n: outer(s, n, t=4, d=0, bias=True),
    "lookup": lookup,
    "lookup, padding": lambda s, n: lookup(s, n, padding=2),
    "lookup, shared cotangents": lambda s, n: LookupTape(s.tokens(n, 4, 5), s.normal(3, 1, 4, 2), 5, 1),
    "lookup, one token": lambda s, n: lookup(s, n, t=1),
    "lookups joined": lambda s, n: LookupTape.join([lookup(s, n, padding=0), lookup(s, n, padding=0, t=2)]),
    "convolution": lambda s, n: convolution(s, n, bias=True),
    "convolution, shared cotangents": shared_convolution,
    "convolution, groups": lambda s, n: convolution(s, n, groups=2, bias=True),
    "transposed convolution": lambda s, n: convolution(s, n, transposed=True),
    "transposed convolution, groups": lambda s, n: convolution(s, n, groups=2, transposed=True),
    "convolutions joined": lambda s, n: StreamedTape.join([convolution(s, n, bias=True) for _ in range(2)]),
    "no positions": lambda s, n: outer(s, n, t=0, g=2),
    "lookup, no positions": lambda s, n: lookup(s, n, t=0),
}
TAPES = FACTORED | {
    "head": head,
    "head, no bias": lambda s, n: head(s, n, bias=False),
    "linear": lambda s, n: LinearTape(s.normal(n, 4), 3, True),
    "linear, no bias": lambda s, n: LinearTape(s.normal(n, 4), 1, False),
    "dense": lambda s, n: DenseTape(s.normal(n, 3, 7)),
    "computed": computed,
    "sum": lambda s, n: SumTape((outer(s, n, o=5, d=2), lookup(s, n, t=3), DenseTape(s.normal(n, 3, 10)))),
    "selected": lambda s, n: SelectedTape(outer(s, n, t=2), s.order(12)[:5]),
    "selected twice": lambda s, n: SelectedTape(joined(s, n), s.order(30)[:9]).part(torch.tensor([4, 0, 7])),
    "joined": joined,
}


# Bytes of a block of rows (one row, some rows, all of them), numbers of rows and precisions: every pair of them.
BLOCKS = [
    (1, 5, torch.float64),
    (700, 5, torch.float64),
    (700, 5, torch.float32),
    (2**25, 5, torch.float32),
    (1, 1, torch.float32),
    (700, 1, torch.float32),
    (2**25, 1, torch.float64),
    (1, 0, torch.float32),
    (700, 0, torch.float64),
    (2**25, 0, torch.float64),
]


@pytest.fixture(params=BLOCKS, ids=[f"{size} bytes, {rows} rows, {str(dtype)[6:]}" for size, rows, dtype in BLOCKS])
def rows_and_dtype(request):
    size, rows, dtype = request.param
    with block_limit(size):
        yield rows, dtype


@pytest.mark.parametrize("name", TAPES)
def test_every_verb_is_the_dense_answer(name, rows_and_dtype):
    rows, dtype = rows_and_dtype
    source = Source(dtype)
    tape = TAPES[name](source, rows)
    assert isinstance(tape, Tape)
    u = tape.jacobian(slice(None)).double()
    assert u.shape == (tape.rows, tape.outputs, tape.dim)
    assert tape.rows == rows
    scale = torch.rand(tape.dim, dtype=torch.float64, generator=source.generator)
    v = torch.randn(tape.dim, 2, dtype=torch.float64, generator=source.generator)
    w = torch.randn(rows, tape.outputs, 3, dtype=torch.float64, generator=source.generator)
    close(tape.squares(), u.square().sum((0, 1)), dtype)
    close(tape.gram(scale), torch.einsum("nkp,p,nlp->nkl", u, scale, u), dtype)
    close(tape.norms(scale), torch.einsum("nkp,p->nk", u.square(), scale), dtype)
    close(tape.multiply(v), u @ v, dtype)
    close(tape.transpose_multiply(w), torch.einsum("nkp,nkr->pr", u, w), dtype)
    pieces = [tape.jacobian(rows) for rows in tape.blocks()]
    close(torch.cat([u[:0].to(dtype), *pieces]), u, dtype)


@pytest.mark.parametrize("rows", [4, 0])
@pytest.mark.parametrize("name", TAPES)
def test_a_part_holds_the_columns_in_the_order_asked_for(name, rows):
    source = Source(torch.float64)
    tape = TAPES[name](source, rows)
    indices = source.order(tape.dim)[: max(1, tape.dim // 2)]
    u = tape.jacobian(slice(None))[..., indices]
    part = tape.part(indices)
    scale = torch.rand(part.dim, dtype=torch.float64, generator=source.generator)
    close(part.jacobian(slice(None)), u, torch.float64)
    close(part.squares(), u.square().sum((0, 1)), torch.float64)
    close(part.gram(scale), (u * scale) @ u.mT, torch.float64)


@pytest.mark.parametrize("name", FACTORED)
def test_factors_multiply_out_to_the_jacobian(name, rows_and_dtype):
    """tr(Σ UᵀU (L ⊗ R)) needs both factors where T = 1; the shapes, the traces and rotations hold for any T."""
    rows, dtype = rows_and_dtype
    source = Source(dtype)
    tape = FACTORED[name](source, rows)
    assert isinstance(tape, FactoredTape)
    groups, outputs, inputs = tape.shape
    assert groups * outputs * inputs == tape.dim
    u = tape.jacobian(slice(None)).double().unflatten(-1, tape.shape)
    for left_ndim in (None, 2, 3):
        for right_ndim in (None, 2, 3):
            left = None if left_ndim is None else source.normal(groups, *[outputs] * (left_ndim - 1))
            right = None if right_ndim is None else source.normal(groups, *[inputs] * (right_ndim - 1))
            expected = torch.einsum("nkgod,gop,gde->nkgpe", u, matrix(left, outputs), matrix(right, inputs))
            rotated = tape.rotated(left, right)
            assert rotated.dim == tape.dim
            close(rotated.jacobian(slice(None)), expected.flatten(2), dtype)
            close(rotated.squares(), expected.square().sum((0, 1)).flatten(), dtype)


def matrix(basis: torch.Tensor | None, size: int) -> torch.Tensor:
    if basis is None:
        return torch.eye(size, dtype=torch.float64)[None]
    return (torch.diag_embed(basis) if basis.ndim == 2 else basis).double()


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    size = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance * size)
