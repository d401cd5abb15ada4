"""The benchmark runner: what is run, in which order, what is kept, and what the tables say."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import duogp
from duogp.bench import (
    Cell,
    Results,
    compare,
    learned,
    learning_curve,
    load_suite,
    load_table,
    render,
    run,
    run_cell,
)
from duogp.bench.__main__ import main
from duogp.bench.report import within_tolerance
from duogp.bench.results import append
from duogp.bench.runner import Budget, begin_row, jobs, run_job
from duogp.bench.suite import RUNNER_SETTINGS, canonical_json
from duogp.data.benchmark import Dataset
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.training.history import History, Record

SUITE = """
name = "tiny"
protocol = "dc"
splits = [0, 1]

[settings]
epochs = 3
dtype = "float64"

[[data]]
name = "sklearn/diabetes"
num_inducing = 5

[[data]]
name = "absent"
priority = -1

[[methods]]
name = "slow"
label = "SLOW"
method = "dcsvgp"
beta2 = 1e-3
priority = 2

[[methods]]
name = "svgp"
label = "SVGP"

[[methods]]
name = "map"
label = "MAP"

[tolerance]
rmse_relative = 0.05
nll = 0.05

[paper]
source = "Someone 2023"

[paper.rmse]
"sklearn/diabetes" = { SVGP = 1.0, MAP = 0.5, OTHER = 3.0 }

[paper.nll]
"sklearn/diabetes" = { SVGP = -1.0, MAP = -1.0 }

[paper.learned.lengthscale]
"sklearn/diabetes" = { SVGP = 0.5 }

