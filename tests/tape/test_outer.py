"""Weight matrices, against automatic differentiation and their definitions."""

import pytest
import torch
from torch.nn import functional

from bayescope.tape import OuterTape
from tests.tape.autograd import draw, rows_of


def columns_of(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The flat positions of (W row-major, then b) in canonical order: the bias is the last column."""
    positions = torch.arange(w.numel()).view(w.shape)
    return torch.cat([positions, w.numel() + torch.arange(b.numel())[:, None]], 1).flatten()


@pytest.mark.parametrize("rows", [4, 1, 0])
@pytest.mark.parametrize("positions", [(), (1,), (3,), (2, 5)])
def test_a_linear_layer_is_its_derivative(positions, rows):
    x, w, b = draw(rows, *positions, 3), draw(4, 3), draw(4)
    g = draw(2, rows, *positions, 4)
    expected = torch.cat(rows_of(functional.linear, x, g, w, b), -1)[..., columns_of(w, b)]
    count = torch.tensor(positions, dtype=torch.int64).prod()
    tape = OuterTape(x.reshape(rows, int(count), 1, 3), g.reshape(2, rows, int(count), 1, 4), bias=True)
    assert tape.shape == (1, 4, 4)
    assert torch.allclose(tape.jacobian(slice(None)), expected, rtol=1e-12, atol=1e-12)


def test_shared_cotangents_are_those_of_every_row():
    """The identity seeds of a last layer: U is the Jacobian of f = W x + b."""
    x, w, b = draw(5, 3), draw(2, 3), draw(2)
    identity = torch.eye(2, dtype=torch.float64)
    expected = torch.cat(rows_of(functional.linear, x, identity[:, None].expand(-1, 5, -1), w, b), -1)
    tape = OuterTape(x[:, None, None], identity[:, None, None, None], bias=True)
    assert torch.allclose(tape.jacobian(slice(None)), expected[..., columns_of(w, b)])
    assert torch.allclose(tape.output_gram(), 5 * identity[None])


def test_a_module_called_twice_joins_its_positions():
    x, z, w, b = draw(4, 3, seed=1), draw(4, 3, seed=2), draw(2, 3), draw(2)
    g, h = draw(3, 4, 2, seed=3), draw(3, 4, 2, seed=4)
    once, again = (torch.cat(rows_of(functional.linear, *pair, w, b), -1) for pair in ((x, g), (z, h)))
    first = OuterTape(x[:, None, None], g[:, :, None, None], bias=True)
    second = OuterTape(z[:, None, None], h[:, :, None, None], bias=True)
    both = OuterTape.join([first, second])
    assert both.positions == 2
    assert torch.allclose(both.jacobian(slice(None)), (once + again)[..., columns_of(w, b)])


@pytest.mark.parametrize("shared", [False, True])
def test_the_factors_are_second_moments(shared):
    a, g = draw(5, 2, 3, 4), draw(3, 1 if shared else 5, 2, 3, 2)
    tape = OuterTape(a, g, bias=True)
    joined = torch.cat([a, torch.ones_like(a[..., :1])], -1)
    full = g.expand(-1, 5, -1, -1, -1)
    assert torch.allclose(tape.input_gram(), torch.einsum("ntgd,ntge->gde", joined, joined))
    assert torch.allclose(tape.output_gram(), torch.einsum("kntgo,kntgp->gop", full, full))
    reduced = tape.reduced()
    assert (reduced.positions, reduced.shape) == (1, tape.shape)
    mean, total = joined.mean(1), full.sum(2)
    assert torch.allclose(reduced.input_gram(), torch.einsum("ngd,nge->gde", mean, mean))
    assert torch.allclose(reduced.output_gram(), torch.einsum("kngo,kngp->gop", total, total))


def test_one_row_with_one_output_is_the_product_of_its_factors():
    """Where N = T = K = 1 the curvature is a Kronecker product, which tells left from right."""
    tape = OuterTape(draw(1, 1, 1, 3), draw(1, 1, 1, 1, 2))
    u = tape.jacobian(slice(None))[0, 0]
    assert torch.allclose(torch.outer(u, u), torch.kron(tape.output_gram()[0], tape.input_gram()[0]))


@pytest.mark.parametrize("positions", [1, 2, 4])  # two outputs: by pairs of positions up to three, and not beyond
def test_covariances_are_differentiable_in_scale_and_factors(positions):
    """The scale depends on the prior, the factors on x."""

    def covariance(a, g, scale):
        return OuterTape(a, g, bias=True).gram(scale), OuterTape(a, g, bias=True).norms(scale)

    factors = draw(3, positions, 1, 3), draw(2, 3, positions, 1, 2)
    arguments = [x.requires_grad_() for x in (*factors, draw(8).exp())]
    assert torch.autograd.gradcheck(covariance, arguments)


def test_identity_cotangents_are_rotated_like_any_others():
    a, left, right = draw(6, 1, 1, 5), draw(1, 4, 4), draw(1, 6, 6)
    eye = torch.eye(4, dtype=torch.float64)[:, None, None, None]
    quick = OuterTape(a, eye, bias=True).rotated(left, right)
    plain = OuterTape(a, eye.expand(-1, 6, -1, -1, -1), bias=True).rotated(left, right)
    assert torch.allclose(quick.jacobian(slice(None)), plain.jacobian(slice(None)))
    assert not torch.allclose(
        quick.jacobian(slice(None)), OuterTape(a, eye, bias=True).rotated(left.mT, right).jacobian(slice(None))
    )
