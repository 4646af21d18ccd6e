"""The numbers of the guide to Monte Carlo dropout, docs/how_to/dropout.md: each table of it, from nothing but seeds.

The noise: 60 rows of sin 2x with a gap (noise variance 0.04), 50-50 tanh units, 1,500 epochs, prior precision 0.1; 200
other rows to learn the noise from, and 1,000 to judge on. The rate: scikit-learn's digits (997 training and 600 test
rows), 64-50-50-10 ReLU units, 200 epochs, prior precision 0.1. One run each. The cost: 100 passes of 256 rows through a
784-256-128-10 network in the processor's time, beside one forward pass of it, the least of fifteen turns.

    python -m bench.guides_dropout [--quick]
"""

from __future__ import annotations

import copy
import time
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bayescope as bs
from bayescope.gallery import networks
from bench import record
from bench.turns import Work, in_turns

Record = dict[str, Any]
Rows = tuple[Tensor, Tensor]
NOISE = 0.04
RATES: tuple[float | str, ...] = (0.01, 0.05, 0.1, 0.2, "concrete")
PLACES: tuple[tuple[float | str, str], ...] = (
    (0.0, "–"), (0.05, "hidden"), (0.1, "hidden"), (0.2, "hidden"), (0.5, "hidden"), (0.1, "all"),
    ("concrete", "hidden"), ("concrete", "all"),
)  # fmt: skip
TRAINING: dict[str, Any] = {"prior_precision": 0.1, "generator": 0, "progress": False}
PARTS = {"on the data": ((-2.0, -0.6), (0.6, 2.0)), "in the gap": ((-0.5, 0.5),), "outside": ((-3.0, -2.1), (2.1, 3.0))}


class Sizes(NamedTuple):
    """How much is done."""

    sine_epochs: int
    digits_epochs: int
    passes: int
    repetitions: int


WHOLE, QUICK = Sizes(1500, 200, 200, 15), Sizes(20, 2, 20, 2)


def rates(q: bs.Posterior) -> list[float]:
    """Those that were learnt, one a layer, in the order in which a pass calls them."""
    return [float(rate) for rate in q.trace["rates"][-1]] if "rates" in q.trace else []


# The noise -----------------------------------------------------------------------------------------------------------
def sine(count: int, seed: int) -> Rows:
    """Rows of sin 2x with noise, from both sides of a gap."""
    source = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(PARTS["on the data"])[torch.arange(count) % 2].T
    x = (low + (high - low) * torch.rand(count, generator=source))[:, None]
    return x, torch.sin(2.0 * x) + NOISE**0.5 * torch.randn(count, 1, generator=source)


def spread(q: bs.Posterior, spans: tuple[tuple[float, float], ...], passes: int) -> float:
    """The mean standard deviation of f over some intervals."""
    x = torch.cat([torch.linspace(*span, 40) for span in spans])[:, None]
    return float(torch.as_tensor(q.predict(x, samples=passes, generator=0).epistemic).sqrt().mean())


def of_sine(rate: float | str, sizes: Sizes) -> Record:
    """The noise from the training rows and from others, the loss with each, and how far the passes differ."""
    train, held_out, test = sine(60, 0), sine(200, 1), sine(1000, 2)
    q = bs.mc_dropout(
        networks.mlp(1, 50, 50, 1).float(), train, likelihood=bs.Gaussian("evidence"), rate=rate, before="hidden",
        epochs=sizes.sine_epochs, lr=0.01, schedule="cosine", **TRAINING,
    )  # fmt: skip
    again = bs.mc_dropout(q.model, held_out, likelihood=bs.Gaussian("evidence"), epochs=0, generator=0)
    found: Record = {"rate": rate, "learnt": rates(q)}
    for name, each in (("training", q), ("validation", again)):
        likelihood: Any = each.likelihood
        log_prob = each.predict(test[0], samples=sizes.passes, generator=0).log_prob(test[1])
        found[name] = {
            "noise": float(likelihood.noise_variance),
            "loss": -float(torch.as_tensor(log_prob).mean()),
        }
    return {**found, **{name: spread(q, spans, sizes.passes) for name, spans in PARTS.items()}}


# The rate ------------------------------------------------------------------------------------------------------------
def digits() -> tuple[Rows, Rows]:
    """997 rows to learn from and 600 to judge on."""
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:997], order[1197:1797]
    x = (x / 16.0).float()
    return (x[train], y[train]), (x[test], y[test])


