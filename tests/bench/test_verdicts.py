"""States of cells, verdicts of tables and decisions on claims, all by rule."""

from __future__ import annotations

import json

import pytest

from duogp.bench import Results, compare
from duogp.bench.__main__ import main
from duogp.bench.claims import Claim, Source, decide, load_claims, signed_rank
from duogp.bench.experiments import Experiment, load_experiments, stamps, status_line
from duogp.bench.provenance import resolved, staleness, stamp
from duogp.bench.results import append
from duogp.bench.rooms import FitTraits, versions_of
from duogp.bench.runner import failure, provenance
from duogp.bench.status import every_suite, ledger, state_of, states, status_lines
from duogp.bench.suite import REPOSITORY
from duogp.bench.verdicts import judge, kendall, ranks, without_cell
from helpers.bench_suite import fake_row


def fresh(cell, **metrics):
    """A row of today's numerics, with these metrics."""
    row = fake_row(cell, "cpu") | provenance(cell, "cpu")
    return row | {"metrics": row["metrics"] | metrics}


# ---------------------------------------------------------------------------------------------- status


def test_cells_are_done_stale_failed_or_missing(suite):
    first, second, third, fourth = suite.cells(["sklearn/diabetes"], ["svgp", "map"])
    rows = [fresh(first), fake_row(second, "cpu"), fake_row(third, "cpu") | failure(ValueError("bad\nluck"))]
    found = Results(rows)
    assert [state_of(cell, found).state for cell in (first, second, third, fourth)] == [
        "done", "stale", "failed", "missing",
    ]  # fmt: skip
    assert state_of(second, found).why == "no provenance"
    assert state_of(third, found).why == "ValueError: bad"
    lines = status_lines(suite, states(suite, found))
    assert lines[0] == "tiny: 12 cells, 1 done, 1 stale, 1 failed, 9 missing"
    assert f"  stale: {second} (no provenance)" in lines


def test_stale_cells_run_again_when_asked(suite, results, stub, capsys):
    cells = suite.cells(["sklearn/diabetes"], ["svgp"])
    for cell in cells:
        append(results, fake_row(cell, "cpu"))
    call = ["run", str(suite.path), "--data", "sklearn/diabetes", "--methods", "svgp", "--device", "cpu"]
    assert main(call) == 0 and not stub
    assert main([*call, "--stale"]) == 0 and len(stub) == 2
    assert main([*call, "--stale"]) == 0 and len(stub) == 2
    capsys.readouterr()
    assert main(["status", str(suite.path)]) == 0
    assert capsys.readouterr().out.startswith("tiny: 12 cells, 2 done, 0 stale, 0 failed, 10 missing")


def test_the_status_of_everything_names_suites_experiments_and_the_version(capsys):
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "paper_dc: " in out and "experiment online_robot: " in out and "numerics version " in out
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {suite.name for suite in every_suite()}


def test_every_results_file_belongs_to_a_suite_or_an_experiment():
    known = {experiment.results for experiment in load_experiments()}
    known |= {suite.results.name for suite in every_suite()}
    there = {path.name for path in (REPOSITORY / "benchmarks" / "results").glob("*.json*")}
    assert there <= known
    for experiment in load_experiments():
        script = experiment.command.split()[1]
        assert not script.endswith(".py") or (REPOSITORY / script).is_file()


def test_rows_of_experiments_are_stale_without_a_stamp(tmp_path, monkeypatch):
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (stamp() | {"x": 1}, {"x": 2})))
    experiment = Experiment("some", "python some.py", "some.jsonl", "what")
    monkeypatch.setattr(Experiment, "path", path)
    assert status_line(experiment) == "experiment some: 2 rows, 1 done, 1 stale"
    assert len(list(stamps([{"parts": [stamp(), {"x": 1}]}]))) == 1


def test_a_row_is_judged_by_the_runs_that_confirmed_it():
    experiment = Experiment("some", "python some.py", "some.json", "what")
    assert experiment.staleness({"versions": {}})
    assert not experiment.staleness({"versions": {}, "confirmed": stamp() | {"runs": 2, "of": 5}})
    assert experiment.staleness(stamp() | {"confirmed": {"runs": 2, "of": 5}})


def test_rows_of_peers_and_of_a_method_depend_on_no_other_code():
    loops = Experiment("some", "", "", "", contestant="model", peers=("theirs",), method="exact")
    assert not loops.staleness({"model": "theirs"})
    assert loops.staleness({"model": "ours"})
    rooms = versions_of(FitTraits("exact", resolved("exact", {}), "cpu"))
    then = {"model": "ours", "numerics": "another", "rooms": rooms}
    assert not loops.staleness(then) and staleness(then, ledger())
    assert loops.staleness(then | {"rooms": rooms | {"exact": "0123456789"}})
    assert not loops.staleness(then | {"rooms": rooms | {"auto": "0123456789"}})


