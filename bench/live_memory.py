"""The bytes of the tensors that live at once while something runs, whoever made them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the storages that operations make until they are freed.

    Attributes:
        peak: the most bytes that lived at once, without what lived before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and counts its answer, unless it is a view of what was counted or of an argument."""
        given = {_storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        answer = func(*args, **(kwargs or {}))
        for each in tree_leaves(answer):
            if isinstance(each, torch.Tensor) and _storage(each) not in given | self._known:
                self._count(each.untyped_storage())
        return answer

    def _count(self, storage: torch.UntypedStorage) -> None:
        name, size = storage._cdata, storage.nbytes()
        self._known.add(name)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._freed, name, size)

    def _freed(self, name: int, size: int) -> None:
        self._known.discard(name)
        self._now -= size


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes of tensors that lived at once while it ran."""
    with LiveTensors() as counted:
        run()
    return counted.peak
