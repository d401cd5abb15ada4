"""Result rows of benchmarks on disk."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from duogp.bench import Results
from duogp.bench.results import append, rewrite
from helpers.bench_suite import fake_row


def test_a_torn_last_line_is_ignored_and_closed(suite, results):
    cells = suite.cells()
    append(results, fake_row(cells[0], "cpu"))
    whole = results.read_bytes()
    results.write_bytes(whole + whole[: len(whole) // 2])
    assert len(Results.read(results).rows) == 1
    append(results, fake_row(cells[1], "cpu"))
    assert Results.read(results).missing(cells[:3]) == [cells[2]]


def test_one_row_of_every_cell_is_current(results):
    rows = [
        {"hash": "a", "status": "ok", "n": 0},
        {"hash": "b", "status": "failed", "n": 1},
        {"hash": "a", "status": "ok", "n": 2},
        {"hash": "a", "status": "failed", "n": 3},
        {"hash": "b", "status": "failed", "n": 4},
    ]
    for row in rows:
        append(results, row)
    found = Results.read(results).current()
    assert [row["n"] for row in found] == [2, 4]
    rewrite(results, found)
    assert Results.read(results).rows == found
    assert [path.name for path in results.parent.iterdir()] == [results.name]


def test_several_writers_do_not_mix_their_rows(results):
    def write(writer: int) -> None:
        for i in range(10):
            append(results, {"hash": f"{writer}.{i}", "status": "ok", "filling": "x" * 5000})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len({row["hash"] for row in Results.read(results).rows}) == 40


def test_rows_are_strict_json(results):
    append(
        results,
        {"hash": "h", "status": "ok", "nan": float("nan"), "array": np.ones((1, 2)), "path": Path("p")},
    )
    row = json.loads(results.read_text(), parse_constant=pytest.fail)
    assert (row["nan"], row["array"], row["path"]) == (None, [[1.0, 1.0]], "p")
