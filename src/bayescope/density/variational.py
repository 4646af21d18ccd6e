"""Gaussian variational inference on any log density, with a deterministic objective."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from bayescope import checks
from bayescope.density.laplace import climbed, find_mode
from bayescope.density.problem import Dim, LogProb, Problem, pose, starting_points
from bayescope.errors import BayescopeError, ConvergenceError, ConvergenceWarning, InputError, warn
from bayescope.log_density import LogDensity, curvature_scale
from bayescope.logs import logged
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision, DiagonalPrecision, Precision
from bayescope.quadrature import gauss_hermite, normal_nodes

FAMILIES = ("full", "mean_field", "low_rank")
# At least this many nodes, and this many for each dimension of the noise.
_NODES, _NODES_A_DIMENSION = 1024, 8
_DEFAULT_RANK = 5
_MAX_ITERATIONS = 300
# In the pilot's units the objective's curvature is of order one: a gradient of this norm costs its square in nats.
_GRADIENT_TOLERANCE = 1e-7
_LOOSE_GRADIENT = 1e-3
_HALVINGS = 60
# The bound rises for ever where it was still rising this far away, or with an sd this many e-folds wider than at first.
_FAR, _WIDE = 1e9, 40.0


@logged
def variational(
    log_density: LogProb,
    dim: Dim,
    *,
    family: str = "full",
    rank: int | None = None,
    transform: Any = None,
    start: Any = None,
    nodes: int | None = None,
    generator: torch.Generator | int | None = None,
) -> GaussianPosterior:
    """The Gaussian q nearest to a density in KL(q‖p), with a lower bound on its log normaliser.

    In unconstrained coordinates u, ELBO(q) = E_q[log p̃(x(u)) + log∣∂x/∂u∣] + H[q] = log Z − KL(q‖p) ≤ log Z (Jordan et
    al. 1999). The expectation is an average over fixed nodes, so that the objective is deterministic and its optimum
    is found by Newton's method (sample average approximation: Giordano, Ingram & Broderick 2024). The nodes are a
    product Gauss–Hermite rule in up to three dimensions, and antithetic quasi-Monte-Carlo points, whitened, in more:
    both have mean zero and covariance I exactly, which makes the optimum exact for a Gaussian p. With fewer points than
    dimensions a full covariance could shrink to nothing between them; there are at least 8 for each. The bound that is
    reported is taken at fresh and more numerous nodes.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor that autograd
            can differentiate twice; or from named parameters, which it takes as keyword arguments.
        dim: P; for named parameters a dict with the shape of each, such as ``{"mean": (), "weights": (3,)}``.
        family: "full" covariance, "mean_field" (diagonal) or "low_rank" (diagonal plus W Wᵀ), in the coordinates u.
        rank: the columns of W, for "low_rank" only; the default is min(5, P).
        transform: ``None``; a name ("positive", "unit_interval", "ordered", "simplex", "cholesky_correlation",
            "correlation") or `between`; a list with one of these a coordinate; for named parameters a dict with one of
            these for those that are constrained; or an object with forward, inverse and log_jacobian.
        start: where to begin, in the user's coordinates, shape (P,); for named parameters a dict with a value for each;
            the default is u = 0.
        nodes: how many, a power of two; the default is the first from 1024 and 8 a dimension on.
        generator: for the quasi-Monte-Carlo points; by default they are always the same.

    Returns:
        A `GaussianPosterior` with ``elbo`` and ``elbo_terms``: "expected log density", "expected log jacobian",
        "entropy".

    Raises:
        OptionError: for an unknown family.
        InputError: if the density at the start is not finite, or there are too few nodes.
        ConvergenceError: if the bound rises for ever: the density is not integrable.

    Warns:
        ConvergenceWarning: if the optimiser stopped short of the optimum.
    """
    problem = pose(log_density, dim, transform)
    density = problem.unconstrained
    origin = starting_points(problem, start)
    if origin.ndim != 1:
        raise InputError(f"start: expected one point, got {len(origin)}.")
    seed = 0 if generator is None else checks.seed_from(checks.generator(generator))
    q = _family(family, _pilot(density, origin), rank)
    count = _node_count(nodes, q.noise_dim)
    rule = standard_rule(q.noise_dim, count, seed)
    bound = _FixedBound(density, q, rule)
    phi, residual = bound.maximise(bound.feasible(q.initial()))
    terms, error = _fresh_terms(problem, q, phi, (count, seed))
    _refuse_edges(terms)
    if not residual <= _LOOSE_GRADIENT:
        warn(
            f"variational: the optimiser stopped with a gradient of norm {residual:.2g}. Start nearer to the mass, or "
            "use a transform.",
            ConvergenceWarning,
        )
    notes = {"family": family, "nodes": rule.name, "standard error of the bound": f"{error:.2g}"}
    record = Record(
        "variational", elbo_terms=terms, notes=notes, trace={"elbo": bound.trace}, parameters=problem.parameters
    )
    return GaussianPosterior(q.location(phi), q.precision(phi), record, transform=problem.transform)


def _family(name: str, pilot: Pilot, rank: int | None) -> DensityFamily:
    checks.choice("family", name, FAMILIES)
    if rank is not None and name != "low_rank":
        raise InputError(f"rank: expected none for family={name!r}, got {rank}. It belongs to family='low_rank'.")
    if name == "full":
        return FullFamily(pilot)
    if name == "mean_field":
        return LowRankFamily(pilot, 0)
    dim = pilot.location.shape[0]
    columns = min(_DEFAULT_RANK, dim) if rank is None else checks.count("rank", rank)
    if columns > dim:
        raise InputError(f"rank: expected at most the {dim} coordinates, got {columns}.")
    return LowRankFamily(pilot, columns)


def _pilot(density: LogDensity, origin: Tensor) -> Pilot:
    """Laplace's approximation, to give the optimiser its units; where there is none, the scale where a climb ends."""
    if not torch.isfinite(density.log_prob(origin)):
        raise InputError(f"start: expected a finite log density, got one that is not at u = {origin.tolist()[:8]}.")
    try:
        mode = find_mode(density, origin)
    except BayescopeError:  # a density without a mode can still have a best Gaussian
        highest = climbed(density, origin)
        with torch.no_grad():
            sd = curvature_scale(density.log_prob, highest)
        return Pilot(highest, torch.diag(sd), sd)
    root = mode.precision.sqrt_solve(torch.eye(origin.shape[0], dtype=torch.float64))
    return Pilot(mode.location, root, mode.precision.diagonal().rsqrt())


