"""The queue over all suites: order, rows taken over, time."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from duogp.bench import Results, load_suite
from duogp.bench.provenance import stamp
from duogp.bench.results import append, begin_row
from helpers.bench_suite import SUITE

#: Suites that hold tables of the papers; others ask questions of our own about them.
SUITES = {
    "paper_dc", "paper_dc_ard", "paper_dc_beta2", "paper_dc_whitening", "paper_dkl", "paper_orth",
    "paper_orth_classification", "paper_ppgpr", "paper_components", "paper_deep", "online_robot",
}  # fmt: skip
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "priorities.py"


@pytest.fixture(scope="module")
def scripts():
    """The folder of the scripts on the path."""
    sys.path.insert(0, str(SCRIPT.parent))
    yield
    sys.path.remove(str(SCRIPT.parent))


@pytest.fixture(scope="module")
def priorities(scripts):
    return importlib.import_module("priorities")


def test_every_part_of_the_papers_names_cells_a_script_or_a_reason(scripts, capsys):
    coverage = importlib.import_module("paper_coverage")
    assert coverage.main(["--json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    assert len({part["paper"] for part in parts}) == 5
    for part in parts:
        assert len({"suite", "script", "absent"} & set(part)) == 1
        assert part.get("cells", 1) > 0
        if "script" in part:
            assert (SCRIPT.parents[1] / part["script"].split()[0]).is_file()
    assert {part.get("suite") for part in parts} >= SUITES


def row_of(cell, seconds=1.0):
    return begin_row(cell, "cpu") | {"seconds": {"fit": seconds}, "metrics": {}, "finished": "today"}


@pytest.fixture
def two_suites(tmp_path, priorities, monkeypatch):
    """The tiny suite under two names: equal cells, other labels."""
    folder = tmp_path / "benchmarks" / "suites"
    folder.mkdir(parents=True)
    for name in ("first", "second"):
        (folder / f"{name}.toml").write_text(SUITE.replace('name = "tiny"', f'name = "{name}"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(priorities, "HERE", tmp_path / "benchmarks")
    return [priorities.Step(1, "first", replicates=2), priorities.Step(2, "second")]


def test_every_step_names_suites_data_and_methods_that_exist(priorities):
    steps = priorities.read_steps(priorities.STEPS)
    assert all(step.cells() for step in steps)
    assert {step.suite for step in steps} >= SUITES
    assert [step.number for step in priorities.read_steps(priorities.STEPS, "2,4-5")] == [2, 4, 5]


def test_stale_cells_alone_run_again(priorities, two_suites, tmp_path):
    suite = load_suite("first")
    fresh, old, *missing = suite.cells()
    append(suite.results, row_of(fresh) | stamp())
    append(suite.results, row_of(old))  # does not say where it comes from
    store = priorities.Store(tmp_path / "out", stale=True)
    steps = two_suites[:1]
    assert [cell for job in priorities.plan(steps, store) for cell in job] == [old]
    store.add(row_of(old))
    assert priorities.plan(steps, priorities.Store(tmp_path / "out", stale=True)) == []
    left = [cell for job in priorities.plan(steps, priorities.Store(tmp_path / "out")) for cell in job]
    assert set(left) == set(missing)


def test_equal_cells_run_once_and_are_taken_over(priorities, two_suites, tmp_path):
    store = priorities.Store(tmp_path / "out")
    queue = priorities.plan(two_suites, store)
    assert {cell.suite for job in queue for cell in job} == {"first"}  # the second has no cell of its own
    assert {len(job) for job in queue} == {2}  # both splits at once
    for job in queue:
        for cell in job:
            store.add(row_of(cell))
    again = priorities.Store(tmp_path / "out")
    assert priorities.plan(two_suites, again) == []  # writes the second suite's rows
    rows = Results.read(tmp_path / "out" / "rows.jsonl").rows
    taken = [row for row in rows if row["suite"] == "second"]
    assert len(taken) == len(load_suite("second").cells())
    assert {row["taken_from"] for row in taken} == {"first"}
    assert priorities.plan(two_suites, priorities.Store(tmp_path / "out")) == []
    assert len(Results.read(tmp_path / "out" / "rows.jsonl").rows) == len(rows)


def test_collect_sorts_rows_into_the_suites_files_once(priorities, two_suites, tmp_path):
    for name in ("first", "second"):
        append(tmp_path / "out" / "rows.jsonl", row_of(load_suite(name).cells()[0]))
    for _ in range(2):
        assert priorities.main(["collect", str(tmp_path / "out")]) == 0
    for name in ("first", "second"):
        (row,) = Results.read(load_suite(name).results).rows
        assert row["suite"] == name


def test_tidy_leaves_one_row_of_every_cell(priorities, two_suites, tmp_path, capsys):
    suite = load_suite("first")
    cell, other = suite.cells()[:2]
    for each, number in ((cell, 1), (other, 2), (cell, 3)):
        append(suite.results, row_of(each) | {"number": number})
    for told in ("first: 1 rows of 3 were replaced\n", ""):
        assert priorities.main(["tidy"]) == 0
        assert capsys.readouterr().out == told
        assert [row["number"] for row in Results.read(suite.results).rows] == [2, 3]


def test_rows_from_before_a_time_do_not_count(priorities, two_suites, tmp_path):
    for cell in load_suite("first").cells():
        append(load_suite("first").results, row_of(cell) | {"finished": "2026-01-01T00:00:00+00:00"})
    steps = two_suites[:1]
    assert priorities.plan(steps, priorities.Store(tmp_path / "out", "2025-12-31")) == []
    again = priorities.plan(steps, priorities.Store(tmp_path / "out", "2026-01-02"))
    assert sum(map(len, again)) == len(load_suite("first").cells())


def test_a_cell_that_failed_runs_alone(priorities, two_suites, tmp_path):
    store = priorities.Store(tmp_path / "out")
    bad = load_suite("first").cells()[0]
    store.add(row_of(bad) | {"status": "failed", "error": {"type": "E", "message": ""}})
    queue = priorities.plan(two_suites, priorities.Store(tmp_path / "out"))
    assert (bad,) in queue


def test_jobs_that_do_not_fit_are_passed_over(priorities, suite):
    cells = suite.cells(splits=1)
    clock = priorities.Clock(100.0, "cpu", [row_of(cell, 10.0) for cell in cells])
    long, short = cells[0], cells[1]
    clock.learn((long,), [row_of(long, 10.0)])
    clock._seconds[long.suite, long.data, long.label] = 1000.0
    passed = []
    assert list(clock.affordable([(long,), (short,)], passed)) == [(short,)]
    assert passed == [long]


def test_a_busy_device_is_expected_to_stay_busy(priorities, suite):
    cell, other = suite.cells(splits=1)[:2]
    clock = priorities.Clock(100.0, "cpu", [row_of(cell, 10.0)])
    assert clock.expected((cell, cell)) == 20.0
    clock.learn((cell,), [row_of(cell, 30.0)])
    assert clock.expected((cell,)) == 30.0
    clock.learn((other,), [row_of(other, 60.0)])  # measured on the busy device: not to be multiplied again
    assert clock.expected((other,)) == pytest.approx(60.0)


def test_a_quiet_machine_is_faster_than_the_rows_say(priorities, suite):
    cell = suite.cells(splits=1)[0]
    clock = priorities.Clock(100.0, "cpu", [row_of(cell, 200.0)], pace=0.25)
    assert clock.expected((cell,)) == 50.0
    clock.learn((cell,), [row_of(cell, 100.0)])
    assert clock.expected((cell,)) == 100.0


@pytest.mark.parametrize("name", ["priorities.toml", "priorities_cpu.toml"])
def test_every_step_names_cells(priorities, name):
    for step in priorities.read_steps(SCRIPT.parent / name):
        assert step.cells(), step
        if step.data:
            assert {cell.data for cell in step.cells()} == set(step.data), step


def test_the_status_of_a_device_that_is_not_here(priorities, capsys):
    assert priorities.main(["status", "--device", "cuda", "--steps", "1-2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
