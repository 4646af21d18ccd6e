"""Values together with the Python code that makes them, so that the page shows the code of what it computed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

# Longer calls have a line for each argument.
MOST_LETTERS = 100


@final
@dataclass(frozen=True)
class Written:
    """A value and the expression that makes it.

    Attributes:
        value: the value.
        text: the expression.
        imports: the lines that the expression needs above it.
    """

    value: Any
    text: str
    imports: frozenset[str] = frozenset()


def call(module: str, name: str, **keywords: Any) -> Written:
    """Call a function and return its result with the call as text.

    Args:
        module: where the function is imported from; "bayescope" is written ``bs``.
        name: of the function.
        keywords: its arguments, each a `Written` or a value whose ``repr`` makes it again.
    """
    function = getattr(importlib.import_module(module), name)
    arguments = {
        key: value if isinstance(value, Written) else Written(value, repr(value)) for key, value in keywords.items()
    }
    ours = module == "bayescope"
    line = "import bayescope as bs" if ours else f"from {module} import {name}"
    imports = frozenset({line}).union(*(each.imports for each in arguments.values()))
    value = function(**{key: each.value for key, each in arguments.items()})
    return Written(value, _text(f"bs.{name}" if ours else name, arguments), imports)


def _text(name: str, arguments: Mapping[str, Written]) -> str:
    parts = [f"{key}={each.text}" for key, each in arguments.items()]
    line = f"{name}({', '.join(parts)})"
    if len(line) <= MOST_LETTERS:
        return line
    indented = "".join(f"    {part},\n".replace("\n", "\n    ").removesuffix("    ") for part in parts)
    return f"{name}(\n{indented})"


def script(imports: frozenset[str], *blocks: str) -> str:
    """Python with its imports first, those of the standard library and NumPy before those of other packages."""
    order = (
        "import math",
        "from functools",
        "import numpy",
        "import torch",
        "from sklearn",
        "from torch",
        "import bayescope",
    )
    lines = sorted(
        imports, key=lambda line: (next((k for k, start in enumerate(order) if line.startswith(start)), 99), line)
    )
    return "\n\n".join(["\n".join(lines), *blocks]) + "\n"
