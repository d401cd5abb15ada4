"""The script benchmarks/convergence.py."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch


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
    again = tmp_path / "again.json"
    assert convergence.main([*call, "--methods", "COUPLEDNAT", "--output", str(again)]) == 0
    assert convergence.main([*call, "--confirm", str(again)]) == 0
    confirmed = json.loads(output.read_text())["confirmed"]
    assert (confirmed["runs"], confirmed["of"]) == (1, len(entry["runs"]))
    assert confirmed["worst"] < 1e-6 and confirmed["numerics"] == content["numerics"]
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
