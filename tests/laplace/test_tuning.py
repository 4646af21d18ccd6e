"""`tune_prior`: a new posterior at the same weights, what it reports, and what it refuses."""

from __future__ import annotations

import copy
import functools
import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from bayescope import laplace
from bayescope.errors import (
    BayescopeWarning,
    ConvergenceWarning,
    InputError,
    InputTypeError,
    OptionError,
    UndefinedQuantityError,
    UnsupportedError,
)
from bayescope.laplace import LaplaceFit, tune_prior
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.posterior import GaussianPosterior, MixturePosterior, PointPosterior, Record
from tests.laplace.problems import (
    DTYPE,
    closed_form,
    flat,
    mlp,
    normal,
    nothing_written,
    penalty,
    seeded,
    set_flat,
    train,
)

X = normal(60, 2, seed=1)
Y = torch.stack([(2 * X[:, 0]).sin(), X[:, 1]], 1) + 0.3 * normal(60, 2, seed=2)
LABELS = (Y[:, 0] > 0).long()
NOISE = 0.09


@functools.lru_cache
def _trained(prior_precision: float, seed: int) -> nn.Module:
    module = mlp(2, seed=seed)
    train(module, lambda: 0.5 * (module(X) - Y).square().sum() / NOISE + penalty(module, prior_precision))
    return module


def trained(prior_precision: float = 0.6, seed: int = 0) -> nn.Module:
    return copy.deepcopy(_trained(prior_precision, seed))


def fitted(module: nn.Module | list[nn.Module], y: Any = None, **options: Any) -> Any:
    options = {"likelihood": "gaussian", "prior_precision": 0.6, **options}
    with warnings.catch_warnings():  # a noise variance of 1 is far from that of the residuals
        warnings.simplefilter("ignore", BayescopeWarning)
        return laplace(module, (X, Y if y is None else y), **options)


