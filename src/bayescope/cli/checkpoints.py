"""Where long fits are kept while they run, so that an interrupted one can be carried on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from sklearn.base import clone

from bayescope.errors import InputError
from bayescope.estimators.mlp_posteriors import POSTERIORS
from bayescope.training.checkpoint import named, refuse_other_call
from bayescope_command.app import FitOptions
from bayescope_command.process import Stopped

ENDING = ".checkpoint"
# Of the fit to the rows that are not held out.
FIRST = ".held-out"
# Of an estimator's trainings before the last one, as it names them: of a network before its posterior's own, and of
# the two starts of a search for hyperparameters.
NETWORK, SEARCHES = "-prior", ("-search-1", "-search-2")


@final
@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one command.

    Attributes:
        first: of the fit to the rows that are not held out; ``None`` where fits keep none.
        last: of the fit whose model is saved.
        found: whether an earlier fit left one.
    """

    first: Path | None = None
    last: Path | None = None
    found: bool = False

    @classmethod
    def beside(cls, out: Path, estimator: Any, *, resume: bool) -> Checkpoints:
        """Those of a fit: beside the model's file, where the estimator takes long enough to have some.

        Args:
            out: the model's file.
            estimator: not fitted.
            resume: whether to go on from those that lie there.

        Raises:
            InputError: if one lies there that nobody said to carry on, or one of another fit.
        """
        places = cls(out.with_name(f"{out.name}{FIRST}{ENDING}"), out.with_name(f"{out.name}{ENDING}"))
        left = places._files()
        if left and not resume:
            raise InputError(
                f"{left[0]}: expected no checkpoint, got that of an earlier fit. Carry it on with --resume, or remove "
                "it."
            )
        for file in left:
            refuse_other_call(file)
        kind = POSTERIORS.get(getattr(estimator, "posterior", ""))
        keeps = "checkpoint" in estimator.get_params() and kind is not None and (kind.trains or kind.expands)
        return replace(places, found=bool(left)) if keeps else cls()

    def remarks(self, model: str, *, resume: bool) -> list[str]:
        """What to say of a fit that was to be carried on, where there is nothing to carry on.

        Args:
            model: its name on the command line.
            resume: whether it was to be.
        """
        if not resume or self.found:
            return []
        why = (
            f"expected a model that keeps checkpoints while it trains, got {model!r}, whose fit keeps none"
            if self.last is None
            else f"expected the checkpoint of an interrupted fit, got none at {self.last}"
        )
        return [f"--resume: {why}; it was fitted from the start"]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A stretch whose interruption says how the fit goes on, where a checkpoint is there to go on from."""
        try:
            yield
        except (Stopped, KeyboardInterrupt) as stop:
            left = self._files()
            if left:
                stop.add_note(f"{left[-1]} has what was trained: the same command with --resume goes on from there.")
            raise

    def remove(self) -> None:
        """Takes the files away, once the model is saved."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The checkpoints that exist, the first one first."""
        places = [place for place in (self.first, self.last) if place is not None]
        endings = [f"{network}{search}" for network in ("", NETWORK) for search in ("", *SEARCHES)]
        every = (place.with_stem(f"{place.stem}{ending}") for place in places for ending in endings)
        return [place for place in every if place.exists()]


def named_fit(estimator: Any, options: FitOptions) -> AbstractContextManager[None]:
    """A stretch whose checkpoints name the command's options, which have to be the same in a fit that goes on.

    Args:
        estimator: not fitted.
        options: of the command.
    """
    ignored = dict.fromkeys(("table", "out", "model", "given", "resume", "as_json", "random_state"))
    call = {**vars(options), **estimator.get_params(), **ignored}
    return named("bayescope fit", {**call, "estimator": type(estimator).__name__, "checkpoint": options.out})


def fitted_copy(estimator: object, checkpoint: Path | None, *data: Any, **weights: Any) -> Any:
    """A copy of an estimator, fitted, which knows nothing of where its checkpoint was.

    Args:
        estimator: not fitted.
        checkpoint: where the fit is kept while it runs, or ``None``.
        data: as the estimator's ``fit`` takes them.
        weights: of the rows, where there are some.
    """
    fresh = clone(estimator)
    if checkpoint is not None:
        fresh.set_params(checkpoint=str(checkpoint))
    fresh.fit(*data, **weights)
    return fresh if checkpoint is None else fresh.set_params(checkpoint=None)
