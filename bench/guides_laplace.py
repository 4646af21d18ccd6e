"""The numbers of the guide to Laplace, docs/how_to/laplace.md: each table of it, from nothing but seeds.

Three small problems: scikit-learn's digits (997 training, 200 held-out and 600 test rows; a 64-50-50-10 tanh network,
Kronecker-factored), a curve with a gap (60 rows, a 1-50-1 tanh network, full GGN) and a bent class around a round one
(160 rows, a 2-16-16-1 softplus network). Networks come to rest with L-BFGS. One run each: read differences in the
second digit, not in the third.

    python -m bench.guides_laplace [--quick]
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bayescope as bs
from bayescope.gallery import network_laplace, networks
from bench import record

Record = dict[str, Any]
ITERATIONS_AN_EPOCH = 20
DRAWS = 200


class Sizes(NamedTuple):
    """How much is done.

    Attributes:
        precisions: of the priors that the digits' networks are trained with.
        rows: of the digits, training, held-out and test.
        epochs: of twenty iterations of L-BFGS, for the digits.
        evidence: epochs of `fit_evidence`, for the digits and for the curve.
        lengths: epochs of twenty iterations after which the curve's network is looked at.
        on: further ones, which lead to its mode.
        side: points along a side of the plane.
    """

    precisions: tuple[float, ...]
    rows: tuple[int, int, int]
    epochs: int
    evidence: tuple[int, int]
    lengths: tuple[int, ...]
    on: int
    side: int


WHOLE = Sizes((0.01, 0.1, 1.0), (997, 200, 600), 25, (100, 1000), (5, 10, 20, 40), 200, 80)
QUICK = Sizes((1.0,), (150, 50, 50), 2, (12, 12), (1, 2), 3, 10)


def loss(q: bs.Posterior, x: Tensor, y: Tensor, **options: Any) -> float:
    """NLL per row, in nats."""
    return -float(torch.as_tensor(q.predict(x, **options).log_prob(y)).mean())


# Digits --------------------------------------------------------------------------------------------------------------
class Digits(NamedTuple):
    """Images as 64 numbers in [0, 1], and their labels."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(rows: tuple[int, int, int]) -> Digits:
    """Rows drawn without replacement."""
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: sum(rows)]
    return Digits(*((x[part] / 16.0, y[part]) for part in order.split(rows)))


def of_digits(data: Digits, precision: float, epochs: int) -> Record:
    """A network trained under one prior: its losses at the mode, under that prior, and under two that are learnt."""
    point = bs.fit_map(
        networks.mlp(64, 50, 50, 10), data.train, likelihood="categorical", prior_precision=precision,
        optimizer="lbfgs", epochs=epochs, progress=False,
    )  # fmt: skip
    q = bs.laplace(point.model, data.train, likelihood="categorical", prior_precision=precision)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", bs.errors.ConvergenceWarning)
        by_evidence = bs.tune_prior(q, method="evidence")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.errors.ConvergenceWarning)  # that the posterior closes onto the mode
        by_validation = bs.tune_prior(q, method="validation", data=data.held_out)
    fit: Any = by_evidence.fit
    return {
        "precision": precision,
        "mode": loss(point, *data.test),
        "linearised": loss(q, *data.test),
        "sampled": loss(q, *data.test, method="sampled", samples=DRAWS, generator=0),
        "evidence": loss(by_evidence, *data.test),
        "decrement": float(fit.newton_decrement()) ** 2,
        "determined": float(fit.effective_parameters()),
        "warned": bool(caught),
        "validation": loss(by_validation, *data.test),
    }


