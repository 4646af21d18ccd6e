"""Random small networks through every structure: each answer is the definition's, or there is one of our own errors.

A network is drawn from its seed: what it reads (numbers, tokens, sequences, pictures), one to five layers that fit
behind each other, which of its weights are frozen, its likelihood, rows, batch size and kind of curvature. What it
should give is written down from definitions with autograd's Jacobians (`tests/curvature/reference.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope.curvature import Curvature, fit_curvature
from bayescope.errors import BayescopeError
from bench.robustness_layers import drawn, once_named, written_out
from tests.curvature import reference
from tests.curvature.cases import DTYPE, Case

STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")
PRIOR = 0.7
# Relative errors above it are another answer, unless float64 itself allows more: ε times the condition number of the
# matrix, by which two right factorisations may differ, as that of seed 1,000,173 with 6e12; never more than `FAR`.
WRONG, FAR = 1e-6, 1e-3
BESIDE = ("exact instead", "rounding")  # what stands beside the errors
OUTCOMES = ("agrees", "refused", "wrong", "foreign error")
Record = dict[str, Any]


def error(got: Tensor, want: Tensor) -> float:
    """‖got − want‖ / ‖want‖; infinite where it is not a number, or where only one of them is 0."""
    off, size = float((got - want).norm()), float(want.norm())
    if off == 0.0:
        return 0.0
    return off / size if size > 0.0 and off == off else float("inf")


def own_errors(curvature: Curvature, entry: Case, J: Tensor) -> dict[str, float]:
    """What is computed in a structure against the same by its own dense matrix A under a prior."""
    precision = curvature.with_prior(PRIOR)
    A = precision.to_dense()
    inverse, tape = torch.linalg.inv(A), curvature.network.tape(entry.inputs)
    covariance = J @ inverse @ J.mT
    root = precision.sqrt_solve(torch.eye(len(A), dtype=DTYPE))
    return {
        "rounding": torch.finfo(DTYPE).eps * float(torch.linalg.cond(A)),
        "log determinant": error(precision.logdet(), torch.logdet(A)),
        "J A⁻¹ Jᵀ": error(precision.covariance_of(tape), covariance),
        "its diagonal": error(precision.variance_of(tape), covariance.diagonal(dim1=1, dim2=2)),
        "A⁻¹": error(precision.solve(torch.eye(len(A), dtype=DTYPE)), inverse),
        "its diagonal alone": error(precision.marginal_variance(), inverse.diagonal()),
        "root of A⁻¹": error(root @ root.T, inverse),
    }


@final
@dataclass(frozen=True)
class Wanted:
    """What is right for a network.

    Attributes:
        matrices: by structure the dense curvature; of "ekfac" the traces of the exact blocks, since its eigenvectors
            are not always unique.
        places: the flat positions of each block.
        jacobian: shape (N, S C, P).
        log_likelihood: of all rows.
    """

    matrices: dict[str, Tensor]
    places: list[Tensor]
    jacobian: Tensor
    log_likelihood: Tensor


def wanted(entry: Case, kind: str) -> Wanted:
    """By definitions alone."""
    entry = once_named(entry)
    full, middle = reference.full(entry, kind), reference.output_curvature(entry, kind)
    places = reference.layers(entry, written_out)
    found = reference.kfac_blocks(reference.factors(entry, middle, twin=written_out))
    matrices = {
        "full": full, "low_rank": full, "diagonal": torch.diag(full.diagonal()),
        "block": reference.restricted(full, places),
        "kfac": reference.assembled(len(full), found, full, places),
        "ekfac": torch.stack([full.diagonal()[place].sum() for place in places]),
    }  # fmt: skip
    log_likelihood = reference.total_log_prob(entry, reference.outputs(entry))
    return Wanted(matrices, places, reference.jacobian(entry), log_likelihood)


def announced(curvature: Curvature, want: Tensor, full: Tensor) -> tuple[Tensor, int]:
    """The definition with exact blocks where a fit's summary says so, and how many are not those of the definition."""
    want, others = want.clone(), 0
    for part, place in zip(curvature.network.parts, curvature.network.indices, strict=True):
        exact = full[place[:, None], place]
        if part.name in curvature.fallbacks:
            others += not torch.equal(want[place[:, None], place], exact)
            want[place], want[:, place] = 0.0, 0.0
            want[place[:, None], place] = exact
    return want, others


