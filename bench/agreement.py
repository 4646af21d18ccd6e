"""How exact: each structure, kind and likelihood against dense float64 references, beside peers on the same models.

Curvatures are compared with matrices that are written down from their definitions with autograd's Jacobians and second
derivatives and nothing of the library (`tests/curvature/reference.py`), of networks in which each layer has weights,
inputs and shapes of its own. An error is the norm of the difference over that of the reference. Below 1e-6 it counts as
right for us and below 1e-4 for peers. These run in float64 too, each asked in every fair way, of which the fastest that
is right counts: with laplace-torch's several backends, with backpack's converter, with several inputs packed into one
tensor, with the positions of sequences as rows of the data or as `nn.CrossEntropyLoss` has them, with attention by
operations that have all derivatives, and for backpack with pooling in the place of means. A Kronecker curvature of
theirs is compared in its blocks of weight tensors, since some keep biases apart, and an empirical Fisher of sequences
with the gradients of positions or of whole sequences, whichever is nearer: these are other, equally right definitions.
All read batches of three rows, apart from backpack's Kronecker factors, which are those of one batch and get all rows.
Times are of one fit, the least of five below 0.2 s; memory is the bytes of the tensors that live at its highest, both
with the dense matrix that is compared. "Refused" says that no matrix of these weights came back; the reasons stand in
`agreement.json`, and that a network has modules of its user's own, as many have here, is among them. What draws is
judged by its distance from what is expected in standard errors ("s.e."), about 1 where it is right. Posteriors are
compared with closed forms and quadrature.

    python -m bench.agreement [--no-peers] [--quick]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from bench import record
from bench.agreement_draws import FAR, PAIRS, drawn
from bench.agreement_linear import all_moments
from bench.agreement_networks import (
    CHANCE,
    COPIES,
    FITS,
    KINDS,
    WRONG,
    Record,
    best,
    comparison,
    curvatures,
    definition,
    error,
    last_layers,
    measured,
    ours,
)
from bench.agreement_peers import answers
from bench.agreement_posteriors import POSTERIORS
from tests.curvature.cases import BATCH, LIKELIHOODS, MODELS, case

# Above them an answer of ours, in float64, is no rounding: of matrices; of one seed twice; of exact moments.
LARGEST, SAME, MOMENT = 1e-6, 1e-10, 1e-9
TITLES = {
    "ggn": "Generalised Gauss-Newton",
    "hessian": "Hessian",
    "empirical_fisher": "Empirical Fisher",
    "fisher": "Fisher with drawn labels",
    "last layer": "Last layer, generalised Gauss-Newton",
}
SAID = {
    "ggn": "Σ JᵀΛJ with Λ the second derivative of −log p(y∣f) by f.",
    "empirical_fisher": "The sum of the gradients' outer products at the observed labels.",
    "hessian": "The second derivative of −Σ log p(y∣f) by the weights, with that of the network.",
    "fisher": (
        "The error is that of the matrix at the labels that were drawn, which peers do not tell. The distance is that "
        f"of the mean of {FITS} fits, each of the rows {COPIES} times over, from the GGN, their expectation, in "
        f"standard errors; above {CHANCE:g} it is no chance. Blocks and low rank are parts of the full matrix; "
        "eigenvalues that are corrected in a drawn basis have no such law."
    ),
    "last layer": (
        "Of the matrix of the last layer's weights alone; which layer is last is found, not told, by laplace-torch "
        "and by us."
    ),
}


def kind(likelihood: str, name: str, *, peers: bool) -> Record:
    """A dense network under one likelihood with one kind of curvature in each structure, ours and the peers'."""
    entry = case("mlp", likelihood)
    right = definition(entry, "mlp", name)
    found: Record = {"likelihood": likelihood, "kind": name, "peers": {}}
    for structure in KINDS[name]:
        want = right.dense(structure)
        found[structure] = measured(ours(entry, structure, name), lambda got, want=want: error(got, want))  # type: ignore[misc]
        if peers and name != "fisher":
            compare = comparison(entry, structure, [want])
            for who, ways in answers(entry, structure, name, BATCH).items():
                found["peers"].setdefault(who, {})[structure] = best(ways, compare)
    return found


# --- the page ---------------------------------------------------------------------------------------------------------


def cell(answer: Record | None, *, law: bool = False, bound: float = WRONG) -> str:
    """An error or a distance in standard errors, in bold where it is another answer than the definition's."""
    if answer is None:
        return "–"
    if "failure" in answer:
        return "refused"
    told = f"{answer['error']:.1f} s.e." if law else f"{answer['error']:.1g}"
    if answer["error"] > bound:
        return f"**{told}**"
    return told if law else f"{answer['error']:.0e}"


