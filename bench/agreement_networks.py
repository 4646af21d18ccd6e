"""Each kind and structure of curvature of one network against its definition, ours and the peers'."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, final
from unittest import mock

import torch
from torch import Tensor, nn

from bench.agreement_peers import Answer, answers
from bench.live_memory import peak_of
from tests.curvature import reference
from tests.curvature.cases import BATCH, MODELS, Case, case, fit
from tests.curvature.twins import TWINS

STRUCTURES = ("full", "block", "diagonal", "low_rank", "kfac", "ekfac")
KINDS = {
    "ggn": STRUCTURES,
    "hessian": ("full", "block", "diagonal"),
    "empirical_fisher": STRUCTURES,
    "fisher": STRUCTURES,
}
EXACT = ("full", "low_rank")  # the latter of full rank
# Above it a peer's answer is another than the definition's.
WRONG = 1e-4
# What takes fewer seconds is timed five times.
SHORT = 0.2
# The law of drawn labels: so many fits, of rows so many times over, and how many standard errors are no chance.
FITS, COPIES, CHANCE = 16, 32, 6.0
# Of a peer's ways within so many standard errors the fastest counts.
NEAR = 2.0
# Blocks and low rank are parts of the full matrix; the eigenvectors of the corrected structure are those of the drawn
# labels, so that its expectation has no closed form.
LAWFUL = ("full", "diagonal", "kfac")
Record = dict[str, Any]


# --- definitions ------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Definition:
    """The dense matrices of one kind, of which each is computed once.

    Attributes:
        entry: the network; of the kind "fisher" with the drawn labels for targets.
        model: its name.
        kind: the kind of curvature.
        joined: of the empirical Fisher, whether the gradient of a row is that of all its positions together.
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

    @cached_property
    def layers(self) -> list[Tensor]:
        """The flat places of each layer."""
        return reference.layers(self.entry, TWINS.get(self.model))

    @cached_property
    def factors(self) -> list[reference.Factors]:
        """The Kronecker factors of each matrix."""
        return reference.factors(self.entry, self.middle, twin=TWINS.get(self.model))

    def dense(self, structure: str) -> Tensor:
        """The matrix in a structure."""
        if structure in EXACT:
            return self.full
        if structure == "diagonal":
            return torch.diag(self.full.diagonal())
        if structure == "block":
            return reference.restricted(self.full, self.layers)
        corrected = structure == "ekfac"
        blocks = reference.ekfac_blocks(self.factors, self.middle) if corrected else reference.kfac_blocks(self.factors)
        return reference.assembled(len(self.full), blocks, self.full, self.layers)