# -------------------------------------------------------------------------------------------- verdicts


def test_a_table_counts_both_sides_of_the_tolerance(suite):
    cells = suite.cells(["sklearn/diabetes"])
    rmse = {"SVGP": 0.9, "MAP": 0.5, "SLOW": 2.0}
    rows = [fresh(cell, rmse=rmse[cell.label]) for cell in cells if cell.split == 0]
    table = judge(suite, compare(suite, Results(rows)))[0]
    assert (table.metric, table.within, table.better, table.worse) == ("rmse", 1, 1, 0)
    assert (table.missing, table.without_cell, table.stale) == (0, 1, 0)
    assert list(without_cell(suite, "rmse")) == [("sklearn/diabetes", "OTHER", 3.0)]
    assert "of 2 cells 1 within tolerance, 1 better, 0 worse" in table.sentence()


def test_cells_that_have_not_run_are_counted_not_dropped(suite):
    table = judge(suite, compare(suite, Results()))[0]
    assert (table.judged, table.missing) == (0, 2)


def test_kendall_and_mean_ranks(suite):
    assert kendall([1, 2, 3], [10, 20, 30]) == 1 and kendall([1, 2, 3], [3, 2, 1]) == -1
    cells = [cell for cell in suite.cells(splits=1) if cell.label != "SLOW"]
    rows = [fresh(cell, rmse=1.0 if cell.label == "MAP" else 2.0) for cell in cells]
    assert ranks(compare(suite, Results(rows)), "rmse") == {"SVGP": 2.0, "MAP": 1.0}


# ---------------------------------------------------------------------------------------------- claims


def experiment_rows(tmp_path, differences):
    """An experiment in which a is better than b (lower) by these differences, a set for each."""
    path = tmp_path / "some.jsonl"
    rows = []
    for i, difference in enumerate(differences):
        rows += [{"set": f"s{i}", "who": "a", "seed": 0, "error": 1.0 - difference}]
        rows += [{"set": f"s{i}", "who": "b", "seed": 0, "error": 1.0}]
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"some": Source("some", path.name, "set", "who", "seed")}


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], "holds"),
        ([-0.1, -0.2, -0.3, -0.4, -0.5], "does not hold"),
        ([0.1, -0.2, 0.3, -0.4, 0.5], "cannot be told"),
        ([0.1], "cannot be told"),
        ([0.0] * 6, "cannot be told"),
    ],
)
def test_a_claim_is_decided_by_a_paired_test(tmp_path, differences, verdict):
    sources = experiment_rows(tmp_path, differences)
    claim = Claim("a beats b", "p", "t", "some", "error", "a", "b")
    found = decide(claim, sources, tmp_path)
    assert found.verdict == verdict
    assert (found.sets, found.wins) == (len(differences), sum(d > 0 for d in differences))
    assert found.stale == found.rows == 2 * len(differences)


def test_what_has_not_run_cannot_be_told(tmp_path):
    sources = experiment_rows(tmp_path, [0.1])
    assert decide(Claim("c", "p", "t", "some", "error", "a", "c"), sources, tmp_path).note == "not run: c"
    assert decide(Claim("c", "p", "t", "nowhere", "error", "a", "c"), {}).note == "no suite nowhere"


def test_signed_rank_is_exact_for_small_samples():
    assert signed_rank([1.0, 2.0, 3.0])[0] == pytest.approx(1 / 8)
    assert signed_rank([]) == (1.0, 1.0)


def test_claims_name_methods_that_their_suites_have():
    claims, sources = load_claims()
    suites = {suite.name: suite for suite in every_suite()}
    assert len(claims) >= 40 and {claim.paper for claim in claims} >= {"Cheng and Boots 2017"}
    for claim in claims:
        if claim.source in suites:
            suite = suites[claim.source]
            labels = {m.label for m in suite.methods}
            labels |= {name for table in suite.paper.values() for row in table.values() for name in row}
            assert {claim.better, claim.than} <= labels, claim.text
            assert set(claim.data or ()) <= {d.name for d in suite.data}, claim.text
        else:
            assert claim.source in sources or claim.source.startswith("paper_"), claim.text


def test_claims_are_printed_one_a_line(capsys):
    assert main(["claims"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(load_claims()[0])
    assert all(line.split(":")[0] in ("holds", "does not hold", "cannot be told") for line in lines)
