"""How exact: each structure, kind and likelihood against dense float64 references, beside peers on the same models.

Curvatures are compared with matrices that are written down from their definitions with autograd's Jacobians and nothing
of the library (`tests/curvature/reference.py`), of networks in which each layer has weights, inputs and shapes of its
own. An error is the norm of the difference over that of the reference. Peers run in float64 too; of laplace-torch the
best of its backends counts. A Kronecker curvature is compared in its blocks of weight tensors, since some peers keep
biases apart, which is another, equally right definition. Times are of one fit, memory is the bytes of the tensors
that live at its highest, both with the dense matrix that is compared. Posteriors are compared with closed forms.

    python -m bench.agreement [--no-peers] [--quick]
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench import record
from bench.agreement_posteriors import POSTERIORS
from bench.live_memory import peak_of
from bench.peers import laplace_backends
from tests.curvature import reference
from tests.curvature.cases import BATCH, LIKELIHOODS, MODELS, Case, case, fit
from tests.curvature.twins import TWINS

STRUCTURES = ("full", "block", "diagonal", "low_rank", "kfac", "ekfac")
EXACT = ("full", "low_rank")  # the latter of full rank
# Above it a peer's answer is another than the definition's.
WRONG = 1e-4
# And above it ours, in float64, is no rounding.
LARGEST = 1e-6
Record = dict[str, Any]


# --- ours and the reference -------------------------------------------------------------------------------------------


def definition(entry: Case, model: str, structure: str, kind: str = "ggn") -> Tensor:
    """The dense matrix by its definition; of the diagonal, its entries alone."""
    middle = reference.output_curvature(entry, kind)
    exact = reference.hessian(entry) if kind == "hessian" else reference.full(entry, kind)
    if structure in EXACT:
        return exact
    if structure == "diagonal":
        return torch.diag(exact.diagonal())
    if structure == "block":
        return reference.restricted(exact, reference.layers(entry, TWINS.get(model)))
    found = reference.factors(entry, middle, twin=TWINS.get(model))
    blocks = reference.kfac_blocks(found) if structure == "kfac" else reference.ekfac_blocks(found, middle)
    return reference.assembled(len(exact), blocks, exact, reference.layers(entry, TWINS.get(model)))


def error(got: Tensor, want: Tensor) -> float:
    """‖got − want‖ / ‖want‖."""
    return float((got.to(want) - want).norm() / want.norm())


def measured(run: Callable[[], Tensor], compare: Callable[[Tensor], float]) -> Record:
    """The error of an answer, its seconds and the bytes of tensors at its highest, or why there is none."""
    try:
        run()  # warms up
        start = time.perf_counter()
        answer = run()
    except Exception as failure:  # noqa: BLE001 - a refusal is a result
        return {"failure": f"{type(failure).__name__}: {failure}".splitlines()[0][:120]}
    taken = time.perf_counter() - start
    if not bool(answer.isfinite().all()):
        return {"failure": "not finite", "seconds": taken}
    try:
        wrong = compare(answer)
    except (IndexError, RuntimeError):  # weights that it leaves out, or counts twice
        return {"failure": f"a matrix of shape {tuple(answer.shape)}", "seconds": taken}
    return {"error": wrong, "seconds": taken, "peak_bytes": _peak(run)}


def _peak(run: Callable[[], Tensor]) -> int | None:
    try:
        return peak_of(run)
    except Exception:  # noqa: BLE001 - some of the peers' transforms cannot be counted
        return None


def ours(entry: Case, structure: str, kind: str = "ggn") -> Callable[[], Tensor]:
    """Our matrix, dense."""
    options = {"rank": sum(weight.numel() for weight in entry.module.parameters())} if structure == "low_rank" else {}

    def run() -> Tensor:
        return fit(entry, structure, kind, generator=0, **options).precision.to_dense()

    return run


# --- the peers --------------------------------------------------------------------------------------------------------


def plain(entry: Case) -> tuple[nn.Module, Tensor, Tensor]:
    """The network in evaluation mode without in-place layers, as peers need it, and its rows."""
    module = copy.deepcopy(entry.module).eval()
    for part in module.modules():
        if hasattr(part, "inplace"):
            part.inplace = False
    return module, entry.inputs, entry.targets


def laplace_torch(entry: Case, structure: str) -> dict[str, Callable[[], Tensor]]:
    """Its curvature without the prior, by each backend."""
    from laplace import Laplace

    names = {"full": "full", "diagonal": "diag", "kfac": "kron"}
    if structure not in names:
        return {}

    def run(backend: Any) -> Tensor:
        module, x, y = plain(entry)
        posterior = Laplace(
            module, "classification", subset_of_weights="all", hessian_structure=names[structure], backend=backend
        )
        posterior.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
        if structure == "kfac":
            return posterior.H_facs.to_matrix()
        return posterior.H if structure == "full" else torch.diag(posterior.H)

    return {f"laplace-torch, {label}": lambda each=each: run(each) for label, each in laplace_backends().items()}  # type: ignore[misc]


def curvlinops(entry: Case, structure: str) -> dict[str, Callable[[], Tensor]]:
    """Its linear operators, multiplied by the identity."""
    import curvlinops as peer

    names = {"full": "GGNLinearOperator", "kfac": "KFACLinearOperator", "ekfac": "EKFACLinearOperator"}
    if structure not in names:
        return {}

    def run() -> Tensor:
        module, x, y = plain(entry)
        batches = [(x[start : start + BATCH], y[start : start + BATCH]) for start in range(0, len(x), BATCH)]
        options: dict[str, Any] = {}
        if structure != "full":
            options = {"fisher_type": peer.FisherType.TYPE2, "separate_weight_and_bias": False}
        kind = getattr(peer, names[structure])
        operator = kind(module, nn.CrossEntropyLoss(reduction="sum"), list(module.parameters()), batches, **options)
        return operator @ torch.eye(operator.shape[1], dtype=torch.float64)

    return {"curvlinops": run}


def backpack(entry: Case, structure: str) -> dict[str, Callable[[], Tensor]]:
    """Its exact diagonal; its Kronecker factors are those of a batch, here of all rows."""
    from backpack import backpack as recording
    from backpack import extend, extensions

    if structure not in ("diagonal", "kfac"):
        return {}

    def run() -> Tensor:
        module, x, y = plain(entry)
        extension = extensions.DiagGGNExact() if structure == "diagonal" else extensions.KFLR()
        module, loss = extend(module), extend(nn.CrossEntropyLoss(reduction="sum"))
        with recording(extension):
            loss(module(x), y).backward()
        if structure == "diagonal":
            return torch.diag(torch.cat([each.diag_ggn_exact.reshape(-1) for each in module.parameters()]))
        blocks = [torch.kron(*each.kflr) if len(each.kflr) == 2 else each.kflr[0] for each in module.parameters()]
        return torch.block_diag(*blocks)

    return {"backpack": run}


PEERS = (laplace_torch, curvlinops, backpack)


def peer_answers(entry: Case, structure: str, compare: Callable[[Tensor], float]) -> dict[str, Record]:
    """Each peer's error, of laplace-torch that of the best backend."""
    if not isinstance(entry.inputs, Tensor) or entry.targets.ndim != 1:
        return {}  # a tuple or dict of inputs, or several labels a row
    found: dict[str, Record] = {}
    for peer in PEERS:
        ways = {name: measured(run, compare) for name, run in peer(entry, structure).items()}
        if ways:
            name = min(ways, key=lambda way: ways[way].get("error", float("inf")))
            found[name.partition(", ")[0]] = {**ways[name], "way": name.partition(", ")[2]}
    return found


