"""Numbers in temporary files: what is read is what was written, and nothing is left."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bayescope.errors import InputError
from bayescope.tables import RowFile
from tests.conditions import file_limit


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


REFUSED = "expected room for temporary files in .*{}.* TMPDIR"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device there")
def test_a_full_disk_is_told():
    file = RowFile(file=io.FileIO("/dev/full", "r+"))
    with pytest.raises(InputError, match=REFUSED.format("a full disk")):
        file.append(np.zeros(2))


def test_a_limit_to_the_size_of_files_is_told():
    file = RowFile()
    with file_limit(1000), pytest.raises(InputError, match=REFUSED.format("a limit to the size")):
        file.append(np.zeros(100_000))


def open_files() -> dict[tuple[int, int], int]:
    """The files that this process has open, each with the number of its names."""
    found = {}
    for number in os.listdir("/dev/fd"):
        with suppress(OSError):  # of the list itself, which is closed by now
            status = os.fstat(int(number))
            found[status.st_dev, status.st_ino] = status.st_nlink
    return found


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="open files are not listed there")
def test_files_have_no_name():
    before = open_files()
    file = RowFile()
    file.append(np.zeros(100))
    assert [names for key, names in open_files().items() if key not in before] == [0]
