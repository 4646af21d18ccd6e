"""How exact: each kind and structure of curvature against dense float64 definitions, with peers on the same models.

Curvatures are compared with matrices that are written down from their definitions with autograd's Jacobians and second
derivatives and nothing of the library (`tests/curvature/reference.py`), for networks in which each layer has weights,
inputs and shapes of its own. An error is the norm of the difference over that of the reference. Below 1e-6 it counts as
right for us and below 1e-4 for peers. Peers run in float64 too, each asked in every fair way, of which the most exact
counts: with laplace-torch's several backends, with backpack's converter, with several inputs packed into one tensor,
with the positions of sequences as rows of the data or as `nn.CrossEntropyLoss` has them, and for backpack with pooling
in the place of means. A Kronecker curvature of theirs is compared in its blocks of weight tensors, since some keep
biases apart, and an empirical Fisher of sequences with the gradients of positions or of whole sequences, whichever is
nearer: these are other, equally right definitions. All read batches of three rows, apart from backpack's Kronecker
factors, which are those of one batch and get all rows. "Refused" says that no matrix of these weights came back; the
reasons stand in `agreement.json`, and that a network has modules of its user's own is among them.

    python -m bench.agreement [--no-peers] [--quick]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from bench import record
from bench.agreement_peers import Answer, answers
from tests.curvature import reference
from tests.curvature.cases import BATCH, MODELS, Case, case, fit
from tests.curvature.twins import TWINS

STRUCTURES = ("full", "block", "diagonal", "low_rank", "kfac", "ekfac")
KINDS = {"ggn": STRUCTURES, "hessian": ("full", "block", "diagonal"), "empirical_fisher": STRUCTURES}
EXACT = ("full", "low_rank")  # the latter of full rank
# Above these an answer, of ours and of a peer's, is another than the definition's.
OURS, WRONG = 1e-6, 1e-4
TITLES = {
    "ggn": "Generalised Gauss-Newton: Σ JᵀΛJ with Λ the second derivative of −log p(y∣f) by f",
    "hessian": "Hessian: the second derivative of −Σ log p(y∣f) by the weights",
    "empirical_fisher": "Empirical Fisher: the sum of the gradients' outer products at the observed labels",
}
Record = dict[str, Any]


@final
@dataclass(frozen=True)
class Definition:
    """The dense matrices of one kind of curvature of a network; each is computed once.

    Attributes:
        entry: the network and its rows.
        model: its name.
        kind: the kind of curvature.
        joined: whether the gradient of a row in the empirical Fisher is that of all its positions together.
    """

    entry: Case
    model: str
    kind: str
    joined: bool = False

    @cached_property
    def middle(self) -> Tensor:
        """What takes Λ's place, shape (N, S C, S C)."""
        return reference.output_curvature(self.entry, "fisher" if self.joined else self.kind)

    @cached_property
    def full(self) -> Tensor:
        """The exact matrix."""
        if self.kind == "hessian":
            return reference.hessian(self.entry)
        J = reference.jacobian(self.entry)
        return torch.einsum("ncp,ncd,ndq->pq", J, self.middle, J)

    def dense(self, structure: str) -> Tensor:
        """The matrix in a structure."""
        if structure in EXACT:
            return self.full
        if structure == "diagonal":
            return torch.diag(self.full.diagonal())
        twin = TWINS.get(self.model)
        layers = reference.layers(self.entry, twin)
        if structure == "block":
            return reference.restricted(self.full, layers)
        factors = reference.factors(self.entry, self.middle, twin=twin)
        corrected = structure == "ekfac"
        blocks = reference.ekfac_blocks(factors, self.middle) if corrected else reference.kfac_blocks(factors)
        return reference.assembled(len(self.full), blocks, self.full, layers)


def error(got: Tensor, want: Tensor) -> float:
    """‖got − want‖ / ‖want‖."""
    return float((got.to(want) - want).norm() / want.norm())


def tried(run: Answer, compare: Callable[[Tensor], float]) -> Record:
    """The error of an answer, or why there is none."""
    try:
        answer = run()
        if not bool(answer.isfinite().all()):
            return {"failure": "not finite"}
    except Exception as failure:  # noqa: BLE001 - a refusal is a result
        return {"failure": f"{type(failure).__name__}: {failure}".splitlines()[0][:120]}
    try:
        return {"error": compare(answer)}
    except (IndexError, RuntimeError):  # weights that it leaves out, or counts twice
        return {"failure": f"a matrix of shape {tuple(answer.shape)}"}


def best(ways: dict[str, Answer], compare: Callable[[Tensor], float]) -> Record:
    """The most exact of a peer's ways of asking."""
    found = [tried(run, compare) | {"way": way} for way, run in ways.items()]
    return min(found, key=lambda each: each.get("error", float("inf")))


