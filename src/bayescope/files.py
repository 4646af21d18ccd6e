"""Files are written beside their place and renamed into it, so that nobody ever reads half of one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayescope.errors import InputError

if sys.platform != "win32":
    import fcntl

# The prefix of the folders in which files are written before they are renamed into place.
UNFINISHED = ".bayescope-unfinished-"
# A folder that is younger than so many seconds may not have been locked yet by the process that made it.
YOUNG = 60.0


def usable_folder(name: str, path: str | Path, files: Iterable[str] = ()) -> Path:
    """Checks, before the work begins, that files can be written into a folder that need not exist yet.

    Args:
        name: what the folder is, for the message.
        path: the folder. It is not created.
        files: names of files that are to lie in it.

    Raises:
        InputError: if the path or one above it is a file, the first folder that exists cannot be written to, or a
            folder stands in the place of a file.
    """
    folder = Path(path)
    try:
        existing = next(above for above in (folder, *folder.absolute().parents) if above.exists())
        if not existing.is_dir():
            raise InputError(f"{name}: expected a folder, got {folder}, but {existing} is a file. Name another folder.")
        with tempfile.TemporaryFile(dir=existing):
            pass
        _refuse_folders(name, [folder / file for file in files])
    except OSError as error:
        raise InputError(
            f"{name}: expected a folder that can be written to, got {folder} ({_reason(error)}). Name another folder."
        ) from None
    return folder


@contextmanager
def staged(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, whose files move to their place when the block ends, and vanish when it fails.

    The staging folder lies inside the target, on one file system with it, so that each move is an atomic rename. Files
    of the same name are replaced and pass on their permissions; a symbolic link is followed. Where a move fails, those
    before it are taken back. Folders made for a block that fails are taken away again, and so are staging folders that
    a killed process left there.

    Args:
        folder: where the files are to lie; it is made if it is missing.

    Raises:
        InputError: if the folder cannot be written to, at first or while the block runs (a full disk), or a folder
            stands in the place of a file.
    """
    target = usable_folder("folder", folder)
    made = [place for place in (target, *target.parents) if not place.exists()]
    try:
        target.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        unfinished = tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=target, ignore_cleanup_errors=True)
        with unfinished as stage, _locked(Path(stage)):
            yield Path(stage)
            _move_all(Path(stage), target)
    except BaseException as error:
        with suppress(OSError):  # what somebody else put there meanwhile stays; the first error is the one to tell
            for place in made:
                place.rmdir()
        if isinstance(error, OSError):
            raise InputError(
                f"folder: expected to save files in {target}, got: {_reason(error)}. Mend that, or name another folder."
            ) from error
        raise


def _remove_abandoned(target: Path) -> None:
    """Takes away the staging folders of processes that were killed: a lock ends with the process that holds it."""
    if sys.platform == "win32":
        return
    for left in sorted(target.glob(f"{UNFINISHED}*")):
        with suppress(OSError):  # somebody writes there, or it is gone
            if time.time() - left.stat().st_mtime > YOUNG:
                with _locked(left):
                    shutil.rmtree(left)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A stretch in which no other process takes the folder for abandoned; raises OSError where another holds it."""
    if sys.platform == "win32":  # which has no locks for folders
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _move_all(stage: Path, target: Path) -> None:
    """Renames every file of the stage to its place; if one fails, all places hold what they held before."""
    # A symbolic link stays one: the file that it leads to is replaced.
    places = {file: (target / file.name).resolve() for file in sorted(stage.iterdir())}
    _refuse_folders("folder", places.values())
    before = Path(tempfile.mkdtemp(dir=stage))
    for file, place in places.items():
        if place.exists():
            shutil.copy2(place, before / file.name)
    begun: list[Path] = []
    try:
        for file, place in places.items():
            begun.append(file)
            if place.exists():
                shutil.copymode(place, file)
            file.replace(place)
    except BaseException:
        for file in begun:
            with suppress(OSError):
                _put_back(before / file.name, places[file])
        raise


def _put_back(copy: Path, place: Path) -> None:
    if copy.exists():
        copy.replace(place)
    else:
        place.unlink(missing_ok=True)


def _refuse_folders(name: str, places: Iterable[Path]) -> None:
    for place in places:
        if place.exists() and not place.is_file():
            found = "a folder" if place.is_dir() else "a device or a pipe"
            raise InputError(
                f"{name}: expected to write the file {place}, got {found} of that name. Move it, or name another "
                "folder."
            )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
