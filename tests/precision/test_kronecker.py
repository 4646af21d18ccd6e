"""The Kronecker structure against its definition, entry by entry, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError, NotPositiveDefiniteError, UnsupportedError
from bayescope.precision import DensePrecision, KroneckerPrecision, LowRankPrecision
from bayescope.tape import DenseTape, OuterTape
from tests.precision.cases import (
    Calls,
    counted,
    gram,
    kronecker,
    lookup_tape,
    normal,
    outer_tape,
    positive,
    seeded,
    separable,
)


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3, 2), (3, 1, 2)])
def test_the_definition(shape):
    """A[(g,o,d), (g′,o′,d′)] = [g = g′] output_goo′ input_gdd′ / normaliser."""
    groups, outputs, inputs = shape
    a, b = gram(groups, inputs, 4, seeded(0)), gram(groups, outputs, 4, seeded(1))
    dense = KroneckerPrecision(a, b, 2.5).to_dense().reshape(*shape, *shape)
    for g in range(groups):
        for h in range(groups):
            for o in range(outputs):
                for p in range(outputs):
                    expected = b[g, o, p] * a[g] / 2.5 if g == h else torch.zeros_like(a[g])
                    torch.testing.assert_close(dense[g, o, :, h, p, :], expected)


def test_a_diagonal_factor_is_the_matrix_with_that_diagonal():
    a, b = positive(2, 3, g=seeded(0)), gram(2, 4, 5, seeded(1))
    brief, whole = KroneckerPrecision(a, b, 3), KroneckerPrecision(torch.diag_embed(a), b, 3)
    assert brief.shape == whole.shape == (2, 4, 3)
    torch.testing.assert_close(brief.to_dense(), whole.to_dense())
    torch.testing.assert_close(brief.add_diagonal(0.3).logdet(), whole.add_diagonal(0.3).logdet())
    both = KroneckerPrecision(a, torch.ones(2, 4), 3)
    torch.testing.assert_close(both.diagonal(), (a[:, None] / 3).expand(2, 4, 3).flatten())


def test_sums_over_shards_are_those_of_all_the_data():
    """One row's curvature is g gᵀ ⊗ a aᵀ; over rows the factors are summed first, as in one pass over all."""
    a, g = normal(9, 4, g=seeded(0)), normal(9, 3, g=seeded(1))

    def curvature(rows: slice) -> KroneckerPrecision:
        return KroneckerPrecision((a[rows].mT @ a[rows])[None], (g[rows].mT @ g[rows])[None], len(a[rows]))

    empty = KroneckerPrecision(torch.zeros(1, 4, 4), torch.zeros(1, 3, 3), 0)
    shards = curvature(slice(4)) + curvature(slice(4, None)) + empty
    torch.testing.assert_close(shards.to_dense(), curvature(slice(None)).to_dense())


def test_without_data_there_is_no_curvature():
    empty = KroneckerPrecision(torch.zeros(1, 2, 2), torch.zeros(1, 3, 3), 0)
    assert empty.to_dense().count_nonzero() == 0
    torch.testing.assert_close(empty.add_diagonal(2.0).logdet().exp(), torch.tensor(64.0, dtype=torch.float64))


def test_the_eigenvectors_are_found_once():
    data = kronecker((1, 3, 5), seeded(0))
    with Calls("eigh") as calls:
        for prior in (0.1, 1.0, torch.full((15,), 3.0)):
            data.add_diagonal(prior).logdet()
            data.add_diagonal(prior).add_diagonal(1.0).logdet()
    assert calls.count == 2  # one for each factor