# --- what is compared -------------------------------------------------------------------------------------------------


def weight_blocks(entry: Case) -> list[Tensor]:
    """The flat places of each weight tensor that is no bias, in the order of all weights."""
    places = reference.positions(entry.module)
    return [where.reshape(-1) for name, where in places.items() if "bias" not in name.rpartition(".")[2]]


def curvature(model: str, structure: str, *, peers: bool) -> Record:
    """One network in one structure, with three classes."""
    entry = case(model, outputs=MODELS[model].outputs[-1])
    want = definition(entry, model, structure)

    def whole(got: Tensor) -> float:
        return error(got, want)

    def blocks(got: Tensor) -> float:
        return max(error(got[each][:, each], want[each][:, each]) for each in weight_blocks(entry))

    found: Record = {"model": model, "structure": structure, "ours": measured(ours(entry, structure), whole)}
    if peers:
        found["peers"] = peer_answers(entry, structure, whole if structure in (*EXACT, "diagonal") else blocks)
    return found


def kind(likelihood: str, name: str) -> Record:
    """A dense network under one likelihood and kind of curvature, in the structures that are exact."""
    entry = case("mlp", likelihood)
    found = {
        structure: measured(
            ours(entry, structure, name),
            lambda got, structure=structure: error(got, definition(entry, "mlp", structure, name)),  # type: ignore[misc]
        )
        for structure in ("full", "diagonal")
    }
    return {"likelihood": likelihood, "kind": name, **found}


