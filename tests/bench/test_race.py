"""`benchmarks/race.py`: the rows are right, the race is fair (one model), stored rows are kept."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
KEYS = {
    "what", "M", "device", "dtype", "peer", "ms", "peer_ms", "ratio", "batch", "dims", "rounds", "spread",
    "roofline_ms", "roofline_share", "peak_memory_mb",
}  # fmt: skip
TINY = ["--device", "cpu", "--json", "--batch", "64", "--rounds", "2", "--threads", "1", "--steps", "2"]


@pytest.fixture
def race(monkeypatch):
    """`benchmarks/race.py` as a module, its rooms importable; threads as they were."""
    if not (BENCHMARKS / "race.py").exists():
        pytest.skip("no benchmarks folder beside these tests")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    spec = importlib.util.spec_from_file_location("race", BENCHMARKS / "race.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.slow
def test_the_quick_race_prints_rows_and_nothing_else(race, capfd):
    assert race.main([*TINY, "--quick", "--sizes", "10,20"]) == 0
    rows = json.loads(capfd.readouterr().out)
    if importlib.util.find_spec("gpytorch"):
        assert {row["M"] for row in rows} == {10, 20}
    for row in rows:
        assert row.keys() >= KEYS
        assert row["what"] == "svgp step" and row["device"] == "cpu" and row["dtype"] == "float32"
        assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ms"])
        assert row["rounds"] == 2 and row["ms"] > 0 and row["spread"] >= 0
        assert 0 < row["roofline_share"] == pytest.approx(row["roofline_ms"] / row["ms"])


def test_what_is_stored_is_not_run_again(race, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("DUOGP_DATA", raising=False)
    path = tmp_path / "race.json"
    call = [*TINY, "--sizes", "10", "--dtypes", "float64", "--rows", "500", "--data-rows", "500"]
    call += ["--output", str(path), "--parts"]
    assert race.main([*call, "prediction,closed-form"]) == 0
    first = json.loads(capfd.readouterr().out)
    whats = {row["what"] for row in first}
    assert whats == {"prediction with variance", "prediction of the mean", "optimal q(u)"}
    assert race.main([*call, "closed-form,prediction"]) == 0
    out, messages = capfd.readouterr()
    assert "known" in messages and {row["ms"] for row in json.loads(out)} == {row["ms"] for row in first}
    assert race.main([*call, "steps", "--time-limit", "0"]) == 0
    assert json.loads(capfd.readouterr().out) == []
    assert len(json.loads(path.read_text())["rows"]) == len(first)


@pytest.mark.slow
def test_variants_take_part(race, tmp_path, capfd):
    call = [*TINY, "--sizes", "10", "--dtypes", "float64", "--rounds", "1", "--parts", "variants"]
    assert race.main([*call, "--output", str(tmp_path / "race.json")]) == 0
    rows = json.loads(capfd.readouterr().out)
    costs = {row["what"]: row for row in rows if row["ratio_is"] == "ms / peer_ms"}
    assert {"dcsvgp step", "svgp step, 10 replicates", "orth-a step, Adam"} <= costs.keys()
    for row in costs.values():
        assert row["ratio"] == pytest.approx(row["ms"] / row["peer_ms"])


@pytest.mark.slow
def test_time_to_quality_is_decided_on_validation_rows(race, tmp_path, monkeypatch, capfd):
    pytest.importorskip("gpytorch")
    import numpy as np

    from duogp.data.benchmark import Dataset
    from duogp.methods.settings import Settings
    from racing import quality

    for family in quality.FAMILIES:
        ladder = quality.rungs(family, 100)
        assert len({name for name, settings in ladder if Settings.of(settings)}) == len(ladder)
        assert {settings["num_inducing"] for _, settings in ladder} == {100}
    X = np.random.default_rng(0).standard_normal((200, 3))
    monkeypatch.setattr(quality, "load", lambda name: Dataset(name, X, np.sin(X.sum(1))))
    monkeypatch.setattr(quality, "INDUCING", {"toy": 20})
    monkeypatch.setattr(quality, "RUNGS", (("two steps", {"epochs": 2}), ("twenty", {"epochs": 20})))
    call = [*TINY, "--parts", "quality", "--data", "toy", "--output", str(tmp_path / "race.json")]
    assert race.main([*call, "--epochs", "3"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert {row["peer"].split(" / ")[1] for row in rows} == set(quality.FAMILIES)
    assert {row["peer"].split(",")[0] for row in rows} >= {"gpytorch svgp", "gpytorch sgpr"}
    for row in rows:
        reached = row["ms"] is not None
        assert reached or row["validation_nll"] > row["target"] + row["tolerance"]
        assert (row["step"] is not None) == reached
        if reached:  # all that was tried before is in the time, and of the last fit the steps to the target
            before = sum(rung["seconds"] for rung in row["tried"][:-1])
            assert 1e3 * before < min(row["ms_all"]) and row["step"] <= row["tried"][-1]["steps"]
    assert race.main([*call, "--epochs", "3", "--time-limit", "1e-3", "--again"]) == 0


def test_a_failing_peer_leaves_the_race(race):
    from racing.clock import Contestant, interleave

    class Steady(Contestant):
        def block(self):
            return 1.0

    class Frail(Contestant):
        def block(self):
            raise ArithmeticError("not positive definite")

    timings = interleave({"duogp": Steady(), "peer": Frail()}, rounds=3, seconds=10, threads=1)
    assert timings.keys() == {"duogp"} and timings["duogp"].seconds == [1.0] * 3
    with pytest.raises(ArithmeticError):
        interleave({"duogp": Frail(), "peer": Steady()}, rounds=1, seconds=10, threads=1)


@pytest.mark.parametrize("strategy", ["standard", "large-batch"])
def test_both_sides_train_one_objective(race, strategy):
    """Same parameters, same rows: our ELBO and gpytorch's agree."""
    pytest.importorskip("gpytorch")
    from duogp.fitting.table import fit_replicates
    from duogp.models.model import Batch
    from racing.ours import step_settings
    from racing.peers_gpytorch import Training
    from racing.problem import Problem

    problem = Problem(inducing=20, dtype="float64", batch=64, steps=2)
    X, y = problem.arrays()
    settings = step_settings(problem) | {"epochs": 3, "jitter": 1e-6}
    (gp,) = fit_replicates(X, y, [range(len(X))], "svgp", **settings)
    ours = gp.model.train()
    theirs = Training(problem, strategy)
    basis, strategy_, q = ours.basis, theirs.model.variational_strategy, ours.basis.q
    with torch.no_grad():
        strategy_.inducing_points.copy_(basis.inducing[0, 0])
        distribution = strategy_._variational_distribution
        distribution.variational_mean.copy_(q.mean[0, 0])
        distribution.chol_variational_covar.copy_(q.root()[0, 0])
        strategy_.variational_params_initialized.fill_(1)
        theirs.model.covar_module.outputscale = basis.kernel.variance()[0, 0]
        theirs.model.covar_module.base_kernel.lengthscale = basis.kernel.kernel.lengthscale()[0, 0]
        theirs.model.mean_module.constant.copy_(ours.mean.constant[0, 0])
        theirs.likelihood.noise = ours.likelihood.noise()[0]
        rows = slice(0, problem.batch)
        batch = Batch(theirs.x[None, rows], theirs.y[None, None, rows])
        expected = theirs.objective(theirs.model(theirs.x[rows]), theirs.y[rows])
        assert -ours.loss(batch)[0].item() == pytest.approx(expected.item(), abs=1e-4)


