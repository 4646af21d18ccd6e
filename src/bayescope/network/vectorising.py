"""Vectorised passes through networks, without torch's word on how fast they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def vectorising() -> Iterator[None]:
    """Around ``torch.func.vmap``: an operation without a batching rule is looped over, exact and nobody's to mend."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield
