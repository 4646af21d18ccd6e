"""The textbook pictures of approximate inference, drawn from this library's own fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.figure import Figure

from bayescope import checks
from bayescope.files import staged
from bayescope.gallery import (
    additive_models,
    divergences,
    linear_models,
    network_laplace,
    network_learning,
    network_posteriors,
    one_dimension,
)
from bayescope.gallery.page import Picture
from bayescope.plots.style import house
from bayescope.process_state import one_thread

__all__ = ["PICTURES", "Picture", "draw", "draw_all"]

PICTURES: dict[str, Picture] = {
    picture.name: picture
    for picture in (
        linear_models.SURFACES,
        linear_models.BORDERS,
        one_dimension.STEPS,
        one_dimension.FITS,
        one_dimension.EVIDENCE_AREAS,
        one_dimension.RATES,
        divergences.DIRECTIONS,
        divergences.ONE_OBSERVATION,
        divergences.BOUND,
        linear_models.EVIDENCE,
        divergences.SIGMOID,
        divergences.KAPPA,
        network_laplace.BANANA,
        network_laplace.UNDERFITTING,
        network_learning.EVIDENCE,
        network_learning.ONLINE,
        network_laplace.STRUCTURES_PICTURE,
        network_laplace.SEGMENTATION,
        network_posteriors.MOONS,
        network_posteriors.SINE,
        network_learning.TRAINING,
        additive_models.EFFECTS,
        additive_models.LOCAL,
    )
}
INDEX = "index.md"


def draw(name: str) -> Figure:
    """One picture of the gallery as a matplotlib figure, in the house style.

    Args:
        name: a key of `PICTURES`.

    Raises:
        OptionError: if there is no such picture; the message lists those that there are.
    """
    with house(mathematics=True):
        return PICTURES[checks.choice("picture", name, PICTURES)].draw()


def draw_all(
    out: str | Path, *, only: Iterable[str] | None = None, progress: Callable[[int, int, str], None] | None = None
) -> list[Path]:
    """Draws the gallery as PNG files, with an index.md that shows them with their captions.

    Each picture is written beside its place and renamed, so that an interrupted run leaves no half of one.

    Args:
        out: the folder; it is made if it is missing. Pictures of the same names are replaced.
        only: names of pictures to draw; ``None`` is all of them. The index lists every picture that lies in the folder.
        progress: called before each picture with how many are done, how many there are, and its name.

    Returns:
        Where the pictures lie, in the gallery's order.

    Raises:
        OptionError: if a name is unknown; the message lists the known ones. Nothing is drawn then.
        InputError: if the folder cannot be written to.
    """
    wanted = set(PICTURES) if only is None else {checks.choice("only", name, PICTURES) for name in only}
    names = [name for name in PICTURES if name in wanted]
    folder = Path(out)
    for done, name in enumerate(names):
        if progress is not None:
            progress(done, len(names), name)
        with staged(folder) as stage, house(mathematics=True), one_thread():
            PICTURES[name].draw().savefig(stage / f"{name}.png")
    with staged(folder) as stage:
        (stage / INDEX).write_text(_index(folder), encoding="utf-8")
    return [folder / f"{name}.png" for name in names]


def _index(folder: Path) -> str:
    """The pictures that lie in the folder, with their captions and where their ideas are from."""
    sections = [
        f"## {picture.title}\n\n![{picture.title}]({name}.png)\n\n{picture.caption}\n\n*After {picture.source}.*\n"
        for name, picture in PICTURES.items()
        if (folder / f"{name}.png").exists()
    ]
    return "# Gallery\n\nDrawn by `bayescope gallery` from bayescope's own fits.\n\n" + "\n".join(sections)
