"""The tiny suite, its results and a stub of `fit`."""

from __future__ import annotations

import pytest

from duogp import api
from duogp.bench import load_suite
from helpers.bench_suite import SUITE, fake_fit


@pytest.fixture
def suite(tmp_path):
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "tiny.toml").write_text(SUITE)
    return load_suite(folder / "tiny.toml")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results" / "tiny.jsonl"


@pytest.fixture
def stub(monkeypatch):
    fake_fit.calls = []
    monkeypatch.setattr(api, "fit", fake_fit, raising=False)
    return fake_fit.calls
