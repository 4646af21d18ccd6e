"""Numbers of many rows in temporary files: for passes over more rows than memory holds.

The files have no names. The operating system frees one as soon as nobody reads it any more, also where a fit fails, is
interrupted or killed, so that there is nothing to tidy up. They are read by ordinary reads and not mapped, so that they
count as no process's memory.
"""

from __future__ import annotations

import errno
import io
import math
import tempfile
import weakref
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import InputError


@final
class RowFile:
    """Numbers of N rows, written once from the first to the last and read by slices.

    Args:
        shape: of one row.
        dtype: of the numbers, NumPy's.
        file: where they are written; a new temporary file by default.
    """

    def __init__(self, shape: tuple[int, ...] = (), dtype: Any = np.float64, file: io.FileIO | None = None) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._width = math.prod(shape)
        self._rows = 0
        self._file = file or tempfile.TemporaryFile()  # noqa: SIM115 — closed, and so freed, with the last reference to this
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """What it takes of the disk."""
        return self._rows * self._width * self.dtype.itemsize

    def append(self, numbers: np.ndarray) -> None:
        """Writes more rows, shape (n, *shape).

        Raises:
            InputError: if the disk is full.
        """
        try:
            self._file.seek(self.nbytes)
            self._file.write(np.ascontiguousarray(numbers, dtype=self.dtype).data)
            self._file.flush()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            got = "a limit to the size of files" if error.errno == errno.EFBIG else "a full disk"
            raise InputError(
                f"X: expected room for temporary files in {tempfile.gettempdir()!r}, got {got}. Set the environment "
                "variable TMPDIR to a folder with more room."
            ) from None
        self._rows += len(numbers)

    def __getitem__(self, rows: slice) -> Tensor:
        """The numbers of a range of rows, a new tensor of shape (n, *shape)."""
        return torch.from_numpy(self.array(rows))

    def array(self, rows: slice) -> np.ndarray:
        """The same as an array."""
        start, stop, _ = rows.indices(self._rows)
        numbers = np.empty((max(0, stop - start), *self.shape), self.dtype)
        self._file.seek(start * self._width * self.dtype.itemsize)
        self._file.readinto(numbers.reshape(-1).data.cast("B"))
        return numbers
