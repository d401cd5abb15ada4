"""Files that a process may be killed over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from duogp.bo.journal import EVALUATIONS, Journal
from duogp.bo.studies.log import EVENTS, Log
from duogp.disk import TEMPORARY, lock, remove_leftovers, write_atomically


def test_a_failure_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomically(path, "before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a"]


def test_a_lock_is_for_one_and_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    held = lock(tmp_path / "lock")
    assert held is not None and lock(tmp_path / "lock") is None
    held.close()
    again = lock(tmp_path / "lock")
    assert again is not None
    again.close()


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (TEMPORARY + "1", TEMPORARY + "2", "mine"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["mine"]


def test_runs_and_studies_that_were_killed_before_their_first_file(tmp_path: Path) -> None:
    """What is left is a lock and half a file under a temporary name: the same call begins anew."""
    for name in ("run", "study"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        (tmp_path / name / (TEMPORARY + "12ab")).write_bytes(b'{"dims')
    journal = Journal(tmp_path / "run", {"seed": 0}, 2)
    journal.batches()
    journal.close()
    assert (tmp_path / "run" / EVALUATIONS).exists()
    Log(tmp_path / "study", {"space": {}}).close()
    assert (tmp_path / "study" / EVENTS).exists()
    assert not list(tmp_path.rglob(TEMPORARY + "*"))


def test_a_folder_of_other_things_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    for begin in (lambda: Journal(tmp_path, {}, 2), lambda: Log(tmp_path, {})):
        with pytest.raises(FileExistsError, match="other things"):
            begin()
    assert os.listdir(tmp_path) == ["mine"]
