"""The examples of docs/large-data.md are executed as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "large-data.md"


def block(section: str, place: int = 0) -> str:
    text = DOCS.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[place]


def test_files_and_sums(tmp_path, monkeypatch):
    if not DOCS.exists():
        pytest.skip("no docs folder beside these tests")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "example"}
    exec(block("Files"), names)
    X, y = names["X"], names["y"]
    assert np.sqrt(np.mean((names["mean"] - y) ** 2)) < 0.2  # the noise is 0.1
    assert any("held out" in note for note in names["gp"].history.notes)
    exec(block("Files", 1), names)
    assert names["mean"].shape == names["std"].shape == (6000,)
    exec(block("The sums"), names)
    assert int(names["sums"].rows) == 2000
    assert np.sqrt(np.mean((names["gp"].predict(X).mean - y) ** 2)) < 0.2


@pytest.mark.slow
def test_dask(tmp_path, monkeypatch):
    pytest.importorskip("dask.distributed")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "example"}
    exec(block("Files"), names)
    before = names["gp"]
    exec(block("Dask"), names)
    gp, X = names["gp"], names["X"]
    assert int(names["sums"].rows) == 6000
    assert np.abs(gp.predict(X).mean - before.predict(X).mean).max() < 0.2  # a tenth of the rows more
    assert not np.array_equal(gp.predict(X).mean, before.predict(X).mean)


def test_the_script_of_several_processes_compiles():
    if not DOCS.exists():
        pytest.skip("no docs folder beside these tests")
    compile(block("Several processes"), "fit_shared.py", "exec")
