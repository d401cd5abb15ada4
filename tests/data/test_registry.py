"""The registry of benchmark files: checks that tell errors apart, fetching from a folder and a server."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from duogp import cli, data
from duogp.data import registry as module
from duogp.data.fetching import fetch
from duogp.data.registry import Entry, array_digest, entry_of, problem, registry, text_digest

ARRAYS = {"X": np.arange(6, dtype=np.float32).reshape(3, 2), "y": np.arange(3, dtype=np.float32)}
LINES = b"x,y\n1,2\n"


def entry(**changes) -> Entry:
    given = {
        "name": "regression/tiny",
        "path": "regression/tiny.npz",
        "arrays": {key: (str(value.dtype), value.shape) for key, value in ARRAYS.items()},
        "sha256": array_digest(ARRAYS),
        "size": 600,
        "origin": "github a/b @ c, d",
        "url": "https://github.com/a/b",
        "citation": "A 2020",
        "converted": "",
        "notes": "",
    }
    return Entry(**given | changes)


TEXT = entry(name="bo/lines.csv.gz", path="bo/lines.csv.gz", arrays={}, sha256=text_digest(LINES, False))


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder with both files, the archive compressed in another way than any other."""
    folder = tmp_path / "source"
    (folder / "regression").mkdir(parents=True)
    (folder / "bo").mkdir()
    np.savez_compressed(folder / "regression" / "tiny.npz", y=ARRAYS["y"], X=ARRAYS["X"])
    (folder / "bo" / "lines.csv.gz").write_bytes(gzip.compress(LINES, 1))
    return folder


@pytest.fixture
def server(source):

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args, **given):
            super().__init__(*args, directory=str(source), **given)

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    served.server_close()
    thread.join()


def test_every_set_of_the_papers_is_registered():
    found = registry()
    assert len(found) == 50
    assert entry_of("pol").arrays["X"] == ("float32", (15000, 26))
    assert all(each.citation and each.origin for each in found.values())
    assert all(each.url.startswith("https://") or not each.url for each in found.values())  # packages: none
    assert all(len(each.sha256) == 64 for each in found.values())
    with pytest.raises(ValueError, match="did you mean"):
        entry_of("poll")
    with pytest.raises(ValueError, match="scikit-learn"):
        entry_of("sklearn/diabetes")


@pytest.mark.skipif(data.data_root() is None, reason="DUOGP_DATA is not set: no benchmark files")
@pytest.mark.parametrize("name", ["pol", "banana", "motorcycle", "rover_obstacles.csv"])
def test_files_here_have_the_registered_content(name):
    root = data.data_root()
    assert root is not None
    assert problem(root / entry_of(name).path, entry_of(name)) is None


def test_problems_are_told_apart(tmp_path):
    path = tmp_path / "tiny.npz"
    assert problem(path, entry()) == "missing"
    path.write_bytes(b"no archive")
    assert "no .npz archive" in str(problem(path, entry()))
    np.savez(path, features=ARRAYS["X"], y=ARRAYS["y"])
    assert problem(path, entry()) == "has the keys features, y; expected X, y"
    np.savez(path, X=ARRAYS["X"][:2], y=ARRAYS["y"])
    assert "X is float32 (2, 2); expected float32 (3, 2)" in str(problem(path, entry()))
    np.savez(path, X=ARRAYS["X"] + 1, y=ARRAYS["y"])
    assert "values are other ones" in str(problem(path, entry()))
    np.savez(path, X=np.asfortranarray(ARRAYS["X"]), y=ARRAYS["y"])
    assert problem(path, entry()) is None


@pytest.mark.parametrize("wanted", [entry(), TEXT], ids=["archive", "text"])
@pytest.mark.parametrize("by", ["folder", "address"])
def test_fetch(source, server, tmp_path, wanted, by):
    place = fetch(wanted, str(source) if by == "folder" else server, tmp_path / "data")
    assert place == tmp_path / "data" / wanted.path
    assert problem(place, wanted) is None


