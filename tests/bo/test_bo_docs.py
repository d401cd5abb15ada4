"""The examples of docs/bayesian-optimisation.md are executed as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duogp.bo import read_space

DOCS = Path(__file__).resolve().parents[2] / "docs" / "bayesian-optimisation.md"


def block(section: str, language: str = "python") -> str:
    text = DOCS.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"{section!r} has no example"
    return found[0]


@pytest.fixture
def names(tmp_path, monkeypatch) -> dict:
    if not DOCS.exists():
        pytest.skip("no docs folder beside these tests")
    pytest.importorskip("botorch")
    monkeypatch.chdir(tmp_path)
    return {"__name__": "example"}


def run(names: dict, *sections: str) -> None:
    for section in sections:
        exec(block(section), names)


def test_a_function(names):
    run(names, "A function")
    assert names["run"].best_y < 5


def test_spaces_and_studies(names, tmp_path):
    names["np"] = pytest.importorskip("numpy")
    run(names, "Search spaces", "A study: ask and tell")
    study = names["study"]
    assert len(study.done) == 6 and len(study.pending) == 0
    assert (tmp_path / "study" / "study.jsonl").exists()
    (tmp_path / "space.toml").write_text(block("Search spaces", "toml"))
    assert read_space(tmp_path / "space.toml") == names["space"]


def test_optuna(names):
    pytest.importorskip("optuna")
    names["np"] = pytest.importorskip("numpy")
    run(names, "Optuna")
    assert names["optuna_study"].best_value < 1.0


@pytest.mark.slow
def test_a_botorch_model(names):
    run(names, "A BoTorch model")
    assert names["candidates"].shape == (4, 6) and names["batch"].shape[-2] == 50


@pytest.mark.slow
def test_ax(names):
    pytest.importorskip("ax.api.client")
    run(names, "In Ax")
    assert len(names["client"].summarize()) == 8


@pytest.mark.slow
def test_turbo_as_the_page_calls_it(names):
    """The call of the page, with fewer evaluations: two thousand take minutes."""
    pytest.importorskip("duogp_tasks")
    text = block("TuRBO")
    short = text.replace("evaluations=2000, batch_size=50", "evaluations=150, batch_size=20, initial=60")
    assert short != text
    exec(short, names)
    assert len(names["run"].incumbent) == 150
