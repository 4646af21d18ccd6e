"""Changes to what all threads share are taken back, whatever the caller changes meanwhile."""

from __future__ import annotations

import warnings

import torch

from bayescope.private_draws import private_draws
from bayescope.process_state import ignoring


def test_warnings_that_were_ignored_around_the_callers_own_filters_are_there_again() -> None:
    before, quiet = list(warnings.filters), ignoring("nobody sees this either", UserWarning).inside()
    quiet.__enter__()
    with warnings.catch_warnings():
        quiet.__exit__(None, None, None)
        assert list(warnings.filters) == before
    assert list(warnings.filters) == before


def test_dropout_that_is_off_drops_nothing() -> None:
    x = torch.ones(100)
    with private_draws(0):
        assert torch.equal(torch.native_dropout(x, 0.5, False)[0], x)
        assert not torch.equal(torch.native_dropout(x, 0.5, True)[0], x)
