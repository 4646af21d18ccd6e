"""The speed of NUTS on logistic regression, beside NumPyro and BlackJAX: what an effective draw costs.

Four chains of 600 + 1,000 draws for weights under N(0, 1). The time of an effective draw (the least effective sample
size of all weights, by ArviZ, of all samplers alike) is a multiple of that of one gradient by PyTorch's autograd.
Compilation counts for all: a user waits for it.

    python -m bench.nuts [--turns 5] [--no-peers] [--quick]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import arviz
import numpy as np
import torch
from numpy.typing import NDArray

from bayescope import BayesianLogisticRegression
from bench import record, turns
from bench.turns import OURS, Machine, Work, in_turns, ratios, speed_table

SIZES = ((200, 10), (1000, 30), (2000, 200))
CHAINS, TUNE, DRAWS = 4, 600, 1000
GRADIENT = "a gradient by autograd"

Floats = NDArray[np.float64]


def table(rows: int, columns: int) -> tuple[Floats, NDArray[np.int64]]:
    """Independent normal inputs and labels from a logistic model."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    logits = X @ (rng.standard_normal(columns) / np.sqrt(columns))
    return X, (rng.random(rows) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int64)


def autograd(X: Floats, y: NDArray[np.int64]) -> Callable[[], object]:
    """One gradient of the log density."""
    inputs, labels = torch.tensor(X), torch.tensor(y, dtype=torch.float64)
    weights = torch.zeros(X.shape[1], dtype=torch.float64, requires_grad=True)

    def run() -> object:
        f = inputs @ weights
        log_density = (labels * f - torch.nn.functional.softplus(f)).sum() - 0.5 * weights.square().sum()
        return torch.autograd.grad(log_density, weights)

    return run


def ours(X: Floats, y: NDArray[np.int64], seed: int) -> Floats:
    """By our estimator: draws of shape (chains, draws, weights)."""
    options: dict[str, Any] = {"draws": DRAWS, "tune": TUNE, "chains": CHAINS, "random_state": seed}
    fitted = BayesianLogisticRegression(posterior="nuts", prior_precision=1.0, fit_intercept=False, **options).fit(X, y)
    return fitted.posterior_.draws.numpy()


def numpyro(X: Floats, y: NDArray[np.int64], seed: int, way: str) -> Floats:
    """By NumPyro, its chains one after another, as its default is on a CPU, or in one array."""
    import jax
    import numpyro as peer
    from numpyro.infer import MCMC, NUTS

    peer.enable_x64()

    def model() -> None:
        weights = peer.sample("w", peer.distributions.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        peer.sample("y", peer.distributions.Bernoulli(logits=X @ weights), obs=y)

    options: dict[str, Any] = {"num_warmup": TUNE, "num_samples": DRAWS, "num_chains": CHAINS, "chain_method": way}
    mcmc = MCMC(NUTS(model), progress_bar=False, **options)
    mcmc.run(jax.random.PRNGKey(seed))
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])


def blackjax(X: Floats, y: NDArray[np.int64], seed: int) -> Floats:
    """By BlackJAX, each chain with its own window adaptation."""
    import blackjax as peer
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    inputs, labels = jnp.asarray(X), jnp.asarray(y)

    def log_density(weights: Any) -> Any:
        f = inputs @ weights
        return (labels * f - jnp.logaddexp(0.0, f)).sum() - 0.5 * (weights**2).sum()

    @jax.jit
    def chain(key: Any) -> Any:
        adapt, draw = jax.random.split(key)
        warmup = peer.window_adaptation(peer.nuts, log_density)
        (state, parameters), _ = warmup.run(adapt, jnp.zeros(X.shape[1]), TUNE)
        kernel = peer.nuts(log_density, **parameters).step

        def step(state: Any, key: Any) -> tuple[Any, Any]:
            state, _ = kernel(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(draw, DRAWS))[1]

    return np.stack([np.asarray(chain(key)) for key in jax.random.split(jax.random.PRNGKey(seed), CHAINS)])


def works(rows: int, columns: int, peers: bool) -> tuple[list[Work], dict[str, list[int]]]:
    """The samplers on one table, and where the effective sample sizes of their runs are found."""
    X, y = table(rows, columns)
    unit, drawn = f"{rows} × {columns}: {GRADIENT}", dict[str, list[int]]()

    def sample(sampler: Callable[..., Floats], who: str) -> None:
        sizes = drawn.setdefault(who, [])
        sizes.append(effective(sampler(X, y, len(sizes))))  # each turn from a seed of its own

    others = {
        "NumPyro, one after another": partial(numpyro, way="sequential"),
        "NumPyro, in one array": partial(numpyro, way="vectorized"),
        "BlackJAX": blackjax,
    }
    samplers = {OURS: ours, **(others if peers else {})}
    name = f"{rows} × {columns}: an effective draw"
    found = [Work(unit, autograd(X, y), unit)]
    found += [Work(name, partial(sample, sampler, who), unit, who) for who, sampler in samplers.items()]
    return found, drawn


def effective(draws: Floats) -> int:
    """The least effective sample size of the weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(min(arviz.ess(draws[..., j]) for j in range(draws.shape[-1])))


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    options = turns.chosen(parser)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    machine, found = Machine.measured(dtype=torch.float64), []
    for rows, columns in SIZES[:1] if options.quick else SIZES:
        compared, drawn = works(rows, columns, options.peers)
        gradients = lambda work: 2000 if work.is_unit else 1  # noqa: E731
        in_turns(compared, options.turns, inner=gradients)
        whole = list(compared[1].seconds)
        for work in compared[1:]:
            sizes = drawn.get(work.who, [1])[1:]  # the first warmed up
            work.seconds = [taken / size for taken, size in zip(work.seconds, sizes, strict=True)]
            work.flops = 4.0 * rows * columns  # a gradient for each effective draw: products with X and with Xᵀ
        records = ratios(compared, machine)
        records[0]["effective_draws"] = median(drawn[OURS][1:])
        records[0]["run_seconds"] = median(whole)
        found += records
    how = (
        f"Logistic regression under N(0, 1), {CHAINS} chains of {TUNE} + {DRAWS} draws, on {os.cpu_count()} cores. The "
        "time of an effective draw as a multiple of that of one gradient by PyTorch's autograd."
    )
    runs = [[each["work"], f"{each['run_seconds']:.1f} s", f"{each['effective_draws']:,.0f}"] for each in found]
    lines = record.table(["ours", "whole run", "effective draws"], runs)
    record.publish(options, "bench.nuts", "NUTS: speed", how, [speed_table(found), lines], {"ratios": found})


if __name__ == "__main__":
    main()
