"""Cells drawn at random and run again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from duogp.bench import Results
from duogp.bench.__main__ import main
from duogp.bench.rerun import compare, describe, draw, job_of, latest, rerun, status_lines
from duogp.bench.results import append
from duogp.bench.tasks import TASKS, standard_error
from helpers.bench_suite import fake_row


@pytest.fixture
def stored(suite):
    """A store of every cell of the table that is here."""
    for cell in suite.cells(["sklearn/diabetes"]):
        append(suite.results, fake_row(cell, "cpu"))
    return Results.read(suite.results)


def again(metrics, device="cpu", **more):
    def execute(job, where):
        return [fake_row(cell, device) | {"metrics": metrics} | more for cell in job]

    return execute


def test_a_draw_is_random_and_repeatable(suite, stored):
    draws = [[each.cell for each in draw(suite, stored, 3, seed)] for seed in range(20)]
    assert draws[0] == [each.cell for each in draw(suite, stored, 3, 0)]
    assert all(len(set(map(str, cells))) == 3 for cells in draws)
    assert len({tuple(map(str, cells)) for cells in draws}) > 5
    assert {cell.data for cells in draws for cell in cells} == {"sklearn/diabetes"}  # nothing without a row
    assert len(draw(suite, stored, 100, 0)) == len(stored.rows)


def test_a_draw_keeps_to_a_device_a_length_and_fresh_rows(suite, stored):
    assert draw(suite, stored, 3, 0, device="cuda") == []
    assert draw(suite, stored, 3, 0, longest=0.5) == []
    assert len(draw(suite, stored, 3, 0, device="cpu", longest=1.0)) == 3
    assert draw(suite, stored, 3, 0, fresh=True) == []  # rows without provenance


def test_a_draw_names_no_data_that_are_not_here(suite, stored, monkeypatch, tmp_path):
    for cell in suite.cells(["absent"]):
        append(suite.results, fake_row(cell, "cpu"))
    monkeypatch.setenv("DUOGP_DATA", str(tmp_path))
    everything = draw(suite, Results.read(suite.results), 100, 0)
    assert {each.cell.data for each in everything} == {"sklearn/diabetes"}


def test_splits_that_were_trained_together_are_trained_together_again(suite):
    cell = suite.cells(["sklearn/diabetes"], ["svgp"])[0]
    assert job_of(cell, fake_row(cell, "cpu")) == (cell,)
    assert [each.split for each in job_of(cell, fake_row(cell, "cpu") | {"job": [1, 0]})] == [1, 0]


@pytest.mark.parametrize(("shift", "agrees"), [(0.0, True), (5e-7, True), (2e-6, False)])
def test_runs_on_a_cpu_agree_to_the_digits(suite, stored, tmp_path, shift, agrees):
    (one,) = draw(suite, stored, 1, 0)
    metrics = {name: value + shift for name, value in one.stored["metrics"].items()}
    found = compare(suite, one, fake_row(one.cell, "cpu") | {"metrics": metrics})
    assert found["rule"] == "digits"
    assert found["agrees"] is agrees
    assert ("DIFFERS" in describe(found)) is not agrees


def test_runs_with_a_gpu_agree_within_a_standard_error(suite, stored):
    (one,) = draw(suite, stored, 1, 0)
    then = one.stored["metrics"]
    row = fake_row(one.cell, "cuda") | {"standard_errors": {"rmse": 0.02, "nll": 0.01}}
    near = compare(suite, one, row | {"metrics": {"rmse": then["rmse"] + 0.019, "nll": then["nll"]}})
    far = compare(suite, one, row | {"metrics": {"rmse": then["rmse"], "nll": then["nll"] - 0.011}})
    assert (near["rule"], near["agrees"], far["agrees"]) == ("standard error", True, False)
    unknown = compare(suite, one, fake_row(one.cell, "cuda") | {"metrics": then})
    assert unknown["agrees"] is False  # nothing to judge by is no agreement


def test_comparisons_are_stored_and_shown(suite, stored, tmp_path):
    output = tmp_path / "reruns.jsonl"
    options = {"count": 2, "seed": 3, "device": "cpu", "output": output, "report": lambda line: None}
    done = rerun([suite], execute=again({"rmse": 9.0, "nll": 9.0}), **options)
    assert [each["agrees"] for each in done] == [False, False]
    assert status_lines(latest(output))[0] == "reruns of tiny: 2 drawn, 0 agree"
    cells = {each.cell.hash: each.stored for each in draw(suite, stored, 2, 3)}
    rerun(
        [suite],
        execute=lambda job, device: [fake_row(job[0], device) | {"metrics": cells[job[0].hash]["metrics"]}],
        **options,
    )
    assert len(output.read_text().splitlines()) == 4
    assert status_lines(latest(output)) == ["reruns of tiny: 2 drawn, 2 agree"]


def test_a_failure_does_not_agree(suite, stored, tmp_path):
    error = {"type": "RuntimeError", "message": "no"}
    (one,) = draw(suite, stored, 1, 0)
    found = compare(suite, one, fake_row(one.cell, "cpu") | {"status": "failed", "error": error})
    assert found["agrees"] is False
    assert "failed, RuntimeError" in describe(found)


def test_from_the_command_line(suite, stub, tmp_path, capsys):
    arguments = [str(suite.path), "--data", "sklearn/diabetes", "--methods", "svgp", "--device", "cpu"]
    assert main(["run", *arguments]) == 0
    output = tmp_path / "reruns.jsonl"
    assert main(["rerun", str(suite.path), "--device", "cpu", "--seed", "1", "--output", str(output)]) == 0
    assert "2 of 2 cells agree" in capsys.readouterr().out
    row = json.loads(output.read_text().splitlines()[0])
    assert row["metrics"]["rmse"]["stored"] == row["metrics"]["rmse"]["again"]
    assert {"commit", "numerics", "finished", "draw", "hash"} <= row.keys()


def test_standard_errors_are_those_of_means_over_rows():
    from types import SimpleNamespace

    rng = np.random.default_rng(0)
    y, mean, std = rng.normal(size=(3, 400))
    std = np.abs(std) + 0.5
    found = TASKS["regression"].standard_errors(y, SimpleNamespace(mean=mean, std=std))
    draws = [
        np.sqrt(np.mean((y[rows] - mean[rows]) ** 2))
        for rows in (rng.integers(0, 400, 400) for _ in range(2000))
    ]
    assert found["rmse"] == pytest.approx(np.std(draws), rel=0.1)
    z = (y - mean) / std
    assert found["nll"] == pytest.approx(standard_error(np.log(std) + 0.5 * z**2))

    labels = np.array(["b", "a", "c", "a"])
    p = np.array([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5], [0.3, 0.7]])
    found = TASKS["classification"].standard_errors(
        labels, SimpleNamespace(probabilities=p, classes=np.array(["a", "b"]))
    )
    assert found["accuracy"] == pytest.approx(np.std([1, 1, 0, 0], ddof=1) / 2)
    assert found["nll"] > 1
