"""Files that others wrote or changed: data or a clear error of ours; no code, no other paths, no huge arrays.

Model folders have tests of their own in test_folders.py. ``DUOGP_FUZZ_FILES`` is the number of mutations of
every kind of file.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import duogp
from duogp.bench.results import Results
from duogp.bench.suite import load_suite
from duogp.bo import Study
from duogp.bo.journal import EVALUATIONS, OPTIONS, Journal, read_batches, read_options
from duogp.bo.strategies import Proposal
from duogp.errors import CheckpointError, DuoGPWarning, SavedModelError
from duogp.io.folder import MANIFEST, TENSORS
from duogp.tables import read_table
from duogp.training.checkpoint import MAGIC, decode, encode
from helpers.mutations import edited, mutated

MUTATIONS = int(os.environ.get("DUOGP_FUZZ_FILES", "60"))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=30)
QUICK: dict[str, Any] = {"num_inducing": 4, "device": "cpu", "random_state": 0}


def each(seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, k]) for k in range(MUTATIONS)]


def refused_or_read(act: Callable[[], Any], *errors: type[Exception], names: str = "") -> None:
    """Whatever is raised is one of these, and says which file it is about."""
    raised = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DuoGPWarning)
            act()
    except errors as error:
        if names not in str(error):
            raised = f"{type(error).__name__}: {error}"
    assert not raised


# -- checkpoints ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A fit that was ended halfway, and its newest file."""
    folder = tmp_path_factory.mktemp("run")
    given = {**QUICK, "method": "svgp", "solver": "stochastic", "batch_size": 10, "epochs": 4}
    given |= {"checkpoint_dir": folder, "checkpoint_steps": 1}

    def end(progression: Any) -> None:
        if progression.epoch == 2:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        duogp.fit(X, Y, callbacks=[end], **given)
    files = sorted(folder.glob("*.checkpoint"))
    for other in files[:-1]:
        other.unlink()
    return given, files[-1]


@pytest.fixture
def whole(checkpoint: tuple[dict[str, Any], Path]) -> Any:
    """The bytes of the file, to which it returns."""
    given, path = checkpoint
    data = path.read_bytes()

    def go_on() -> None:
        for other in path.parent.glob("*.checkpoint"):
            if other != path:
                other.unlink()
        duogp.fit(X, Y, **given)

    yield path, data, go_on
    path.write_bytes(data)


def test_damaged_checkpoints(whole: Any) -> None:
    path, data, go_on = whole
    for rng in each(1):
        path.write_bytes(mutated(data, rng))
        refused_or_read(go_on, CheckpointError)


def test_edited_checkpoints_with_a_right_checksum(whole: Any) -> None:
    path, data, go_on = whole
    snapshot, identity = decode(data)
    for rng in each(2):
        if rng.random() < 0.3:
            tensors = dict(snapshot.tensors)
            name = list(tensors)[rng.integers(len(tensors))]
            tensors[name] = tensors[name].new_zeros(rng.integers(0, 4, size=rng.integers(0, 3)).tolist())
            found = snapshot._replace(tensors=tensors)
        else:
            found = snapshot._replace(values=edited(snapshot.values, rng))
        path.write_bytes(encode(found, identity))
        refused_or_read(go_on, CheckpointError)


def test_a_checkpoint_whose_header_claims_too_much() -> None:
    header = json.dumps({"a": {"dtype": "F64", "shape": [10**9, 10**9], "data_offsets": [0, 8]}}).encode()
    for length in (len(header), 2**62):
        body = length.to_bytes(8, "little") + header + bytes(8)
        data = MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        with pytest.raises(CheckpointError, match="damaged"):
            decode(data)


# -- runs and studies ----------------------------------------------------------------------------------------


def test_damaged_runs(tmp_path: Path) -> None:
    options = {"dims": 2, "task": "toy", "seed": 0}
    journal = Journal(tmp_path, options, 2)
    journal.batches()
    for number in range(3):
        journal.append(number, Proposal(RNG.random((2, 2)), np.zeros(2, dtype=np.int64)), RNG.random(2))
    journal.close()
    for name in (OPTIONS, EVALUATIONS):
        data = (tmp_path / name).read_bytes()

        def act() -> None:
            opened = Journal(tmp_path, options, 2)
            try:
                for batch in opened.batches():
                    assert np.isfinite(batch.proposal.X).all()
            finally:
                opened.close()

        for rng in each(3):
            (tmp_path / name).write_bytes(mutated(data, rng))
            refused_or_read(lambda: read_options(tmp_path), ValueError, names=str(tmp_path))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                read_batches(tmp_path, 2)
            refused_or_read(act, ValueError, names=str(tmp_path))
        (tmp_path / name).write_bytes(data)
    assert len(read_batches(tmp_path, 2)[0]) == 3


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    space = {"x": [0.0, 1.0], "n": [1, 9], "c": "cat(a, b)"}
    with Study(space, direction={"loss": "minimise"}, folder=folder, strategy="random") as made:
        for trial in made.ask(3):
            made.tell(trial, float(trial.number))
        made.fail(made.ask(), "no value")
        made.ask()
    return folder / "study.jsonl"


