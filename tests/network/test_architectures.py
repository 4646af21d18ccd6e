"""What others write is read exactly, or refused by an error of the library that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError, UnsupportedError
from bayescope.network import Network, NetworkModel
from tests.network.architectures import ARCHITECTURES, ggn, jacobian, make
from tests.network.networks import numbers

REFUSED = {
    "complex weights": (InputError, "expected real numbers, got complex ones in 'filter'. Keep them as pairs"),
    "checkpoint, reentrant": (UnsupportedError, "use_reentrant=False"),
    "lazy": (InputError, r"'0.weight' of a lazy layer that has not seen any rows yet. Call the model once"),
}
EXACT = sorted(ARCHITECTURES.keys() - REFUSED.keys())
LABELS = torch.arange(7) % 2
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*weight_norm:FutureWarning",
    "ignore::bayescope.errors.BayescopeWarning",
    "ignore:None of the inputs have requires_grad",  # torch's, of a reentrant checkpoint
)


@pytest.mark.parametrize("name", EXACT)
def test_jacobian_curvature_and_covariance_are_those_of_automatic_differentiation(name: str) -> None:
    x, J, G = (
        ARCHITECTURES[name][1],
        jacobian(make(name), ARCHITECTURES[name][1]),
        ggn(make(name), ARCHITECTURES[name][1]),
    )
    tape = Network.trace(make(name), x).tape(x)
    torch.testing.assert_close(tape.jacobian(slice(None)), J, rtol=1e-9, atol=1e-10)
    data: Any = (x, LABELS)
    diagonal = bs.fit_curvature(make(name), data, likelihood="categorical", structure="diagonal").precision
    torch.testing.assert_close(diagonal.to_dense(), torch.diag(G.diagonal()), rtol=1e-9, atol=1e-10)
    q = bs.laplace(make(name), data, likelihood="categorical", structure="full", prior_precision=1.0)
    want = J @ torch.linalg.inv(G + torch.eye(len(G), dtype=G.dtype)) @ J.mT
    torch.testing.assert_close(q.predict(x).latent_cov, want, rtol=1e-8, atol=1e-10)
    assert bool((bs.laplace(make(name), data, likelihood="categorical").predict(x).epistemic > 0).all())


@pytest.mark.parametrize("name", EXACT)
def test_draws_are_of_all_weights_whoever_takes_them(name: str) -> None:
    x, module = ARCHITECTURES[name][1], make(name)
    weights = Network.trace(module, x).weights
    theta = weights.flat(module) + 0.1 * numbers(2, weights.dim, seed=4)
    got = NetworkModel(module, weights, 0).forward(x, theta)
    for draw, f in zip(theta, got, strict=True):
        other = make(name)
        values = weights.unflat(draw, other)
        with torch.no_grad():
            for key, parameter in other.named_parameters():
                parameter.copy_(values[key])
            torch.testing.assert_close(f, other(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in EXACT if name != "checkpoint"])
def test_training_moves_the_weights_of_a_copy(name: str) -> None:
    x, module = ARCHITECTURES[name][1], make(name)
    options: Any = {"likelihood": "categorical", "epochs": 1, "progress": False, "generator": 0}
    point = bs.fit_map(module, (x, LABELS), **options)
    assert not torch.allclose(point.predict(x).mean, module(x).softmax(-1))
    q = bs.variational(module, (x, LABELS), **options)
    assert bool((q.predict(x, generator=0).epistemic > 0).all())
    torch.testing.assert_close(module(x), make(name)(x))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_advice(name: str) -> None:
    kind, advice = REFUSED[name]
    for fit in (bs.laplace, bs.fit_curvature):
        with pytest.raises(kind, match=advice):
            fit(make(name), (ARCHITECTURES[name][1], LABELS), likelihood="categorical")


def test_variational_inference_of_a_weight_behind_an_autograd_function_has_its_spread() -> None:
    """The weight goes into the function alone, so that every draw of the output is one of the weight."""
    x = ARCHITECTURES["fused linear"][1]
    q = bs.variational(
        make("fused linear"), (x, LABELS), likelihood="categorical", epochs=1, progress=False, generator=0,
        weights=["weight"],
    )  # fmt: skip
    assert bool((q.predict(x, generator=0).epistemic > 0).all())