def _node_count(nodes: int | None, dim: int) -> int:
    if nodes is None:
        return 2 ** math.ceil(math.log2(max(_NODES, _NODES_A_DIMENSION * dim)))
    if checks.count("nodes", nodes) & (nodes - 1) or nodes < 4 * dim:
        raise InputError(f"nodes: expected a power of two of at least 4 for each of the {dim} dimensions, got {nodes}.")
    return nodes


@final
@dataclass
class _FixedBound:
    """The evidence lower bound over fixed nodes, as a function of φ, for scipy (which minimises its negative)."""

    density: LogDensity
    family: DensityFamily
    rule: NormalRule
    trace: list[float] = field(default_factory=list)
    _graph: tuple[np.ndarray, Tensor, Tensor] | None = None

    def value(self, phi: Tensor) -> Tensor:
        """E_q log p̃ + H[q]."""
        return self.rule.mean(self.density.log_prob(self.family.place(phi, self.rule.nodes))) + self.family.entropy(phi)

    def feasible(self, phi: Tensor) -> Tensor:
        """φ, narrowed until the density is finite at all nodes."""
        with torch.no_grad():
            for _ in range(_HALVINGS):
                if torch.isfinite(self.value(phi)):
                    return phi
                phi = self.family.narrowed(phi)
        raise InputError("start: expected a finite log density around it, got none. Start inside the support.")

    def maximise(self, phi: Tensor) -> tuple[Tensor, float]:
        """The optimum, by a Newton trust region with exact Hessian-vector products, and the gradient's norm there.

        Raises:
            ConvergenceError: if φ runs away.
        """
        with np.errstate(all="ignore"):  # steps beyond the support evaluate to infinity and are taken back
            result = minimize(
                self._objective,
                phi.numpy(),
                method="trust-ncg",
                jac=self._gradient,
                hessp=self._hessian_product,
                callback=self._watch,
                options={"gtol": _GRADIENT_TOLERANCE, "maxiter": _MAX_ITERATIONS, "max_trust_radius": np.inf},
            )
        if self._runs_away(result.x):
            raise ConvergenceError(
                "variational: the evidence lower bound rises without bound. The log density is not integrable; check "
                "its sign, its priors and its support."
            )
        residual = float(np.linalg.norm(self._gradient(result.x)))
        self._graph = None
        return torch.tensor(result.x), residual

    def _objective(self, phi: np.ndarray) -> float:
        with torch.no_grad():
            value = -self.value(torch.tensor(phi)).item()
        # Undefined is outside the support, or overflows on the way there: a shorter step follows.
        return value if np.isfinite(value) and np.isfinite(self._gradient(phi)).all() else np.inf

    def _gradient(self, phi: np.ndarray) -> np.ndarray:
        return -self._differentiated(phi)[1].detach().numpy()

    def _hessian_product(self, phi: np.ndarray, direction: np.ndarray) -> np.ndarray:
        point, gradient = self._differentiated(phi)
        (product,) = torch.autograd.grad(gradient @ torch.tensor(direction), point, retain_graph=True)
        # Where the curvature overflows it counts as none: the step goes to the trust region's edge, and is shortened.
        return -np.where(np.isfinite(product.numpy()).all(), product.numpy(), 0.0)

    def _differentiated(self, phi: np.ndarray) -> tuple[Tensor, Tensor]:
        """φ and the gradient there, with the graph that Hessian-vector products need, kept for one φ."""
        if self._graph is None or not np.array_equal(self._graph[0], phi):
            with torch.enable_grad():
                point = torch.tensor(phi, requires_grad=True)
                (gradient,) = torch.autograd.grad(self.value(point), point, create_graph=True)
            self._graph = (phi.copy(), point, gradient)
        return self._graph[1], self._graph[2]

    def _watch(self, intermediate_result: OptimizeResult) -> None:
        self.trace.append(-float(intermediate_result.fun))
        if self._runs_away(intermediate_result.x):
            raise StopIteration

    def _runs_away(self, phi: np.ndarray) -> bool:
        now, first = self._sds(torch.tensor(phi)), self._sds(self.family.initial())
        return not (np.linalg.norm(phi) <= _FAR and bool(((now / first).log() <= _WIDE).all()))

    def _sds(self, phi: Tensor) -> Tensor:
        """The sd of each coordinate over the nodes, shape (P,)."""
        u = self.family.place(phi, self.rule.nodes)
        return (self.rule.weights @ (u - self.family.location(phi)).square()).sqrt()


