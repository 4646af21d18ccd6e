from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from bayescope.errors import InputError, UndefinedQuantityError
from bayescope.likelihoods import Bernoulli, Categorical
from bayescope.linear import compile_density, find_mode, laplace, map_at
from bayescope.models import LinearModel
from bayescope.posterior import PointPosterior
from bayescope.priors import Prior
from tests.cases import LINEAR_CASES, LinearCase
from tests.reference import dense_laplace, linear_log_joint

EXACT = {"rtol": 1e-8, "atol": 1e-8}


@pytest.fixture(params=LINEAR_CASES.values(), ids=LINEAR_CASES)
def case(request: pytest.FixtureRequest) -> LinearCase:
    return request.param


def map_estimate(*arguments: Any) -> PointPosterior:
    return map_at(find_mode(compile_density(*arguments)))


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    """Ten rows around (−2, −2) and ten around (2, 2), sd 1."""
    noise = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 2
    return noise + (4.0 * labels[:, None] - 2.0), labels


def test_mode_covariance_and_evidence_are_those_of_dense_autograd(case: LinearCase):
    log_joint = linear_log_joint(case.likelihood, case.jacobian, case.targets, case.precision, case.mean)
    truth = dense_laplace(log_joint, case.model.dim)
    q = laplace(case.density)
    assert_close(q.mean, truth.mode, **EXACT)
    assert_close(q.covariance, truth.covariance, **EXACT)
    assert float(q.log_evidence()) == pytest.approx(truth.log_evidence, abs=1e-8)
    assert q.record.method == "laplace"


def test_a_point_estimate_is_the_mode_and_has_no_evidence(case: LinearCase):
    q = map_estimate(case.model, case.likelihood, case.prior, case.features, case.targets)
    full = laplace(case.density)
    assert torch.equal(q.mean, full.mean)
    with pytest.raises(UndefinedQuantityError):
        q.log_evidence()


def test_the_posterior_becomes_the_prior():
    case = LINEAR_CASES["logit"]
    first = laplace(compile_density(case.model, case.likelihood, case.prior, case.features[:20], case.targets[:20]))
    both = first.condition((case.features[20:], case.targets[20:]))
    by_hand = laplace(
        compile_density(
            case.model, case.likelihood, Prior(first.precision, first.mean), case.features[20:], case.targets[20:]
        )
    )
    assert torch.equal(both.mean, by_hand.mean)
    assert torch.equal(both.covariance, by_hand.covariance)


def test_far_from_the_data_the_point_is_sure_and_the_average_is_not():
    x, y = blobs()
    far = torch.tensor([[8.0, 10.0]], dtype=torch.float64)
    arguments = LinearModel(2), Bernoulli(), Prior(0.01), x, y
    assert float(map_estimate(*arguments).predict(far).probs[0, 1]) > 0.99
    assert 0.5 < float(laplace(compile_density(*arguments)).predict(far).probs[0, 1]) < 0.9


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_along_a_ray_confidence_tends_to_a_limit_below_one(link: str):
    x, y = blobs()
    q = laplace(compile_density(LinearModel(2, bias=False), Bernoulli(link), Prior(0.01), x, y))
    directions = torch.tensor([[1.0, 0.3], [-1.0, 1.1], [0.2, -1.0]], dtype=torch.float64)
    for u in directions:
        limit = torch.special.ndtr((q.mean @ u).abs() / (u @ q.covariance @ u).sqrt())
        confidence = q.predict(1e5 * u[None]).probs.max()
        assert float(confidence) == pytest.approx(float(limit), abs=1e-3)
        assert limit < 1.0


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_along_a_parallel_to_the_border_the_average_tends_to_one_half(link: str):
    x, y = blobs()
    arguments = LinearModel(2), Bernoulli(link), Prior(0.01), x, y
    point, q = map_estimate(*arguments), laplace(compile_density(*arguments))
    w = q.mean[:2]
    along = torch.stack([-w[1], w[0]]) / w.norm()
    start = x.mean(0) + 1.5 * w / w.norm()
    steps = torch.tensor([0.0, 5.0, 20.0, 100.0, 1e4], dtype=torch.float64)
    line = start + steps[:, None] * along
    on_point, average = point.predict(line).probs[:, 1], q.predict(line).probs[:, 1]
    assert_close(on_point, on_point[:1].expand(5), rtol=0, atol=1e-12)
    assert (average.diff() < 0).all()
    assert float(average[-1]) == pytest.approx(0.5, abs=1e-2)


def test_the_probit_predictive_is_exact():
    case = LINEAR_CASES["probit"]
    q = laplace(case.density)
    jacobian = case.jacobian[:, 0]
    variance = torch.einsum("np,pq,nq->n", jacobian, q.covariance, jacobian)
    expected = torch.special.ndtr(jacobian @ q.mean / (1.0 + variance).sqrt())
    assert_close(q.predict(case.features).probs[:, 1], expected, rtol=1e-12, atol=1e-14)


def test_renaming_the_classes_renames_the_answer():
    case = LINEAR_CASES["categorical, 3 classes"]
    order = torch.tensor([2, 0, 1])  # class k is now called order[k]
    prior = Prior(0.7)
    q = laplace(compile_density(case.model, Categorical(), prior, case.features, case.targets))
    renamed = laplace(compile_density(case.model, Categorical(), prior, case.features, order[case.targets]))
    assert float(renamed.log_evidence()) == pytest.approx(float(q.log_evidence()), abs=1e-9)
    probabilities, again = q.predict(case.features).probs, renamed.predict(case.features).probs
    # The quadrature over three outputs treats them in their order: its own error is what is left.
    assert_close(again[:, order], probabilities, rtol=0, atol=1e-3)
    weights, bias = case.model.unflat(q.mean)
    renamed_weights, renamed_bias = case.model.unflat(renamed.mean)
    assert_close(renamed_weights[order], weights, rtol=1e-8, atol=1e-8)
    assert_close(renamed_bias[order], bias, rtol=1e-8, atol=1e-8)


def test_no_data_are_refused():
    with pytest.raises(InputError, match="at least one row"):
        laplace(compile_density(LinearModel(2), Bernoulli(), Prior(), torch.zeros(0, 2), torch.zeros(0)))


def test_evidence_counts_every_constant():
    """One observation, one weight: log ∫ σ(w) N(w; 0, 1) dw = log ½, and Laplace is near it."""
    q = laplace(compile_density(LinearModel(1, bias=False), Bernoulli(), Prior(1.0), torch.ones(1, 1), torch.ones(1)))
    assert float(q.log_evidence()) == pytest.approx(math.log(0.5), abs=0.02)
