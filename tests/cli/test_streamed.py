"""`duogp fit` and the other commands on several files, in memory and streamed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet
from typer.testing import CliRunner

import duogp
from duogp import cli
from duogp.cli import fit_streamed
from duogp.tables import read_table

QUICK = ("--num-inducing", "12", "--epochs", "4", "--device", "cpu")


def call(*arguments: object):
    return CliRunner().invoke(cli.build(), [str(argument) for argument in arguments])


def found(*arguments: object) -> dict:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of 100 rows, as Parquet and as CSV."""
    folder, rng = tmp_path_factory.mktemp("streamed"), np.random.default_rng(0)
    for i in range(3):
        size, city = rng.normal(size=100), rng.choice(["Ulm", "Rom"], 100)
        y = size + 2.0 * (city == "Rom") + 0.1 * rng.normal(size=100)
        gaps = rng.random(100) < 0.05
        table = pa.table({"size": pa.array(size, mask=gaps), "city": city, "id": np.arange(100.0), "y": y})
        parquet.write_table(table, folder / f"{i}.parquet")
        csv.write_csv(table, folder / f"{i}.csv")
    return folder


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_fit_predict_evaluate_and_info_on_a_pattern(folder, tmp_path, kind):
    pattern, model = folder / f"*.{kind}", tmp_path / "model"
    report = found("fit", pattern, "-t", "y", "-o", model, "--stream", "--drop", "id", *QUICK)
    assert report["rows"] == 300 and report["method"] == "svgp"
    assert report["columns"] == {"size": "number", "city": "category"} and report["dropped"] == {
        "id": "as asked"
    }
    assert any("streamed" in text for text in report["notes"])
    scores = found("evaluate", model, pattern)
    assert scores["rows"] == 300 and scores["rmse"] < 0.6  # gaps of `size` cost up to 1; the noise is 0.1
    assert found("info", model)["rows"] == 300
    result = call("predict", model, pattern, "-o", tmp_path / "out.parquet", "--keep", "id")
    assert result.exit_code == 0, result.stderr
    out = read_table(tmp_path / "out.parquet")
    assert out.num_rows == 300 and out["id"].to_pylist()[:101] == [*np.arange(100.0), 0.0]


def test_several_small_files_are_read_together(folder, tmp_path):
    report = found("fit", folder / "*.parquet", "-t", "y", "-o", tmp_path / "m", "--method", "svgp", *QUICK)
    assert report["rows"] == 300 and not any("streamed" in text for text in report["notes"])


def test_large_files_are_streamed_unasked(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(fit_streamed, "STREAM_BYTES", 1000)
    report = found("fit", folder / "0.parquet", "-t", "y", "-o", tmp_path / "m", *QUICK)
    assert any("streamed" in text for text in report["notes"])
    assert not fit_streamed.is_streamed([str(folder / "0.parquet")], False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--test-fraction", "0.2"), "--test-fraction is not possible"),
        (("--method", "exact"), "use 'svgp'"),
        (("--set", "mean=trees"), "cross-fitted"),
        (("--likelihood", "poisson"), "whole numbers from 0"),
    ],
)
def test_what_is_not_streamed_is_an_error_of_one_line(folder, tmp_path, options, message):
    result = call("fit", folder / "0.parquet", "-t", "y", "-o", tmp_path / "m", "--stream", *options)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_labels_minibatches_and_checkpoints(folder, tmp_path):
    model, pattern = tmp_path / "m", folder / "*.parquet"
    options = ("--stream", "--drop", "id,y", "--set", f"checkpoint_dir={tmp_path / 'kept'}", *QUICK)
    report = found("fit", pattern, "-t", "city", "-o", model, *options)
    assert report["task"] == "classification" and report["classes"] == ["Rom", "Ulm"]
    assert list((tmp_path / "kept").iterdir())
    assert found("evaluate", model, pattern)["rows"] == 300
    report = found("fit", pattern, "-t", "y", "-o", model, "-f", "--stream", "--method", "dcsvgp", *QUICK)
    assert report["method"] == "dcsvgp" and report["rows"] == 300


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch.distributed without gloo")
def test_torchrun(folder, tmp_path):
    """Two processes: one writes and reports, the other is silent, and the model is that of one process.

    By Adam: sixty steps of L-BFGS on the sample, where one column is of no use, make 1e-2 of a change in the
    last bit, so that even one process finds another model on a CPU with other instructions. That several
    processes go where one of them goes is tested in tests/training/test_distributed.py.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "duogp", "fit"]
    options = ("--drop", "id", "--set", "optimizer=adam", *QUICK)
    own = [str(folder / "*.parquet"), "-t", "y", "-o", str(tmp_path / "two"), "--json", *options]
    run = subprocess.run([*command, *own], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["rows"] == 300 and any("2 processes" in text for text in report["notes"])
    found("fit", folder / "*.parquet", "-t", "y", "-o", tmp_path / "one", "--stream", *options)
    two, one = (duogp.load(tmp_path / name) for name in ("two", "one"))
    X = np.zeros((3, len(one.columns)))
    np.testing.assert_allclose(two.predict(X).mean, one.predict(X).mean, rtol=1e-6)


def test_a_pattern_without_files_is_an_error(tmp_path):
    result = call("fit", tmp_path / "*.parquet", "-t", "y", "-o", tmp_path / "m")
    assert result.exit_code == 2 and "no file that fits" in result.stderr
