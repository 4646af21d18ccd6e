"""Contributions and their joint covariance the slow way: autograd, a dense inverse, least squares for the pairs."""

from __future__ import annotations

import numpy as np
import torch

from bayescope.additive import Additive, EncodedRows, Functions
from tests.additive.fitted import encoded, frame, weights


def told(additive: Additive, rows: EncodedRows) -> tuple[np.ndarray, np.ndarray]:
    """Means (N, T, C) and the covariances of all parts of a row, (N, T, C, T, C)."""
    theta = additive.posterior.location
    covariance = torch.linalg.inv(additive.posterior.precision.to_dense()).numpy()

    def parts(weights_: torch.Tensor) -> torch.Tensor:
        return moved(additive, rows, weights_)

    mean = parts(theta)
    jacobian = torch.autograd.functional.jacobian(parts, theta).numpy()
    joint = np.einsum("ntcp,pq,nsdq->ntcsd", jacobian, covariance, jacobian, optimize=True)
    return mean.numpy(), joint


def moved(additive: Additive, rows: EncodedRows, theta: torch.Tensor) -> torch.Tensor:
    """The contributions at weights, with what least squares over the data gives from a pair to its features."""
    model, data = additive.model, encoded(frame())
    here, there = model.contributions(rows, theta), model.contributions(data, theta)
    root = weights().sqrt()[:, None]
    told = list(here)
    names = [term.name for term in model.terms]
    for place, term in enumerate(model.terms):
        if len(term.columns) == 2:
            functions = [Functions.of(column, data, weights()) for column in term.columns]
            design = root * torch.cat([each.at(data) for each in functions], 1)
            solved = torch.from_numpy(np.linalg.pinv(design.numpy(), rcond=1e-5)) @ (root * there[place])
            sizes = [len(each.centre) for each in functions]
            for each, column, beta in zip(functions, term.columns, solved.split(sizes), strict=True):
                owner = names.index(additive.encoding.names[column.feature])
                share = each.at(rows) @ beta
                told[owner], told[place] = told[owner] + share, told[place] - share
    joined = torch.stack(told, 1)
    softmax = additive.posterior.likelihood.name == "categorical"
    return joined - joined.mean(-1, keepdim=True) if softmax else joined
