from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.network import Network
from tests.network.networks import Function, built, jacobian, numbers

x = numbers(5, 4)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputTypeError, match=r"torch\.nn\.Module, got function"):
        Network.trace(lambda y: y, x)  # type: ignore[arg-type]


def test_torchscript_is_refused_before_anything_is_changed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(built(lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout())))
    for module in (scripted, nn.Sequential(scripted)):
        module.train()
        with pytest.raises(UnsupportedError, match="TorchScript"):
            Network.trace(module, x)
        assert all(submodule.training for submodule in module.modules())


SHAPES: dict[str, Any] = {"w": (4, 4), "v": (4, 4), "u": (3, 4)}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's, of the reentrant kind
def test_what_is_recomputed_is_read_row_by_row_or_refused_with_advice(reentrant: bool) -> None:
    def f(m: Any, y: Tensor) -> Tensor:
        start = F.linear(y, m.v) if reentrant else y
        z = checkpoint(lambda z: F.linear(F.linear(z, m.w).tanh(), m.v), start, use_reentrant=reentrant)
        return F.linear(z, m.u)

    module = built(lambda: Function(f, **SHAPES))
    if reentrant:
        with pytest.raises(UnsupportedError, match="use_reentrant=False"):
            Network.trace(module, x)
        return
    network = Network.trace(module, x)
    plain = built(lambda: Function(lambda m, y: F.linear(F.linear(F.linear(y, m.w).tanh(), m.v), m.u), **SHAPES))
    want = jacobian(plain, x, ("w", "v", "u"))
    torch.testing.assert_close(network.tape(x).jacobian(slice(None)), want, rtol=1e-10, atol=1e-12)


def test_compiled_modules_run_as_they_were_written() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
        module: Any = torch.compile(inner)
        network = Network.trace(module, x)
        got = network.tape(x).jacobian(slice(None))
    want = jacobian(inner, x, tuple(name for name, _ in inner.named_parameters()))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
