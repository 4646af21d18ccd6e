"""How wrong is it? Every approximation against long runs of NUTS, and its evidence against one that needs none of it.

Logistic and probit regression, whose weights are identified: the standard deviation of each weight is compared with
that of gold draws. Small networks, whose weights are not: their predictions are. The distance of two predictions is
their total variation, half of ∫|p − q|, averaged over inputs near the data and far from them. Evidences of linear
models are compared with bridge sampling, those of networks with annealed importance sampling. All methods are as they
come; the seconds are the processor's, NUTS's the clock's. Laplace and variational inference begin with networks whose
training took what MAP takes. The distance of half of the gold draws to the others says how far these are to be trusted.

    python -m bench.faithfulness [--only linear|networks] [--quick]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, make_moons
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import bayescope as bs
from bench import record
from bench.evidence import Estimate, annealed, bridge
from bench.networks import dense

Record = dict[str, Any]
INTERCEPT = 1e-2
GOLD_DRAWS, QUICK_DRAWS = 5000, 500
HALVES = "NUTS, half against half"
LONG = {"tune": 2000, "draws": 2000}
NOISE = 0.05
# Where the densities of a regression's predictions are compared.
GRID = torch.linspace(-6.0, 6.0, 1201, dtype=torch.float64)


# --- linear models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table for a linear classifier, and inputs to predict."""

    name: str
    link: str
    prior_precision: float
    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray


def tables() -> list[Table]:
    """From few rows to many, overlapping and nearly separable classes, both links."""
    rng = np.random.default_rng(0)

    def made(rows: int, columns: int, size: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, x_new = rng.standard_normal((rows, columns)), 2.0 * rng.standard_normal((200, columns))
        weights = size * rng.standard_normal(columns) / np.sqrt(columns)
        return x, (rng.random(rows) < 1 / (1 + np.exp(-(x @ weights + 0.3)))).astype(np.int64), x_new

    cancer = StandardScaler().fit_transform(load_breast_cancer().data)
    labels = load_breast_cancer().target
    few, many = made(40, 5, 2.0), made(500, 20, 2.0)
    return [
        Table("40 rows, 5 columns", "logit", 1.0, *few),
        Table("40 rows, 5 columns", "probit", 1.0, *few),
        Table("500 rows, 20 columns", "logit", 1.0, *many),
        Table("500 rows, 20 columns", "probit", 1.0, *many),
        Table("breast cancer, 100 rows", "logit", 0.1, cancer[:100], labels[:100], cancer[100:300]),
        Table("breast cancer, 569 rows", "logit", 1.0, cancer, labels, 1.5 * cancer[:200]),
    ]


def linear_fit(table: Table, posterior: str, **options: Any) -> Any:
    """An estimator with one of its posteriors."""
    model = bs.BayesianLogisticRegression(
        link=table.link, posterior=posterior, prior_precision=table.prior_precision, random_state=0,
        intercept_prior_precision=INTERCEPT, **options,
    )  # fmt: skip
    return model.fit(table.x, table.y)


def linear_joint(table: Table) -> Callable[[Tensor], Tensor]:
    """log p(y, w, b) of many weights at once, from its definition."""
    x = torch.tensor(np.hstack([table.x, np.ones((len(table.x), 1))]))
    sign = torch.tensor(2.0 * table.y - 1.0)
    precision = torch.tensor([table.prior_precision] * table.x.shape[1] + [INTERCEPT], dtype=torch.float64)
    prior = torch.distributions.Normal(torch.zeros(len(precision), dtype=torch.float64), precision.rsqrt())
    link = torch.nn.functional.logsigmoid if table.link == "logit" else torch.special.log_ndtr

    def log_joint(theta: Tensor) -> Tensor:
        return link((theta @ x.T) * sign).sum(1) + prior.log_prob(theta).sum(1)

    return log_joint


def linear(table: Table, draws: int) -> list[Record]:
    """All posteriors of a table."""
    start = time.perf_counter()
    gold = linear_fit(table, "nuts", draws=draws, tune=1000, chains=4)
    seconds = time.perf_counter() - start
    flat, probs = gold.posterior_.flat, gold.predict_proba(table.x_new)
    effective = float(gold.posterior_.effective_draws.min())
    truth = bridge(linear_joint(table), flat, effective, torch.Generator().manual_seed(0))
    common: Record = {"problem": f"{table.name}, {table.link}"}
    found = [common | {"method": "NUTS", "seconds": seconds, "evidence": truth.value, "evidence_error": truth.error}]
    new = torch.from_numpy(table.x_new)
    first, second = (half.predict(new).probs for half in halves(gold.posterior_))
    found.append(common | {"method": HALVES, "seconds": seconds, **spread(0.5 * (first - second).abs().sum(1))})
    methods = ["map", "laplace", "variational", "mean_field", "ep"]
    for method in methods:
        start = time.process_time()
        model = linear_fit(table, method)
        taken = time.process_time() - start
        tv = 0.5 * np.abs(model.predict_proba(table.x_new) - probs).sum(1)
        each = common | {"method": method, "seconds": taken, "total_variation": tv.mean(), "largest": tv.max()}
        if method != "map":
            ratio = model.posterior_.covariance.diagonal().sqrt() / flat.std(0)
            each |= {"sd_least": float(ratio.min()), "sd_greatest": float(ratio.max())}
            evidence = getattr(model, "log_evidence_", None)
            evidence = model.elbo_ if evidence is None else evidence
            each["evidence_gap"] = float(evidence) - truth.value
        found.append(each)
    return found


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A small network, its rows, and inputs near them and far from them."""

    name: str
    sizes: tuple[int, ...]
    likelihood: Any
    x: Tensor
    y: Tensor
    x_new: Tensor

    def module(self) -> nn.Module:
        """The network, in float64, from a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # noqa: TID251 - as a user would
            return dense(self.sizes, nn.Tanh).double()


def tasks() -> list[Task]:
    """Regression with a gap in the inputs, and two moons."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, generator=generator, dtype=torch.float64)
    x = torch.cat([x[:20] - 2.0, x[20:] + 1.0])
    y = torch.sin(2.0 * x) + NOISE**0.5 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    points, labels = make_moons(60, noise=0.2, random_state=0)
    plane = torch.tensor(points, dtype=torch.float64)
    spread = 2.0 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    return [
        Task("sine with a gap, 1-10-1", (1, 10, 1), bs.Gaussian(NOISE), x, y,
             torch.linspace(-4, 4, 100, dtype=torch.float64)[:, None]),
        Task("two moons, 2-10-2", (2, 10, 2), "categorical", plane, torch.tensor(labels), spread),
    ]  # fmt: skip


def fitted(task: Task) -> Mapping[str, Callable[[], Any]]:
    """The methods by name, each from a trained network where it needs one."""
    data, seeded = (task.x, task.y), {"generator": 0, "progress": False}
    common: dict[str, Any] = {"likelihood": task.likelihood, "prior_precision": 1.0}
    mode = lambda: bs.fit_map(task.module(), data, epochs=200, optimizer="lbfgs", **common, **seeded)  # noqa: E731
    trained = mode().model
    after = {"epochs": 1000, "lr": 0.01, **seeded}
    bound: dict[str, Any] = {"epochs": 4000, "lr": 0.02, "schedule": "cosine", **common, **seeded}
    return {
        "map": mode,
        "laplace, full": lambda: bs.laplace(trained, data, structure="full", **common),
        "laplace, kfac": lambda: bs.laplace(trained, data, structure="kfac", **common),
        "laplace, diagonal": lambda: bs.laplace(trained, data, structure="diagonal", **common),
        "laplace, last layer": lambda: bs.laplace(trained, data, weights="last_layer", **common),
        "function space": lambda: bs.function_space(trained, data, **common),
        "variational, mean field": lambda: bs.variational(trained, data, **bound),
        "variational, low rank": lambda: bs.variational(trained, data, family="low_rank", **bound),
        "variational, full": lambda: bs.variational(trained, data, family="full", **bound),
        "MC dropout": lambda: bs.mc_dropout(task.module(), data, rate=0.1, **common, **after),
        "ensemble of 5": lambda: bs.ensemble(task.module, data, members=5, **common, **after),
        "SWAG": lambda: bs.swag(trained, data, epochs=200, **common, **seeded),
        "SGHMC": lambda: bs.sgmcmc(trained, data, chains=4, draws=200, **common, **seeded),
    }


def densities(task: Task, q: Any, generator: int = 0) -> Tensor:
    """p(y∣x) at the new inputs: class probabilities (N, C), or the density on the grid (N, G)."""
    answer = q.predict(task.x_new, generator=generator)
    if isinstance(task.likelihood, str):
        return answer.probs
    n = len(task.x_new)
    return torch.stack([answer.log_prob(GRID[i].expand(n, 1)) for i in range(len(GRID))], 1).exp()


def distance(task: Task, first: Tensor, second: Tensor) -> Tensor:
    """Total variation per input."""
    width = 1.0 if isinstance(task.likelihood, str) else float(GRID[1] - GRID[0])
    return 0.5 * width * (first - second).abs().sum(1)


def network_evidence(task: Task, chains: int) -> Estimate:
    """By annealed importance sampling from the prior N(0, I)."""
    (into, hidden, out), likelihood = task.sizes, task.likelihood
    parts = [into * hidden, hidden, hidden * out, out]

    def f(theta: Tensor) -> Tensor:
        w1, b1, w2, b2 = theta.split(parts, 1)
        h = torch.tanh(torch.einsum("ni,mhi->mnh", task.x, w1.reshape(-1, hidden, into)) + b1[:, None])
        return torch.einsum("mnh,moh->mno", h, w2.reshape(-1, out, hidden)) + b2[:, None]

    def log_likelihood(theta: Tensor) -> Tensor:
        answer = f(theta)
        if isinstance(likelihood, str):
            labels = task.y.expand(len(theta), -1)[..., None]
            return answer.log_softmax(-1).gather(-1, labels).sum((1, 2))
        return torch.distributions.Normal(answer, NOISE**0.5).log_prob(task.y).sum((1, 2))

    def log_prior(theta: Tensor) -> Tensor:
        return torch.distributions.Normal(0.0, 1.0).log_prob(theta).sum(1)

    generator = torch.Generator().manual_seed(0)
    starts = torch.randn(chains, sum(parts), generator=generator, dtype=torch.float64)
    return annealed(log_prior, log_likelihood, starts, generator)


def network(task: Task, chains: int, **sampling: int) -> list[Record]:
    """All posteriors of a network."""
    start = time.perf_counter()
    data = task.x, task.y
    gold = bs.nuts(task.module(), data, likelihood=task.likelihood, generator=0, progress=False, **sampling)
    seconds, want = time.perf_counter() - start, densities(task, gold)
    truth = network_evidence(task, chains)
    common: Record = {"problem": task.name}
    mixed = {"r_hat": float(gold.prediction_r_hat.max()), "effective": float(gold.prediction_effective_draws.min())}
    found = [
        common | {"method": "NUTS", "seconds": seconds, "evidence": truth.value, "evidence_error": truth.error} | mixed
    ]
    tv = distance(task, *(densities(task, half) for half in halves(gold)))
    found.append(common | {"method": HALVES, "seconds": seconds, **spread(tv)})
    for method, make in fitted(task).items():
        start = time.process_time()
        q = make()
        taken = time.process_time() - start
        each = common | {"method": method, "seconds": taken, **spread(distance(task, densities(task, q), want))}
        evidence = _evidence(q)
        if evidence is not None:
            each["evidence_gap"] = evidence - truth.value
        found.append(each)
    return found


def halves(gold: Any) -> list[Any]:
    """Two posteriors, of the even and the odd chains: how far they are apart is what the gold draws do not know."""
    return [replace(gold, draws=gold.draws[first::2]) for first in (0, 1)]


def spread(tv: Tensor) -> Record:
    """The mean and the largest total variation over the inputs."""
    return {"total_variation": float(tv.mean()), "largest": float(tv.max())}


def _evidence(q: Any) -> float | None:
    """The log evidence that a posterior states, or its bound."""
    for evidence in (q.log_evidence, lambda: q.elbo):
        try:
            return float(evidence())
        except bs.errors.BayescopeError:
            continue
    return None


# --- the page ---------------------------------------------------------------------------------------------------------


TITLES = {"linear": "Logistic and probit regression", "networks": "Small networks"}


def summary(name: str, found: list[Record]) -> str:
    """The least and the greatest of each method over the problems of a part."""
    methods = [method for method in dict.fromkeys(each["method"] for each in found) if method != "NUTS"]
    wanted = ("total_variation", "largest", "evidence_gap")
    rows = []
    for method in methods:
        some = [each for each in found if each["method"] == method]
        cells = [_range([each[key] for each in some if key in each], ".3f") for key in wanted]
        if name == "linear":
            cells.insert(
                2, _range([each[key] for each in some for key in ("sd_least", "sd_greatest") if key in each], ".2f")
            )
        rows.append([method, *cells, _range([each["seconds"] for each in some], ".3g")])
    header = ["method", "total variation", "its largest", *(["sd over gold"] if name == "linear" else [])]
    problems = len({each["problem"] for each in found})
    seconds = _range([each["seconds"] for each in found if each["method"] == "NUTS"], ".0f")
    how = f"The least and the greatest over {problems} problems. NUTS took {seconds} s."
    return "\n\n".join([f"## {TITLES[name]}", how, record.table([*header, "evidence less truth", "CPU s"], rows)])


def _range(values: list[float], form: str) -> str:
    if not values:
        return "–"
    ends = [format(end, form) for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def problem_tables(found: list[Record]) -> str:
    """A table for each problem."""
    parts = []
    for problem in dict.fromkeys(each["problem"] for each in found):
        some = [each for each in found if each["problem"] == problem]
        gold, rest = some[0], some[1:]
        mixed = f", R-hat of predictions {gold['r_hat']:.3f}" if "r_hat" in gold else ""
        how = (
            f"NUTS took {gold['seconds']:.1f} s{mixed}; the log evidence is {gold['evidence']:.2f} ± "
            f"{gold['evidence_error']:.2f}."
        )
        sds = any("sd_least" in each for each in rest)
        header = [
            "method",
            "total variation",
            "its largest",
            *(["sd over gold"] if sds else []),
            "evidence less truth",
            "CPU s",
        ]
        rows = [[each["method"], *_cells(each, sds)] for each in rest]
        parts += [f"### {problem}", how, record.table(header, rows)]
    return "\n\n".join(parts)


def _cells(each: Record, sds: bool) -> list[str]:
    sd = [f"{each['sd_least']:.2f}–{each['sd_greatest']:.2f}" if "sd_least" in each else "–"] if sds else []
    gap = f"{each['evidence_gap']:+.2f}" if "evidence_gap" in each else "–"
    return [f"{each['total_variation']:.4f}", f"{each['largest']:.4f}", *sd, gap, f"{each['seconds']:.2f}"]


def main() -> None:
    """Measures, prints and saves."""
    parser = record.arguments(__doc__)
    parser.add_argument("--only", choices=["linear", "networks"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    draws, few = (QUICK_DRAWS, 1) if options.quick else (GOLD_DRAWS, None)
    chains, sampling = (50, {"draws": 50, "tune": 50, "max_depth": 4}) if options.quick else (1000, LONG)
    works: dict[str, Callable[[], list[Record]]] = {
        "linear": lambda: [each for table in tables()[:few] for each in linear(table, draws)],
        "networks": lambda: [each for task in tasks()[:few] for each in network(task, chains, **sampling)],
    }
    how = record.method_in(__doc__)
    into = record.folder(options)
    parts: Record = record.load(into, "faithfulness").get("parts", {})
    for name, work in works.items():
        if options.only in (None, name):
            found = work()
            parts[name] = {"made": record.made("bench.faithfulness"), "found": found}
            tables = [
                "\n\n".join(
                    [summary(each, part["found"]), record.origin_text(part["made"]), problem_tables(part["found"])]
                )
                for each, part in parts.items()
            ]
            text = record.page("How wrong is it, measured", None, how, tables)
            record.save(into, "faithfulness", {"made": record.oldest(parts, works), "parts": parts}, text)


if __name__ == "__main__":
    main()
