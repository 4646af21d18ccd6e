"""Files appear whole or not at all."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from textwrap import indent

import pytest

from bayescope.errors import InputError
from bayescope.files import UNFINISHED, only_writer, staged, usable_folder


def test_files_appear_together_and_only_at_the_end(tmp_path):
    folder = tmp_path / "deep" / "results"
    with staged(folder) as stage:
        (stage / "one.txt").write_text("1")
        (stage / "two.txt").write_text("2")
        assert not (folder / "one.txt").exists()
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"one.txt": "1", "two.txt": "2"}


def write_and_fail(folder, failure):
    with staged(folder) as stage:
        (stage / "table.txt").write_text("ha")
        raise failure


def test_a_failure_leaves_no_file_and_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_and_fail(tmp_path / "deep" / "results", KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_what_was_there(tmp_path):
    (tmp_path / "table.txt").write_text("old")
    with pytest.raises(RuntimeError):
        write_and_fail(tmp_path, RuntimeError)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("table.txt", "old")]


def age(folder):
    """Makes a folder look as if it had been made an hour ago."""
    then = time.time() - 3600.0
    os.utime(folder, (then, then))


def test_what_a_killed_process_left_is_taken_away_and_what_others_write_is_not(tmp_path):
    left, fresh = tmp_path / f"{UNFINISHED}old", tmp_path / f"{UNFINISHED}new"
    for folder in (left, fresh):
        folder.mkdir()
        (folder / "table.txt").write_text("ha")
    age(left)
    with staged(tmp_path) as running:
        age(running)
        with staged(tmp_path) as stage:
            (stage / "table.txt").write_text("whole")
        assert running.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == [fresh.name, "table.txt"]


def test_files_of_the_same_name_are_replaced(tmp_path):
    (tmp_path / "table.txt").write_text("old")
    (tmp_path / "other.txt").write_text("kept")
    with staged(tmp_path) as stage:
        (stage / "table.txt").write_text("new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"table.txt": "new", "other.txt": "kept"}


def test_a_file_that_is_replaced_passes_on_its_permissions_and_a_link_stays_one(tmp_path):
    place, link = tmp_path / "real" / "table.txt", tmp_path / "link.txt"
    place.parent.mkdir()
    place.write_text("old")
    place.chmod(0o600)
    link.symlink_to(place)
    with staged(tmp_path) as stage:
        (stage / link.name).write_text("new")
    assert link.is_symlink()
    assert place.read_text() == "new"
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_link_to_another_file_system_is_followed_in_one_step(tmp_path):
    folder = Path("/dev/shm")
    if not folder.is_dir() or folder.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("expected a second file system")
    with tempfile.TemporaryDirectory(dir=folder) as elsewhere:
        place, link = Path(elsewhere) / "table.txt", tmp_path / "link.txt"
        link.symlink_to(place)
        for text in ("new", "newer"):
            with staged(tmp_path) as stage:
                (stage / link.name).write_text(text)
            assert link.is_symlink()
            assert [(file.name, file.read_text()) for file in Path(elsewhere).iterdir()] == [("table.txt", text)]
            place.chmod(0o600)
        assert place.stat().st_mode & 0o777 == 0o600


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "one.txt")
    with pytest.raises(InputError, match="a device or a pipe of that name"):
        usable_folder("--out", tmp_path, ["one.txt"])


def test_a_folder_is_checked_without_being_made(tmp_path):
    assert usable_folder("out", tmp_path / "new") == tmp_path / "new"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "below"])
def test_a_file_is_no_folder(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out: expected a folder, got .*file"):
        usable_folder("out", tmp_path / "file" / below)


def test_a_folder_that_refuses_files_is_refused():
    with pytest.raises(InputError, match="out: expected a folder that can be written to, got /proc"):
        usable_folder("out", "/proc/results")


def write_three(folder):
    with staged(folder) as stage:
        for name in ("a.txt", "b.txt", "c.txt"):
            (stage / name).write_text("new")


def test_a_folder_in_the_place_of_a_file_is_refused_before_any_file_moves(tmp_path):
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(InputError, match=r"expected to write the file .*b\.txt, got a folder of that name"):
        write_three(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["b.txt"]


# Run by a process of its own, whose calls of the operating system fail as a hook of Python's audit says.
FAILING = """
import errno, os, sys
from pathlib import Path
from bayescope.errors import InputError
from bayescope.files import only_writer, staged
folder = Path(sys.argv[1])

def hook(event, arguments):
{hook}

