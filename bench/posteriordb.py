"""NUTS, Laplace and variational inference against published reference posteriors: one table, nothing hidden.

python -m bench.posteriordb [--data ../shared/data/posteriordb] [--quick]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayescope.density as density
from bayescope.errors import BayescopeError, BayescopeWarning
from bayescope.posterior import Posterior
from bench import record
from bench.posteriordb_models import Problem, load, names

# Draws by which the moments of transformed parameters are taken, and by which evidences are corrected.
DRAWS, IMPORTANCE_DRAWS = 200_000, 10_000
REGRESSIONS, OTHERS = "regressions", "hierarchies and mixtures"


def laplace(problem: Problem) -> Posterior:
    """Laplace, σ on the log scale."""
    return density.laplace(problem.log_density, problem.start, transform=problem.transform)


def variational(problem: Problem, family: str) -> Posterior:
    """A Gaussian by variational inference, σ on the log scale."""
    dim = len(problem.start)
    return density.variational(
        problem.log_density, dim, family=family, start=problem.start, transform=problem.transform
    )


def nuts(problem: Problem) -> Posterior:
    """NUTS with all its defaults."""
    return density.nuts(problem.log_density, len(problem.start), transform=problem.sampling, generator=0)


METHODS: dict[str, Callable[[Problem], Posterior]] = {
    "nuts": nuts,
    "laplace": laplace,
    "variational, full": lambda problem: variational(problem, "full"),
    "variational, mean field": lambda problem: variational(problem, "mean_field"),
}


def moments(problem: Problem, posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Mean and sd of the published parameters: of all draws by NUTS, of 200,000 from the others."""
    chains = getattr(posterior, "draws", None)
    draws = posterior.sample(DRAWS, generator=0) if chains is None else chains.flatten(0, 1)
    reported = problem.report(draws)
    return reported.mean(0), reported.std(0)


def row(name: str, problem: Problem, method: str) -> dict[str, Any]:
    """One fit, measured against the published moments."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayescopeWarning)
        try:
            posterior = METHODS[method](problem)
        except BayescopeError as error:
            return {"set": name, "method": method, "failure": f"{type(error).__name__}: {error}"}
        seconds = time.perf_counter() - began
        warned = [warning.category.__name__ for warning in caught]
    mean, sd = moments(problem, posterior)
    error, ratio = (mean - problem.mean).abs() / problem.sd, sd / problem.sd
    result: dict[str, Any] = {"set": name, "method": method, "seconds": round(seconds, 2), "warnings": warned}
    if problem.coefficients:
        result["coefficient mean error"] = float(error[: problem.coefficients].max())
    worst = int(error.argmax())
    result |= {"mean error": float(error.max()), "worst": problem.names[worst]}
    result |= {"sd ratio low": float(ratio.min()), "sd ratio high": float(ratio.max())}
    return result | evidence(problem, posterior)


def evidence(problem: Problem, posterior: Posterior) -> dict[str, Any]:
    """What the posterior says of log Z, with its correction by importance sampling, and of its chains."""
    if posterior.record.method == "nuts":
        chains: Any = posterior
        return {
            "r_hat": float(chains.r_hat.max()),
            "effective draws": float(chains.effective_draws.min()),
            "divergences": chains.divergences,
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)
        corrected = density.importance(problem.log_density, posterior, draws=IMPORTANCE_DRAWS, generator=0)
    bound = posterior.record.elbo_terms is not None
    return {
        "elbo" if bound else "log evidence": float(posterior.elbo if bound else posterior.log_evidence()),
        "corrected log evidence": float(corrected.log_evidence),
        "its standard error": float(corrected.standard_error),
        "pareto k": corrected.pareto_k,
    }


HEADER = [
    "set",
    "method",
    "mean error",
    "worst",
    "coefficients",
    "sd ratio",
    "log Z or ELBO",
    "corrected",
    "k̂",
    "R-hat",
]
HEADER += ["effective", "divergences", "warnings", "s"]


def summary(rows: list[dict[str, Any]]) -> str:
    """The least and the greatest of each method over the regressions, and over what is none."""
    lines = []
    for kind in (REGRESSIONS, OTHERS):
        group = [r for r in rows if r["of"] == kind]
        for method in METHODS:
            some = [r for r in group if r["method"] == method]
            ran = [r for r in some if "failure" not in r]
            if ran:
                errors, seconds = [r["mean error"] for r in ran], [r["seconds"] for r in ran]
                low, high = min(r["sd ratio low"] for r in ran), max(r["sd ratio high"] for r in ran)
                spread = [f"{min(errors):.3f} to {max(errors):.3f}", f"{low:.2f} to {high:.2f}"]
                warned = sum(bool(r["warnings"]) for r in ran)
                ended = f"{len(some) - len(ran)} refused, {warned} warned of"
                lines.append(
                    [kind, f"{len(some)}", method, *spread, ended, f"{min(seconds):.1f} to {max(seconds):.1f}"]
                )
    return record.table(["of", "sets", "method", "worst mean off by, sds", "sd over the truth", "", "s"], lines)


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table; errors of means are in published sds, the largest over the parameters."""
    lines = []
    for r in rows:
        if "failure" in r:
            cells = [r["set"], r["method"], r["failure"].split(" along ")[0][:160], *[""] * (len(HEADER) - 3)]
        else:
            value = r.get("log evidence", r.get("elbo"))
            cells = [r["set"], r["method"], f"{r['mean error']:.3f}", r["worst"]]
            cells += [_number(r.get("coefficient mean error"), 3), f"{r['sd ratio low']:.3f}–{r['sd ratio high']:.3f}"]
            cells += [_number(value, 3), _corrected(r), _number(r.get("pareto k"), 2), _number(r.get("r_hat"), 4)]
            cells += [_number(r.get("effective draws"), 0), str(r.get("divergences", ""))]
            cells += [", ".join(r["warnings"]), f"{r['seconds']:.1f}"]
        lines.append(cells)
    return record.table(HEADER, lines)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _corrected(r: dict[str, Any]) -> str:
    if "corrected log evidence" not in r:
        return ""
    return f"{r['corrected log evidence']:.3f} ± {r['its standard error']:.3f}"


def main() -> None:
    """Runs every method on every set, prints the table and saves it."""
    parser = record.arguments(__doc__)
    parser.add_argument("--data", type=Path, default=record.ROOT.parent / "shared" / "data" / "posteriordb")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in names()[: 1 if options.quick else None]:
        problem = load(options.data, name)
        for method in METHODS:
            kind = REGRESSIONS if problem.coefficients else OTHERS
            rows.append({"of": kind, **row(name, problem, method)})
            print(rows[-1], file=sys.stderr, flush=True)
    how = "Errors of means in published sds, the largest over all parameters and over the coefficients."
    parts = ["## Published posteriors", summary(rows), "## All of them", markdown(rows)]
    record.publish(options, "bench.posteriordb", "Published posteriors, measured", how, parts, {"rows": rows})


if __name__ == "__main__":
    main()