@pytest.mark.parametrize("by", ["folder", "address"])
def test_a_wrong_file_is_not_kept(source, server, tmp_path, by):
    np.savez(source / "regression" / "tiny.npz", data=ARRAYS["X"], target=ARRAYS["y"])
    with pytest.raises(ValueError, match="has the keys data, target; expected X, y; nothing is kept"):
        fetch(entry(), str(source) if by == "folder" else server, tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.npz"))
    assert not any(path.is_file() for path in (tmp_path / "data").rglob("*"))


def test_errors_of_a_source(source, server, tmp_path):
    other = entry(path="regression/other.npz")
    with pytest.raises(FileNotFoundError, match="404"):
        fetch(other, server, tmp_path / "data")
    with pytest.raises(FileNotFoundError, match="holds 2 other files"):
        fetch(other, source, tmp_path / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="it is empty"):
        fetch(other, tmp_path / "empty", tmp_path / "data")
    with pytest.raises(FileNotFoundError, match="no folder"):
        fetch(other, tmp_path / "nowhere", tmp_path / "data")
    with pytest.raises(ValueError, match="ftp://"):
        fetch(other, "ftp://somewhere/data", tmp_path / "data")
    (source / "regression" / "tiny.npz").write_bytes(bytes(3 << 20))
    with pytest.raises(ValueError, match="larger than"):
        fetch(entry(), server, tmp_path / "data")


def test_commands(source, server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "registry", lambda: {"regression/tiny": entry(), "bo/lines.csv.gz": TEXT})
    monkeypatch.delenv("DUOGP_DATA", raising=False)
    run, app, folder = CliRunner(), cli.build(), str(tmp_path / "data")
    assert "DUOGP_DATA" in run.invoke(app, ["data", "fetch", "tiny", "--from", server]).output
    assert "--from is missing" in run.invoke(app, ["data", "fetch", "tiny", "--to", folder]).output
    fetched = run.invoke(app, ["data", "fetch", "--from", server, "--to", folder])
    assert fetched.exit_code == 0, fetched.output
    assert "regression/tiny: fetched" in fetched.output
    again = run.invoke(app, ["data", "fetch", "tiny", "--from", server, "--to", folder])
    assert "here already" in again.output
    checked = run.invoke(app, ["data", "check", "--folder", folder, "--json"])
    assert checked.exit_code == 0
    assert [each["problem"] for each in json.loads(checked.stdout)] == [None, None]
    np.savez(tmp_path / "data" / "regression" / "tiny.npz", a=np.zeros(3))
    wrong = run.invoke(app, ["data", "check", "--folder", folder])
    assert wrong.exit_code == 2
    assert "has the keys a" in wrong.output
    (tmp_path / "empty").mkdir()
    empty = run.invoke(app, ["data", "check", "--folder", str(tmp_path / "empty")])
    assert empty.exit_code == 2
    assert "holds none of the 2 data sets" in empty.output
    listed = json.loads(run.invoke(app, ["data", "list", "tiny", "--json", "--folder", folder]).stdout)
    assert listed[0]["here"] is True
    assert listed[0]["url"] == "https://github.com/a/b"
    assert "A 2020" in run.invoke(app, ["data", "list", "tiny"]).output


def test_load_tells_a_wrong_key_from_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DUOGP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"holds no <task>/<name>\.npz files"):
        data.load("tiny")
    np.savez(tmp_path / "tiny.npz", **ARRAYS)
    with pytest.raises(FileNotFoundError, match="in a folder by their task"):
        data.load("tiny")
    (tmp_path / "regression").mkdir()
    np.savez(tmp_path / "regression" / "tiny.npz", features=ARRAYS["X"], labels=ARRAYS["y"])
    with pytest.raises(ValueError, match="has the keys features, labels; expected X and y"):
        data.load("tiny")
    monkeypatch.setenv("DUOGP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="is no folder"):
        data.load("tiny")


def test_the_page_has_the_table_of_the_registry():
    page = Path(__file__).parents[2] / "docs" / "data.md"
    text = page.read_text(encoding="utf-8")
    for each in registry().values():
        assert f"| {each.name} |" in text
        origin = f"[{each.short_origin}]({each.url})" if each.url else each.short_origin
        assert f"{origin} | {each.citation} |" in text