def cost(answer: Record) -> str:
    """Its time and its memory."""
    taken = answer["peak_bytes"]
    memory = "not counted" if taken is None else f"{1e-3 * taken:,.0f} kB"
    return f"{1e3 * answer['seconds']:.0f} ms, {memory}"


def whole_cell(answer: Record | None, distance: float | None = None, *, law: bool = False, bound: float = WRONG) -> str:
    """With its time and its memory, and of drawn labels with the distance of their mean from the law."""
    if answer is None or "error" not in answer:
        return cell(answer)
    beside = [] if distance is None else [f"{distance:.1f} s.e."]
    return ", ".join([cell(answer, law=law, bound=bound), *beside, cost(answer)])


def peers_of(found: Sequence[Record]) -> list[str]:
    """The peers that were asked, by name."""
    return sorted({name for each in found for name in each.get("peers", {})})


def curvature_tables(found: Sequence[Record], kind: str) -> list[str]:
    """A table for each structure that peers have too, and one for all that ours alone has."""
    law = kind == "fisher"
    some = [each for each in found if each["kind"] == kind]
    structures = list(dict.fromkeys(each["structure"] for each in some))
    alone, parts = [], []
    for structure in structures:
        rows = [each for each in some if each["structure"] == structure]
        if not (names := peers_of(rows)):
            alone.append(structure)
            continue
        table = [
            [
                each["model"],
                whole_cell(each["ours"], each.get("law"), bound=LARGEST),
                *(whole_cell(each["peers"].get(name), law=law, bound=CHANCE if law else WRONG) for name in names),
            ]
            for each in rows
        ]
        parts += [f"#### {structure}", record.table(["network", "bayescope", *names], table)]
    if alone:
        cells: dict[str, list[str]] = {}
        for each in some:
            if each["structure"] in alone:
                cells.setdefault(each["model"], []).append(whole_cell(each["ours"], each.get("law"), bound=LARGEST))
        parts += ["#### bayescope alone", record.table(["network", *alone], [[m, *row] for m, row in cells.items()])]
    return parts


def summary(found: Sequence[Record]) -> str:
    """By kind and structure: how many networks each has right, and of how many it has another answer."""
    names, lines = peers_of(found), []
    for kind, structure in dict.fromkeys((each["kind"], each["structure"]) for each in found):
        some = [each for each in found if (each["kind"], each["structure"]) == (kind, structure)]
        errors = [each["ours"]["error"] for each in some if "error" in each["ours"]]
        laws = [each["law"] for each in some if "law" in each]
        largest = [f"{max(errors):.1e}"] if errors else []
        largest += [f"{max(laws):.1f} s.e."] if laws else []
        asked = [[each["peers"][name] for each in some if name in each.get("peers", {})] for name in names]
        cells = [taken(answers, CHANCE if kind == "fisher" else WRONG) for answers in asked]
        ours = taken([each["ours"] for each in some], LARGEST)
        lines.append([kind, structure, len(some), ours, ", ".join(largest), *cells])
    return record.table(["kind", "structure", "networks", "bayescope", "its largest error", *names], lines)


def taken(answers: Sequence[Record], bound: float) -> str:
    """How many answers are right, and how many are others; the rest was refused."""
    ran = [each["error"] for each in answers if "error" in each]
    right = sum(each <= bound for each in ran)
    return "–" if not answers else f"{right} right" + (f", **{len(ran) - right} other**" if right < len(ran) else "")


def repeated(found: Sequence[Record]) -> str:
    """Drawn labels from one seed twice: the largest difference, ours with other batches the second time."""
    lines = []
    for structure in KINDS["fisher"]:
        some = [each for each in found if each["kind"] == "fisher" and each["structure"] == structure]
        for name in ["bayescope", *peers_of(some)]:
            answers = some if name == "bayescope" else [each["peers"][name] for each in some]
            differences = [each["repeated"] for each in answers if "repeated" in each]
            largest = f"{max(differences):.0e}" if differences else ""
            lines.append([structure, name, len(differences), largest])
    return record.table(["structure", "who", "networks", "two fits from one seed: largest difference"], lines)


def draws_table(found: Sequence[Record]) -> str:
    """The draws of posteriors of the networks."""
    names = peers_of(found)
    rows = [
        [
            each["model"],
            whole_cell(each["ours"], law=True, bound=FAR),
            f"{each.get('middle', float('nan')):.0e}",
            f"{each.get('repeated', float('nan')):.0e}",
            *(whole_cell(each.get("peers", {}).get(name), law=True, bound=FAR) for name in names),
        ]
        for each in found
    ]
    head = ["network", "bayescope", "its pairs' middle less θ*", "two runs from one seed", *names]
    return record.table(head, rows)


