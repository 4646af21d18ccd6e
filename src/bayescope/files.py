"""Files are written beside their place and renamed into it, so that nobody ever reads half of one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayescope.errors import InputError


def usable_folder(name: str, path: str | Path) -> Path:
    """Checks, before the work begins, that files can be written into a folder that need not exist yet.

    Args:
        name: what the folder is, for the message.
        path: the folder. It is not created.

    Raises:
        InputError: if the path or one above it is a file, or the first folder that exists cannot be written to.
    """
    folder = Path(path)
    existing = next(above for above in (folder, *folder.absolute().parents) if above.exists())
    if not existing.is_dir():
        raise InputError(f"{name}: expected a folder, got {folder}, but {existing} is a file. Name another folder.")
    try:
        with tempfile.TemporaryFile(dir=existing):
            return folder
    except OSError as error:
        raise InputError(
            f"{name}: expected a folder that can be written to, got {folder} ({error.strerror}). Name another folder."
        ) from None


@contextmanager
def staged(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, whose files move to their place when the block ends, and vanish when it fails.

    The staging folder lies inside the target, on one file system with it, so that each move is an atomic rename;
    files of the same name are replaced. Folders made for a block that fails are taken away again.

    Args:
        folder: where the files are to lie; it is made if it is missing.

    Raises:
        InputError: if the folder cannot be written to.
    """
    target = usable_folder("folder", folder)
    made = [place for place in (target, *target.parents) if not place.exists()]
    target.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=target))
    try:
        yield stage
        for file in sorted(stage.iterdir()):
            file.replace(target / file.name)
    except BaseException:
        shutil.rmtree(stage)
        for place in made:
            place.rmdir()
        raise
    shutil.rmtree(stage)
