"""The benchmark runner: rows of cells, failures, replicates, classes, training curves."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import joblib
import numpy as np
import pytest

from duogp import api
from duogp.bench import Cell, Results, learning_curve, load_table, run, run_cell
from duogp.bench.runner import Budget, jobs, run_job
from duogp.data.benchmark import Dataset
from duogp.training.history import History, Record
from helpers.bench_suite import fake_fit, fake_row


def crashing_rows(job: tuple[Cell, ...], device: str) -> list[dict]:
    """A job that takes its whole process with it."""
    if job[0].data == "absent" and job[0].label == "SVGP":
        os._exit(3)
    return [fake_row(cell, device) for cell in job]


# ---------------------------------------------------------------------------------------------- runner


def test_a_cell_becomes_a_row(suite, stub):
    cell = suite.cells(["sklearn/diabetes"], ["slow"])[1]
    row = run_cell(cell, "cpu")
    assert row["status"] == "ok"
    assert (row["n_train"], row["n_val"], row["n_test"], row["dims"]) == (331, 44, 67, 10)
    assert stub == [
        {
            "method": "dcsvgp",
            "validation": None,
            "seed": 1,
            "settings": {
                "standardize": False, "epochs": 3, "dtype": "float64", "num_inducing": 5, "beta2": 1e-3,
            },
        }
    ]  # fmt: skip
    assert row["metrics"]["rmse"] == pytest.approx(1, abs=0.2)
    assert {"nll", "crps", "noise_share"} <= set(row["metrics"])
    assert len(row["zscores"]) == 100 and row["zscores"] == sorted(row["zscores"])
    assert row["history"] == {
        "loss": 2.0, "epochs": 2, "iterations": 1, "rollbacks": 1, "solver": "stochastic",
        "stopped_early": False,
    }  # fmt: skip
    assert row["peak_memory_bytes"] > 0
    assert set(row["versions"]) - {"commit"} == {"duogp", "torch", "numpy", "python"}
    assert (row["hash"], row["seed"], row["dtype"], row["device"]) == (cell.hash, 1, "float64", "cpu")


def test_validation_rows_are_used_only_when_asked_for(suite, stub):
    cell = suite.cells(["sklearn/diabetes"], ["svgp"])[0]
    cell.settings["use_validation"] = True
    assert run_cell(cell, "cpu")["status"] == "ok"
    assert len(stub[0]["validation"][1]) == 44
    assert "use_validation" not in stub[0]["settings"]


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(suite, results, stub, monkeypatch):
    monkeypatch.delenv("DUOGP_DATA", raising=False)
    lines: list[str] = []
    done = run(suite.cells(splits=1), results, device="cpu", report=lines.append)
    assert (done.ok, done.failed, len(done.missing)) == (2, 4, 4)
    rows = {(r["data"], r["label"]): r for r in Results.read(results).rows}
    error = rows["sklearn/diabetes", "MAP"]["error"]
    assert (error["type"], error["message"]) == ("RuntimeError", "no such luck")
    assert error["traceback"][-1].startswith("bench_suite.py:")
    assert any(line.startswith("duogp/bench/runner.py:") for line in error["traceback"])
    assert "DUOGP_DATA" in rows["absent", "SVGP"]["error"]["message"]
    assert any(line.startswith("[3/6] sklearn/diabetes SVGP split 0: ") and "nll" in line for line in lines)


def test_finished_cells_are_skipped_and_failed_ones_retried(suite, results, stub, monkeypatch):
    cells = suite.cells(["sklearn/diabetes"], splits=1)
    assert run(cells, results, device="cpu", report=str).failed == 1
    monkeypatch.setattr(api, "fit", lambda *a, method, **k: fake_fit(*a, method="svgp", **k))
    again = run(cells, results, device="cpu", report=str)
    assert (again.ok, again.failed, again.missing) == (1, 0, [])
    assert run(cells, results, device="cpu", report=str).ok == 0
    assert [r["status"] for r in Results.read(results).rows] == ["ok", "failed", "ok", "ok"]


def test_metrics_that_are_not_finite_count_as_failed(suite, stub, monkeypatch):
    monkeypatch.setattr("duogp.metrics.regression_metrics", lambda *a: {"rmse": 1.0, "nll": float("nan")})
    row = run_cell(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu")
    assert (row["status"], row["error"]["message"]) == ("failed", "metrics not finite: nll")


def test_no_cell_starts_when_time_is_nearly_up(suite, results):
    def slow(job, device):
        time.sleep(0.3)
        return [fake_row(cell, device) for cell in job]

    cells = suite.cells()
    done = run(cells, results, device="cpu", time_limit=0.5, report=str, execute=slow)
    assert (done.ok, done.missing) == (2, cells[2:])
    assert run(cells, results, device="cpu", time_limit=0, report=str, execute=slow).ok == 0


def test_a_cell_known_to_take_too_long_does_not_start(suite):
    first, *_, same = suite.cells(["absent"], ["svgp"])
    budget = Budget(100.0, "cpu", Results([fake_row(first, "cpu") | {"seconds": {"fit": 99.0}}]))
    assert list(budget.affordable([(same,)])) == []
    other_device = Budget(100.0, "cuda", Results([fake_row(first, "cpu") | {"seconds": {"fit": 99.0}}]))
    assert list(other_device.affordable([(same,)])) == [(same,)]


def test_backends_of_joblib_share_the_cells(suite, results):
    def rows(job, device):
        return [fake_row(cell, device) for cell in job]

    cells = suite.cells(splits=1)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        done = run(cells, results, device="cpu", parallel=True, report=str, execute=rows)
    assert (done.ok, done.missing) == (len(cells), [])
    assert not Results.read(results).missing(cells)


@pytest.mark.slow
def test_workers_share_the_cells_and_a_crash_is_recorded(suite, results):
    cells = suite.cells(splits=1)
    done = run(cells, results, device="cpu", workers=2, report=str, execute=crashing_rows)
    assert (done.ok, done.failed) == (5, 1)
    assert done.missing == [c for c in cells if (c.data, c.label) == ("absent", "SVGP")]
    error = Results.read(results).failure(done.missing[0])["error"]
    assert (error["type"], error["message"]) == ("WorkerDied", "the worker ended with exit code 3")


def test_jobs_are_cells_that_differ_in_their_split_only(suite):
    cells = suite.cells(["sklearn/diabetes"], ["svgp", "map"])
    assert [len(job) for job in jobs(cells, 1)] == [1] * 4
    pairs = jobs(cells, 2)
    assert [[(c.label, c.split) for c in job] for job in pairs] == [
        [("SVGP", 0), ("SVGP", 1)],
        [("MAP", 0), ("MAP", 1)],
    ]


def test_replicates_give_the_rows_that_single_fits_give(suite):
    cells = suite.cells(["sklearn/diabetes"], ["svgp"])
    together = run_job(tuple(cells), "cpu")
    apart = [run_cell(cell, "cpu") for cell in cells]
    assert [row["replicates"] for row in together] == [2, 2]
    for one, other in zip(together, apart, strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-6)


# --------------------------------------------------------------------------------------------- classes


@pytest.fixture
def labelled(monkeypatch, stub):
    """A table of three classes, one of them with a single row, and a fit that predicts class shares."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat([3, 5], 30))
    y[17] = 9
    X = rng.normal(size=(60, 2))
    monkeypatch.setattr("duogp.data.benchmark.load", lambda name: Dataset(name, X, y))

    def classifier(X, y, *, method, device, random_state, validation=None, **settings):
        stub.append({"y": y, "seed": random_state, "settings": settings})
        classes, counts = np.unique(y, return_counts=True)

        def predict(X_new):
            return SimpleNamespace(
                probabilities=np.tile(counts / counts.sum(), (len(X_new), 1)), classes=classes
            )

        return SimpleNamespace(predict=predict, hyperparameters=dict, history=History(solver="natural"))

    def together(X, y, rows, *, random_states, validation_rows=None, **settings):
        stub.append({"rows": rows, "labels": y})
        parts = zip(rows, random_states, strict=True)
        return [classifier(X[r], y[r], random_state=s, **settings) for r, s in parts]

    monkeypatch.setattr(api, "fit", classifier)
    monkeypatch.setattr(api, "fit_replicates", together)

    def cell(split: int, **settings) -> Cell:
        name = "classification/toy" if "task" not in settings else "toy"
        return Cell("s", name, "svgp", "SVGP", "orth", split, {"standardize": False} | settings)

    return SimpleNamespace(cell=cell, y=y, calls=stub)


