"""The log densities of the reference posteriors, in torch, in the coordinates of their published moments.

Flat priors where none is written; the scale σ is positive and sampled on the log scale.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """One reference posterior.

    Attributes:
        log_density: of the parameters that are sampled, shape (P,).
        transform: for all inferences.
        sampling: the transform for NUTS: for a regression, with an orthonormal design too, so that warm-up is short.
        start: a point in the support.
        report: from the sampled parameters (..., P) to those of the published moments (..., K).
        coefficients: how many of these, from the first on, are regression coefficients.
        mean: published, shape (K,).
        sd: published, shape (K,).
        names: of the K.
    """

    log_density: Callable[[Tensor], Tensor]
    transform: Any
    sampling: Any
    start: list[float]
    report: Callable[[Tensor], Tensor]
    coefficients: int
    mean: Tensor
    sd: Tensor
    names: list[str]


@dataclass(frozen=True)
class Orthonormal:
    """β = T b, with X T orthonormal columns times √N, and σ = exp(s) where there is one."""

    matrix: Tensor
    log_determinant: Tensor
    scale: bool

    def forward(self, u: Tensor) -> Tensor:
        """(T b, exp s)."""
        beta = u[..., : self.matrix.shape[0]] @ self.matrix.mT
        return torch.cat([beta, u[..., -1:].exp()], -1) if self.scale else beta

    def inverse(self, x: Tensor) -> Tensor:
        """(T⁻¹ β, log σ)."""
        b = torch.linalg.solve(self.matrix, x[..., : self.matrix.shape[0], None])[..., 0]
        return torch.cat([b, x[..., -1:].log()], -1) if self.scale else b

    def log_jacobian(self, u: Tensor) -> Tensor:
        """log∣T∣ + s."""
        return self.log_determinant + u[..., -1] if self.scale else self.log_determinant.expand(u.shape[:-1])


def load(folder: Path, name: str) -> Problem:
    """The problem of that name, with the data and published moments of the folder."""
    data = json.loads((folder / name / "data.json").read_text())
    reference = json.loads(next((folder / name).glob("reference*.json")).read_text())
    mean, sd = (torch.tensor(reference[key], dtype=torch.float64) for key in ("mean", "sd"))
    return MODELS[name](data, mean, sd, reference["params"])


def names() -> list[str]:
    """All problems."""
    return list(MODELS)


def _columns(*values: Any) -> Tensor:
    columns = [torch.tensor(value, dtype=torch.float64) for value in values]
    return torch.stack([torch.ones_like(columns[0]), *columns], -1)


def _half_cauchy(sigma: Tensor, scale: float) -> Tensor:
    return math.log(2 / (math.pi * scale)) - torch.log1p((sigma / scale).square())


def _normal(x: Tensor, mean: Any, sd: Any) -> Tensor:
    spread = torch.as_tensor(sd, dtype=torch.float64)
    return -0.5 * ((x - mean) / spread).square() - spread.log() - 0.5 * math.log(2 * math.pi)


def _orthonormal(x: Tensor, *, scale: bool) -> Orthonormal:
    triangle = torch.linalg.qr(x).R / math.sqrt(x.shape[0])
    return Orthonormal(torch.linalg.inv(triangle), -triangle.diagonal().abs().log().sum(), scale)


def _linear(x: Tensor, y: Tensor, prior: Callable[[Tensor, Tensor], Tensor], reference: tuple[Any, ...]) -> Problem:
    """y ~ N(x β, σ), with the log prior as a function of β and σ."""

    def log_density(theta: Tensor) -> Tensor:
        beta, sigma = theta[:-1], theta[-1]
        rows = -0.5 * ((y - x @ beta) / sigma).square().sum() - y.shape[0] * (sigma.log() + 0.5 * math.log(2 * math.pi))
        return rows + prior(beta, sigma)

    dim = x.shape[1]
    transform = [*[None] * dim, "positive"]
    start = [*[0.0] * dim, float(y.std())]
    return Problem(log_density, transform, _orthonormal(x, scale=True), start, lambda t: t, dim, *reference)


def _flat(beta: Tensor, sigma: Tensor) -> Tensor:  # noqa: ARG001
    return torch.zeros((), dtype=torch.float64)


def _kidiq_prior(beta: Tensor, sigma: Tensor) -> Tensor:  # noqa: ARG001
    return _half_cauchy(sigma, 2.5)


def _kidiq_momiq(data: Data, *reference: Any) -> Problem:
    y = torch.tensor(data["kid_score"], dtype=torch.float64)
    return _linear(_columns(data["mom_iq"]), y, _kidiq_prior, reference)


def _kidiq_interaction(data: Data, *reference: Any) -> Problem:
    high_school, iq = (torch.tensor(data[key], dtype=torch.float64) for key in ("mom_hs", "mom_iq"))
    x = torch.stack([torch.ones_like(iq), high_school, iq, high_school * iq], -1)
    return _linear(x, torch.tensor(data["kid_score"], dtype=torch.float64), _kidiq_prior, reference)


def _earnings(data: Data, *reference: Any) -> Problem:
    return _linear(_columns(data["height"]), torch.tensor(data["earn"], dtype=torch.float64).log(), _flat, reference)


def _mesquite(data: Data, *reference: Any) -> Problem:
    logs = [
        torch.tensor(data[key], dtype=torch.float64).log()
        for key in ("diam1", "diam2", "canopy_height", "total_height", "density")
    ]
    group = torch.tensor(data["group"], dtype=torch.float64)
    x = torch.stack([torch.ones_like(group), *logs, group], -1)
    return _linear(x, torch.tensor(data["weight"], dtype=torch.float64).log(), _flat, reference)


def _nes1976(data: Data, *reference: Any) -> Problem:
    age = torch.tensor(data["age_discrete"])
    ages = [(age == level).to(torch.float64).tolist() for level in (2, 3, 4)]
    x = _columns(data["real_ideo"], data["race_adj"], *ages, data["educ1"], data["gender"], data["income"])
    return _linear(x, torch.tensor(data["partyid7"], dtype=torch.float64), _flat, reference)


def _sblrc(data: Data, *reference: Any) -> Problem:
    x, y = (torch.tensor(data[key], dtype=torch.float64) for key in ("X", "y"))
    return _linear(x, y, lambda b, s: _normal(b, 0.0, 10.0).sum() + _normal(s, 0.0, 10.0) + math.log(2), reference)


def _logistic(x: Tensor, labels: Any, reference: tuple[Any, ...]) -> Problem:
    signs = 2 * torch.tensor(labels, dtype=torch.float64) - 1
    dim = x.shape[1]

    def log_density(beta: Tensor) -> Tensor:
        return logsigmoid(signs * (x @ beta)).sum()

    return Problem(log_density, None, _orthonormal(x, scale=False), [0.0] * dim, lambda t: t, dim, *reference)


def _wells(data: Data, *reference: Any) -> Problem:
    return _logistic(_columns(data["dist"]), data["switched"], reference)


def _nes_logit(data: Data, *reference: Any) -> Problem:
    return _logistic(_columns(data["income"]), data["vote"], reference)


def _hyperprior(mu: Tensor, tau: Tensor) -> Tensor:
    return _normal(mu, 0.0, 5.0) + _half_cauchy(tau, 5.0)


def _eight_schools_centred(data: Data, *reference: Any) -> Problem:
    y, sigma = (torch.tensor(data[key], dtype=torch.float64) for key in ("y", "sigma"))

    def log_density(x: Tensor) -> Tensor:
        theta, mu, tau = x[:8], x[8], x[9]
        return _normal(y, theta, sigma).sum() + _normal(theta, mu, tau).sum() + _hyperprior(mu, tau)

    transform = [*[None] * 9, "positive"]
    return Problem(log_density, transform, transform, [0.0] * 9 + [1.0], lambda t: t, 0, *reference)


def _eight_schools_noncentred(data: Data, *reference: Any) -> Problem:
    y, sigma = (torch.tensor(data[key], dtype=torch.float64) for key in ("y", "sigma"))

    def log_density(x: Tensor) -> Tensor:
        z, mu, tau = x[:8], x[8], x[9]
        return _normal(y, mu + tau * z, sigma).sum() + _normal(z, 0.0, 1.0).sum() + _hyperprior(mu, tau)

    def report(x: Tensor) -> Tensor:
        return torch.cat([x[..., 8:9] + x[..., 9:10] * x[..., :8], x[..., 8:]], -1)

    transform = [*[None] * 9, "positive"]
    return Problem(log_density, transform, transform, [0.0] * 9 + [1.0], report, 0, *reference)


def _gauss_mix(data: Data, *reference: Any) -> Problem:
    y = torch.tensor(data["y"], dtype=torch.float64)

    def log_density(x: Tensor) -> Tensor:
        mu, sigma, weight = x[:2], x[2:4], x[4]
        first = weight.log() + _normal(y, mu[0], sigma[0])
        second = torch.log1p(-weight) + _normal(y, mu[1], sigma[1])
        prior = _normal(x[:4], 0.0, 2.0).sum() + 4 * weight.log() + 4 * torch.log1p(-weight)
        return torch.logaddexp(first, second).sum() + prior + 2 * math.log(2) + math.lgamma(10) - 2 * math.lgamma(5)

    transform = ["ordered", "ordered", "positive", "positive", "unit_interval"]
    return Problem(log_density, transform, transform, [-1.0, 1.0, 1.0, 1.0, 0.5], lambda t: t, 0, *reference)


MODELS: dict[str, Callable[..., Problem]] = {
    "kidiq-kidscore_momiq": _kidiq_momiq,
    "kidiq-kidscore_interaction": _kidiq_interaction,
    "earnings-logearn_height": _earnings,
    "mesquite-logmesquite": _mesquite,
    "nes1976-nes": _nes1976,
    "sblrc-blr": _sblrc,
    "wells_data-wells_dist": _wells,
    "nes_logit_data-nes_logit_model": _nes_logit,
    "eight_schools-eight_schools_noncentered": _eight_schools_noncentred,
    "eight_schools-eight_schools_centered": _eight_schools_centred,
    "low_dim_gauss_mix-low_dim_gauss_mix": _gauss_mix,
}