# --- the page ---------------------------------------------------------------------------------------------------------


def whole_cell(answer: Record | None) -> str:
    """An error with its time and its memory."""
    if answer is None or "error" not in answer:
        return cell(answer)
    taken = answer["peak_bytes"]
    memory = "not counted" if taken is None else f"{1e-3 * taken:,.0f} kB"
    return f"{cell(answer)}, {1e3 * answer['seconds']:.0f} ms, {memory}"


def cell(answer: Record | None) -> str:
    """An error, in bold where it is another answer than the definition's."""
    if answer is None:
        return "–"
    if "failure" in answer:
        return "refused" if "seconds" not in answer else f"**{answer['failure']}**"
    return f"**{answer['error']:.1g}**" if answer["error"] > WRONG else f"{answer['error']:.0e}"


def curvature_table(found: Sequence[Record], structure: str) -> str:
    """The networks of a structure, and the columns of those peers that have it."""
    some = [each for each in found if each["structure"] == structure]
    names = sorted({name for each in some for name in each.get("peers", {})})
    rows = [
        [each["model"], whole_cell(each["ours"]), *(whole_cell(each.get("peers", {}).get(name)) for name in names)]
        for each in some
    ]
    return record.table(["network", "bayescope", *names], rows)


def summary(found: Sequence[Record]) -> str:
    """How many networks each can do, and how many of its answers are other ones."""
    rows = []
    for structure in STRUCTURES:
        some = [each for each in found if each["structure"] == structure]
        names = ["bayescope", *sorted({name for each in some for name in each.get("peers", {})})]
        for name in names:
            answers = [each["ours"] if name == "bayescope" else each["peers"].get(name) for each in some]
            ran = [each["error"] for each in answers if each and "error" in each]
            wrong = sum(each > WRONG for each in ran)
            largest = f"{max(ran):.1e}" if ran else ""
            rows.append([structure, name, f"{len(ran)} of {len(some)}", wrong, largest])
    return record.table(["structure", "who", "networks that it takes", "another answer", "largest error"], rows)


def written(found: Sequence[Record], kinds: Sequence[Record], posteriors: Sequence[Record]) -> list[str]:
    """The parts of the page."""
    parts = ["## Curvatures of networks", summary(found)]
    for structure in STRUCTURES:
        parts += [f"### {structure}", curvature_table(found, structure)]
    rows = [[each["likelihood"], each["kind"], cell(each["full"]), cell(each["diagonal"])] for each in kinds]
    parts += ["## Kinds and likelihoods", record.table(["likelihood", "kind", "full", "diagonal"], rows)]
    lines = [
        [each["what"], told(each["bayescope"]), told(each.get("laplace-torch")), each["right"]] for each in posteriors
    ]
    parts += ["## Posteriors", record.table(["what", "bayescope", "laplace-torch", "right"], lines)]
    return parts


def told(value: Any) -> str:
    """A number of a posterior, a refusal, or a dash."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.3g}"


def main() -> None:
    """Compares, prints and saves; an error of ours above the bound ends with 1."""
    parser = record.arguments(__doc__)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    peers = not options.no_peers
    models = ["mlp", "conv2d groups", "tied linear"] if options.quick else list(MODELS)
    found = [curvature(model, structure, peers=peers) for structure in STRUCTURES for model in models]
    names = ["categorical"] if options.quick else list(LIKELIHOODS)
    kinds = [kind(likelihood, name) for likelihood in names for name in ("ggn", "empirical_fisher", "hessian")]
    posteriors = [make(peers) for make in POSTERIORS]
    origin = record.made("bench.agreement")
    said = " ".join((__doc__ or "").split("\n\n")[1].split())
    results = {"made": origin, "curvatures": found, "kinds": kinds, "posteriors": posteriors}
    text = record.page("Agreement with exact answers", origin, said, written(found, kinds, posteriors))
    if peers:
        record.save(record.folder(options), "agreement", results, text)
    ours_of = [each["ours"] for each in found] + [each[name] for each in kinds for name in ("full", "diagonal")]
    worst = max(each.get("error", float("inf")) for each in ours_of)
    if worst > LARGEST:
        raise SystemExit(f"an error of ours is {worst:.1e}")


if __name__ == "__main__":
    main()