def _refuse_edges(terms: dict[str, Tensor]) -> None:
    if not torch.isfinite(terms["expected log density"]):
        raise InputError(
            "variational: the log density is not finite where the best Gaussian has mass, so that the bound is -inf. "
            "If the support has an edge, move it to infinity with transform=."
        )


@torch.no_grad()
def _fresh_terms(
    problem: Problem, q: DensityFamily, phi: Tensor, rule: tuple[int, int]
) -> tuple[dict[str, Tensor], float]:
    """The terms of the bound over nodes that the optimiser has not seen, and the bound's standard error."""
    sets = torch.stack([_expectations(problem, q, phi, fresh) for fresh in fresh_rules(q.noise_dim, *rule)])
    density, jacobian = sets.mean(0)
    error = float(sets.sum(1).std() / math.sqrt(len(sets)))
    return {"expected log density": density, "expected log jacobian": jacobian, "entropy": q.entropy(phi)}, error


def _expectations(problem: Problem, q: DensityFamily, phi: Tensor, rule: NormalRule) -> Tensor:
    """E_q log p̃(x(u)) and E_q log∣∂x/∂u∣, shape (2,)."""
    u = q.place(phi, rule.nodes)
    if problem.transform is None:
        return torch.stack([rule.mean(problem.target.log_prob(u)), u.new_zeros(())])
    density = problem.target.log_prob(problem.transform.forward(u))
    return torch.stack([rule.mean(density), rule.mean(problem.transform.log_jacobian(u))])


# Directions in which the pilot has no extra variance start with this factor: zero factors have a zero gradient.
_SMALL_FACTOR = 0.1


