"""How it fails: random networks and tables.

Networks drawn from their seeds go through every structure, and each answer is compared with dense float64 definitions;
an answer that is wrong, or an error that is not the library's own, is listed with its seed. Random tables go through
the estimators. What a fault in the data, an altered file or an attack from outside ends in is checked by the tests.

    python -m bench.robustness [--only PART] [--networks 1000] [--tables 2000] [--first 0]
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch

from bench import record, robustness_networks, robustness_tables

Record = dict[str, Any]


# --- the page ---------------------------------------------------------------------------------------------------------


def networks_part(found: Record) -> str:
    """Counts and the largest error of each structure, and what was wrong."""
    rows = []
    for name, each in found["structures"].items():
        largest = max(each["largest errors"].items(), key=lambda item: item[1], default=("", 0.0))
        rows.append([name, *(each[what] for what in robustness_networks.OUTCOMES), f"{largest[1]:.0e}", largest[0]])
    header = ["structure", "agrees", "refused", "another answer", "errors of others", "largest error", "of"]
    low, middle, high = found["weights"]
    kept = found["structures"]["kfac"]["exact instead"]
    rounded = sum(each["by rounding"] for each in found["structures"].values())
    lines = [
        f"{found['count']:,} networks of {low} to {high} weights, {middle} in the middle. An error is the norm of the "
        "difference over that of the definition; those of log determinant, J A⁻¹ Jᵀ, A⁻¹ and its root are to the "
        f"structure's own dense matrix, where up to {robustness_networks.WRONG:.0e} agrees, or, if that is more, what "
        f"float64 leaves of its condition number, which {rounded} of the answers need; those of ekfac's matrix are of "
        "the traces of its blocks. "
        f"In {kept} networks the summary says that a layer is kept exactly in the place of its Kronecker product, and "
        "that is what is compared.",
        record.table(header, rows),
    ]
    lines += [f"Refused: {reason}" for reason in found["refusals"]]
    lines += [f"**Not right**: seed {each['seed']}: {fault_of(each)}" for each in found["bad"]]
    return "\n\n".join(["## Random networks", *lines])


def fault_of(each: Record) -> str:
    """What is wrong with one network."""
    wrong = {
        name: one.get("foreign") or max(robustness_networks.errors(one).items(), key=lambda item: item[1])
        for name, one in each["structures"].items()
        if not robustness_networks.right(one)
    }
    touched = "" if each["untouched"] else "; the module or the data were changed"
    return f"{wrong}{touched} ({', '.join(each['layers'])}; {each['likelihood']}, {each['kind']})"


def tables_part(found: Record) -> str:
    """What came of tables."""
    names = sorted({what for each in found["outcomes"].values() for what in each})
    rows = [[name, *(each.get(what, 0) for what in names)] for name, each in found["outcomes"].items()]
    lines = [
        f"{found['count']:,} random tables, each fitted, predicted, and predicted once more with something altered. "
        "scikit-learn's own checks of names and targets count as refusals, since every estimator has them.",
        record.table(["estimator", *names], rows),
    ]
    lines += [f"**Not right**: `{each}`" for each in found["bad"]]
    return "\n\n".join(["## Random tables", *lines])


# --- the parts --------------------------------------------------------------------------------------------------------


def networks(options: Any) -> Record:
    """1,000 of them, 40 of a quick run."""
    return robustness_networks.run(options.networks or (40 if options.quick else 1000), options.first)


def tables(options: Any) -> Record:
    """2,000 of them, 60 of a quick run."""
    count = options.tables or (60 if options.quick else 2000)
    return robustness_tables.run(count, options.first)


PARTS = {"networks": (networks, networks_part), "tables": (tables, tables_part)}


def main() -> None:
    """Runs the parts asked for beside what there is of the others; a silent error or one of others ends with 1."""
    parser = record.arguments(__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--networks", type=int, help="1,000; 40 of a quick run")
    parser.add_argument("--tables", type=int, help="2,000; 60 of a quick run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    into = record.folder(options)
    parts: Record = record.load(into, "robustness").get("parts", {})
    how = record.method_in(__doc__)
    for name in [options.only] if options.only else PARTS:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = PARTS[name][0](options)
        seconds = round(time.perf_counter() - start, 1)
        parts[name] = {"made": record.made("bench.robustness"), "seconds": seconds, "found": found}
        page_parts = [_part(name, parts[name]) for name in PARTS if name in parts]
        results = {"made": record.oldest(parts, PARTS), "parts": parts}
        record.save(into, "robustness", results, record.page("Robustness", None, how, page_parts))
    raise SystemExit(any(part["found"]["bad"] for part in parts.values()))


def _part(name: str, part: Record) -> str:
    return f"{PARTS[name][1](part['found'])}\n\n{record.origin_text(part['made'])}"


if __name__ == "__main__":
    main()
