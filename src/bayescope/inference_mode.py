"""Torch's inference mode, outside of which what we make has to be of use."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def outside_inference_mode(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Lets a function run as under ``torch.no_grad()`` where it is called under ``torch.inference_mode()``.

    Tensors that are made in inference mode can never meet autograd again: a posterior of them could not be tuned, nor
    conditioned on more data.
    """

    @wraps(function)
    def outside(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        if not torch.is_inference_mode_enabled():
            return function(*arguments, **options)
        with torch.inference_mode(False), torch.no_grad():
            return function(*arguments, **options)

    return outside
