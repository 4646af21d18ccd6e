"""Expectation propagation of linear models of two weights, beside Laplace, against quadrature over the plane."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescope.likelihoods import Bernoulli
from bayescope.linear import compile_density, expectation_propagation, laplace
from bayescope.models import LinearModel
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.cases import PLANAR_TABLES
from tests.reference import binary_log_joint, integrate_plane

Record = dict[str, Any]
INFERENCES = {"ep": expectation_propagation, "laplace": laplace}


def tables() -> dict[str, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Jacobian (N, 2), labels, prior precision and mean: first tables of which expectation propagation is exact.

    A single row has a site of its own and no other; rows of which each reaches a weight of its own make a posterior
    that is a product of such.
    """
    one = torch.tensor([[1.5, -0.7]], dtype=torch.float64)
    apart = torch.tensor([[1.5, 0.0], [0.0, -2.0]], dtype=torch.float64)
    labels = torch.tensor([1.0, 1.0], dtype=torch.float64)
    dense = torch.tensor([[2.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    mean = torch.tensor([0.3, -0.5], dtype=torch.float64)
    exact = {
        "1 row": (one, labels[:1], dense, mean),
        "2 rows, each with its own weight": (apart, labels, torch.diag(dense.diagonal()), mean),
    }
    return exact | {
        name: (table.jacobian, table.labels, table.precision, table.mean)
        for name, table in PLANAR_TABLES.items()
        if name in ("6 rows", "60 rows", "80 rows, dense prior", "separable", "prior against the data")
    }


def moments(name: str, link: str) -> list[Record]:
    """Each inference of a table under a link: the errors of mean, standard deviations and log evidence."""
    jacobian, labels, precision, mean = tables()[name]
    truth = integrate_plane(binary_log_joint(link, jacobian, labels, precision, mean), torch.zeros(2).double())
    sd = truth.covariance.diagonal().sqrt()
    prior, found = Prior(DensePrecision(precision), mean), []
    for inference, infer in INFERENCES.items():
        q = infer(compile_density(LinearModel(2, bias=False), Bernoulli(link), prior, jacobian, labels))
        found.append({
            "table": name,
            "link": link,
            "inference": inference,
            "exact": inference == "ep" and name in ("1 row", "2 rows, each with its own weight"),
            "mean": float(((q.mean - truth.mean) / sd).abs().max()),
            "sd": float((q.covariance.diagonal().sqrt() / sd - 1).abs().max()),
            "log_evidence": float(q.log_evidence() - truth.log_evidence),
        })  # fmt: skip
    return found


def all_moments(quick: bool) -> list[Record]:
    """Of every table, or of those where expectation propagation is exact."""
    names = list(tables())[: 2 if quick else None]
    return [each for name in names for link in ("logit", "probit") for each in moments(name, link)]