sys.addaudithook(hook)
{program}
"""


def run_failing(folder, hook, program):
    """What a program prints, for which some calls of the operating system fail."""
    code = FAILING.format(hook=indent(hook, "    "), program=program)
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("failure", "raised"), [("OSError(5, 'worn out')", "InputError"), ("KeyboardInterrupt", "KeyboardInterrupt")]
)
def test_moves_before_one_that_fails_are_taken_back(tmp_path, failure, raised):
    (tmp_path / "a.txt").write_text("old")
    hook = f"""
if event == "os.rename" and Path(arguments[1]).name == "c.txt":
    raise {failure}
"""
    program = f"""
try:
    with staged(folder) as stage:
        for name in "abc":
            (stage / f"{{name}}.txt").write_text(name)
except {raised}:
    print("raised")
"""
    assert run_failing(tmp_path, hook, program) == "raised\n"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_disk_that_fails_is_an_input_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match=r"expected to save files in .*, got: No space left on device"):
        write_and_fail(tmp_path / "deep" / "results", OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_else_put_there_does_not_hide_the_failure(tmp_path):
    def write_beside_and_fail():
        with staged(tmp_path / "results"):
            (tmp_path / "results" / "foreign.txt").write_text("")
            raise RuntimeError("the first error")

    with pytest.raises(RuntimeError, match="the first error"):
        write_beside_and_fail()
    assert [file.name for file in (tmp_path / "results").iterdir()] == ["foreign.txt"]


def test_a_name_too_long_for_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="out: expected a folder that can be written to"):
        usable_folder("out", tmp_path / ("x" * 300))


def test_a_folder_in_the_place_of_a_file_is_found_beforehand(tmp_path):
    (tmp_path / "table.txt").mkdir()
    with pytest.raises(InputError, match="out: expected to write the file"):
        usable_folder("out", tmp_path, ["table.txt"])


HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_file_has_one_writer_at_a_time_and_none_is_left_of_one_that_was_killed(tmp_path):
    out = tmp_path / "new" / "m.bayes"
    with only_writer("--out", out):
        (lock,) = out.parent.iterdir()
    out.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(
                InputError, match=r"--out: expected a file that no other process writes, got .*m\.bayes"
            ) as error,
            only_writer("--out", out),
        ):
            pass
        assert "\n" not in str(error.value)
        with only_writer("--out", out.with_name("other.bayes")):
            pass
        holder.kill()
    with only_writer("--out", out), staged(out.parent) as stage:
        (stage / out.name).write_text("whole")
    assert [file.name for file in out.parent.iterdir()] == ["m.bayes"]


def test_a_link_and_its_file_have_one_writer(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "m.bayes")
    with (
        only_writer("--out", tmp_path / "deep" / "m.bayes"),
        pytest.raises(InputError, match="no other process"),
        only_writer("--out", tmp_path / "link"),
    ):
        pass
    assert list((tmp_path / "deep").iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_away_with_the_next_output(tmp_path):
    left, fresh = tmp_path / f"{UNFINISHED}old.lock", tmp_path / f"{UNFINISHED}new.lock"
    left.touch()
    fresh.touch()
    age(left)
    with staged(tmp_path) as stage:
        (stage / "table.txt").write_text("whole")
    assert sorted(file.name for file in tmp_path.iterdir()) == [fresh.name, "table.txt"]


def test_a_lock_whose_file_has_just_been_removed_counts_for_nothing(tmp_path):
    hook = """
if event == "fcntl.flock":
    for file in folder.iterdir():
        file.unlink()
"""
    program = """
try:
    with only_writer("--out", folder / "m.bayes"):
        pass
except InputError as error:
    print(error)
"""
    assert "no other process" in run_failing(tmp_path, hook, program)


def test_where_there_are_no_locks_files_are_written_and_a_warning_says_so(tmp_path):
    left = tmp_path / f"{UNFINISHED}old"
    left.mkdir()
    age(left)
    hook = """
if event == "fcntl.flock":
    raise OSError(errno.ENOLCK, "No locks available")
"""
    program = """
with only_writer("--out", folder / "m.bayes"), staged(folder) as stage:
    (stage / "m.bayes").write_text("whole")
"""
    assert "a file system with locks" in run_failing(tmp_path, hook, program)
    assert sorted(file.name for file in tmp_path.iterdir()) == [left.name, "m.bayes"]


def test_a_folder_that_refuses_locks_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--out: expected a folder"), only_writer("--out", tmp_path / "file" / "m"):
        pass
