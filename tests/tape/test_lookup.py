"""Embeddings, against automatic differentiation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from bayescope.tape import LookupTape
from tests.tape.autograd import draw, rows_of

ENTRIES, WIDTH = 4, 2


def expected_rows(tokens, g, padding):
    table = draw(ENTRIES, WIDTH)
    rows = rows_of(lambda t, w: functional.embedding(t, w, padding_idx=padding), tokens, g, table)[0]
    return rows.unflatten(-1, (ENTRIES, WIDTH)).mT.flatten(2)


@given(
    tokens=st.integers(0, 3).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, ENTRIES - 1), min_size=3, max_size=3), min_size=n, max_size=n)
    ),
    padding=st.sampled_from([None, 0, 3]),
)
def test_a_lookup_is_its_derivative(tokens, padding):
    tokens = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 3)
    g = draw(2, tokens.shape[0], 3, WIDTH)
    expected = expected_rows(tokens, g, padding)
    tape = LookupTape(tokens, g, ENTRIES, padding)
    assert torch.allclose(tape.jacobian(slice(None)), expected)
    assert torch.allclose(tape.squares(), expected.square().sum((0, 1)))
    scale = draw(tape.dim).exp()
    assert torch.allclose(tape.gram(scale), (expected * scale) @ expected.mT)
    assert torch.allclose(tape.norms(scale), expected.square() @ scale)


def test_a_repeated_token_is_summed_before_it_is_squared():
    g = torch.tensor([2.0, 3.0]).view(1, 1, 2, 1)
    assert LookupTape(torch.tensor([[1, 1]]), g, 3).squares().tolist() == [0, 25, 0]
    assert LookupTape(torch.tensor([[1, 2]]), g, 3).squares().tolist() == [0, 4, 9]


@pytest.mark.parametrize("padding", [None, 1])
def test_the_factors_count_tokens_and_sum_cotangents(padding):
    tokens, g = torch.tensor([[1, 1, 3], [0, 1, 0]]), draw(3, 2, 3, 2)
    tape = LookupTape(tokens, g, 5, padding)
    a = functional.one_hot(tokens, 5).double()
    if padding is not None:
        a[..., padding] = 0
    assert torch.equal(tape.input_gram(), torch.einsum("ntv->v", a)[None])
    assert torch.allclose(tape.output_gram(), torch.einsum("knto,kntp->op", g, g)[None])
    reduced = tape.reduced()
    assert torch.allclose(reduced.input_gram()[0], a.mean(1).mT @ a.mean(1))
    assert torch.allclose(reduced.output_gram()[0], torch.einsum("kno,knp->op", g.sum(2), g.sum(2)))


def test_memory_does_not_grow_with_rows_times_entries():
    """10⁵ entries, 200 rows of 8 tokens: a dense U would take 640 MB."""
    tokens = torch.randint(100_000, (200, 8), generator=torch.Generator().manual_seed(0))
    tape = LookupTape(tokens, torch.ones(2, 200, 8, 2), 100_000)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        tape.squares()
        tape.gram(torch.ones(tape.dim))
        tape.transpose_multiply(torch.ones(200, 2, 1))
    assert max(event.cpu_memory_usage for event in profile.events()) < 20 * 2**20