def drawn_labels(entry: Case) -> Tensor:
    """The labels that the kind "fisher" draws from the seed 0, read where the likelihood gives them."""
    kept: list[Tensor] = []
    draw = type(entry.likelihood).sample

    def listened(likelihood: Any, f: Tensor, generator: torch.Generator) -> Tensor:
        kept.append(draw(likelihood, f, generator))
        return kept[-1]

    with mock.patch.object(type(entry.likelihood), "sample", listened):
        fit(entry, "diagonal", "fisher", generator=0, batch_size=len(entry.targets))
    labels = kept[-1]  # of the pass over the data, with more of them than there are rows
    return labels[: entry.targets.numel() // labels[0].numel()].reshape(entry.targets.shape)


def definition(entry: Case, model: str, kind: str) -> Definition:
    """Of the kind "fisher" at the drawn labels."""
    return Definition(replace(entry, targets=drawn_labels(entry)) if kind == "fisher" else entry, model, kind)


# --- what is measured -------------------------------------------------------------------------------------------------


def error(got: Tensor, want: Tensor) -> float:
    """‖got − want‖ / ‖want‖."""
    return float((got.to(want) - want).norm() / want.norm())


def measured(run: Answer, compare: Callable[[Tensor], float]) -> Record:
    """The error of an answer, its seconds and the bytes of tensors at its highest, or why there is none."""
    return finished(tried(run, compare), run)


def tried(run: Answer, compare: Callable[[Tensor], float]) -> Record:
    """The error of an answer and the seconds of one run, or why there is none."""
    try:
        run()  # warms up
        start = time.perf_counter()
        answer = run()
        taken = time.perf_counter() - start
    except Exception as failure:  # noqa: BLE001 - a refusal is a result
        return {"failure": f"{type(failure).__name__}: {failure}".splitlines()[0][:120]}
    if not bool(answer.isfinite().all()):
        return {"failure": "not finite", "seconds": taken}
    try:
        return {"error": compare(answer), "seconds": taken}
    except (IndexError, RuntimeError):  # weights that it leaves out, or counts twice
        return {"failure": f"a matrix of shape {tuple(answer.shape)}", "seconds": taken}


def finished(found: Record, run: Answer) -> Record:
    """With the least seconds of five runs where they are short, and the bytes of tensors at its highest."""
    if "error" not in found:
        return found
    times = [found["seconds"]]
    while found["seconds"] < SHORT and len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {**found, "seconds": min(times), "peak_bytes": _peak(run)}


def _peak(run: Answer) -> int | None:
    try:
        return peak_of(run)
    except Exception:  # noqa: BLE001 - some of the peers' transforms cannot be counted
        return None


def ours(entry: Case, structure: str, kind: str = "ggn", **options: Any) -> Answer:
    """Our matrix, dense."""
    if structure == "low_rank":
        options = {"rank": sum(weight.numel() for weight in entry.module.parameters()), **options}
    options = {"generator": 0, **options}

    def run() -> Tensor:
        return fit(entry, structure, kind, **options).precision.to_dense()

    return run


def best(ways: dict[str, Answer], compare: Callable[[Tensor], float], bound: float = WRONG) -> Record:
    """Of a peer's ways of asking the one that counts."""
    found = {way: tried(run, compare) for way, run in ways.items()}
    way = chosen(found, bound)
    return {**finished(found[way], ways[way]), "way": way}


def chosen(found: dict[str, Record], bound: float) -> str:
    """The fastest of those that are right, else that with the smallest error."""

    def key(way: str) -> tuple[float, float]:
        wrong = found[way].get("error", float("inf"))
        return (0.0, found[way]["seconds"]) if wrong <= bound else (wrong, 0.0)

    return min(found, key=key)


def weight_blocks(entry: Case) -> list[Tensor]:
    """The flat places of each weight tensor that is no bias, in the order of all weights."""
    places = reference.positions(entry.module)
    return [where.reshape(-1) for name, where in places.items() if "bias" not in name.rpartition(".")[2]]


def comparison(entry: Case, structure: str, wanted: list[Tensor]) -> Callable[[Tensor], float]:
    """The error against the nearest of equally right matrices; of Kronecker ones in the blocks of weight tensors."""
    blocks = [slice(None)] if structure in (*EXACT, "diagonal") else weight_blocks(entry)
    return lambda got: min(max(error(got[at][:, at], want[at][:, at]) for at in blocks) for want in wanted)


def curvatures(model: str, kind: str, *, peers: bool) -> list[Record]:
    """One network with one kind of curvature in every structure, with three classes."""
    entry = case(model, outputs=MODELS[model].outputs[-1])
    right = definition(entry, model, kind)
    others = [Definition(entry, model, kind, joined=True)] * (kind == "empirical_fisher" and entry.targets.ndim > 1)
    found = []
    for structure in KINDS[kind]:
        want = right.dense(structure)
        answer = measured(ours(entry, structure, kind), lambda got, want=want: error(got, want))  # type: ignore[misc]
        made: Record = {"model": model, "kind": kind, "structure": structure, "ours": answer}
        if kind == "fisher":
            made |= law(entry, model, structure, peers=peers)
        elif peers:
            compare = comparison(entry, structure, [each.dense(structure) for each in (right, *others)])
            asked = answers(entry, structure, kind, BATCH)
            made["peers"] = {name: best(ways, compare) for name, ways in asked.items()}
        found.append(made)
    return found


# --- drawn labels -----------------------------------------------------------------------------------------------------


def deviation(fits: list[Tensor], want: Tensor) -> float:
    """How far the mean of B matrices is from their expectation, in standard errors: ‖F̄ − G‖ √B / s, about 1.

    s² is the sum of the entries' variances over the B, so that of a right law the square has the expectation 1.
    """
    stacked = torch.stack([each.to(want) for each in fits])
    spread = stacked.var(0).sum().sqrt()
    return float((stacked.mean(0) - want).norm() * len(stacked) ** 0.5 / spread)


def copies(entry: Case) -> Case:
    """The rows many times over: a fit to them is a sum of fits with labels of their own."""
    return entry.rows(torch.arange(len(entry.targets)).repeat(COPIES))


def law(entry: Case, model: str, structure: str, *, peers: bool) -> Record:
    """E = GGN over the labels, and whether one seed gives one answer, ours in other batches."""
    again = ours(entry, structure, "fisher", batch_size=len(entry.targets))
    found: Record = {"repeated": error(again(), ours(entry, structure, "fisher")())}
    if structure not in LAWFUL:
        return found
    want = Definition(entry, model, "ggn").dense(structure)
    many = copies(entry)
    fits = [ours(many, structure, "fisher", generator=seed, batch_size=100)() / COPIES for seed in range(FITS)]
    found["law"] = deviation(fits, want)
    if peers:
        at = [slice(None)] if structure in (*EXACT, "diagonal") else weight_blocks(entry)
        asked, once = answers(many, structure, "fisher", 100), answers(entry, structure, "fisher", BATCH)
        found["peers"] = {name: _best_law(ways, once[name], want, at) for name, ways in asked.items()}
    return found


def _seeded(run: Answer, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251 - peers draw from no other
        return run()


def _best_law(many: dict[str, Answer], once: dict[str, Answer], want: Tensor, at: list[Any]) -> Record:
    """Of a peer's ways of asking the one that counts."""
    found = {}
    for way, run in many.items():
        try:
            drawn = [_seeded(run, seed) / COPIES for seed in range(FITS)]
            far = max(deviation([each[i][:, i] for each in drawn], want[i][:, i]) for i in at)
        except Exception as failure:  # noqa: BLE001 - a refusal is a result
            found[way] = {"failure": f"{type(failure).__name__}: {failure}".splitlines()[0][:120]}
            continue
        found[way] = tried(partial(_seeded, once[way], 0), lambda _, far=far: far)  # type: ignore[misc]
    way = chosen(found, NEAR)
    run = partial(_seeded, once[way], 0)
    made = {**finished(found[way], run), "way": way}
    return {**made, "repeated": error(run(), run())} if "error" in made else made


# --- the last layer ---------------------------------------------------------------------------------------------------


# Their matrices belong to the network itself, which has no modules.
BARE = {"bare parameters": ("matrix",), "functional linear": ("outer",)}


def last_layer(module: nn.Module, inputs: Any) -> tuple[str, ...]:
    """The weights of the last module with weights of its own whose call ends, in the module's order."""
    ended: list[nn.Module] = []

    def end(each: nn.Module, _: Any, __: Any) -> None:
        ended.append(each)

    owners = [each for each in module.modules() if any(True for _ in each.parameters(recurse=False))]
    hooks = [each.register_forward_hook(end) for each in owners]
    with reference.read_mode(module), torch.no_grad():
        reference.call(module, inputs)
    for hook in hooks:
        hook.remove()
    kept = {id(weight) for weight in ended[-1].parameters()}
    return tuple(name for name, weight in module.named_parameters() if id(weight) in kept and weight.requires_grad)


def last_layers(model: str, *, peers: bool) -> list[Record]:
    """The curvature of the last layer alone."""
    entry = case(model, outputs=MODELS[model].outputs[-1])
    right = definition(entry, model, "ggn")
    names = BARE.get(model) or last_layer(entry.module, entry.inputs)
    flat = {name: reference.positions(entry.module)[name].reshape(-1) for name in names}
    places = torch.cat(list(flat.values()))
    weights = [torch.isin(places, place).nonzero()[:, 0] for name, place in flat.items() if "bias" not in name]
    found = []
    for structure in ("full", "diagonal", "kfac"):
        want = right.dense(structure)[places][:, places]
        compare = lambda got, want=want: error(got, want)  # noqa: E731
        answer = measured(ours(replace(entry, weights="last_layer"), structure), compare)
        made: Record = {"model": model, "kind": "last layer", "structure": structure, "ours": answer}
        if peers:
            asked = answers(entry, structure, "ggn", BATCH, names)
            blocks = weights if structure == "kfac" else [slice(None)]
            near = lambda got, want=want, blocks=blocks: max(  # noqa: E731
                error(got[at][:, at], want[at][:, at]) for at in blocks
            )
            made["peers"] = {name: best(ways, near) for name, ways in asked.items()}
        found.append(made)
    return found
