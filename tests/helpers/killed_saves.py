"""A model folder that is replaced again and again, by processes that are killed at every moment of it.

    python killed_saves.py FOLDER

prints the state after every kill: "old" or "new" (the notes beside the model are there), or what is wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch

from duogp.io.folder import file_of, read_folder, write_folder
from helpers.moments import watched

MODULES = ("duogp.io.folder", "duogp.io.swap")


def write(path: Path, name: str) -> None:
    """A folder whose three parts all say the same name."""
    number = torch.tensor([float(len(name))])
    write_folder(path, {"kind": "test", "name": name}, {"number": number}, {"table.json": name.encode()})


def state_of(path: Path) -> str:
    manifest, tensors = read_folder(path)[:2]
    name = manifest["name"]
    if float(tensors["number"][0]) != len(name) or file_of(path, "table.json") != name.encode():
        return "a mixture"
    kept = (path / "notes.txt").read_text() == "mine" and (path / "figures" / "one.svg").exists()
    return str(name) if kept else f"{name}, other files lost"


def prepared(home: Path) -> Path:
    """A folder with a model and other files."""
    model = home / "model"
    shutil.rmtree(home, ignore_errors=True)
    write(model, "old")
    (model / "notes.txt").write_text("mine")
    (model / "figures").mkdir()
    (model / "figures" / "one.svg").write_text("<svg/>")
    return model


def killed(home: Path, moment: int) -> str:
    model = prepared(home)
    pid = os.fork()
    if not pid:
        with watched("write_folder", MODULES, moment):
            write(model, "another")
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
        return "not killed"
    try:
        found = state_of(model)
        write(model, "another")  # the same call once more
        assert state_of(model) == "another"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "new" if found == "another" else found


def main(home: Path) -> None:
    model = prepared(home)
    with watched("write_folder", MODULES) as moments:
        write(model, "another")
    print(json.dumps([killed(home, moment) for moment in range(1, moments.count + 1)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
