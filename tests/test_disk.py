"""Files that a process may be killed over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from duogp.bench.results import Results, append
from duogp.bo.journal import EVALUATIONS, Journal
from duogp.bo.strategies import Proposal
from duogp.bo.studies.log import EVENTS, Log
from duogp.disk import TEMPORARY, append_whole, lock, remove_leftovers, write_atomically
from duogp.errors import CheckpointError
from duogp.io.folder import write_folder
from duogp.training.checkpoint import locked


def test_a_failure_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomically(path, "before")

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


# -- full disks, folders that cannot be written to -----------------------------------------------------------


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_an_append_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    append_whole(path, b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            append_whole(path, b"two\n")
    assert path.read_bytes() == b"one\n"
    append_whole(path, b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


def test_a_run_on_a_full_disk_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"seed": 0}
    batch = Proposal(np.zeros((2, 2)), np.zeros(2, dtype=np.int64))
    journal = Journal(tmp_path / "run", options, 2)
    journal.batches()
    journal.append(0, batch, np.ones(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"evaluations.csv could not be written: No space.*batches before"):
            journal.append(1, batch, np.ones(2))
        with pytest.raises(OSError, match=r"run.json could not be written: No space"):
            Journal(tmp_path / "other", options, 2)
    journal.append(1, batch, 2 * np.ones(2))
    journal.close()
    again = Journal(tmp_path / "run", options, 2)
    assert [found.y.tolist() for found in again.batches()] == [[1.0, 1.0], [2.0, 2.0]]
    again.close()


def test_results_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"hash": "a", "status": "ok"}
    append(path, row)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: write(handle, data[:5]))  # the disk takes a part
        with pytest.raises(OSError, match=r"rows.jsonl could not be written: .*part of a row.*rows before"):
            append(path, row | {"hash": "b"})
    append(path, row | {"hash": "c"})
    assert [found["hash"] for found in Results.read(path).rows] == ["a", "c"]


def test_a_folder_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is there stays; runs and checkpoints are errors before anything is trained."""
    model = tmp_path / "model"
    write_folder(model, {"kind": "a"}, {})
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    monkeypatch.setattr(os, "mkdir", read_only)
    with pytest.raises(OSError, match=r"model could not be written: Read-only.*is as it was") as caught:
        write_folder(model, {"kind": "b"}, {})
    assert caught.value.errno == errno.EROFS
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    with pytest.raises(OSError, match=r"run could not be written: Read-only.*Choose a folder"):
        Journal(tmp_path / "run", {}, 2)
    with pytest.raises(CheckpointError, match=r"cannot be written to: Read-only"), locked(tmp_path / "fit"):
        pass