def test_labels_stay_labels_and_an_unseen_class_has_no_probability(labelled):
    seen = [np.unique(s) for s in ((3, 5), (3, 5, 9))]
    found = set()
    for split in range(12):
        labelled.calls.clear()
        row = run_cell(labelled.cell(split), "cpu")
        assert row["status"] == "ok", row["error"]
        (call,) = labelled.calls
        assert call["y"].dtype.kind == "i" and len(call["y"]) == 54
        assert call["settings"] == {"standardize": False, "likelihood": "robust-max"}
        assert set(row["metrics"]) == {"accuracy", "nll", "brier", "ece"}
        assert row["zscores"] == []
        classes = tuple(np.unique(call["y"]))
        found.add(classes)
        if classes == (3, 5):  # the only 9 is among the six test rows
            assert row["metrics"]["nll"] > -np.log(1e-12) / 6
    assert found == {tuple(s) for s in seen}


def test_the_likelihood_follows_the_number_of_classes(labelled, monkeypatch):
    run_cell(labelled.cell(0, likelihood="softmax"), "cpu")
    labelled.y[17] = 3
    run_cell(labelled.cell(0, likelihood="auto"), "cpu")
    run_cell(labelled.cell(0, task="classification"), "cpu")
    assert [c["settings"]["likelihood"] for c in labelled.calls] == ["softmax", "bernoulli", "bernoulli"]
    assert "task" not in labelled.calls[-1]["settings"]
    row = run_cell(labelled.cell(0, task="ranking"), "cpu")
    assert row["error"]["message"] == "task must be one of regression, classification, got 'ranking'"


