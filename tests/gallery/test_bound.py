"""log p(D) = ELBO + KL for every q, each part computed on its own."""

from __future__ import annotations

import pytest

from bayescope.gallery.bound import Bound, draw_bound


@pytest.fixture(scope="module")
def model():
    return Bound()


@pytest.mark.parametrize("name", ["mean_field", "laplace", "ep", "variational"])
def test_the_parts_make_up_the_log_evidence(model, name):
    q = model.fits[name]
    assert model.elbo(q) + model.kl(q) == pytest.approx(model.exact.log_normaliser, abs=1e-6)


@pytest.mark.parametrize("name", ["variational", "mean_field"])
def test_the_fits_bound_is_the_one_drawn(model, name):
    q = model.fits[name]
    assert float(q.elbo) == pytest.approx(model.elbo(q), abs=5e-3)


def test_full_variational_has_the_highest_bound(model):
    bounds = {name: model.elbo(q) for name, q in model.fits.items()}
    assert max(bounds, key=bounds.get) == "variational"
    assert list(bounds.values()) == sorted(bounds.values()), "the rows run from the loosest to the tightest"


def test_drawn(readable):
    readable(draw_bound)