def tuned(q: Any, **options: Any) -> Any:
    """`tune_prior` with its word on far modes left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*expected weights at a mode")
        return tune_prior(q, **options)


def fit_of(q: Any) -> LaplaceFit:
    assert isinstance(q.fit, LaplaceFit)
    return q.fit


def untrained(**options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fitted(mlp(2), **options)


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_a_new_posterior_at_the_same_weights_and_q_as_it_was(structure: str) -> None:
    q = fitted(trained(), structure=structure)
    x = normal(5, 2, seed=3)
    before = (q.mean, q.covariance, q.log_evidence(), q.summary(), q.predict(x).variance)
    with nothing_written(fit_of(q).function.module):
        q2 = tuned(q)
    after = (q.mean, q.covariance, q.log_evidence(), q.summary(), q.predict(x).variance)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new
    assert torch.equal(q2.mean, q.mean)
    assert q2.log_evidence() > q.log_evidence()
    assert isinstance(q2.likelihood, Gaussian)
    assert float(q2.likelihood.noise_variance) != 1.0
    # What it predicts is what its hyperparameters say, and its evidence is that of the fit at them.
    fit = fit_of(q2)
    torch.testing.assert_close(q2.log_evidence(), fit.log_evidence())
    own = q.log_evidence(prior_precision=fit.prior.precision, noise_variance=fit.noise_variance)
    torch.testing.assert_close(q2.log_evidence(), own)
    again = replace(fit_of(q).at_noise(fit.noise_variance), prior=fit.prior).posterior()
    torch.testing.assert_close(q2.predict(x).variance, again.predict(x).variance)


@pytest.mark.parametrize("groups", ["scalar", "layer", "tensor", "weight", "feature"])
def test_finer_groups_have_no_smaller_evidence_and_hyperparameters_are_stationary(groups: str) -> None:
    q = fitted(trained(), structure="full")
    q2 = tuned(q, share_prior=groups)
    coarse = tuned(q, share_prior="scalar")
    assert float(q2.log_evidence()) >= float(coarse.log_evidence()) - 1e-8
    again = tuned(q2, share_prior=groups)
    torch.testing.assert_close(again.log_evidence(), q2.log_evidence(), rtol=0.0, atol=1e-6)
    if groups != "weight":  # some of those go to infinity
        diagonals = [fit_of(p).prior.diagonal(q.mean.shape[0]) for p in (q2, again)]
        torch.testing.assert_close(diagonals[0], diagonals[1], rtol=1e-5, atol=0.0)


def test_a_layer_each_is_the_default_and_the_noise_may_stay() -> None:
    q2 = tuned(fitted(trained(), likelihood=Gaussian(NOISE)))
    assert fit_of(q2).prior.diagonal(22).unique().numel() == 2
    assert float(fit_of(q2).noise_variance) == NOISE
    assert float(tuned(fitted(trained())).log_evidence()) > float(q2.log_evidence())


def test_the_summary_reports_hyperparameters_and_what_the_data_determine() -> None:
    q = tuned(fitted(trained()))
    fit, notes = fit_of(q), q.record.notes
    values = [float(v) for v in re.findall(r"[02]: ([\d.e+-]+)", notes["prior precision"])]
    precisions = fit.prior.diagonal(22)[[0, -1]].tolist()
    assert values == pytest.approx(precisions, rel=1e-3)
    assert float(notes["noise variance"]) == pytest.approx(float(fit.noise_variance), rel=1e-3)
    shares = [float(v) for v in re.findall(r": ([\d.e+-]+) of", notes["determined by the data"])]
    assert notes["determined by the data"].startswith("0: ")
    assert notes["determined by the data"].endswith("of 10")
    assert sum(shares) == pytest.approx(float(fit.effective_parameters()), rel=1e-3)
    variances = fit.prior.diagonal(22) * q.precision.marginal_variance()
    assert shares == pytest.approx([12 - float(variances[:12].sum()), 10 - float(variances[12:].sum())], rel=1e-3)
    assert "by the evidence, 'layer' groups" in notes["tuned"]
    assert q.trace["log_evidence"][-1] == pytest.approx(float(q.log_evidence()), abs=1e-6)
    for line in ("prior precision: 0: ", "noise variance: ", "effective parameters: ", "Newton decrement: "):
        assert f"\n  {line}" in q.summary()
    assert "prior precision: " in tuned(fitted(trained()), share_prior="scalar").summary()
    many = tuned(fitted(trained(), structure="full"), share_prior="weight").record.notes["prior precision"]
    assert many.endswith("and 14 more")


def test_a_far_mode_is_told_and_a_near_one_is_not() -> None:
    near, y, precision = seeded(lambda: nn.Linear(2, 1, bias=False)), Y[:, 1:], 1.0
    for _ in range(20):  # learnt together: each prior with its own mode
        set_flat(near, closed_form(X, y[:, 0], torch.full((2,), precision, dtype=DTYPE), NOISE).mean)
        q = fitted(near, y, likelihood=Gaussian(NOISE), structure="full", prior_precision=precision)
        precision = float(fit_of(tuned(q, share_prior="scalar")).prior.precision)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tune_prior(q, share_prior="scalar")
    confident = mlp(2)  # its own most probable labels, with a margin: the evidence takes a wide posterior
    set_flat(confident, 12.0 * flat(confident))
    far = fitted(confident, confident(X).argmax(1), likelihood="categorical", prior_precision=1e3)
    with pytest.warns(ConvergenceWarning, match=r"^Predictions .*validation.*fit_map.*fit_evidence.* of [\d.]+"):
        q2 = tune_prior(far)
    assert float(q2.record.notes["Newton decrement"]) > 1.0


def test_a_hyperparameter_without_an_optimum_is_told() -> None:
    module = trained()
    theta = torch.cat([p.detach().flatten() for p in module.parameters()])
    theta[12:20] = 0.0
    set_flat(module, theta)
    with pytest.warns(ConvergenceWarning) as caught:
        q = tune_prior(fitted(module, structure="full"), share_prior="tensor")
    said = " ".join(str(warning.message) for warning in caught)
    assert re.search(
        r"prior_precision: expected an evidence with a maximum, .* in .*2\.weight.*share_prior='scalar'", said
    )
    assert "2.weight" in q.record.notes["without an optimum"]


def test_classes_have_no_noise() -> None:
    q = untrained(y=LABELS, likelihood="categorical")
    q2 = tuned(q)
    assert isinstance(q2.likelihood, Categorical)
    assert "noise variance" not in q2.record.notes
    assert q2.log_evidence() > q.log_evidence()


def test_the_evidence_may_not_tune_the_temperature() -> None:
    with pytest.raises(UnsupportedError, match=r"temperature: .*'validation'.*goes to 1 as T grows"):
        tune_prior(untrained(), temperature=True)


def test_modes_of_a_mixture_are_tuned_each_by_itself_with_one_noise() -> None:
    modules = [trained(), trained(seed=3)]
    q = fitted(modules)
    q2 = tuned(q)
    assert isinstance(q2, MixturePosterior)
    assert torch.equal(q2.weights, q.weights)
    noises = {float(fit_of(part).noise_variance) for part in q2.components}
    assert noises == {float(q2.likelihood.noise_variance)}  # type: ignore[union-attr]
    (noise,) = noises
    for part, module in zip(q2.components, modules, strict=True):
        alone = tuned(fitted(module, likelihood=Gaussian(noise)))
        torch.testing.assert_close(part.log_evidence(), alone.log_evidence(), rtol=0.0, atol=1e-6)
    weighted = fitted(modules, mixture="evidence")
    q3 = tuned(weighted)
    evidences = torch.stack([part.log_evidence() for part in q3.components])
    torch.testing.assert_close(q3.weights, torch.softmax(evidences, 0))
    torch.testing.assert_close(q3.log_evidence(), torch.logsumexp(evidences, 0))
    assert "noise variance" in q3.record.notes


def test_what_cannot_be_tuned_is_refused() -> None:
    q = untrained()
    with pytest.raises(InputTypeError, match="q: expected a posterior"):
        tune_prior(mlp())  # type: ignore[arg-type]
    with pytest.raises(UndefinedQuantityError, match=r"q: expected a posterior whose .*got one by map. Take laplace"):
        tune_prior(PointPosterior(torch.zeros(2, dtype=DTYPE), Record("map")))
    bare = GaussianPosterior(q.location, q.precision, q.record)
    with pytest.raises(UndefinedQuantityError, match="whose evidence is a function of the prior"):
        tune_prior(bare)
    with pytest.raises(OptionError, match="method: expected one of 'evidence', 'validation'"):
        tune_prior(q, method="marglik")
    with pytest.raises(OptionError, match="share_prior: expected one of"):
        tune_prior(q, share_prior="block")
    with pytest.raises(UnsupportedError, match="share_prior: expected 'scalar' or 'layer' for the structure 'kfac'"):
        tune_prior(q, share_prior="weight")
    with pytest.raises(InputError, match="data: expected with method='validation' alone"):
        tune_prior(q, data=(X, Y))
    with pytest.raises(InputError, match="integral: expected with method='validation' alone"):
        tune_prior(q, integral="mackay")
    with pytest.raises(InputError, match="batch_size: expected with method='validation' alone"):
        tune_prior(q, batch_size=8)
    with pytest.raises(InputError, match="data: expected held-out data"):
        tune_prior(q, method="validation")


def test_it_goes_on_with_more_data_under_the_tuned_noise() -> None:
    q = tuned(fitted(trained(), structure="full"))
    more = q.condition((X[:8], Y[:8]))
    assert isinstance(more.likelihood, Gaussian)
    assert isinstance(q.likelihood, Gaussian)
    assert more.likelihood.noise_variance == q.likelihood.noise_variance
