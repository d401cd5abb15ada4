"""`duogp bo`: a run from the command line, stopped and resumed."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from duogp import cli


class Bowl:
    name, dims, optimum = "bowl", 2, 0.0
    bounds = np.array([[0.0, 0.0], [1.0, 1.0]])

    def __init__(self, centre: float = 0.3) -> None:
        self.centre = centre

    def close(self) -> None:
        """A task made by name is closed."""

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return -((X - self.centre) ** 2).sum(1)


@pytest.fixture(autouse=True)
def tasks(monkeypatch):
    module = ModuleType("duogp.bo.tasks")

    def make(name: str, **options: float) -> Bowl:
        if name != "bowl":
            raise ValueError(f"unknown task {name!r}")
        return Bowl(**options)

    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "duogp.bo.tasks", module)


def call(*arguments: object):
    return CliRunner().invoke(cli.build(), [str(a) for a in arguments])


QUICK = ("--set", "num_inducing=10", "--set", "steps=3", "--set", "first_steps=5", "--set", "warm_start=0")


def test_a_run(tmp_path):
    folder = tmp_path / "run"
    common = ("bo", "bowl", "-o", folder, "-b", 4, "--initial", 6, "--candidates", 50, "--seed", 1, *QUICK)
    first = call(*common, "--evaluations", 14, "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert report["evaluations"] == 14 and report["resumed_after"] == 0
    assert report["regret"] == pytest.approx(-report["best"])
    assert len((folder / "evaluations.csv").read_text().splitlines()) == 15
    assert (folder / "incumbent.png").exists()
    second = call(*common, "--evaluations", 20)
    assert second.exit_code == 0, second.output
    assert "best value" in second.output and "going on after 14 evaluations" in second.output
    assert len((folder / "evaluations.csv").read_text().splitlines()) == 21


def test_random_search_of_a_task_with_options(tmp_path):
    done = call(
        "bo",
        "bowl",
        "-o",
        tmp_path / "run",
        "--method",
        "random",
        "-n",
        30,
        "--task-set",
        "centre=0.9",
        "--json",
    )
    report = json.loads(done.stdout)
    assert np.abs(np.array(report["best_x"]) - 0.9).max() < 0.4


def test_mistakes_are_one_line(tmp_path):
    for arguments, words in (
        (("bo", "bowel", "-o", tmp_path / "a"), "unknown task"),
        (("bo", "bowl", "-o", tmp_path / "b", "--method", "svpg"), "did you mean 'svgp'"),
        (("bo", "bowl", "-o", tmp_path / "c", "--set", "num_inducin=3", "-n", 20), "num_inducing"),
        (("bo", "bowl", "-o", tmp_path / "d", "-n", 0), "evaluations"),
    ):
        done = call(*arguments)
        assert done.exit_code == 2 and words in done.output, done.output
