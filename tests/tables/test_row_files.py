"""Numbers in temporary files: what is read is what was written, and nothing is left."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from bayescope.errors import InputError
from bayescope.tables import Constant, RowFile


@pytest.mark.parametrize(
    ("shape", "dtype"), [((), np.float64), ((3,), np.float64), ((2, 5), np.uint16), ((), np.int64)]
)
def test_slices_are_those_of_what_was_written(shape, dtype):
    numbers = (1000 * np.random.default_rng(0).random((23, *shape))).astype(dtype)
    file = RowFile(shape, dtype)
    for part in np.array_split(numbers, [4, 4, 19]):  # one of them empty
        file.append(part)
        assert np.array_equal(file[0 : len(file)].numpy(), numbers[: len(file)])  # reading moves no end of the file
    assert len(file) == 23
    assert file.nbytes == numbers.nbytes
    for rows in (slice(0, 23), slice(5, 9), slice(22, 40), slice(7, 7)):
        found = file[rows]
        assert np.array_equal(found.numpy(), numbers[rows])
        assert found.numpy().dtype == dtype
    found = file[2:4]
    found.numpy()[:] = 1  # a tensor of its own
    assert np.array_equal(file[2:4].numpy(), numbers[2:4])


def test_strided_numbers_are_written_by_their_values():
    table = np.arange(12.0).reshape(3, 4)
    file = RowFile((3,))
    file.append(table.T)
    assert np.array_equal(file[0:4].numpy(), table.T)


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "a full disk"), (errno.EFBIG, "a limit to the size")])
def test_a_full_disk_is_told(monkeypatch, number, said):
    class Full:
        def seek(self, place: int) -> None:
            """Anywhere."""

        def write(self, data: object) -> None:
            raise OSError(number, f"no room for {data}")

    file = RowFile()
    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(InputError, match=rf"expected room for temporary files in .*{said}.* TMPDIR"):
        file.append(np.zeros(2))


def test_files_have_no_name(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = RowFile()
    file.append(np.zeros(100))
    assert list(tmp_path.iterdir()) == []


def test_a_constant_has_rows():
    assert torch.equal(Constant(2.0, 5)[3:9], torch.tensor([2.0, 2.0], dtype=torch.float64))
    assert len(Constant(2.0, 5)) == 5
