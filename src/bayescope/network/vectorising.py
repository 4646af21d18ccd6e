"""Vectorised passes through networks, without torch's word on how fast they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bayescope.process_state import ignoring

# An operation without a batching rule is looped over, exact and nobody's to mend; the first forward-mode derivative of
# a process has torch compile rules of its own, by what it has since deprecated.
_IGNORED = (
    ignoring("There is a performance drop", UserWarning),
    ignoring(".*torch.jit.script.* is deprecated", DeprecationWarning),
)


@contextmanager
def vectorising() -> Iterator[None]:
    """Around ``torch.func.vmap``: its warnings about itself are not for our callers."""
    with _IGNORED[0].inside(), _IGNORED[1].inside():
        yield