def moments_table(found: Sequence[Record]) -> str:
    """Expectation propagation and Laplace beside quadrature."""
    names = {"ep": "expectation propagation", "laplace": "Laplace"}
    rows = [
        [
            each["table"], each["link"], names[each["inference"]], f"{each['mean']:.1e}", f"{each['sd']:.1e}",
            f"{each['log_evidence']:.1e}",
        ]
        for each in found
    ]  # fmt: skip
    head = ["table", "link", "inference", "mean, in standard deviations", "standard deviation, relative", "log Z, nats"]
    return record.table(head, rows)


def written(results: Record) -> list[str]:
    """The parts of the page."""
    found, kinds = results["curvatures"], results["kinds"]
    parts = ["## Curvatures of networks", summary(found)]
    for name, title in TITLES.items():
        parts += [f"### {title}", SAID[name], *curvature_tables(found, name)]
        parts += ["#### one seed", repeated(found)] if name == "fisher" else []
    structures = KINDS["ggn"]
    rows = [
        [each["likelihood"], each["kind"], who, *(cell(answers.get(name)) for name in structures)]
        for each in kinds
        for who, answers in {"bayescope": each, **each["peers"]}.items()
    ]
    parts += [
        "## Kinds and likelihoods",
        "A dense network under each likelihood, with a dash where a kind has no such structure. Peers have the squared "
        "loss, which is scaled to the noise variance, the loss of one logit and that of classes.",
        record.table(["likelihood", "kind", "who", *structures], rows),
    ]
    parts += [
        "## Draws of posteriors",
        'The structure "samples" of every network: how far the covariance of the draws is from the inverse of '
        "the dense precision, with all directions scaled alike, beside draws of laplace-torch's full matrix. Both fit "
        f"and draw {2 * PAIRS:,} times, of which the first half is compared, since ours are pairs.",
        draws_table(results["draws"]),
        "## Expectation propagation",
        "Linear models of two weights against quadrature over the plane. Of the first two tables expectation "
        "propagation is exact, of the others an approximation; no peer has it.",
        moments_table(results["moments"]),
    ]
    lines = [
        [each["what"], told(each["bayescope"]), told(each.get("laplace-torch")), each["right"]]
        for each in results["posteriors"]
    ]
    return [*parts, "## Posteriors", record.table(["what", "bayescope", "laplace-torch", "right"], lines)]


def told(value: Any) -> str:
    """A number of a posterior, a refusal, or a dash."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.3g}"


# --- the run ----------------------------------------------------------------------------------------------------------


def within(answer: Record, bound: float) -> bool:
    """Whether there is an answer, with an error that is small enough."""
    return bool(answer.get("error", float("inf")) <= bound)


def failures(results: Record) -> list[str]:
    """What of ours is wrong."""
    found = [
        f"{each['kind']}, {each['structure']} of {each['model']}"
        for each in results["curvatures"]
        if not (within(each["ours"], LARGEST) and each.get("law", 0.0) <= CHANCE and each.get("repeated", 0.0) <= SAME)
    ]
    found += [
        f"{each['kind']}, {structure} of {each['likelihood']}"
        for each in results["kinds"]
        for structure in KINDS[each["kind"]]
        if not within(each[structure], LARGEST)
    ]
    found += [
        f"draws of {each['model']}"
        for each in results["draws"]
        if not (within(each["ours"], FAR) and each["repeated"] <= SAME and each["middle"] <= SAME)
    ]
    return found + [
        f"expectation propagation of {each['table']}, {each['link']}"
        for each in results["moments"]
        if each["exact"] and not max(each["mean"], each["sd"], abs(each["log_evidence"])) <= MOMENT
    ]


def main() -> None:
    """Compares, prints and saves; an answer of ours that is wrong ends with 1."""
    parser = record.arguments(__doc__)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begun, peers = time.monotonic(), not options.no_peers
    models = ["conv2d groups", "tied linear"] if options.quick else list(MODELS)
    names = ["categorical"] if options.quick else list(LIKELIHOODS)
    made = [each for name in KINDS for model in models for each in curvatures(model, name, peers=peers)]
    made += [each for model in models for each in last_layers(model, peers=peers)]
    origin = record.made("bench.agreement")
    results = {
        "made": origin,
        "curvatures": made,
        "kinds": [kind(likelihood, name, peers=peers) for likelihood in names for name in KINDS],
        "draws": [drawn(model, peers=peers) for model in models],
        "moments": all_moments(options.quick),
        "posteriors": [make(peers) for make in POSTERIORS],
        "seconds": time.monotonic() - begun,
    }
    said = " ".join((__doc__ or "").split("\n\n")[1].split())
    text = record.page("Agreement with exact answers", origin, said, written(results))
    if peers:
        record.save(record.folder(options), "agreement", results, text)
    if wrong := failures(results):
        raise SystemExit("Ours is wrong: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
