from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from bayescope.errors import InputError
from bayescope.network import Network
from bayescope.network.forward import moves_rows
from bayescope.network.recording import separating
from bayescope.network.trace import ORDER
from bayescope.tape import LastHessian
from tests.network.networks import Function, built, numbers

ROWS, TOKENS = 8, 4


@pytest.mark.parametrize(
    ("func", "args", "moves"),
    [
        (Tensor.__getitem__, (0,), False),
        (Tensor.__getitem__, ((slice(None), None, ..., -1),), False),
        (Tensor.__getitem__, (torch.tensor([1, 0]),), True),
        (Tensor.__getitem__, ((slice(None), [1, 0]),), True),
        (Tensor.__setitem__, (torch.tensor([True, False]), 0.0), True),
        (torch.where, (), True),
        (torch.where, (1.0, 2.0), False),
        (torch.gather, (0, torch.tensor([0])), True),
        (Tensor.index_add, (), True),
        (Tensor.scatter_, (), True),
        (Tensor.tolist, (), True),
        (torch.tanh, (), False),
        (Tensor.masked_fill, (), False),
    ],
)
def test_which_calls_can_move_rows_by_value(func: Any, args: tuple[Any, ...], moves: bool) -> None:
    assert moves_rows(func, (torch.zeros(2), *args)) is moves


def sorted_rows(m: Any, y: Tensor, _: Tensor) -> Tensor:
    order = y[:, 0, 0].argsort()
    return F.linear(y[order].sum(1), m.w, m.b).tanh()[order.argsort()]


def ordered_by_python(m: Any, y: Tensor, _: Tensor) -> Tensor:
    keys = y[:, 0, 0].tolist()
    order = sorted(range(len(keys)), key=keys.__getitem__)
    z = F.linear(torch.stack([y[n] for n in order]).sum(1), m.w, m.b).tanh()
    return torch.stack([z[order.index(n)] for n in range(len(keys))])


def scattered(m: Any, y: Tensor, _: Tensor) -> Tensor:
    top = (-y[:, 0, 0]).topk(len(y)).indices
    z = F.linear(y.sum(1).index_select(0, top), m.w, m.b).tanh()
    return torch.zeros_like(z).scatter(0, top[:, None].expand_as(z), z)


