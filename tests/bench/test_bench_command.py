"""The `duogp bench` command."""

from __future__ import annotations

import json
import subprocess
import sys

from duogp.bench.__main__ import main
from duogp.bench.results import append
from helpers.bench_suite import fake_row

# -------------------------------------------------------------------------------------------- commands


def test_json_table_has_exactly_these_keys(suite, results, capsys):
    append(results, fake_row(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu"))
    assert main(["table", str(suite.path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    keys = ["data", "method", "metric", "ours", "paper", "stderr", "splits", "within", "stale"]
    assert all(list(row) == keys for row in rows)
    assert len(rows) == 2 * 3 * 2
    assert sum(row["ours"] is not None for row in rows) == 2


def test_tables_name_what_a_paper_has_and_we_cannot_run(suite, capsys):
    text = suite.path.read_text(encoding="utf-8")
    suite.path.write_text(text + '\n[absent]\nslice = "no copy of the data"\n', encoding="utf-8")
    assert main(["table", str(suite.path)]) == 0
    assert "not available: slice: no copy of the data" in capsys.readouterr().out


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