def of_digits(rate: float | str, before: str, sizes: Sizes) -> Record:
    """The loss with dropout off, and averaged over passes."""
    train, (x, y) = digits()
    start = networks.mlp(64, 50, 50, 10, activation=nn.ReLU).float()
    training: dict[str, Any] = {"likelihood": "categorical", "epochs": sizes.digits_epochs, **TRAINING}
    q: bs.Posterior
    if rate == 0.0:
        q = bs.fit_map(start, train, **training)
        averaged = q.predict(x)
    else:
        q = bs.mc_dropout(start, train, rate=rate, before=before, **training)
        averaged = q.predict(x, samples=sizes.passes, generator=0)
    network: Any = q.model
    with torch.no_grad():
        off = float(nn.functional.cross_entropy(network.eval()(x), y))
    loss = -float(torch.as_tensor(averaged.log_prob(y)).mean())
    return {"rate": rate, "before": before, "learnt": rates(q), "off": off, "passes": loss}


# The cost ------------------------------------------------------------------------------------------------------------
def cost(repetitions: int) -> Record:
    """Forward passes' time of 100 passes of dropout before all layers but the first, and of a loop in train mode."""
    network = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(128, 10),
    )  # fmt: skip
    x = torch.randn(256, 784, generator=torch.Generator().manual_seed(0))
    q = bs.mc_dropout(network, likelihood="categorical")
    evaluated, training = copy.deepcopy(network).eval(), copy.deepcopy(network).train()

    def loop() -> None:
        for _ in range(100):
            training(x)

    works = [
        Work("forward", lambda: evaluated(x), "forward"),
        Work("passes", lambda: q.sample_functions(x, 100, generator=0), "forward"),
        Work("loop", loop, "forward"),
    ]
    with torch.no_grad():
        in_turns(works, repetitions, clock=time.process_time, inner=lambda work: 20 if work.is_unit else 1)
    forward, *others = (min(work.seconds) for work in works)
    return dict(zip(("passes", "loop"), (other / forward for other in others), strict=True))


# Pages ---------------------------------------------------------------------------------------------------------------
def named(found: Record) -> str:
    """A rate, and what was learnt."""
    if not found["learnt"]:
        return f"{found['rate']:g}"
    return f'`"concrete"`: {", ".join(f"{rate:.2f}" for rate in found["learnt"])}'


def nats(value: float, decimals: int = 2) -> str:
    """With a minus sign."""
    return f"{value:.{decimals}f}".replace("-", "−")


def pages(noise: list[Record], rate: list[Record], cost: Record) -> list[str]:
    """Each table under the heading by which the guide shows it."""
    sines = [
        [named(each), *(cell for name in ("training", "validation")
                        for cell in (f"{each[name]['noise']:.3f}", nats(each[name]["loss"]))),
         *(f"{each[name]:.2f}" for name in PARTS)]
        for each in noise
    ]  # fmt: skip
    places = {"hidden": "hidden layers", "all": "all layers", "–": "–"}
    rows = [
        [named(each), places[each["before"]], nats(each["off"], 3), nats(each["passes"], 3)] for each in rate
    ]  # fmt: skip
    return [
        "## The noise",
        record.table(
            ["rate before hidden layers", "noise from the training rows", "test NLL", "noise from validation rows",
             "test NLL", *(f"sd of f {name}" for name in PARTS)], sines,
        ),
        "## Rates",
        record.table(["rate", "before", "NLL per test row, dropout off", "200 passes"], rows),
        "## Cost",
        record.table(["100 passes", "forward passes' time"], [["`q.sample_functions`", f"{cost['passes']:.0f}"],
                                                              ["a loop in train mode", f"{cost['loop']:.0f}"]]),
    ]  # fmt: skip


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    sizes = QUICK if options.quick else WHOLE
    took = cost(sizes.repetitions)
    noise = [of_sine(rate, sizes) for rate in RATES]
    rate = [of_digits(*place, sizes) for place in PLACES]
    origin, how = record.made("bench.guides_dropout"), record.method_in(__doc__)
    text = record.page("The guide to Monte Carlo dropout", origin, how, pages(noise, rate, took))
    results = {"made": origin, "noise": noise, "rates": rate, "cost": took}
    record.save(record.folder(options), "guides_dropout", results, text)


if __name__ == "__main__":
    main()