def live(y: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(y.shape[1]) < lengths[:, None]


def ragged(m: Any, y: Tensor, lengths: Tensor) -> Tensor:
    mask = live(y, lengths)
    z = y.new_zeros(*mask.shape, 3)
    z[mask] = F.linear(y[mask], m.w, m.b).tanh()
    return z.sum(1)


def packed(m: Any, y: Tensor, lengths: Tensor) -> Tensor:
    p = pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
    z = PackedSequence(F.linear(p.data, m.w, m.b).tanh(), p.batch_sizes, p.sorted_indices, p.unsorted_indices)
    return pad_packed_sequence(z, batch_first=True, total_length=y.shape[1])[0].sum(1)


def batch(*, moved: bool) -> tuple[Tensor, Tensor]:
    """Rows out of order and of unlike lengths, of the same number of tokens in all; or in order and full."""
    y = numbers(ROWS, TOKENS, 4)
    order = y[:, 0, 0].argsort()
    y = y[torch.cat([order[ROWS // 2 :], order[: ROWS // 2]])] if moved else y[order]
    lengths = torch.tensor([1, 3, 2, 2, 3, 1, 2, 2] if moved else [TOKENS] * ROWS)
    return y, lengths


def one_by_one(module: Any, inputs: tuple[Tensor, Tensor]) -> Tensor:
    """The Jacobian, a row of the batch and an output at a time."""
    rows = []
    for n in range(ROWS):
        f = module(*(tensor[n : n + 1] for tensor in inputs))[0]
        grads = [torch.autograd.grad(value, list(module.parameters()), retain_graph=True) for value in f]
        rows.append(torch.stack([torch.cat([g.flatten() for g in of_one]) for of_one in grads]))
    return torch.stack(rows)


FUNCTIONS = [sorted_rows, ordered_by_python, scattered, ragged, packed]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_that_a_trace_sees_moved_are_read_one_by_one(function: Any) -> None:
    module = built(lambda: Function(function, w=(3, 4), b=(3,)))
    moved, in_place = batch(moved=True), batch(moved=False)
    network = Network.trace(module, moved)
    assert [part.kind for part in network.parts] == ["per-row"]
    for inputs in (moved, in_place):
        got = network.tape(inputs).jacobian(slice(None))
        torch.testing.assert_close(got, one_by_one(module, inputs), rtol=1e-10, atol=1e-12)


def unseen() -> tuple[Tensor, Tensor]:
    """A batch of which the trace happens to take the rows in order."""
    y, lengths = batch(moved=False)
    place = [ORDER.index(n) for n in range(len(ORDER))]
    return y[place], lengths[place]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_that_move_after_the_trace_are_refused(function: Any) -> None:
    module = built(lambda: Function(function, w=(3, 4), b=(3,)))
    in_place, state = batch(moved=False), torch.get_rng_state()
    network = Network.trace(module, unseen())
    assert [part.kind for part in network.parts] == ["linear"]
    got = network.tape(in_place).jacobian(slice(None))
    torch.testing.assert_close(got, one_by_one(module, in_place), rtol=1e-10, atol=1e-12)
    with pytest.raises(InputError, match="moves the rows of this batch before they meet 'w', 'b'"):
        network.tape(batch(moved=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_two_rows_in_each_others_places_are_found_whichever_they_are() -> None:
    network = Network.trace(built(lambda: Function(sorted_rows, w=(3, 4), b=(3,))), unseen())
    in_place, lengths = batch(moved=False)
    for one, other in itertools.combinations(range(ROWS), 2):
        exchanged = in_place.clone()
        exchanged[[one, other]] = in_place[[other, one]]
        with pytest.raises(InputError, match="moves the rows"):
            network.tape((exchanged, lengths))


def test_a_token_in_the_place_of_the_row_before_is_found_whichever_it_is() -> None:
    """Rows of three and five tokens where all had four: their table has the same size, and one token is displaced."""
    y = numbers(24, TOKENS + 1, 4)
    lengths = torch.full((24,), TOKENS)
    network = Network.trace(built(lambda: Function(ragged, w=(3, 4), b=(3,))), (y, lengths))
    assert [part.kind for part in network.parts] == ["linear"]
    for row in range(23):
        other = lengths.clone()
        other[row : row + 2] += torch.tensor([-1, 1])
        with pytest.raises(InputError, match="moves the rows"):
            network.tape((y, other))


@pytest.mark.parametrize("rows", [2, 3, 6, 7, 20, 21, 70, 256])
def test_of_any_two_rows_each_is_in_a_part_without_the_other(rows: int) -> None:
    parts = separating(rows)
    apart = (parts[:, :, None] & ~parts[:, None, :]).any(0)
    assert torch.equal(apart, ~torch.eye(rows, dtype=torch.bool))
    assert len(parts) == {2: 2, 3: 3, 6: 4, 7: 5, 20: 6, 21: 7, 70: 8, 256: 11}[rows]


def test_a_last_layer_that_rows_reach_out_of_order_is_checked_as_well() -> None:
    def head(m: Any, y: Tensor, _: Tensor) -> Tensor:
        order = y[:, 0, 0].argsort()
        return F.linear(y[order].sum(1), m.w)[order.argsort()]

    network = Network.trace(built(lambda: Function(head, w=(3, 4))), unseen())
    assert network.head
    recording = network.record(batch(moved=True))
    with pytest.raises(InputError, match="moves the rows"):
        recording.tape(numbers(2, ROWS, 3))
    with pytest.raises(InputError, match="moves the rows"):
        recording.head_tape(LastHessian(numbers(ROWS, 3), lambda: numbers(3, 3), lambda: numbers(2, ROWS, 3)))


@pytest.mark.parametrize("function", [sorted_rows, ordered_by_python, scattered])
def test_a_sort_is_seen_on_rows_that_are_in_order(function: Any) -> None:
    network = Network.trace(built(lambda: Function(function, w=(3, 4), b=(3,))), batch(moved=False))
    assert [part.kind for part in network.parts] == ["per-row"]