[learned]
lengthscale = "kernel.lengthscale"
"""


@pytest.fixture
def suite(tmp_path):
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "tiny.toml").write_text(SUITE)
    return load_suite(folder / "tiny.toml")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results" / "tiny.jsonl"


def fake_row(cell: Cell, device: str) -> dict:
    """A row as a fit would leave it, without the fit."""
    metrics = {"rmse": 1.04 + 0.02 * cell.split, "nll": -0.9}
    return begin_row(cell, device) | {
        "metrics": metrics,
        "seconds": {"fit": 0.5, "predict": 0.5},
        "hyperparameters": {"kernel": {"lengthscale": [[0.4, 0.6]]}},
    }


def crashing_rows(job: tuple[Cell, ...], device: str) -> list[dict]:
    """A job that takes its whole process with it."""
    if job[0].data == "absent" and job[0].label == "SVGP":
        os._exit(3)
    return [fake_row(cell, device) for cell in job]


def fake_fit(X, y, *, method, validation, device, random_state, **settings):
    """Predicts the mean of the targets, and remembers how it was called."""
    if method == "map":
        raise RuntimeError("no such luck")
    call = {"method": method, "validation": validation, "seed": random_state, "settings": settings}
    fake_fit.calls.append(call)

    def predict(X_new):
        part = np.full(len(X_new), 0.25)
        return SimpleNamespace(
            mean=np.full(len(X_new), y.mean()),
            std=np.sqrt(3 * part),
            noise=part,
            residual=part,
            explained=part,
        )

    history = History([Record(0, 3.0, 0.1), Record(1, 2.0, 0.2)], solver="stochastic", rollbacks=1)
    return SimpleNamespace(
        predict=predict, hyperparameters=lambda: {"noise": np.float64(0.25)}, history=history
    )


@pytest.fixture
def stub(monkeypatch):
    fake_fit.calls = []
    monkeypatch.setattr(duogp, "fit", fake_fit, raising=False)
    return fake_fit.calls


# ---------------------------------------------------------------------------------------------- suites


def test_cells_come_split_by_split_then_by_priority_then_as_declared(suite):
    names = [(c.split, c.data, c.label) for c in suite.cells()]
    first = [
        ("absent", "SVGP"),  # -1 + 0
        ("absent", "MAP"),
        ("sklearn/diabetes", "SVGP"),  # 0 + 0
        ("sklearn/diabetes", "MAP"),
        ("absent", "SLOW"),  # -1 + 2
        ("sklearn/diabetes", "SLOW"),
    ]
    assert names == [(split, *pair) for split in (0, 1) for pair in first]


def test_settings_of_data_and_methods_override_the_shared_ones(suite):
    cell = suite.cells(data=["sklearn/diabetes"], methods=["slow"])[0]
    assert cell.method == "dcsvgp"
    assert cell.settings == {
        "standardize": False, "epochs": 3, "dtype": "float64", "num_inducing": 5, "beta2": 1e-3,
    }  # fmt: skip


def test_cells_can_be_chosen_by_name_or_label(suite):
    assert len(suite.cells(methods=["svgp"], splits=1)) == 2
    assert suite.cells(methods=["SVGP"]) == suite.cells(methods=["svgp"])
    with pytest.raises(ValueError, match="methods: no nothing in this suite; it has slow, svgp, map"):
        suite.cells(methods=["nothing"])


def test_a_method_may_be_for_some_data_only(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(SUITE.replace('label = "MAP"', 'label = "MAP"\nonly = ["absent"]'))
    cells = load_suite(path).cells(splits=1)
    assert [c.data for c in cells if c.label == "MAP"] == ["absent"]
    assert "only" not in cells[0].settings
    assert len(compare(load_suite(path), Results())) == 2 * 5
    path.write_text(SUITE.replace('label = "MAP"', 'label = "MAP"\nonly = ["nowhere"]'))
    with pytest.raises(ValueError, match="only of map names data that the suite lacks: nowhere"):
        load_suite(path)


def test_hash_is_of_what_decides_the_result():
    def cell(**changes):
        fields = {
            "suite": "s",
            "data": "pol",
            "method": "svgp",
            "label": "SVGP",
            "protocol": "dc",
            "split": 0,
        }
        return Cell(**(fields | {"settings": {"beta1": 1.0, "epochs": 3}} | changes))

    deciding = (  # another spelling would orphan every committed result
        b'{"data":"pol","method":"svgp","protocol":"dc","seed":0,"settings":{"beta1":1,"epochs":3},"split":0}'
    )
    known = hashlib.sha256(deciding).hexdigest()
    assert cell().hash == known
    assert cell(suite="t", label="other").hash == known
    assert cell(settings={"epochs": 3, "beta1": 1}).hash == known
    changed = [cell(data="bike"), cell(split=1), cell(method="map"), cell(settings={}), cell(protocol="orth")]
    assert len({known, *(c.hash for c in changed)}) == 6


def test_canonical_json_keeps_booleans_apart_from_numbers():
    assert canonical_json({"b": True, "a": [1.0, 0.5]}) == '{"a":[1,0.5],"b":true}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = 3\n" + SUITE, "unknown keys epochs"),
        (SUITE.replace("splits = [0, 1]", "splits = []"), "splits must be a non-empty list"),
        (SUITE.replace('label = "MAP"', 'label = "SVGP"'), "declares SVGP more than once"),
        (SUITE.replace("epochs = 3", 'device = "cpu"'), "--device"),
        (SUITE.replace("SVGP = 1.0", 'SVGP = "one"'), "number"),
        ("name = ", "not valid TOML"),
        ('name = "x"', r"\[\[data\]\]"),
    ],
)
def test_mistakes_in_a_suite_are_named(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_suite(path)


def test_suites_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = load_suite("paper_dc")
    assert found.results.parts[-3:] == ("benchmarks", "results", "paper_dc.jsonl")
    with pytest.raises(FileNotFoundError, match=r"no suite 'nothing'.*paper_dc"):
        load_suite("nothing")


def test_the_paper_suite_is_the_papers_protocol():
    suite = load_suite("paper_dc")
    cells = suite.cells(splits=1)
    assert len(cells) == 28
    assert [c.label for c in cells[:4]] == ["SVGP", "DCSVGP", "SVGP", "DCSVGP"]
    assert {c.label: c.settings.get("beta2") for c in cells} == {
        "SVGP": None, "DCSVGP": 1e-3, "PPGPR": None, "DCPPGPR": 1e-3,
    }  # fmt: skip
    assert suite.paper["nll"]["kin40k"]["DCSVGP"] == -0.502
    assert all(len(row) == 6 for table in suite.paper.values() for row in table.values())


@pytest.mark.parametrize(("name", "count"), [("smoke", 2), ("float32", 161)])
def test_the_other_suites_parse(name, count):
    assert len(load_suite(name).cells()) == count


def test_the_orthogonal_suite_is_the_papers_protocol():
    suite = load_suite("paper_orth")
    first, rest = suite.cells(splits=1)[:16], suite.cells(splits=1)[16:]
    assert {c.label for c in first} == {"COUPLED†", "ORTHNAT"}
    assert {c.data for c in first} == {c.data for c in suite.cells()} and len({c.data for c in first}) == 8
    order = list(dict.fromkeys(c.label for c in rest))
    assert order == ["ORTH", "COUPLED", "COUPLEDNAT", "HYBRID", "DECOUPLED", "COUPLEDNAT†"]
    assert [c.data for c in rest if c.label == "DECOUPLED"] == ["pol", "kin40k", "protein"]
    for cell in suite.cells(splits=1):
        sizes = (cell.settings["num_inducing"], cell.settings.get("num_extra"))
        assert sizes == {"COUPLED": (400, None), "COUPLEDNAT": (400, None), "DECOUPLED": (300, 1000)}.get(
            cell.label, (300, None) if cell.label.endswith("†") else (300, 700)
        )
        matern, rbf = cell.settings["initial_lengthscale"]
        assert rbf == pytest.approx(10 * matern, rel=1e-3)
    assert suite.paper["loglik"]["kin40k"]["ORTHNAT"] == 0.1931
    assert suite.paper["rmse"]["pol"] == {
        "COUPLED†": 0.2073, "COUPLEDNAT†": 0.2059, "COUPLED": 0.2012, "COUPLEDNAT": 0.2,
        "ORTHNAT": 0.1906, "ORTH": 0.1931, "DECOUPLED": 0.2867, "HYBRID": 0.2065,
    }  # fmt: skip


def test_the_orthogonal_classification_suite_is_the_papers_protocol():
    suite = load_suite("paper_orth_classification")
    assert {c.task for c in suite.cells(splits=1)} == {"classification"}
    names = {c.data for c in suite.cells(splits=1)}
    assert set(suite.paper["loglik"]) == set(suite.paper["accuracy_percent"])
    assert len(names) == 22 and len(names & set(suite.paper["loglik"])) == 18
    assert suite.paper["accuracy_percent"]["classification/letter"]["ORTHNAT"] == 93.45
    assert suite.paper["loglik"]["classification/waveform"]["COUPLED"] == -0.6207


@pytest.mark.parametrize("name", ["smoke", "float32", "paper_dc", "paper_orth", "paper_orth_classification"])
def test_suites_use_words_that_the_library_knows(name):
    known = set(Settings.__dataclass_fields__) | RUNNER_SETTINGS
    for cell in load_suite(name).cells(splits=1):
        assert set(cell.settings) <= known
        assert cell.method in METHODS
        settings = {k: v for k, v in cell.settings.items() if k not in RUNNER_SETTINGS}
        Settings.of(settings)  # checks types and ranges


# --------------------------------------------------------------------------------------------- results


def test_a_torn_last_line_is_ignored_and_closed(suite, results):
    cells = suite.cells()
    append(results, fake_row(cells[0], "cpu"))
    whole = results.read_bytes()
    results.write_bytes(whole + whole[: len(whole) // 2])
    assert len(Results.read(results).rows) == 1
    append(results, fake_row(cells[1], "cpu"))
    assert Results.read(results).missing(cells[:3]) == [cells[2]]


def test_several_writers_do_not_mix_their_rows(results):
    def write(writer: int) -> None:
        for i in range(10):
            append(results, {"hash": f"{writer}.{i}", "status": "ok", "filling": "x" * 5000})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len({row["hash"] for row in Results.read(results).rows}) == 40


def test_rows_are_strict_json(results):
    append(
        results,
        {"hash": "h", "status": "ok", "nan": float("nan"), "array": np.ones((1, 2)), "path": Path("p")},
    )
    row = json.loads(results.read_text(), parse_constant=pytest.fail)
    assert (row["nan"], row["array"], row["path"]) == (None, [[1.0, 1.0]], "p")


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
    assert row["history"] == {
        "loss": 2.0, "epochs": 2, "iterations": 1, "rollbacks": 1, "solver": "stochastic",
        "stopped_early": False,
    }  # fmt: skip
    assert row["peak_memory_bytes"] > 0
    assert set(row["versions"]) == {"duogp", "torch", "numpy", "python"}
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
    assert error["traceback"][-1].startswith("test_bench.py:")
    assert any(line.startswith("duogp/bench/runner.py:") for line in error["traceback"])
    assert "DUOGP_DATA" in rows["absent", "SVGP"]["error"]["message"]
    assert any(line.startswith("[3/6] sklearn/diabetes SVGP split 0: ") and "nll" in line for line in lines)


def test_finished_cells_are_skipped_and_failed_ones_retried(suite, results, stub, monkeypatch):
    cells = suite.cells(["sklearn/diabetes"], splits=1)
    assert run(cells, results, device="cpu", report=str).failed == 1
    monkeypatch.setattr(duogp, "fit", lambda *a, method, **k: fake_fit(*a, method="svgp", **k))
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

    monkeypatch.setattr(duogp, "fit", classifier)
    monkeypatch.setattr(duogp, "fit_replicates", together)

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


# ---------------------------------------------------------------------------------------------- tables


@pytest.fixture
def compared(suite):
    cells = suite.cells(["sklearn/diabetes"], ["svgp", "map"])
    found = Results([fake_row(c, "cpu") for c in cells if c.label == "SVGP" or c.split == 0])
    return suite, found, cells


def test_table_puts_the_papers_number_beside_ours(compared):
    rows = {(r.metric, r.method): r for r in compare(*compared)}
    svgp = rows["rmse", "SVGP"]
    assert (svgp.ours, svgp.paper, svgp.splits) == (pytest.approx(1.05), 1.0, 2)
    assert svgp.stderr == pytest.approx(0.01)
    assert (rows["rmse", "MAP"].splits, rows["rmse", "MAP"].stderr) == (1, None)
    assert [r.verdict for r in rows.values()] == ["ok", "worse", "worse", "worse"]


@pytest.mark.parametrize(
    ("metric", "ours", "paper", "verdict"),
    [
        ("rmse", 1.05, 1.0, True),
        ("rmse", 1.06, 1.0, False),
        ("nll", -0.45, -0.5, True),
        ("nll", -0.44, -0.5, False),
        ("crps", 9.0, 1.0, None),
        ("nll", None, 1.0, None),
        ("nll", 1.0, None, None),
        ("loglik", -0.54, -0.5, True),  # higher is better
        ("loglik", -0.56, -0.5, False),
        ("loglik", 3.0, -0.5, True),
        ("accuracy_percent", 89.0, 90.0, True),
        ("accuracy_percent", 88.9, 90.0, False),
        ("accuracy", 0.86, 0.9, True),
        ("accuracy", 0.85, 0.9, False),
    ],
)
def test_verdicts(metric, ours, paper, verdict):
    tolerance = {
        "rmse_relative": 0.05, "nll": 0.05, "loglik": 0.05, "accuracy_percent": 1.0,
        "accuracy_relative": 0.05,
    }  # fmt: skip
    assert within_tolerance(metric, ours, paper, tolerance) is verdict


def test_tables_speak_the_papers_sign_and_unit(tmp_path):
    path = tmp_path / "suites" / "classes.toml"
    path.parent.mkdir()
    path.write_text("""
