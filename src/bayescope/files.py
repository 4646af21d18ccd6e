"""Files are written beside their place and renamed into it, so that nobody ever reads half of one."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bayescope.errors import BayescopeWarning, InputError, warn

if sys.platform != "win32":
    import fcntl

# The prefix of the folders in which files are written before they are renamed into place, and of lock files.
UNFINISHED = ".bayescope-unfinished-"
# What is younger than this many seconds may not have been locked yet by the process that made it.
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
    try:
        with _made(target):
            _remove_abandoned(target)
            unfinished = tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=target, ignore_cleanup_errors=True)
            with unfinished as stage, _locked(Path(stage)):
                yield Path(stage)
                _move_all(Path(stage), target)
    except OSError as error:
        raise InputError(
            f"folder: expected to save files in {target}, got: {_reason(error)}. Fix this, or name another folder."
        ) from error


@contextmanager
def only_writer(name: str, path: str | Path) -> Iterator[None]:
    """A stretch in which this process alone writes a file, such as a fit from its first checkpoint to its last.

    A lock file beside the file says so, and is removed when the block ends. The lock is the operating system's: it ends
    with the process, even one that is killed. Windows has none.

    Args:
        name: what the file is, for the message.
        path: the file, which need not be there.

    Raises:
        InputError: if another process writes the file.

    Warns:
        BayescopeWarning: if the file system has no locks.
    """
    place = Path(path).resolve()
    lock = place.with_name(f"{UNFINISHED}{hashlib.sha256(os.fsencode(place.name)).hexdigest()[:16]}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(_made(place.parent))
            held = stack.enter_context(_locked(lock, os.O_RDWR | os.O_CREAT))
        except BlockingIOError:
            raise InputError(
                f"{name}: expected a file that no other process writes, got {path}, which one is writing. Wait until "
                "it ends, or name another file."
            ) from None
        except OSError as error:
            raise InputError(
                f"{name}: expected a folder that can be written to, got {place.parent} ({_reason(error)}). Name "
                "another folder."
            ) from None
        stack.callback(lock.unlink, missing_ok=True)
        if not held and sys.platform != "win32":
            warn(
                f"{name}: expected a file system with locks, got none at {place.parent}: another process that writes "
                f"{place.name} goes unnoticed. Write it from one process at a time.",
                BayescopeWarning,
            )
        yield


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Makes a folder and those above it, and removes at the end those of them that are empty."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with suppress(OSError):  # it holds files
            for place in made:
                place.rmdir()


def _remove_abandoned(target: Path) -> None:
    """Removes staging folders and lock files of processes that were killed, whose locks ended with them."""
    for left in sorted(target.glob(f"{UNFINISHED}*")):
        with suppress(OSError):  # somebody writes there, or it is gone
            if time.time() - left.stat().st_mtime > YOUNG:
                with _locked(left) as held:
                    if held:
                        (shutil.rmtree if left.is_dir() else os.unlink)(left)


@contextmanager
def _locked(place: Path, flags: int = os.O_RDONLY) -> Iterator[bool]:
    """Locks a folder or a file for the block.

    Yields:
        Whether it is locked: Windows and some network file systems have no such locks.

    Raises:
        BlockingIOError: if another process holds it, or has just removed it.
    """
    if sys.platform == "win32":
        yield False
        return
    handle = os.open(place, flags, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            raise
        except OSError:
            held = False
        if not os.fstat(handle).st_nlink:
            raise BlockingIOError
        yield held
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
            _move(file, place)
    except BaseException:
        for file in begun:
            with suppress(OSError, InputError):
                _put_back(before / file.name, places[file])
        raise


def _move(file: Path, place: Path) -> None:
    """Puts a file into its place in one step, also on another file system, where a symbolic link may lead."""
    if file.stat().st_dev == place.parent.stat().st_dev:
        file.replace(place)
        return
    with staged(place.parent) as stage:
        shutil.copy2(file, stage / place.name)


def _put_back(copy: Path, place: Path) -> None:
    if copy.exists():
        _move(copy, place)
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