def test_splits_of_labels_are_trained_at_once_where_they_have_the_same_classes(labelled):
    with_nine = [s for s in range(12) if 9 in labelled.y[np.random.default_rng(s).permutation(60)[:54]]]
    without = next(s for s in range(12) if s not in with_nine)
    together = run_job(tuple(labelled.cell(s) for s in with_nine[:2]), "cpu")
    assert [row["replicates"] for row in together] == [2, 2]
    assert labelled.calls[0]["labels"].dtype.kind == "i"
    apart = run_job((labelled.cell(with_nine[0]), labelled.cell(without)), "cpu")
    assert [row["replicates"] for row in apart] == [1, 1]
    assert [row["split"] for row in apart] == [with_nine[0], without]
    assert apart[0]["metrics"] == together[0]["metrics"]


def test_replicates_of_a_classifier_give_the_rows_that_single_fits_give():
    settings = {
        "task": "classification", "likelihood": "bernoulli", "num_inducing": 10, "epochs": 2,
        "standardize": False,
    }  # fmt: skip
    cells = [Cell("s", "sklearn/breast_cancer", "svgp", "SVGP", "orth", k, settings) for k in (0, 1)]
    apart = [run_cell(cell, "cpu") for cell in cells]
    together = run_job(tuple(cells), "cpu")
    for one, other in zip(together, apart, strict=True):
        assert one["status"] == "ok", one["error"]
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-6)
        assert one["metrics"]["accuracy"] > 0.8


# ------------------------------------------------------------------------------------ course of training


def falling(losses) -> History:
    return History([Record(i + 1, loss, 0.1 * i) for i, loss in enumerate(losses)], solver="stochastic")


def test_a_row_keeps_the_curve_when_asked(suite, stub):
    cell = suite.cells(["sklearn/diabetes"], ["svgp"])[0]
    plain = cell.hash
    cell.settings["trace"] = True
    row = run_cell(cell, "cpu")
    assert row["history"]["trace"] == [[0, 0.1, 3.0], [1, 0.2, 2.0]]
    assert stub[0]["settings"].get("trace") is None
    assert Cell(**{f: getattr(cell, f) for f in cell.__dataclass_fields__}).hash == plain


def test_curves_are_thinned_and_counted_in_iterations():
    summary = learning_curve.summary(falling(1 / np.arange(1, 1001)), 7, steps=6995, with_trace=True)
    assert len(summary["trace"]) == 200
    assert summary["trace"][0] == [7, 0.0, 1.0]
    assert summary["trace"][-1][0] == summary["iterations"] == 6995
    assert learning_curve.steps_per_epoch("natural", 2049, 1024) == 3
    assert learning_curve.steps_per_epoch("stochastic", 100, 1024) == 1
    assert learning_curve.steps_per_epoch("closed-form", 2049, 1024) == 1


def test_flatness_is_the_relative_fall_of_the_last_fifth():
    steps = np.arange(1, 101)
    assert learning_curve.summary(falling(2 - 0.01 * steps), 1)["flatness"] == pytest.approx(0.2)
    assert learning_curve.summary(falling(np.full(100, -3.0)), 5)["flatness"] == pytest.approx(0)
    noisy = -1 + 0.02 * np.random.default_rng(0).normal(size=1000)
    assert abs(learning_curve.summary(falling(noisy), 1)["flatness"]) < 0.02
    assert learning_curve.summary(falling(0.001 - 1e-4 * steps), 1)["flatness"] == pytest.approx(
        0.02
    )  # of 0.1 nats
    assert learning_curve.summary(falling(1 + 0.01 * steps), 1)["flatness"] < 0  # it rose
    holes = np.where(steps % 2, 2 - 0.01 * steps, np.nan)  # epochs that were rolled back
    assert learning_curve.summary(falling(holes), 1)["flatness"] == pytest.approx(0.18 / 1.01)
    assert "flatness" not in learning_curve.summary(falling([2.0, 1.0]), 1)


def test_rows_name_no_folder_of_this_machine(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("DUOGP_DATA", str(tmp_path))
    row = run_cell(suite.cells(["absent"], ["svgp"])[0], "cpu")
    assert row["error"]["type"] == "FileNotFoundError"
    assert str(tmp_path) not in json.dumps(row)


def test_unknown_scikit_learn_table_is_named():
    with pytest.raises(ValueError, match="sklearn/iris"):
        load_table("sklearn/iris")
