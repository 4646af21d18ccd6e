"""Files appear whole or not at all."""

import pytest

from bayescope.errors import InputError
from bayescope.files import staged, usable_folder


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


def test_files_of_the_same_name_are_replaced(tmp_path):
    (tmp_path / "table.txt").write_text("old")
    (tmp_path / "other.txt").write_text("kept")
    with staged(tmp_path) as stage:
        (stage / "table.txt").write_text("new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"table.txt": "new", "other.txt": "kept"}


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