def replay(path: Path) -> None:
    with Study.open(path.parent, strategy="random") as found:
        found.history()
        _ = found.best, found.pending
        found.ask()


def test_damaged_studies(study: Path) -> None:
    data = study.read_bytes()
    for rng in each(4):
        study.write_bytes(mutated(data, rng))
        refused_or_read(lambda: replay(study), ValueError, names=str(study))


def test_edited_studies(study: Path) -> None:
    lines = [json.loads(line) for line in study.read_bytes().splitlines()]
    for rng in each(5):
        study.write_text("".join(json.dumps(line) + "\n" for line in edited(lines, rng)))
        refused_or_read(lambda: replay(study), ValueError, names=str(study.parent))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, '{"a": NaN', "\udcff"])
def test_json_that_is_none(text: str, study: Path, tmp_path: Path) -> None:
    data = text.encode(errors="surrogateescape") + b"\n"
    lines = study.read_bytes().splitlines(keepends=True)
    study.write_bytes(b"".join([lines[0], data, *lines[1:]]))
    with pytest.raises(ValueError, match="line 2"):
        replay(study)
    (tmp_path / OPTIONS).write_bytes(data)
    with pytest.raises(ValueError, match=OPTIONS):
        read_options(tmp_path)


# -- benchmarks ----------------------------------------------------------------------------------------------


def test_damaged_results(tmp_path: Path) -> None:
    rows = [{"hash": f"{k:x}", "status": "ok", "rmse": 0.1 * k} for k in range(6)]
    path = tmp_path / "results.jsonl"
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for rng in each(6):
        path.write_bytes(mutated(data, rng))
        Results.read(path)
        path.write_text("".join(json.dumps(row) + "\n" for row in edited(rows, rng)))
        Results.read(path)
    path.write_bytes(b"[" * 100_000 + b"\n" + data)
    assert len(Results.read(path).rows) == 6


SUITE = """
name = "small"
splits = [0, 1]
metrics = ["rmse"]
[settings]
epochs = 3
[[data]]
name = "pol"
[[methods]]
name = "svgp"
only = ["pol"]
[paper.rmse.pol]
svgp = 0.1
"""


def test_damaged_suites(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    load_suite(path).cells()
    for rng in each(7):
        path.write_bytes(mutated(SUITE.encode(), rng))
        refused_or_read(lambda: load_suite(path).cells(), ValueError)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a/b", "..", "", "a\\\\b"])
def test_a_suite_cannot_choose_where_its_results_go(name: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SUITE.replace('"small"', f'"{name}"'))
    with pytest.raises(ValueError, match="name must be letters"):
        load_suite(path)


# -- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet", "arrow"])
def test_damaged_tables(ending: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from duogp.tables.files import write_table

    table = pa.table(
        {"x": np.arange(200.0), "name": [f"n{k % 7}" for k in range(200)], "y": list(range(200))}
    )
    path = tmp_path / f"table.{ending}"
    write_table(table, path)
    data = path.read_bytes()
    for rng in each(8):
        path.write_bytes(mutated(data, rng))
        refused_or_read(lambda: read_table(path).to_pylist(), ValueError, names=path.name)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_text_that_is_no_utf8_is_refused_with_the_name_of_its_file(ending: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from duogp.tables.files import read_chunks, write_table

    offsets, text = np.array([0, 2, 4], dtype=np.int32), b"ok\xdcx"
    column = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    path = tmp_path / f"names.{ending}"
    write_table(pa.table({"name": column, "y": [1.0, 2.0]}), path)
    with pytest.raises(ValueError, match=path.name):
        read_table(path)
    with pytest.raises(ValueError, match=path.name):
        list(read_chunks(path, {"y": pa.float64()}, keep=["name"]))


# -- links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_a_link_out_of_a_model_folder_is_not_followed(name: str, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    duogp.fit(X, Y, "svgp", epochs=1, **QUICK).save(folder)
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(SavedModelError, match="outside the folder"):
        duogp.load(folder)


def test_a_link_to_a_model_folder_is_followed(tmp_path: Path) -> None:
    duogp.fit(X, Y, "svgp", epochs=1, **QUICK).save(tmp_path / "model")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert duogp.load(tmp_path / "link").method.name == "svgp"


def test_checkpoints_are_not_written_through_a_link(tmp_path: Path) -> None:
    """A name that is a link is replaced by the file; what it pointed to stays as it was."""
    from duogp.disk import write_atomically

    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "main.000000000001.checkpoint").symlink_to(victim)
    write_atomically(tmp_path / "main.000000000001.checkpoint", b"theirs")
    assert victim.read_text() == "mine"
