from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayescope.errors import InputError, InputTypeError
from bayescope.network import Batches, map_arrays

x, y = torch.arange(14.0, dtype=torch.float64).reshape(7, 2), torch.arange(7)
module = nn.utils.skip_init(nn.Linear, 2, 3)


class Tokens(Dataset[dict[str, Any]]):
    """A data set of dicts, as Hugging Face's are."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= 5:
            raise IndexError
        return {"input_ids": torch.tensor([index, index + 1]), "attention_mask": torch.ones(2), "labels": index % 2}


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(x, y, strict=True))


def joined(batches: Batches) -> tuple[Any, torch.Tensor]:
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def loader(*args: Any, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(*args, generator=torch.Generator(), **kwargs)


@pytest.mark.parametrize(
    "data",
    [
        (x, y),
        (x.numpy(), y.numpy()),
        (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
        (x.tolist(), y.tolist()),
        TensorDataset(x, y),
        loader(TensorDataset(x, y), batch_size=3),
        loader(Stream(), batch_size=3),
        [(x[:3], y[:3]), (x[3:3], y[3:3]), [x[3:], y[3:]]],
    ],
)
def test_every_form_gives_all_rows_in_order_and_in_the_type_of_the_module(data: Any) -> None:
    batches = Batches(data, module, batch_size=3)
    assert batches.rows == 7
    for _ in range(2):
        inputs, targets = joined(batches)
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs, x.float())
        assert torch.equal(targets, y)
    assert batches.rows == 7
    assert len(batches.first()[1]) == 3


def test_arrays_come_in_the_size_asked_for() -> None:
    assert [len(targets) for _, targets in Batches((x, y), module, batch_size=3)] == [3, 3, 1]


def test_the_modules_type_decides() -> None:
    double = nn.utils.skip_init(nn.Linear, 2, 3, dtype=torch.float64)
    assert Batches((x.float(), y), double).first()[0].dtype == torch.float64
    assert Batches((x.float(), y), nn.Flatten()).first()[0].dtype == torch.float32


@pytest.mark.parametrize(
    "data",
    [
        ({"input_ids": y[:, None], "attention_mask": x}, y),
        {"input_ids": y[:, None], "attention_mask": x, "labels": y},
        [{"input_ids": y[:, None], "attention_mask": x, "label": y}],
    ],
)
def test_dicts_keep_whole_numbers_whole(data: Any) -> None:
    inputs, targets = Batches(data, module).first()
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert inputs["input_ids"].dtype == torch.int64
    assert inputs["attention_mask"].dtype == torch.float32
    assert torch.equal(targets, y)


def test_a_dataset_of_dicts() -> None:
    batches = Batches(Tokens(), module, batch_size=2)
    assert [len(targets) for _, targets in batches] == [2, 2, 1]
    assert batches.first()[0]["input_ids"].tolist() == [[0, 1], [1, 2]]


def test_several_inputs_come_in_a_tuple() -> None:
    (first, second), targets = Batches(((x, x.numpy()), y), module, batch_size=4).first()
    assert torch.equal(first, second)
    assert first.shape == (4, 2)
    (first, second), targets = Batches([([x, x], y)], module).first()
    assert first.shape == (7, 2)
    assert len(targets) == 7


@pytest.mark.global_rng
def test_a_loader_may_shuffle() -> None:
    batches = Batches(DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True, drop_last=True), module)
    inputs, targets = joined(batches)
    assert batches.rows == 6
    assert torch.equal(inputs[:, 0], 2.0 * targets)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((x, y[:6]), InputError, "as many targets as inputs, 7"),
        ((x, torch.tensor(1)), InputError, "as many targets"),
        (((x, x[:3]), y), InputError, "same number of rows"),
        ({"input_ids": x}, InputError, "under 'labels'"),
        (x, InputTypeError, "got Tensor"),
        ("table.csv", InputTypeError, "got str"),
        ([x, y], InputTypeError, "got list"),
        ((np.array([["a", "b"]]), [1]), InputTypeError, "Encode text"),
        ((pd.DataFrame({"a": ["u"], "b": [1]}), [1]), InputTypeError, "expected numbers"),
    ],
)
def test_what_is_no_data_is_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Batches(data, module)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(x, x, y, y)], "of length 4"),
        ([(x, y[:3])], "as many targets"),
        (loader([x, x]), "expected batches"),
    ],
)
def test_batches_that_are_no_pairs_are_refused_when_read(data: Any, message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        Batches(data, module).first()


@pytest.mark.parametrize("data", [(x[:0], y[:0]), [], [(x[:0], y[:0])]])
def test_no_rows_at_all_are_refused(data: Any) -> None:
    batches = Batches(data, module)
    with pytest.raises(InputError, match="at least one row"):
        batches.first()
    with pytest.raises(InputError, match="at least one row"):
        list(batches)


def test_the_callers_tensors_are_not_written_to() -> None:
    leaf = x.clone().requires_grad_()
    inputs, _ = Batches((leaf, y), nn.utils.skip_init(nn.Linear, 2, 3, dtype=torch.float64)).first()
    assert not inputs.requires_grad
    read_only = x.numpy().copy()
    read_only.flags.writeable = False
    Batches((read_only, y), module).first()


def test_dropped_rows_are_counted_where_they_can_be() -> None:
    table = TensorDataset(x, y)
    assert Batches(loader(table, batch_size=3, drop_last=True), module).dropped == 1
    kept = torch.utils.data.BatchSampler(range(6), 4, drop_last=True)
    assert Batches(loader(table, batch_sampler=kept), module).dropped == 2
    for whole in (loader(table, batch_size=3), loader(table, batch_size=7, drop_last=True), table, (x, y)):
        assert Batches(whole, module).dropped == 0
    assert Batches(loader(Stream(), batch_size=3, drop_last=True), module).dropped == 0


def test_a_loader_is_no_input() -> None:
    with pytest.raises(InputTypeError, match=r"expected arrays or tensors, got a DataLoader\. Give it by itself"):
        map_arrays(loader(TensorDataset(x, y)))


def test_whole_numbers_of_arrays_and_data_frames_stay_whole() -> None:
    for table in (np.arange(14).reshape(7, 2), pd.DataFrame(np.arange(14).reshape(7, 2))):
        assert Batches((table, y), module).first()[0].dtype == torch.int64
        assert Batches((table.astype(float), y), module).first()[0].dtype == torch.float32


def passes() -> Any:
    """Starts a pass over batches, as a function that yields them does."""
    yield from ((x[rows], y[rows]) for rows in (slice(0, 3), slice(3, 7)))


def test_a_function_starts_each_pass_anew() -> None:
    batches = Batches(passes, module)
    assert batches.rows == 7
    for _ in range(2):
        inputs, targets = joined(batches)
        assert torch.equal(inputs, x.float())
        assert torch.equal(targets, y)


@pytest.mark.parametrize("data", [passes(), iter([(x, y)]), ((x, y) for _ in range(1))])
def test_what_can_be_read_once_is_refused(data: Any) -> None:
    with pytest.raises(InputTypeError, match=r"several passes, .* Give list\(batches\), or a function"):
        Batches(data, module)


class Places:
    """Rows by their places, of no class that torch knows."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"input": x[place].tolist(), "label": int(y[place])}


def test_an_object_that_gives_rows_by_their_places_is_a_data_set() -> None:
    inputs, targets = zip(*Batches(Places(), module, batch_size=3), strict=True)  # type: ignore[arg-type]
    assert [len(part) for part in targets] == [3, 3, 1]
    assert torch.equal(torch.cat([part["input"] for part in inputs]), x.float())  # type: ignore[call-overload]
    assert torch.equal(torch.cat(targets), y)


@pytest.mark.parametrize("name", ["labels", "label", "targets", "target", "y"])
def test_a_dict_has_its_targets_under_one_of_several_names(name: str) -> None:
    inputs, targets = Batches({"input": x, name: y}, module).first()
    assert list(inputs) == ["input"]
    assert torch.equal(targets, y)


def test_two_names_that_may_be_that_of_the_targets_are_refused() -> None:
    with pytest.raises(InputError, match=r"'label' and 'y'\. Leave one out, or give pairs"):
        Batches({"input": x, "label": y, "y": y}, module)
    inputs, _ = Batches(({"input": x, "y": y}, y), module).first()
    assert list(inputs) == ["input", "y"]