def ours(entry: Case, structure: str, kind: str) -> Answer:
    """Our matrix, dense."""
    options = {"generator": 0}
    if structure == "low_rank":
        options["rank"] = sum(weight.numel() for weight in entry.module.parameters())

    def run() -> Tensor:
        return fit(entry, structure, kind, **options).precision.to_dense()

    return run


def weight_blocks(entry: Case) -> list[Tensor]:
    """The flat places of each weight tensor that is no bias, in the order of all weights."""
    places = reference.positions(entry.module)
    return [where.reshape(-1) for name, where in places.items() if "bias" not in name.rpartition(".")[2]]


def comparison(entry: Case, structure: str, wanted: Sequence[Tensor]) -> Callable[[Tensor], float]:
    """The error against the nearest of equally right matrices; of Kronecker ones in the blocks of weight tensors."""
    blocks = [slice(None)] if structure in (*EXACT, "diagonal") else weight_blocks(entry)
    return lambda got: min(max(error(got[at][:, at], want[at][:, at]) for at in blocks) for want in wanted)


def curvatures(model: str, kind: str, *, peers: bool) -> list[Record]:
    """One network of three classes with one kind of curvature in every structure."""
    entry = case(model, outputs=MODELS[model].outputs[-1])
    rights = [Definition(entry, model, kind)]
    rights += [Definition(entry, model, kind, joined=True)] * (kind == "empirical_fisher" and entry.targets.ndim > 1)
    found = []
    for structure in KINDS[kind]:
        wanted = [each.dense(structure) for each in rights]
        answer = tried(ours(entry, structure, kind), lambda got, want=wanted[0]: error(got, want))  # type: ignore[misc]
        asked = answers(entry, structure, kind, BATCH) if peers else {}
        compare = comparison(entry, structure, wanted)
        theirs = {name: best(ways, compare) for name, ways in asked.items()}
        found.append({"model": model, "kind": kind, "structure": structure, "ours": answer, "peers": theirs})
    return found


def cell(answer: Record, bound: float) -> str:
    """An error, in bold where it is another answer than the definition's."""
    if "failure" in answer:
        return "refused"
    text = f"{answer['error']:.0e}"
    return f"**{text}**" if answer["error"] > bound else text


def counted(answers: Sequence[Record], bound: float) -> str:
    """How many answers are right, and how many are others; the rest was refused."""
    ran = [each["error"] for each in answers if "error" in each]
    right = sum(each <= bound for each in ran)
    return "–" if not answers else f"{right} right" + (f", **{len(ran) - right} other**" if right < len(ran) else "")


def page(found: Sequence[Record]) -> list[str]:
    """A count for each kind and structure, then an error for each network."""
    names = sorted({name for each in found for name in each["peers"]})
    lines, parts = [], []
    for kind, title in TITLES.items():
        parts.append(f"### {title}")
        for structure in KINDS[kind]:
            some = [each for each in found if (each["kind"], each["structure"]) == (kind, structure)]
            asked = [[each["peers"][name] for each in some if name in each["peers"]] for name in names]
            largest = max((each["ours"]["error"] for each in some if "error" in each["ours"]), default=float("nan"))
            these = counted([each["ours"] for each in some], OURS)
            theirs = [counted(answers, WRONG) for answers in asked]
            lines.append([kind, structure, len(some), these, f"{largest:.1e}", *theirs])
            who = [name for name, answers in zip(names, asked, strict=True) if answers]
            cells = [
                [each["model"], cell(each["ours"], OURS), *(cell(each["peers"][name], WRONG) for name in who)]
                for each in some
            ]
            parts += [f"#### {structure}", record.table(["network", "bayescope", *who], cells)]
    head = ["kind", "structure", "networks", "bayescope", "its largest error", *names]
    return ["## Curvatures of networks", record.table(head, lines), *parts]


def main() -> None:
    """Compares, prints and saves; an answer of ours that is wrong ends with 1."""
    parser = record.arguments(__doc__)
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    models = ["conv2d groups", "tied linear"] if options.quick else list(MODELS)
    found = [each for kind in KINDS for model in models for each in curvatures(model, kind, peers=options.peers)]
    title, how = "Agreement with exact answers", record.method_in(__doc__)
    record.publish(options, "bench.agreement", title, how, page(found), {"curvatures": found})
    wrong = [each for each in found if each["ours"].get("error", float("inf")) > OURS]
    if wrong:
        raise SystemExit("Ours is wrong: " + ", ".join(f"{e['kind']} {e['structure']} of {e['model']}" for e in wrong))


if __name__ == "__main__":
    main()