def judged(entry: Case, structure: str, kind: str, batch_size: int, want: Wanted) -> Record:
    """One structure: its errors, the library's refusal, or somebody else's."""
    options = {"rank": want.jacobian.shape[-1], "generator": 0} if structure == "low_rank" else {}
    try:
        curvature = fit_curvature(
            entry.module, (entry.inputs, entry.targets), likelihood=entry.likelihood, curvature=kind,
            structure=structure, batch_size=batch_size, **options,
        )  # fmt: skip
        got, right, others = curvature.precision.to_dense(), want.matrices[structure], 0
        if structure == "ekfac":
            got = torch.stack([got.diagonal()[place].sum() for place in want.places])
        if structure == "kfac":
            right, others = announced(curvature, right, want.matrices["full"])
        return {
            "exact instead": others,
            "the matrix": error(got, right),
            "log likelihood": error(curvature.log_likelihood, want.log_likelihood),
            **own_errors(curvature, entry, want.jacobian),
        }
    except BayescopeError as refusal:
        return {"refused": f"{type(refusal).__name__}: {refusal}"[:200]}
    except Exception as failure:  # noqa: BLE001 - anything else is what this is looking for
        return {"foreign": f"{type(failure).__name__}: {failure}"[:200]}


def held(entry: Case) -> tuple[list[Tensor], list[bool]]:
    """What a reading must leave as it was: weights, buffers, rows, random states, modes."""
    values = [*entry.module.state_dict().values(), entry.inputs, entry.targets, torch.get_rng_state()]
    return [value.clone() for value in values], [part.training for part in entry.module.modules()]


def same(before: tuple[list[Tensor], list[bool]], after: tuple[list[Tensor], list[bool]]) -> bool:
    """Whether it did."""
    return before[1] == after[1] and all(map(torch.equal, before[0], after[0]))


def network(seed: int) -> Record:
    """Everything about the network of a seed."""
    entry, batch_size, kind = drawn(seed)
    found: Record = {
        "seed": seed, "layers": [type(part).__name__ for part in entry.module], "kind": kind,
        "likelihood": entry.likelihood.name, "weights": len(reference.flat_weights(entry.module)),
    }  # fmt: skip
    want = wanted(entry, kind)
    before = held(entry)
    found["structures"] = {name: judged(entry, name, kind, batch_size, want) for name in STRUCTURES}
    found["untouched"] = same(before, held(entry))
    return found


def outcome(found: Record) -> str:
    """One of `OUTCOMES`, of one structure."""
    if "refused" in found or "foreign" in found:
        return "refused" if "refused" in found else "foreign error"
    fitted, allowed = max(found["the matrix"], found["log likelihood"]), max(WRONG, min(FAR, found["rounding"]))
    return "agrees" if fitted <= WRONG and max(errors(found).values()) <= allowed else "wrong"


def right(found: Record) -> bool:
    """Whether one structure has the right answer, or an error of the library's own."""
    return outcome(found) in ("agrees", "refused")


def errors(found: Record) -> dict[str, float]:
    """Those of one structure, without what stands beside them."""
    return {what: value for what, value in found.items() if what not in BESIDE}


def run(count: int, first: int = 0) -> Record:
    """So many networks: counts, largest errors, and each that is not right."""
    found = [network(seed) for seed in range(first, first + count)]
    structures: Record = {}
    for name in STRUCTURES:
        some = [each["structures"][name] for each in found]
        good = [each for each in some if outcome(each) in ("agrees", "wrong")]
        structures[name] = {
            **{what: sum(outcome(each) == what for each in some) for what in OUTCOMES},
            "exact instead": sum(each["exact instead"] > 0 for each in good),
            "by rounding": sum(outcome(each) == "agrees" and max(errors(each).values()) > WRONG for each in good),
            "largest errors": {what: max(each[what] for each in good) for what in errors(good[0])} if good else {},
        }  # fmt: skip
    reasons = sorted({each["structures"][name]["refused"] for each in found for name in STRUCTURES
                      if "refused" in each["structures"][name]})  # fmt: skip
    bad = [each for each in found if not (each["untouched"] and all(map(right, each["structures"].values())))]
    weights = sorted(each["weights"] for each in found)
    return {"count": count, "weights": [weights[0], weights[len(weights) // 2], weights[-1]], "structures": structures,
            "refusals": reasons, "bad": bad}  # fmt: skip