def test_a_peer_in_another_process_answers_or_says_why_not(race):
    from racing.problem import Problem
    from racing.remote import PeerError, Remote, pythons

    assert pythons(["gpflow=/some/python"])["gpflow"] == "/some/python"
    with pytest.raises(PeerError, match="ModuleNotFoundError"):
        Remote("nobody", sys.executable, Problem(inducing=5))
    for library, python in pythons([]).items():
        peer = Remote(library, python, Problem(inducing=5, batch=16, steps=2))
        assert peer.block() > 0
        peer.close()
        assert peer.process.poll() == 0


def test_table_and_figure_come_from_the_stored_rows(race, tmp_path, monkeypatch, capsys):
    from racing import figure, tables

    row = {
        "part": "steps", "what": "svgp step", "M": 200, "dtype": "float32", "ms": 0.5, "peer": "gpytorch A",
        "peer_ms": 5.0, "ratio": 10.0, "ratio_is": "peer_ms / ms", "roofline_ms": 0.1, "roofline_share": 0.2,
    }  # fmt: skip
    slower = row | {"peer": "gpytorch B", "peer_ms": 8.0, "ratio": 16.0}
    larger = row | {"M": 500, "ms": 1.0, "peer_ms": 2000.0, "ratio": 2000.0}
    content = {"device_name": "a machine", "versions": {"torch": "2"}, "rows": [row, slower, larger]}
    (tmp_path / "race_cuda.json").write_text(json.dumps(content))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert race.main(["--table"]) == 0
    text = capsys.readouterr().out
    assert "| svgp step | 200 | float32 | 0.50 ms | gpytorch A | 5.00 ms | 10.0 × | 20 % |" in text
    assert "gpytorch B" not in text and "2.00 s" in text and "a machine; torch 2" in text
    pytest.importorskip("matplotlib")
    assert figure.draw(tmp_path / "race.png").stat().st_size > 10_000
