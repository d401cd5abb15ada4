"""The demo runs, and the tables of the pages are those of the registry and the results files."""

import functools
import importlib.util
from pathlib import Path

import pytest

from duogp import METHODS, demo
from duogp.demo import comparison, tour

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables():
    """`benchmarks/readme_tables.py` as a module."""
    path = ROOT / "benchmarks" / "readme_tables.py"
    if not path.exists():
        pytest.skip("no benchmarks folder beside these tests")
    spec = importlib.util.spec_from_file_location("readme_tables", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_pages_are_those_of_registry_and_results(tables):
    assert tables.main(["--check"]) == 0, "run python benchmarks/readme_tables.py"


def test_a_table_that_is_out_of_date_is_noticed_and_mended(tables, tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "methods.md"
    copy = tmp_path / "methods.md"
    text = page.read_text(encoding="utf-8")
    copy.write_text(text.replace("`svgp`", "`old`"), encoding="utf-8")
    monkeypatch.setattr(tables, "pages", lambda: [copy])
    assert tables.main(["--check"]) == 1
    assert "readme_tables.py" in capsys.readouterr().err
    assert tables.main([]) == 0
    assert copy.read_text(encoding="utf-8") == tables.rewrite(copy, text)
    assert tables.rewrite(copy, "no markers") == "no markers"
    with pytest.raises(ValueError, match="needs one"):
        tables.rewrite(copy, "<!-- methods --> and no end")


def test_every_block_stands_in_one_page(tables):
    texts = [path.read_text(encoding="utf-8") for path in tables.pages()]
    assert [name for name in tables.BLOCKS if sum(f"<!-- {name} -->" in text for text in texts) != 1] == []


def test_the_table_of_methods_says_what_is_a_bound_and_how_large_q_is(tables):
    lines = {line.split("`")[1]: line for line in tables.methods().splitlines() if "`" in line}
    assert list(lines) == list(METHODS)
    assert "| yes | M + M(M+1)/2 | Hensman et al. 2013 |" in lines["svgp"]
    assert "| no | E + M |" in lines["ppgpr-mfd"]


def test_the_demo_shows_the_papers_message(tmp_path, capsys):
    """Figure 1 of Zhu et al. 2023: with ten inducing points the decoupled mean lengthscale is the shorter."""
    pytest.importorskip("matplotlib")
    svgp, dcsvgp = demo.main(["--output", str(tmp_path), "--only", "one-dimensional"])
    assert dcsvgp["rmse"] < svgp["rmse"]
    assert dcsvgp["nll"] < svgp["nll"]
    assert "DCSVGP" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"one_dimensional.png", "calibration.png"}


def test_the_study_repeats_every_method_over_seeds(monkeypatch, capsys):
    monkeypatch.setattr(comparison, "fit", functools.partial(comparison.fit, epochs=2))
    rows = comparison.study(["diabetes"], seeds=2)
    assert [row["method"] for row in rows] == ["SVGP", "DCSVGP", "DCSVGP, cold"]
    assert all(len(row["nll"]) == 2 for row in rows)
    comparison.print_table(rows)
    assert "±" in capsys.readouterr().out


def test_the_mean_lengthscale_is_the_shorter():
    learned = comparison.run(comparison.one_dimensional(), comparison.DCSVGP).gp.hyperparameters()
    assert learned["lengthscale_mean"] < learned["lengthscale_covariance"]


def test_terrain_is_real_and_split():
    pytest.importorskip("matplotlib")
    task = comparison.terrain(n=50, n_test=30)
    assert task.X.shape == (50, 2)
    assert len(task.y_test) == 30
    assert 200 < task.y.min() < task.y.max() < 1100  # metres


def test_the_table_needs_no_rich(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "rich.console", None)
    comparison.print_table(
        [dict(zip(comparison.COLUMNS, ("a", "SVGP", 1.0, 2.0, 3.0, 0.9, 12.0), strict=True))]
    )
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == list(comparison.COLUMNS)
    assert row.split() == ["a", "SVGP", "1.000", "2.000", "3.000", "0.900", "12.0"]


def test_the_tour_prints_commands_that_can_be_typed_again(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    tour.tour(tmp_path, ["--epochs", "2", "--method", "svgp", "--num-inducing", "10"])
    out = capfd.readouterr().out
    for command in tour.COMMANDS:
        assert f"$ {command}" in out
    assert {"patients.csv", "later.csv", "predictions.csv", "patients.png", "model"} == {
        p.name for p in tmp_path.iterdir()
    }
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1 + tour.LATER


def test_a_command_that_fails_ends_the_tour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="ended with status 2"):
        tour.run(["duogp", "info", "nothing"])
