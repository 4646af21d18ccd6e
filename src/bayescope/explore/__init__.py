"""A local page on which posteriors are seen at work: points and densities that one changes, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayescope import checks
from bayescope.explore.densities import DensityTask, density_answers, described
from bayescope.explore.presets import presets
from bayescope.explore.server import Question, Server
from bayescope.explore.surfaces import answers
from bayescope.explore.tables import OFFERED, Task, why_not

__all__ = ["answer", "serving"]


def serving(port: int = 0) -> Server:
    """Return the page's server, which listens and has yet to serve.

    Args:
        port: where to listen on this machine, 0 for any free port.

    Raises:
        OSError: if the port is taken.
    """
    return Server(answer, port)


def answer(question: Question) -> Iterator[Mapping[str, Any]]:
    """The parts of the answer to a question of the page.

    Args:
        question: ``ask``, one of "start", "code" and "answer", with the values of the controls.

    Raises:
        InputError: if a value cannot be used.
    """
    ask = checks.choice("ask", question.get("ask"), ("start", "code", "answer"))
    if ask == "start":
        yield {"part": "start", "presets": presets(), "why_not": _reasons(), "densities": described()}
        return
    task = DensityTask.read(question) if question.get("kind") == "density" else Task.read(question)
    if ask == "code":
        yield {"part": "code", "code": task.code()}
    elif isinstance(task, DensityTask):
        yield from density_answers(task)
    else:
        yield from answers(task, moving=bool(question.get("moving")), reference=bool(question.get("reference")))


def _reasons() -> Mapping[str, Mapping[str, str | None]]:
    """By model and posterior, why it is not offered, ``None`` where it is."""
    posteriors = dict.fromkeys(name for names in OFFERED.values() for name in names)
    return {model: {name: why_not(model, name) for name in posteriors} for model in OFFERED}
