"""Files that are made to take all memory or time: each a small file whose checksums agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bayescope.storage.container import described
from tests.storage.mutants import framed

Node = Any
# What the parts of a record, and of a posterior without a model, are.
RECORD = {
    "method": "x", "evidence": None, "elbo_terms": None, "notes": {"dict": []}, "trace": {"dict": []}, "instead": "",
    "prior": None,
}  # fmt: skip
BARE = {"function": None, "likelihood": None, "reader": None}


def file_of(objects: list[Node], value: Node, tensors: dict[str, torch.Tensor] | None = None, **more: Any) -> bytes:
    """A file of these objects, whatever they are."""
    held = tensors or {}
    manifest = {
        "format": 1, "bayescope": "0.1.0", "kind": "list", "summary": "", "metadata": {}, "packages": {},
        "tensors": described(held), "objects": objects, "value": value, **more,
    }  # fmt: skip
    return framed(manifest, b"".join(held[name].numpy().tobytes() for name, _, _ in manifest["tensors"]))


def refs(count: int) -> list[Node]:
    return [{"ref": place} for place in range(count)]


def layer(name: str, children: dict[str, Node] | None = None, **options: Any) -> Node:
    pairs = [[key, {"tuple": each} if isinstance(each, list) else each] for key, each in options.items()]
    return {name: {"": [{"dict": pairs}, True, []], **(children or {})}}


def network(*layers: Node) -> bytes:
    """A network of these layers, which are in the table one after the other."""
    children = {str(place): {"ref": place} for place in range(len(layers))}
    return file_of(
        [*layers, layer("Sequential", children)],
        {"ref": len(layers)},
        kind="Sequential",
    )


def folded(kind: str, first: list[Node], make: Callable[[list[Node]], Node], levels: int) -> bytes:
    """Objects of which each holds the one before it twice, after some others."""
    objects = list(first)
    for _ in range(levels):
        objects.append(make([{"ref": len(objects) - 1}] * 2))
    return file_of(objects, {"ref": len(objects) - 1}, kind=kind)


def pipeline(steps: list[Node]) -> Node:
    named = [{"tuple": [f"s{place}", step]} for place, step in enumerate(steps)]
    return {"Pipeline": {"steps": named, "memory": None, "verbose": False}}


def union(parts: list[Node]) -> Node:
    named = [{"tuple": [f"s{place}", part]} for place, part in enumerate(parts)]
    return {"FeatureUnion": {"transformer_list": named}}


def sequential(children: list[Node]) -> Node:
    return layer("Sequential", {str(place): child for place, child in enumerate(children)})


def mixtures(levels: int, times: int) -> bytes:
    """Mixtures of mixtures, down to one point."""
    record = {"record": RECORD}
    point = {"point_posterior": {"location": {"ref": 0}, "record": {"ref": 1}, **BARE}}
    objects = [{"tensor": ["one", None]}, record, point, {"tensor": ["weights", None]}]
    below = 2
    for _ in range(levels):
        parts = {"log_weights": {"ref": 3}, "components": [{"ref": below}] * times, "record": {"ref": 1}}
        parts |= {"weighting": "", **BARE}
        objects.append({"mixture_posterior": parts})
        below = len(objects) - 1
    held = {"one": torch.zeros(1, dtype=torch.float64), "weights": torch.zeros(times, dtype=torch.float64)}
    return file_of(objects, {"ref": below}, held, kind="mixture_posterior")


def states(count: int) -> bytes:
    """Random states that share one key."""
    state = {"random_state": {"key": {"ref": 1}, "pos": 0, "has_gauss": 0, "gauss": 0.0}}
    key = [{"tensor": ["key", None]}, {"array": {"dtype": "uint32", "values": {"ref": 0}}}]
    return file_of([*key, *[state] * count], refs(1), {"key": torch.zeros(624).to(torch.uint32)})


def priors(count: int, numbers: int) -> bytes:
    """Priors that share one array, which each of them copies."""
    prior = {"prior": {"precision": {"ref": 0}, "mean": {"ref": 0}, "flat": 0}}
    held = {"p": torch.ones(numbers, dtype=torch.float64)}
    return file_of([{"tensor": ["p", None]}, *[prior] * count], refs(count), held)


def empty_dimensions(groups: int) -> bytes:
    """Kronecker factors of so many groups without entries: no byte in the file, and a number a group when read."""
    factors = {"input": {"ref": 0}, "output": {"ref": 0}, "normaliser": {"ref": 1}, "name": "x"}
    held = {"f": torch.zeros(groups, 0, 0, dtype=torch.float64), "n": torch.zeros((), dtype=torch.float64)}
    objects = [{"tensor": ["f", None]}, {"tensor": ["n", None]}, {"kronecker_factors": factors}]
    return file_of(objects, refs(3), held)


def polynomial(degree: int, columns: int = 1, **learnt: Any) -> Node:
    parameters = {"degree": degree, "interaction_only": False, "include_bias": True, "order": "C"}
    found = {"_min_degree": 0, "_max_degree": degree, "n_features_in_": columns, **learnt}
    return {"PolynomialFeatures": parameters | found}


def spline(degree: int) -> Node:
    parameters = {"n_knots": 3, "degree": degree, "knots": "uniform", "extrapolation": "linear"}
    return {"SplineTransformer": {**parameters, "n_features_in_": 1, "n_features_out_": 3}}


WIDE = {"array": {"dtype": "U1048576", "shape": [1], "values": [""]}}

# By name, what makes the file. Each takes hours or gigabytes where nothing bounds what a file may ask for.
ATTACKS: dict[str, Callable[[], bytes]] = {
    "text arrays, 30 kB": lambda: file_of([WIDE] * 700, []),
    "text of no cells": lambda: file_of([{"array": {"dtype": "U1", "shape": [0, 2**40], "values": []}}], []),
    "types of wide text": lambda: file_of([], [{"dtype": "U9999999"}] * 100),
    "300 priors share an array": lambda: priors(300, 10**6),
    "dimensions without entries": lambda: empty_dimensions(2 * 10**8),
    "50,000 random states": lambda: states(50_000),
    "a manifest of empty tables": lambda: file_of([], [], metadata={"x": [{}] * 3_000_000}),
    "a manifest of empty lists": lambda: file_of([], [], metadata={"x": [[]] * 3_000_000}),
    "pipelines in pipelines": lambda: folded("Pipeline", [polynomial(1)], pipeline, 40),
    "unions in unions": lambda: folded("FeatureUnion", [polynomial(1)], union, 40),
    "layers in layers": lambda: folded("Sequential", [layer("Tanh")], sequential, 40),
    "mixtures nested 12 deep": lambda: mixtures(12, 4),
    "mixtures nested 40 deep": lambda: mixtures(40, 2),
    **{
        f"{name}({', '.join(map(str, options.values()))})": partial(network, layer(name, **options))
        for name, options in (
            ("MaxPool1d", {"kernel_size": 2**40, "stride": 1, "padding": 2**39}),
            ("AvgPool2d", {"kernel_size": [2**40, 1], "padding": [2**39, 0]}),
            ("AdaptiveAvgPool2d", {"output_size": [2**17, 2**17]}),
            ("ConstantPad2d", {"padding": [2**17, 2**17, 2**17, 2**17], "value": 0.0}),
            ("ZeroPad1d", {"padding": [2**35, 0]}),
            ("Upsample", {"scale_factor": 1e12}),
            ("Upsample", {"size": 2**35}),
            ("Fold", {"output_size": [2**17, 2**17], "kernel_size": 1}),
            ("LocalResponseNorm", {"size": 2**40}),
            ("LPPool1d", {"norm_type": 2, "kernel_size": 2**40}),
            ("Unfold", {"kernel_size": 1, "padding": 2**20, "dilation": 2**50}),
        )
    },
    **{
        f"twenty times {name}": partial(network, *[layer(name, **options)] * 20)
        for name, options in (
            ("Upsample", {"scale_factor": 2.0}),
            ("MaxPool1d", {"kernel_size": 2**20, "stride": 1, "padding": 2**19}),
            ("MaxPool2d", {"kernel_size": 2**13, "stride": 1, "padding": 2**12}),
            ("ZeroPad2d", {"padding": [2**12, 2**12, 2**12, 2**12]}),
        )
    },
    **{
        name: partial(file_of, [node], [{"ref": 0}])
        for name, node in (
            ("a layer of 10⁹ layers", layer("LSTM", input_size=1, hidden_size=1, num_layers=10**9)),
            ("a layer of 10²⁴ weights", layer("Linear", in_features=10**12, out_features=10**12)),
            ("a table of 10¹² rows", layer("Embedding", num_embeddings=10**12, embedding_dim=1)),
            ("a polynomial of degree 10⁶", polynomial(10**6)),
            ("a polynomial of 10²⁹ features", polynomial(50, 50)),
            ("a polynomial that claims 2⁴⁰ features", polynomial(2, _n_out_full=2**40)),
            ("a spline of degree 10⁹", spline(10**9)),
        )
    },
}  # fmt: skip
