"""A local page that shows how posteriors respond when points, priors and densities change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bayescope import checks
from bayescope.explore.controls import CONTROLS
from bayescope.explore.densities import DensityTask, density_answers, described
from bayescope.explore.presets import presets
from bayescope.explore.server import Question, Server
from bayescope.explore.surfaces import answers
from bayescope.explore.tables import OFFERED, Task, why_not

__all__ = ["answer", "serving"]


def serving(port: int = 0) -> Server:
    """Return the page's server. It listens, and answers once `serve_forever` is called.

    Args:
        port: the port on this machine, 0 for any free port.

    Raises:
        OSError: if the port is taken.
    """
    return Server(answer, port)


def answer(question: Question) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of the answer to a question of the page.

    Args:
        question: ``ask`` is "start", "code" or "answer"; the other entries are the values of the controls.

    Raises:
        InputError: if a value cannot be used.
    """
    ask = checks.choice("ask", question.get("ask"), ("start", "code", "answer"))
    if ask == "start":
        controls = {name: asdict(control) for name, control in CONTROLS.items()}
        yield {
            "part": "start",
            "presets": presets(),
            "why_not": _reasons(),
            "controls": controls,
            "densities": described(),
        }
        return
    task = DensityTask.read(question) if question.get("kind") == "density" else Task.read(question)
    if ask == "code":
        yield {"part": "code", "code": task.code()}
    elif isinstance(task, DensityTask):
        yield from density_answers(task)
    else:
        yield from answers(task, moving=bool(question.get("moving")), reference=bool(question.get("reference")))


def _reasons() -> Mapping[str, Mapping[str, str | None]]:
    """For each model and posterior the reason why it is not offered, ``None`` if it is offered."""
    posteriors = dict.fromkeys(name for names in OFFERED.values() for name in names)
    return {model: {name: why_not(model, name) for name in posteriors} for model in OFFERED}