@final
@dataclass(frozen=True)
class Pilot:
    """A first guess N(location, root rootᵀ), in whose units the optimiser works.

    Attributes:
        location: shape (P,).
        root: any square root of the covariance, shape (P, P).
        conditional_sd: 1/√A_ii, which is mean field's optimum for a Gaussian, shape (P,).
    """

    location: Tensor
    root: Tensor
    conditional_sd: Tensor


@dataclass(frozen=True)
class DensityFamily(ABC):
    """Gaussians u = m₀ + R a + B z with z ~ N(0, I), indexed by φ = (a, ρ, W): B scales with exp(ρ) and W.

    The mean moves in the units of the pilot N(m₀, R Rᵀ), however correlated these are.
    """

    pilot: Pilot
    rank: int = 0

    @property
    def dim(self) -> int:
        """P, the number of coordinates."""
        return self.pilot.location.shape[0]

    @property
    def noise_dim(self) -> int:
        """The number of standard normal draws for one u."""
        return self.dim + self.rank

    @abstractmethod
    def initial(self) -> Tensor:
        """The φ to start from."""

    @abstractmethod
    def scattered(self, phi: Tensor, z: Tensor) -> Tensor:
        """B z, shape (S, P) for z of shape (S, noise_dim)."""

    @abstractmethod
    def half_logdet(self, phi: Tensor) -> Tensor:
        """Half the log determinant of the covariance, ½ log∣B Bᵀ∣."""

    @abstractmethod
    def precision(self, phi: Tensor) -> Precision:
        """The inverse of the covariance of u."""

    def location(self, phi: Tensor) -> Tensor:
        """The mean E u under these parameters, shape (P,)."""
        return self.pilot.location + self.pilot.root @ phi[: self.dim]

    def place(self, phi: Tensor, z: Tensor) -> Tensor:
        """u for noise z, shape (S, P) for z of shape (S, noise_dim)."""
        return self.location(phi) + self.scattered(phi, z)

    def entropy(self, phi: Tensor) -> Tensor:
        """−E log q = (P/2)(1 + log 2π) + ½ log∣B Bᵀ∣."""
        return 0.5 * self.dim * (1.0 + math.log(2.0 * math.pi)) + self.half_logdet(phi)

    def narrowed(self, phi: Tensor) -> Tensor:
        """The φ of the same Gaussian with all its sds halved."""
        dim = self.dim
        return torch.cat([phi[:dim], phi[dim : 2 * dim] - math.log(2.0), 0.5 * phi[2 * dim :]])


