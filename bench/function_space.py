"""Laplace in function space on small problems: time, and errors of variances and evidence, beside laplace-torch's.

The truth is the posterior of weight space under the full GGN, in float64. Every method predicts the same inputs, from
near the data to far from them; errors are relative, of the variances of all outputs. Approximations are drawn
`SEEDS` times, errors are means over the draws, with the standard error of the evidence's.

    python -m bench.function_space [--no-peers] [--quick]
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope import Gaussian
from bayescope.gaussian_process.function_space import function_space
from bayescope.laplace.laplace import laplace
from bench import record

ROWS, NOISE = 400, 0.1
POINTS = (20, 50, 100, ROWS)
SEEDS = range(5)


@dataclass(frozen=True)
class Problem:
    """A network at its mode, its data, and inputs to predict."""

    name: str
    module: nn.Module
    x: Tensor
    y: Tensor
    new: Tensor

    @property
    def likelihood(self) -> Any:
        """As bayescope takes it."""
        return Gaussian(NOISE) if self.y.is_floating_point() else "categorical"


@dataclass(frozen=True)
class Row:
    """A line of the table: seconds are medians, errors means over the seeds."""

    problem: str
    who: str
    method: str
    points: int
    fit_seconds: float
    predict_seconds: float
    variance_error: float
    worst_variance: float
    evidence_error: float
    evidence_spread: float


def mlp(inputs: int, outputs: int) -> nn.Module:
    """Two hidden layers of 20."""
    return nn.Sequential(
        nn.Linear(inputs, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, outputs)
    ).double()  # fmt: skip


def problems() -> list[Problem]:
    """Regression on a line with a gap, and three classes in the plane, both trained until they rest."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = torch.rand(ROWS, 1, generator=generator, dtype=torch.float64)
    x = torch.where(torch.arange(ROWS)[:, None] < ROWS // 2, x - 2.0, x + 1.0)
    y = torch.sin(3.0 * x) + NOISE**0.5 * normal(ROWS, 1)
    plane = 1.5 * normal(ROWS, 2)
    labels = (plane[:, 0].sin() + plane[:, 1] > 0).long() + (plane[:, 0] > 1).long()
    found = [
        Problem("regression", mlp(1, 1), x, y, torch.linspace(-4, 4, 200)[:, None].double()),
        Problem("3 classes", mlp(2, 3), plane, labels, 2.0 * normal(200, 2)),
    ]
    for problem in found:
        with torch.no_grad():
            for parameter in problem.module.parameters():
                parameter.copy_(0.5 * normal(*parameter.shape))
        train(problem)
    return found


def train(problem: Problem) -> None:
    """Minimises the loss whose prior precision is 1."""
    module = problem.module
    optimiser = torch.optim.LBFGS(
        module.parameters(), max_iter=3000, line_search_fn="strong_wolfe", tolerance_grad=1e-9
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        f = module(problem.x)
        loss = (
            0.5 * (f - problem.y).square().sum() / NOISE
            if problem.y.is_floating_point()
            else nn.functional.cross_entropy(f, problem.y, reduction="sum")
        )
        loss = loss + 0.5 * torch.stack([p.square().sum() for p in module.parameters()]).sum()
        loss.backward()
        return loss

    optimiser.step(closure)


# --- those who are compared: each returns the variances (N, C), the log evidence, and seconds -------------------------

Answer = tuple[Tensor, float, float, float]


def timed(fit: Callable[[], Any], predict: Callable[[Any], Tensor], evidence: Callable[[Any], float]) -> Answer:
    """What a method answers, and the seconds of its fit and its prediction."""
    start = time.perf_counter()
    q = fit()
    middle = time.perf_counter()
    variances = predict(q)
    return variances, evidence(q), middle - start, time.perf_counter() - middle


def ours(problem: Problem, fit: Callable[[], Any]) -> Answer:
    """A posterior of bayescope."""

    def predict(q: Any) -> Tensor:
        return q.predict(problem.new).latent_cov.diagonal(dim1=-2, dim2=-1)

    return timed(fit, predict, lambda q: float(q.log_evidence()))


def in_function_space(problem: Problem, approximation: str, points: int, seed: int) -> Answer:
    """`function_space`."""
    options: dict[str, Any] = {} if approximation == "exact" else {"points": points}
    data = (problem.x, problem.y)
    return ours(
        problem,
        lambda: function_space(
            problem.module, data, likelihood=problem.likelihood, approximation=approximation, generator=seed, **options
        ),
    )


def in_weight_space(problem: Problem) -> Answer:
    """`laplace` under the full GGN: the truth."""
    data = (problem.x, problem.y)
    return ours(problem, lambda: laplace(problem.module, data, likelihood=problem.likelihood, structure="full"))


def by_draws(problem: Problem, samples: int, seed: int) -> Answer:
    """`laplace` by sample-then-optimise: the mean square of the draws' functions about the network's."""
    data = (problem.x, problem.y)

    def fit() -> Any:
        return laplace(
            problem.module, data, likelihood=problem.likelihood, structure="samples", samples=samples, generator=seed
        )

    def predict(q: Any) -> Tensor:
        f = q.function.forward(problem.new, q.flat)
        return (f - q.function.model.forward(problem.new, q.function.at)).square().mean(0)

    return timed(fit, predict, lambda _: float("nan"))


def peer(problem: Problem, points: int, seed: int) -> Answer:
    """laplace-torch's functional Laplace on a random subset."""
    from laplace import Laplace  # type: ignore[import-not-found]

    regression = problem.y.is_floating_point()

    def fit() -> Any:
        found = Laplace(
            problem.module, "regression" if regression else "classification", subset_of_weights="all",
            hessian_structure="gp", n_subset=points, prior_precision=1.0, seed=seed,
            **({"sigma_noise": NOISE**0.5} if regression else {}),
        )  # fmt: skip
        found.fit(DataLoader(TensorDataset(problem.x, problem.y), batch_size=100))
        return found

    def predict(found: Any) -> Tensor:
        variance = found._glm_predictive_distribution(problem.new)[1]
        return variance.diagonal(dim1=-2, dim2=-1).detach()

    return timed(fit, predict, lambda found: float(found.log_marginal_likelihood()))


# --- the table --------------------------------------------------------------------------------------------------------


def summed_up(problem: Problem, who: str, method: str, points: int, answers: list[Answer], truth: Answer) -> Row:
    """The line of a method's answers."""
    errors = [(variances / truth[0] - 1.0).abs() for variances, *_ in answers]
    evidence = [found - truth[1] for _, found, *_ in answers]
    return Row(
        problem.name, who, method, points,
        median(a[2] for a in answers), median(a[3] for a in answers),
        mean(float(e.mean()) for e in errors), max(float(e.max()) for e in errors),
        mean(evidence), float(torch.tensor(evidence).double().std(correction=0)) / len(evidence) ** 0.5,
    )  # fmt: skip


def measure(problem: Problem, *, peers: bool) -> list[Row]:
    """All lines of a problem."""
    truth = in_weight_space(problem)
    rows = [summed_up(problem, "bayescope", "weight space, full", ROWS, [truth], truth)]
    exact = [in_function_space(problem, "exact", ROWS, 0) for _ in range(3)]
    rows.append(summed_up(problem, "bayescope", "exact", ROWS, exact, truth))
    for approximation in ("subset", "nystrom", "inducing"):
        for points in POINTS:
            answers = [in_function_space(problem, approximation, points, seed) for seed in SEEDS]
            rows.append(summed_up(problem, "bayescope", approximation, points, answers, truth))
    for samples in (64, 512):
        answers = [by_draws(problem, samples, seed) for seed in SEEDS]
        rows.append(summed_up(problem, "bayescope", "samples", samples, answers, truth))
    for points in POINTS if peers else ():
        answers = [peer(problem, points, seed) for seed in SEEDS]
        rows.append(summed_up(problem, "laplace-torch", "functional", points, answers, truth))
    return rows


def evidence(row: Row) -> str:
    """The error of the log evidence, where there is one."""
    if math.isnan(row.evidence_error):
        return "–"
    return f"{row.evidence_error:+.2e} ± {row.evidence_spread:.0e}"


def known(row: Row) -> dict[str, Any]:
    """A line without the numbers that its method does not have."""
    return {name: value for name, value in asdict(row).items() if isinstance(value, str) or not math.isnan(value)}


def table(rows: list[Row]) -> str:
    """The table in Markdown."""
    header = [
        "problem", "who", "method", "points", "fit s", "predict s", "variance error", "its largest", "evidence error",
    ]  # fmt: skip
    cells = [
        [r.problem, r.who, r.method, r.points, f"{r.fit_seconds:.3f}", f"{r.predict_seconds:.3f}",
         f"{r.variance_error:.1e}", f"{r.worst_variance:.1e}", evidence(r)]
        for r in rows
    ]  # fmt: skip
    return record.table(header, cells)


def main() -> None:
    """Measures, prints and saves."""
    parser = record.arguments(__doc__)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave laplace-torch out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the peer's own
    tried = problems()[: 1 if options.quick else None]
    in_function_space(tried[0], "nystrom", 5, 0)  # what is imported at first use
    rows = [row for problem in tried for row in measure(problem, peers=options.peers and not options.quick)]
    origin, said = record.made("bench.function_space"), (__doc__ or "").split("\n\n")[1]
    title = f"Laplace in function space ({ROWS} rows, 480 to 543 weights, one thread)"
    text = record.page(title, origin, said, [table(rows)])
    results = {"made": origin, "rows": [known(row) for row in rows]}
    record.save(record.folder(options), "function_space", results, text)


if __name__ == "__main__":
    main()