def test_priors_in_float32_are_recognised():
    data = kronecker((2, 4, 3), seeded(0))
    u, w = positive(2, 4, 1, g=seeded(1)).float(), positive(2, 1, 3, g=seeded(2)).float()
    prior = (u * w).flatten()
    added = data.add_diagonal(prior)
    expected = data.to_dense() + torch.diag(prior.double())
    torch.testing.assert_close(added.to_dense(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(added.logdet(), torch.logdet(expected), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(added.add_diagonal(prior).logdet(), torch.logdet(expected + torch.diag(prior.double())))


def test_another_diagonal_is_refused_and_told_where_it_goes():
    data = kronecker((1, 3, 4), seeded(0))
    nearly = (positive(1, 3, 1, g=seeded(1)) * positive(1, 1, 4, g=seeded(2))).flatten()
    nearly[5] += 1e-9
    for prior in (nearly, positive(12, g=seeded(3))):
        with pytest.raises(UnsupportedError, match=r"'full', 'block', 'diagonal' and 'low_rank'"):
            data.add_diagonal(prior)
    with pytest.raises(UnsupportedError):  # an outer product and a constant
        data.add_diagonal((positive(1, 3, 1, g=seeded(1)) * positive(1, 1, 4, g=seeded(2))).flatten()).add_diagonal(1.0)
    with pytest.raises(InputError, match=r"\(12,\), got \(11,\)"):
        data.add_diagonal(torch.ones(11))


def test_a_singular_curvature_is_refused_with_a_direction():
    data = kronecker((2, 4, 3), seeded(0), rank=2).add_diagonal(-0.1)
    with pytest.raises(NotPositiveDefiniteError, match="Add a prior") as caught:
        data.logdet()
    smallest, direction = caught.value.smallest_eigenvalue, caught.value.direction
    values = torch.linalg.eigvalsh(data.to_dense())
    assert smallest == pytest.approx(float(values[0]))
    torch.testing.assert_close(data.multiply(direction), smallest * direction)
    assert float(direction.norm()) == pytest.approx(1.0)


def test_what_has_no_positive_eigenvalues_is_refused_whatever_is_asked():
    data = kronecker((1, 4, 3), seeded(0), rank=1)
    tape, vector = outer_tape((1, 4, 3), 2, 1, 1, torch.float64), torch.ones(12, dtype=torch.float64)
    for prior in (
        -1.0,
        float("nan"),
        float("inf"),
        torch.linspace(-1, 1, 12).reshape(4, 3)[:, :1].expand(4, 3).flatten(),
    ):
        precision = data.add_diagonal(prior)
        verbs = [precision.logdet, precision.marginal_variance, lambda p=precision: p.solve(vector)]
        verbs += [lambda p=precision: p.sqrt_solve(vector), lambda p=precision: p.covariance_of(tape)]
        for verb in verbs:
            with pytest.raises(NotPositiveDefiniteError):
                verb()


def test_non_finite_factors_are_refused():
    a, b = gram(1, 3, 3, seeded(0)), gram(1, 2, 3, seeded(1))
    a[0, 0, 0] = float("nan")
    with pytest.raises(NotPositiveDefiniteError, match="layer: expected finite"):
        KroneckerPrecision(a, b, 1, name="layer").add_diagonal(1.0).logdet()


def test_a_negative_curvature_is_left_as_it_is():
    """Nothing is clamped: the factors of a Hessian may be indefinite, and the prior may make up for it."""
    a = gram(1, 3, 5, seeded(0))
    data = KroneckerPrecision(a, -torch.eye(2, dtype=torch.float64)[None], 1.0)
    largest = float(torch.linalg.eigvalsh(a[0])[-1])
    enough = data.add_diagonal(largest + 0.1)
    torch.testing.assert_close(enough.logdet(), torch.logdet(enough.to_dense()))
    with pytest.raises(NotPositiveDefiniteError):
        data.add_diagonal(largest - 0.1).logdet()


def test_tapes_of_other_shapes_are_refused():
    precision = kronecker((1, 3, 4), seeded(0)).add_diagonal(1.0)
    with pytest.raises(UnsupportedError, match=r"\(1, 3, 4\), got shape \(1, 4, 3\)"):
        precision.covariance_of(outer_tape((1, 4, 3), 2, 1, 1, torch.float64))
    with pytest.raises(UnsupportedError, match="DenseTape"):
        precision.variance_of(DenseTape(torch.ones(2, 1, 12)))


@pytest.mark.parametrize("shape", [((1, 3, 4), (1, 4, 4)), ((1, 3, 4), (2, 3)), ((1, 3), (2, 2, 2)), ((3,), (1, 2, 2))])
def test_factors_of_other_shapes_are_refused(shape):
    with pytest.raises(InputError, match="factors of shapes"):
        KroneckerPrecision(torch.ones(shape[0]), torch.ones(shape[1]), 1)


def test_sums_with_unlike_factors_are_refused():
    with pytest.raises(UnsupportedError, match="kfac"):
        kronecker((1, 3, 6), seeded(0)) + counted((1, 3, 6), seeded(0))
    for other in (
        kronecker((1, 6, 3), seeded(0)),
        DensePrecision(torch.eye(18)),
        LowRankPrecision(torch.ones(18, 1), torch.ones(1)),
    ):
        with pytest.raises(UnsupportedError):
            kronecker((1, 3, 6), seeded(0)) + other


def test_the_tape_of_a_bias_joined():
    tape = OuterTape(normal(5, 1, 1, 3, g=seeded(0)), normal(2, 5, 1, 1, 4, g=seeded(1)), bias=True)
    precision = kronecker((1, 4, 4), seeded(2)).add_diagonal(0.5)
    jacobian = tape.jacobian(slice(None))
    expected = jacobian @ torch.linalg.inv(precision.to_dense()) @ jacobian.mT
    torch.testing.assert_close(precision.covariance_of(tape), expected)


def test_a_large_table_takes_its_own_size():
    """100,000 tokens in 4 dimensions: a matrix over the tokens would take 80 GB."""
    counts = torch.arange(100_000, dtype=torch.float64)[None] % 7
    data = KroneckerPrecision(counts, gram(1, 4, 9, seeded(0)), 3.0)
    precision = data.add_diagonal(0.5)
    zero = torch.zeros(precision.dim, dtype=torch.float64)
    for answer in (
        precision.diagonal(),
        precision.marginal_variance(),
        precision.solve(zero),
        precision.multiply(zero),
    ):
        assert answer.shape == (400_000,)
    tape = lookup_tape((1, 4, 100_000), 3, 2, 2, torch.float32)
    for prior in (data.add_diagonal(0.5), data.add_diagonal(separable((1, 4, 100_000), seeded(1)))):
        assert prior.logdet().isfinite()
        assert prior.variance_of(tape).shape == (3, 2)
