"""The speed of a Laplace approximation from fit to evidence, beside laplace-torch with each of its backends.

A Kronecker-factored fit with its eigenvectors, one step of tuning (the log evidence and its gradient in a prior
precision for each layer) and the whole tuning, at 784-256-128-10 = 235,146 weights. Everything takes turns in one
process; what counts is the ratio to one forward and backward pass over the same rows.

    python -m bench.laplace [--turns 5] [--no-peers] [--quick]
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayescope as bs
from bench import record, turns
from bench.floors import floor_of
from bench.networks import forward_backward, layers_of, mlp
from bench.peers import laplace_backends, laplace_fit
from bench.turns import Machine, Work, in_turns, ratios, speed_table

EPOCH = "forward+backward"
PRIOR = 1.0
FIT, STEP, TUNE = "Kronecker fit", "one tuning step", "tuning by evidence"


def trained(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """A few steps from the start, so that the curvature is not that of random weights."""
    options: dict[str, Any] = {"prior_precision": PRIOR, "epochs": 3, "progress": False, "generator": 0}
    return bs.fit_map(model, (x, y), likelihood="categorical", **options).model


def tuning_step(fit: Any, names: Sequence[str]) -> None:
    """The log evidence and its gradient in log prior precisions, one a layer."""
    log_precisions = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in names]
    evidence = fit.log_evidence({name: value.exp() for name, value in zip(names, log_precisions, strict=True)})
    torch.autograd.grad(evidence, log_precisions)


def peer_tuning_step(posterior: Any) -> None:
    """The same by laplace-torch."""
    log_precisions = torch.zeros(posterior.n_layers, requires_grad=True)
    evidence = posterior.log_marginal_likelihood(prior_precision=log_precisions.exp())
    torch.autograd.grad(evidence, log_precisions)


def our_works(model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """Fit, evidence, tuning."""
    fit = lambda: bs.laplace(model, (x, y), likelihood="categorical", prior_precision=PRIOR)  # noqa: E731
    q, layers = fit(), [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    sizes = layers_of(model, x)
    counted = ("Kronecker", "forward + backward", "forward")
    whole, epoch, forward = (floor_of(name, len(x), sizes).flops for name in counted)
    least = whole - epoch + forward
    # log(λκ + δ) of each pair of eigenvalues and its derivative: a product, a sum, a logarithm, a reciprocal.
    pairs = 4.0 * sum(each.into * each.out for each in sizes)
    return [
        Work(EPOCH, lambda: forward_backward(model, x, y), EPOCH),
        Work(FIT, fit, EPOCH, flops=least),
        Work(STEP, lambda: tuning_step(q.fit, layers), EPOCH, flops=pairs),
        Work(TUNE, lambda: bs.tune_prior(q), EPOCH),
    ]


def peer_works(model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """The same by laplace-torch, tuned as by default: 100 steps of Adam."""
    works, tune = [], {"method": "marglik", "prior_structure": "layerwise"}
    for label, backend in laplace_backends().items():
        who = f"laplace-torch, {label}"
        fit = lambda backend=backend: laplace_fit(model, x, y, "kfac", backend)  # noqa: E731
        works.append(Work(FIT, fit, EPOCH, who))
        try:
            q = fit()
        except Exception:  # noqa: BLE001 - the fit's own row says so
            continue
        works += [
            Work(STEP, lambda q=q: peer_tuning_step(q), EPOCH, who),  # type: ignore[misc]
            Work(TUNE, lambda q=q: q.optimize_prior_precision(**tune), EPOCH, who),  # type: ignore[misc]
        ]
    return works


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    options = turns.chosen(parser)
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    model, x, y = mlp(512 if options.quick else 10_000)
    model = trained(model, x, y)
    works = our_works(model, x, y) + (peer_works(model, x, y) if options.peers else [])
    in_turns(works, options.turns)
    found = ratios(works, Machine.measured())
    step = next(1e3 * each["seconds"] for each in found if each["work"] == STEP)
    how = (
        f"784-256-128-10 with tanh, 235,146 weights, {len(x):,} rows, KFAC. Multiples of one forward and backward pass "
        f"over the rows, in the same turn of one process: the median, and the least and greatest. One tuning step "
        f"takes {step:.2g} ms (budget 3, goal 1)."
    )
    record.publish(
        options,
        "bench.laplace",
        "Laplace: speed from fit to evidence",
        how,
        [speed_table(found)],
        {"ratios": found, "step_ms": step},
    )


if __name__ == "__main__":
    main()
