from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError, OptionError
from bayescope.estimators.priors import of_weights, prior_notes, weight_precision
from bayescope.linear import weight_prior
from bayescope.models import LinearModel
from bayescope.precision import DensePrecision
from bayescope.priors import Prior


def test_a_precision_is_a_number_one_a_feature_or_learnt():
    assert float(weight_precision(2, 3)) == 2.0
    assert weight_precision([1.0, 2.0, 3.0], 3).tolist() == [1.0, 2.0, 3.0]
    assert weight_precision("evidence", 3) is None
    with pytest.raises(OptionError, match="evidence"):
        weight_precision("evidenc", 3)
    for wrong in ([1.0, 2.0], [[1.0, 2.0, 3.0]], 0.0, float("nan")):
        with pytest.raises(InputError, match="prior_precision"):
            weight_precision(wrong, 3)


def test_a_prior_brings_its_precision():
    assert float(weight_precision(Prior(2.0), 3)) == 2.0
    assert weight_precision(Prior([1.0, 2.0, 3.0]), 3).tolist() == [1.0, 2.0, 3.0]
    for wrong in (Prior(1.0, mean=0.5), Prior(DensePrecision(torch.eye(3))), Prior([1.0, 2.0])):
        with pytest.raises(InputError, match="prior_precision"):
            weight_precision(wrong, 3)


def test_the_notes_tell_what_the_prior_says():
    model = LinearModel(2, 3)
    prior = weight_prior(model, torch.tensor([1.0, 4.0]).double(), 0.25)
    assert of_weights(prior, model).tolist() == [[1.0, 4.0]] * 3
    notes = prior_notes(prior, model, None)
    assert "1 to 4, one a feature" in notes["prior precision of the weights"]
    assert "0 ± 2 " in notes["prior precision of the intercept"]
    tuned = prior_notes(weight_prior(LinearModel(2, bias=False), 3.0, 1.0), LinearModel(2, bias=False), "the evidence")
    assert tuned["prior precision of the weights"].startswith("3, which maximises the evidence")
    assert "prior precision of the intercept" not in tuned
    flat = prior_notes(weight_prior(model, 1.0, None), model, None)
    assert flat["prior of the intercept"] == "flat"
    assert "f at the means of the inputs is 0 ± 2 " in str(prior_notes(prior, model, None, centred=True))
    assert of_weights(weight_prior(model, 2.0, None), model).tolist() == [[2.0, 2.0]] * 3