@final
class FullFamily(DensityFamily):
    """B = R T, with T lower triangular and diag T = exp(ρ); W is what is below the diagonal."""

    def initial(self) -> Tensor:
        return torch.zeros(2 * self.dim + self.dim * (self.dim - 1) // 2, dtype=torch.float64)

    def scattered(self, phi: Tensor, z: Tensor) -> Tensor:
        return z @ self._triangle(phi).mT @ self.pilot.root.mT

    def half_logdet(self, phi: Tensor) -> Tensor:
        """log∣R∣ + Σ log T_ii."""
        return torch.linalg.slogdet(self.pilot.root).logabsdet + phi[self.dim : 2 * self.dim].sum()

    def precision(self, phi: Tensor) -> DensePrecision:
        root = self.pilot.root @ self._triangle(phi)
        return DensePrecision.from_covariance(root @ root.mT)

    def _triangle(self, phi: Tensor) -> Tensor:
        dim = self.dim
        rows, columns = torch.tril_indices(dim, dim, offset=-1)
        below = phi.new_zeros(dim, dim).index_put((rows, columns), phi[2 * dim :])
        return below + torch.diag(phi[dim : 2 * dim].exp())


@final
class LowRankFamily(DensityFamily):
    """B = s ∘ [diag(exp ρ), W], with s the pilot's conditional sds and W (P, rank), row-major; rank 0 is mean field."""

    def initial(self) -> Tensor:
        """The conditional sds, with the pilot's largest directions in units of them."""
        start = torch.zeros(2 * self.dim, dtype=torch.float64)
        if not self.rank:
            return start
        scaled = self.pilot.root / self.pilot.conditional_sd[:, None]
        values, vectors = torch.linalg.eigh(scaled @ scaled.mT)
        # What the diagonal leaves over; a direction with nothing left starts with a small factor.
        factors = (values[-self.rank :] - 1.0).clamp_min(_SMALL_FACTOR**2).sqrt()
        return torch.cat([start, (vectors[:, -self.rank :] * factors).reshape(-1)])

    def scattered(self, phi: Tensor, z: Tensor) -> Tensor:
        diagonal, factors = self._split(phi)
        return self.pilot.conditional_sd * (z[:, : self.dim] * diagonal + z[:, self.dim :] @ factors.mT)

    def half_logdet(self, phi: Tensor) -> Tensor:
        """With log∣D² + W Wᵀ∣ = 2 Σ log D_i + log∣I + Wᵀ D⁻² W∣."""
        diagonal, factors = self._split(phi)
        inner = torch.eye(self.rank, dtype=torch.float64) + (factors / diagonal[:, None].square()).mT @ factors
        return (diagonal * self.pilot.conditional_sd).log().sum() + 0.5 * torch.logdet(inner)

    def precision(self, phi: Tensor) -> Precision:
        diagonal, factors = self._split(phi)
        sd = self.pilot.conditional_sd
        if not self.rank:
            return DiagonalPrecision((sd * diagonal).square().reciprocal())
        covariance = sd[:, None] * (torch.diag(diagonal.square()) + factors @ factors.mT) * sd
        return DensePrecision.from_covariance(covariance)

    def _split(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        return phi[self.dim : 2 * self.dim].exp(), phi[2 * self.dim :].reshape(self.dim, self.rank)


# A product rule needs this many nodes an axis to be worth its while, and has no use for more than the most.
_LEAST_AN_AXIS, _MOST_AN_AXIS = 8, 64
# Independent sets of fresh points; their scatter gives the standard error.
_FRESH_SETS = 8


@final
@dataclass(frozen=True)
class NormalRule:
    """E[h(z)] ≈ Σ w h(z), with Σ w z = 0 and Σ w z zᵀ = I to rounding.

    Attributes:
        nodes: z, shape (S, D).
        weights: w, shape (S,), summing to 1.
        name: what the nodes are.
    """

    nodes: Tensor
    weights: Tensor
    name: str

    def mean(self, values: Tensor) -> Tensor:
        """Σ w h for values h of shape (S,)."""
        return self.weights @ values


def standard_rule(dim: int, count: int, seed: int) -> NormalRule:
    """A product Gauss–Hermite rule of at most ``count`` nodes where 8 an axis fit; else quasi-Monte-Carlo points."""
    axis = _axis(dim, count)
    return _product(dim, axis) if axis >= _LEAST_AN_AXIS else _antithetic(dim, count, seed)


def fresh_rules(dim: int, count: int, seed: int) -> list[NormalRule]:
    """Rules to check with: two finer products, or eight further randomisations of the points."""
    axis = _axis(dim, count)
    if axis >= _LEAST_AN_AXIS:
        return [_product(dim, axis + 8), _product(dim, axis + 9)]
    return [_antithetic(dim, count, seed + offset) for offset in range(1, _FRESH_SETS + 1)]


def _axis(dim: int, count: int) -> int:
    return min(_MOST_AN_AXIS, int(count ** (1.0 / dim) + 1e-9))


@cache
def _product(dim: int, axis: int) -> NormalRule:
    nodes, log_weights = gauss_hermite(axis)
    points = torch.cartesian_prod(*[nodes] * dim).reshape(-1, dim)
    weights = torch.cartesian_prod(*[log_weights] * dim).reshape(-1, dim).sum(-1).exp()
    return NormalRule(points, weights / weights.sum(), f"{' × '.join(itertools.repeat(str(axis), dim))} Gauss–Hermite")


@cache
def _antithetic(dim: int, count: int, seed: int) -> NormalRule:
    """±z for scrambled Sobol' points z that are whitened to covariance I."""
    half = normal_nodes(dim, count // 2, seed=seed)
    factor = torch.linalg.cholesky(half.mT @ half / half.shape[0])
    white = torch.linalg.solve_triangular(factor, half.mT, upper=False).mT
    weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
    return NormalRule(torch.cat([white, -white]), weights, f"{count} quasi-Monte-Carlo points")