metrics = ["accuracy_percent", "loglik"]
[[data]]
name = "classification/toy"
[[methods]]
name = "svgp"
[tolerance]
accuracy_percent = 1.0
loglik = 0.05
[paper.accuracy_percent]
"classification/toy" = { svgp = 90.5 }
[paper.loglik]
"classification/toy" = { svgp = -0.2 }
""")
    suite = load_suite(path)
    (cell,) = suite.cells()
    row = begin_row(cell, "cpu") | {"metrics": {"accuracy": 0.9, "nll": 0.3}}
    accuracy, loglik = compare(suite, Results([row]))
    assert (accuracy.ours, accuracy.paper, accuracy.verdict) == (pytest.approx(90), 90.5, "ok")
    assert (loglik.ours, loglik.paper, loglik.verdict) == (-0.3, -0.2, "worse")


def test_text_table_counts_what_is_within_tolerance(compared):
    suite, found, cells = compared
    text = render(compare(suite, found, cells), suite.source, rich=False)
    assert "rmse SVGP: 1 of 1 within tolerance" in text
    assert "1.0500 ± 0.0100" in text
    assert text.endswith("paper: Someone 2023")
    everything = render(compare(suite, Results()), rich=False)
    assert "not run" in everything
    assert "within tolerance" not in everything


def test_terminals_get_the_same_table(compared):
    pytest.importorskip("rich")
    suite, found, cells = compared
    assert "worse" in render(compare(suite, found, cells), rich=True)


def test_learned_values_stand_beside_the_papers(compared):
    (row,) = learned(*compared)
    assert (row.metric, row.ours, row.paper, row.within) == ("lengthscale", 0.5, 0.5, None)


# -------------------------------------------------------------------------------------------- commands


def test_json_table_has_exactly_these_keys(suite, results, capsys):
    append(results, fake_row(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu"))
    assert main(["table", str(suite.path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    keys = ["data", "method", "metric", "ours", "paper", "stderr", "splits", "within"]
    assert all(list(row) == keys for row in rows)
    assert len(rows) == 2 * 3 * 2
    assert sum(row["ours"] is not None for row in rows) == 2


def test_run_and_missing_from_the_command_line(suite, stub, capsys):
    assert (
        main(["run", str(suite.path), "--data", "sklearn/diabetes", "--splits", "1", "--device", "cpu"]) == 1
    )
    assert "2 finished, 1 failed, 1 of 3 missing" in capsys.readouterr().out
    assert main(["missing", str(suite.path), "--data", "sklearn/diabetes"]) == 0
    out = capsys.readouterr().out
    assert "sklearn/diabetes MAP split 0 (failed: RuntimeError: no such luck)" in out
    assert out.endswith("4 of 6 cells missing\n")


def test_mistakes_are_one_line_and_status_two(suite, capsys):
    assert main(["table", "nothing"]) == 2
    assert main(["run", str(suite.path), "--workers", "0"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in errors] == ["error", "error"]


# ------------------------------------------------------------------------------------- convergence script


@pytest.fixture(scope="module")
def convergence():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "orth_convergence.py"
    spec = importlib.util.spec_from_file_location("orth_convergence", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_convergence_runs_resumes_and_knows_the_optimum(convergence, tmp_path, capsys):
    output, figure = tmp_path / "curves.json", tmp_path / "curves.png"
    call = ["--quick", "--device", "cpu", "--output", str(output), "--experiments", "regression"]
    assert convergence.main([*call, "--methods", "COUPLEDNAT", "--time-limit", "0"]) == 0
    assert "the time was up" in capsys.readouterr().err
    for methods in ("COUPLEDNAT", "COUPLEDNAT,ORTHNAT (joint),HYBRID"):
        assert convergence.main([*call, "--methods", methods]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("regression COUPLEDNAT") for line in lines) == 1  # resumed, not repeated
    content = json.loads(output.read_text())
    entry, found = content["experiments"]["regression"], content["summary"]["regression"]
    assert found["optimum_is_analytic"] and found["optimum"] == entry["optimum"] > entry["optimum_coupled"]
    assert found["methods"]["COUPLEDNAT"]["final"] == pytest.approx(entry["optimum_coupled"], abs=1e-5)
    joint = found["methods"]["ORTHNAT (joint)"]
    assert joint["gap"] == pytest.approx(0, abs=1e-5) and 0 < joint["iterations_to_near"] < 10
    assert found["methods"]["HYBRID"]["runs"] == 2
    assert all(run["points"][-1] == [run["iterations"], run["final"]] for run in entry["runs"])
    with pytest.raises(SystemExit, match="other settings"):
        convergence.main([*call, "--iterations", "30"])
    pytest.importorskip("matplotlib").use("Agg")
    assert convergence.main([*call, "--figure-only", "--figure", str(figure)]) == 0
    assert figure.stat().st_size > 10_000


def test_what_is_held_constant_changes_nothing(convergence):
    (experiment, _) = map(convergence.small, convergence.experiments(10))
    table = convergence.Table(experiment, "cpu")
    for method in ("odsvgp", "hybrid", "decoupled", "decoupled-s"):
        losses = []
        for held in (False, True):
            model = convergence.make_model(experiment, table, method)
            if held:
                convergence.hold_constants(model, table.batch)
            step = torch.optim.Adam(convergence.variational_parameters(model), lr=0.1)
            for _ in range(3):
                step.zero_grad()
                loss = model.loss(table.batch).sum()
                loss.backward()
                step.step()
            losses.append(loss.item())
        assert losses[0] == losses[1]


def test_the_core_is_enough():
    """``python -m duogp.bench`` imports nothing that only the command line needs."""
    code = """
import sys
for name in ("typer", "rich", "pyarrow", "matplotlib", "safetensors", "click"):
    sys.modules[name] = None
from duogp.bench.__main__ import main
sys.exit(main(["missing", "smoke", "--results", "nowhere.jsonl"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("2 of 2 cells missing\n")
