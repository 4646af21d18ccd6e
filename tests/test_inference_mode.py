"""Every public entry gives under torch's inference mode what it gives outside of it, and of use outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import bayescope as bs
from bayescope.posterior import GaussianPosterior
from bayescope.process_state import outside_inference_mode
from tests.training.toys import line, perceptron

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")

X, Y = line(30)
NETWORK = bs.fit_map(
    perceptron(hidden=3), (X, Y), likelihood="gaussian", optimizer="lbfgs", epochs=30, progress=False
).model
FAST: Mapping[str, Any] = {"likelihood": "gaussian", "generator": 0}


def posterior() -> GaussianPosterior:
    q = bs.laplace(NETWORK, (X, Y), likelihood="gaussian")
    assert isinstance(q, GaussianPosterior)
    return q


Q = posterior()
MIXTURE = bs.laplace([NETWORK, NETWORK], (X, Y), likelihood="gaussian")
DRAWS = bs.laplace(NETWORK, (X, Y), structure="samples", samples=4, **FAST)
PROCESS = bs.function_space(NETWORK, (X, Y), likelihood="gaussian")

# By name: a function of the data that gives a tensor.
ENTRIES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "fit_map": lambda x, y: bs.fit_map(NETWORK, (x, y), epochs=2, batch_size=10, validation=(x, y), **FAST).mean,
    "fit_map by L-BFGS": lambda x, y: bs.fit_map(NETWORK, (x, y), epochs=2, optimizer="lbfgs", **FAST).mean,
    "fit_evidence": lambda x, y: bs.fit_evidence(NETWORK, (x, y), epochs=3, burn_in=1, every=1, **FAST).mean,
    "fit_curvature": lambda x, y: bs.fit_curvature(NETWORK, (x, y), likelihood="gaussian").precision.diagonal(),
    "laplace": lambda x, y: bs.laplace(NETWORK, (x, y), likelihood="gaussian").log_evidence(),
    "laplace, tuned": lambda x, y: bs.laplace(
        NETWORK, (x, y), likelihood="gaussian", prior_precision="evidence"
    ).log_evidence(),
    "laplace by samples": lambda x, y: bs.laplace(NETWORK, (x, y), structure="samples", samples=4, **FAST).mean,
    "tune_prior": lambda _x, _y: bs.tune_prior(Q).log_evidence(),
    "tune_prior of a mixture": lambda _x, _y: bs.tune_prior(MIXTURE).log_evidence(),
    "tune_prior by validation": lambda x, y: bs.tune_prior(Q, method="validation", data=(x, y)).log_evidence(),
    "function_space": lambda x, y: bs.function_space(
        NETWORK, (x, y), likelihood="gaussian", prior_precision="evidence"
    ).log_evidence(),
    "function_space by features": lambda x, y: bs.function_space(
        NETWORK, (x, y), approximation="nystrom", points=9, **FAST
    ).log_evidence(),
    "select": lambda x, y: bs.select({"network": NETWORK}, (x, y), likelihood="gaussian").best.log_evidence(),
    "condition": lambda x, y: Q.condition((x, y)).mean,
    "log_evidence": lambda _x, _y: Q.log_evidence(prior_precision=3.0),
    "predict": lambda x, _y: Q.predict(x).variance,
    "predict, sampled": lambda x, _y: Q.predict(x, method="sampled", samples=5, generator=0).variance,
    "predict of a mixture": lambda x, _y: MIXTURE.predict(x).variance,
    "predict of draws": lambda x, _y: DRAWS.predict(x).variance,
    "predict of a process": lambda x, _y: PROCESS.predict(x).variance,
    "sample_functions": lambda x, _y: Q.sample_functions(x, 2, generator=0),
    "linear regression": lambda x, y: torch.as_tensor(
        bs.BayesianLinearRegression().fit(x.numpy(), y[:, 0].numpy()).log_evidence_
    ),
    "logistic regression": lambda x, y: torch.as_tensor(
        bs.BayesianLogisticRegression(prior_precision="evidence").fit(x.numpy(), (y[:, 0] > 0).numpy()).log_evidence_
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_it_makes_no_difference(name: str, mode: Callable[[], Any]) -> None:
    expected = ENTRIES[name](X, Y)
    with mode():
        found = ENTRIES[name](X.clone(), Y.clone())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_what_is_made_in_inference_mode_is_of_use_outside() -> None:
    with torch.inference_mode():
        q = bs.laplace(NETWORK, (X.clone(), Y.clone()), likelihood="gaussian")
        point = bs.fit_map(NETWORK, (X.clone(), Y.clone()), epochs=1, progress=False, **FAST)
    assert bs.tune_prior(q).log_evidence() >= q.log_evidence()
    q.condition((X, Y))
    x = X.clone().requires_grad_()
    assert torch.as_tensor(q.predict(x, differentiable=True).mean).requires_grad
    point.model(X).sum().backward()


def test_gradients_stay_as_the_caller_has_them() -> None:
    states = outside_inference_mode(lambda: (torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
    assert states() == (False, True)
    with torch.no_grad():
        assert states() == (False, False)
    with torch.inference_mode():
        assert states() == (False, False)
        assert torch.is_inference_mode_enabled()
    assert states.__name__ == "<lambda>"
