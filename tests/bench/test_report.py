"""Tables of benchmark results beside a paper's numbers."""

from __future__ import annotations

import pytest

from duogp.bench import Results, compare, learned, load_suite, render
from duogp.bench.report import Comparison, within_tolerance
from duogp.bench.runner import begin_row
from helpers.bench_suite import fake_row


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
        ("loglik", 3.0, -0.5, False),
        ("rmse", 0.94, 1.0, False),  # better by more than the tolerance is another result too
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


@pytest.mark.parametrize(
    ("metric", "ours", "verdict"),
    [("rmse", 0.5, "better"), ("rmse", 1.5, "worse"), ("rmse", 1.0, "ok"), ("loglik", 1.5, "better")],
)
def test_verdicts_have_two_sides(metric, ours, verdict):
    within = within_tolerance(metric, ours, 1.0, {"rmse": 0.1, "loglik": 0.1})
    assert Comparison("d", "m", metric, ours, 1.0, None, 1, within).verdict == verdict


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
    assert "rmse SVGP: of 1 cells 1 within tolerance, 0 better, 0 worse" in text
    assert "2 of 2" in text  # stale: rows without provenance
    assert "1.0500 ± 0.0100" in text
    assert text.endswith("paper: Someone 2023")
    everything = render(compare(suite, Results()), rich=False)
    assert "not run" in everything
    assert "within tolerance" not in everything


def test_terminals_get_the_same_table(compared):
    suite, found, cells = compared
    text = render(compare(suite, found, cells), rich=True)
    assert "\033[31m" in text and "worse" in text


def test_learned_values_stand_beside_the_papers(compared):
    (row,) = learned(*compared)
    assert (row.metric, row.ours, row.paper, row.within) == ("lengthscale", 0.5, 0.5, None)