def learnt_on_digits(data: Digits, epochs: int) -> Record:
    """`fit_evidence` on the training and the held-out rows together."""
    rows = tuple(torch.cat(parts) for parts in zip(data.train, data.held_out, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.errors.ConvergenceWarning)
        q = bs.fit_evidence(
            networks.mlp(64, 50, 50, 10), rows, likelihood="categorical", epochs=epochs, lr=1e-3, generator=0,
            progress=False,
        )  # fmt: skip
    return {"what": f"digits, {len(rows[0]):,} rows", "mode": loss(networks.at_mode(q), *data.test),
            "linearised": loss(q, *data.test), "noise": None}  # fmt: skip


# The curve with a gap ------------------------------------------------------------------------------------------------
def learnt_on_curve(rows: networks.TrainTest, epochs: int) -> Record:
    """`fit_evidence`, which learns the noise too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.errors.ConvergenceWarning)
        q = bs.fit_evidence(
            networks.mlp(1, 50, 1), rows.train, likelihood=bs.Gaussian("evidence"), structure="full", epochs=epochs,
            lr=1e-2, generator=0, progress=False,
        )  # fmt: skip
    likelihood: Any = q.likelihood
    return {"what": f"curve with a gap, {len(rows.x)} rows", "mode": networks.test_loss(networks.at_mode(q), rows),
            "linearised": networks.test_loss(q, rows), "noise": float(likelihood.noise_variance)}  # fmt: skip


def log_joint(model: nn.Module, rows: networks.TrainTest, precision: float) -> float:
    """Σ log p(y∣f) + log p(θ), up to a constant."""
    with torch.no_grad():
        likelihood = bs.Gaussian(networks.NOISE_SD**2)
        squares = sum(float(parameter.square().sum()) for parameter in model.parameters())
        return float(likelihood.log_prob(model(rows.x), rows.y).sum()) - 0.5 * precision * squares


def towards_the_mode(rows: networks.TrainTest, lengths: tuple[int, ...], further: int) -> list[Record]:
    """Networks of the curve that were trained for longer and longer: what is left, and what the decrement says."""
    settings: dict[str, Any] = {"likelihood": bs.Gaussian(networks.NOISE_SD**2), "prior_precision": 1.0}
    training = {**settings, "optimizer": "lbfgs", "progress": False}
    found = []
    for epochs in lengths:
        model = bs.fit_map(networks.mlp(1, 50, 1), rows.train, epochs=epochs, **training).model
        # Each network goes on to its own mode: another one may be higher.
        mode = bs.fit_map(copy.deepcopy(model), rows.train, epochs=further, **training).model
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", bs.errors.ConvergenceWarning)
            q = bs.laplace(model, rows.train, structure="full", **settings)
        fit: Any = q.fit
        found.append({
            "iterations": epochs * ITERATIONS_AN_EPOCH,
            "nats": log_joint(mode, rows, 1.0) - log_joint(model, rows, 1.0),
            "half": 0.5 * float(fit.newton_decrement()) ** 2,
            "warned": bool(caught),
        })  # fmt: skip
    return found


# The bent class ------------------------------------------------------------------------------------------------------
STRUCTURES: dict[str, Mapping[str, Any]] = {
    "full": {"structure": "full"},
    "block": {"structure": "block"},
    "kfac": {"structure": "kfac"},
    "ekfac": {"structure": "ekfac"},
    "low_rank, 5": {"structure": "low_rank", "rank": 5},
    "low_rank, 20": {"structure": "low_rank", "rank": 20},
    "diagonal": {"structure": "diagonal"},
    f"samples, {DRAWS}": {"structure": "samples", "samples": DRAWS},
    "full, fisher": {"structure": "full", "curvature": "fisher"},
    "full, empirical_fisher": {"structure": "full", "curvature": "empirical_fisher"},
}
WEIGHTS: dict[str, Any] = {
    '"all"': "all",
    '"*.weight"': "*.weight",
    '"last_layer"': "last_layer",
    "bs.largest_variance(100)": bs.largest_variance(100),
}


def on_the_plane(side: int) -> tuple[list[Record], list[Record]]:
    """Structures and subsets of the weights: how far p is from that of the full GGN of all, and what they lose."""
    rows, plane = networks.banana(), network_laplace.plane(side)
    full = network_laplace.fit_banana(rows)
    network: Any = full.model
    reference = torch.as_tensor(full.predict(plane).probs)[:, 1]

    def judged(name: str, q: bs.Posterior) -> Record:
        p = torch.as_tensor(q.predict(plane).probs)[:, 1]
        return {"name": name, "distance": float((p - reference).abs().mean()), "loss": networks.test_loss(q, rows)}

    def fitted(options: Mapping[str, Any]) -> Any:
        settings: dict[str, Any] = {"prior_precision": network_laplace.BANANA_PRECISION, "generator": 0, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.errors.BayescopeWarning)
            return bs.laplace(network, rows.train, likelihood="bernoulli", **settings)

    structures, subsets = [judged("the mode", networks.at_mode(full))], []
    for name, options in STRUCTURES.items():
        q = fitted(options)
        drawn = options["structure"] == "samples"
        structures.append({**judged(name, q), "evidence": None if drawn else float(q.log_evidence())})
    for name, weights in WEIGHTS.items():
        q = fitted({"structure": "full", "weights": weights})
        subsets.append({**judged(name, q), "random": q.function.dim})
    structures[1]["determined"] = float(full.fit.effective_parameters())  # type: ignore[union-attr]
    return structures, subsets


# Pages ---------------------------------------------------------------------------------------------------------------
def nats(value: float) -> str:
    """Two decimals, with a minus sign."""
    return f"{value:.2f}".replace("-", "−")


def small(value: float) -> str:
    """Two significant digits; what is below 10⁻⁵ only in size."""
    return f"{value:.2g}".replace("-", "−", 1) if value < 0 else f"{value:.2g}"


def yes(flag: bool) -> str:
    """A flag in a table."""
    return "yes" if flag else "no"


def pages(found: Record) -> list[str]:
    """Each table under the heading by which the guide shows it."""
    curve, trained, learnt = found["curve"], found["digits"], found["learnt"]
    one = trained[-1]
    sampled = [
        ["curve with a gap, prior precision 1, full GGN", *map(nats, curve)],
        ["digits, prior precision 1", *(nats(one[key]) for key in ("mode", "linearised", "sampled"))],
    ]
    priors = [
        [f"{each['precision']:g}", *(nats(each[key]) for key in ("mode", "linearised", "evidence")),
         f"{each['decrement']:.0f} / {each['determined']:.0f}" + (": warned" if each["warned"] else ""),
         nats(each["validation"])]
        for each in trained
    ]  # fmt: skip
    together = [
        [each["what"], "–" if each["noise"] is None else f"{each['noise']:.4f}", nats(each["mode"]),
         nats(each["linearised"])]
        for each in learnt
    ]  # fmt: skip
    steps = [[each["iterations"], small(each["nats"]), small(each["half"]), yes(each["warned"])]
             for each in found["steps"]]  # fmt: skip
    structures = [
        [each["name"], f"{each['distance']:.3f}", f"{each['loss']:.3f}",
         "–" if each.get("evidence") is None else f"{each['evidence']:.1f}".replace("-", "−")]
        for each in found["structures"]
    ]  # fmt: skip
    subsets = [[f"`{each['name']}`", each["random"], f"{each['distance']:.3f}", f"{each['loss']:.3f}"]
               for each in found["weights"]]  # fmt: skip
    return [
        "## Linearised and sampled",
        record.table(["NLL per test row", "at the mode", "linearised", f"sampled, {DRAWS} draws"], sampled),
        "## Priors that a network is trained with",
        record.table(
            ["prior precision", "at the mode", "linearised, same prior", "evidence, after training",
             "its Newton decrement λ² / γ", "validation"], priors,
        ),
        "NLL per test row of digits. The evidence tunes a prior precision for each layer, the validation one for all.",
        "## Learnt while training",
        record.table(["`fit_evidence`", "noise variance", "NLL at the mode", "linearised"], together),
        f"The noise variance of the curve is {networks.NOISE_SD**2:.4f}.",
        "## The Newton decrement",
        record.table(["L-BFGS iterations", "nats to the mode, by training on", "½λ²", "warned"], steps),
        "## Structures",
        record.table(["structure", "distance", "test NLL", "log evidence"], structures),
        "The distance is the mean of ∣p − p_full∣ over the plane. The data determine "
        f"γ = {found['structures'][1]['determined']:.1f} parameters.",
        "## Weights",
        record.table(["`weights=`", "random", "distance", "test NLL"], subsets),
    ]  # fmt: skip


def main() -> None:
    """Measures, prints and saves."""
    options = record.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    sizes = QUICK if options.quick else WHOLE
    data, rows = digits(sizes.rows), networks.gap()
    structures, subsets = on_the_plane(sizes.side)
    found = {
        "curve": list(network_laplace.losses(network_laplace.fit_gap(rows), rows)),
        "digits": [of_digits(data, precision, sizes.epochs) for precision in sizes.precisions],
        "learnt": [learnt_on_curve(rows, sizes.evidence[1]), learnt_on_digits(data, sizes.evidence[0])],
        "steps": towards_the_mode(rows, sizes.lengths, sizes.on),
        "structures": structures,
        "weights": subsets,
    }
    how = record.method_in(__doc__)
    record.publish(options, "bench.guides_laplace", "The guide to Laplace's approximation", how, pages(found), found)


if __name__ == "__main__":
    main()
