"""The duogp command: thin, polite, and only as heavy as the command asked for."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
from typer.testing import CliRunner

from duogp import cli
from duogp._version import __version__


@dataclass
class Method:
    name: str
    summary: str
    citation: str
    is_bound: bool
    basis: object
    q: object
    objective: object
    variational_parameters: str


def elbo() -> None: ...


@pytest.fixture
def registry(monkeypatch):
    module = ModuleType("duogp.methods")
    methods = [
        Method("svgp", "One set of points.", "hensman2013", True, "coupled", "full", elbo, "M + M(M+1)/2"),
        Method("ppgpr-mf", "Predictive.", "jankowiak2020", False, "coupled", "diagonal", elbo, "M + M"),
    ]
    module.METHODS = {method.name: method for method in methods}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "duogp.methods", module)


def call(*arguments: str):
    return CliRunner().invoke(cli.build(), arguments)


def test_version():
    result = call("--version")
    assert (result.exit_code, result.output) == (0, f"duogp {__version__}\n")


@pytest.mark.usefixtures("registry")
def test_methods_are_listed():
    result = call("methods")
    assert result.exit_code == 0
    words = ("svgp", "ppgpr-mf", "hensman2013", "elbo", "yes", "no", "parameters", "M(M+1)/2")
    assert all(word in result.output for word in words)


@pytest.mark.usefixtures("registry")
def test_methods_as_json():
    rows = json.loads(call("methods", "--json").output)
    assert [row["name"] for row in rows] == ["svgp", "ppgpr-mf"]
    assert rows[0]["objective"] == "elbo"
    assert rows[1]["is_bound"] is False
    assert rows[1]["variational_parameters"] == "M + M"


def test_every_method_says_when_to_use_it_and_its_other_names():
    rows = {row["name"]: row for row in json.loads(call("methods", "--json").output)}
    assert all(row["use_when"] for row in rows.values())
    assert rows["ppgpr-chol"]["aliases"] == ["ppgpr"]


def test_bench_commands_reach_the_runner(tmp_path):
    none = str(tmp_path / "none.jsonl")
    missing = call("bench", "missing", "paper_dc", "--splits", "1", "--results", none)
    assert missing.exit_code == 0
    assert missing.output.endswith("42 of 42 cells missing\n")  # seven sets, six methods
    rows = json.loads(call("bench", "table", "paper_dc", "--json", "--results", none).output)
    assert len(rows) == 7 * 6 * 2
    assert all(row["paper"] is not None and row["ours"] is None for row in rows)
    learned = json.loads(call("bench", "table", "paper_dc", "--learned", "--json", "--results", none).output)
    assert len(learned) == 7 * (2 + 2 + 2 + 2)
    run = call("bench", "run", "smoke", "--device", "cpu", "--time-limit", "0", "--results", none)
    assert run.exit_code == 0
    assert "0 finished, 0 failed, 2 of 2 missing" in run.output


def test_bench_run_passes_its_exit_status_on(monkeypatch):
    monkeypatch.setattr("duogp.bench.__main__.run_suite", lambda *arguments: 1)
    assert call("bench", "run", "smoke").exit_code == 1


def test_bench_has_the_options_and_errors_of_its_parser():
    assert call("bench").output == call("bench", "--help").output
    assert "--replicates" in call("bench", "run", "--help").output
    assert (call("bench", "run").exit_code, call("bench", "run", "smoke", "--nothing").exit_code) == (2, 2)
    traced = call("bench", "table", "nothing", "--debug")
    assert traced.exit_code == 2
    assert "Traceback" in traced.stderr
    assert traced.stderr.splitlines()[-1].startswith("error: no suite 'nothing'")


@pytest.mark.parametrize(
    "arguments", [("bench", "table", "nothing"), ("bench", "missing", "smoke", "--methods", "nothing")]
)
def test_a_mistake_is_one_line_and_status_two(arguments):
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_without_typer_there_is_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match="pip install typer"):
        cli.main()
