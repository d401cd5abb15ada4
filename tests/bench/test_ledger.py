"""The ledger's entries: which rooms the cases of same_digits show to be equal."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path

import pytest

from duogp.bench.numerics import LEDGER, Ledger
from duogp.bench.rooms import CORE, ROOMS, rooms_now

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
CASES = {"svgp": ["core"], "exact": ["core", "exact"], "dc": ["core", "conditional"]}


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("ledger")
    sys.path.remove(str(SCRIPTS))


def test_rooms_are_equal_where_all_their_cases_agree(script):
    verdict = script.decide(["core", "exact"], CASES, {"svgp": 1e-9, "exact": 2e-9, "dc": 0.0})
    assert verdict.equal == {"core": (3, 2e-9), "exact": (1, 2e-9)}
    assert not verdict.blamed and not verdict.unseen


def test_a_difference_is_held_against_the_room_of_fewest_cases(script):
    verdict = script.decide(["core", "exact"], CASES, {"svgp": 1e-9, "exact": 1e-3, "dc": 0.0})
    assert verdict.blamed == {"exact": ["exact"]}
    assert verdict.equal == {"core": (2, 1e-9)}  # by the cases that do not run through it


def test_a_difference_in_the_core_alone_leaves_nothing_equal(script):
    verdict = script.decide(["core", "exact"], CASES, {"svgp": 1e-3, "exact": 1e-9, "dc": 0.0})
    assert verdict.blamed == {"core": ["svgp"]} and verdict.equal == {}
    assert verdict.unseen == ["exact"]


def test_a_room_without_cases_is_not_shown_and_nan_is_a_difference(script):
    verdict = script.decide(["float32 predictions"], CASES, dict.fromkeys(CASES, 0.0))
    assert verdict.unseen == ["float32 predictions"] and verdict.equal == {}
    assert script.decide(["core"], CASES, dict.fromkeys(CASES, float("nan"))).blamed


def test_entries_are_read_by_the_ledger(script, tmp_path):
    verdict = script.decide(["core"], CASES, dict.fromkeys(CASES, 1e-9))
    text = script.entries(verdict, {"core": "1" * 10}, {"core": "2" * 10}, "a run")
    (tmp_path / "numerics.toml").write_text(text)
    assert Ledger.read(tmp_path / "numerics.toml").same("core:" + "1" * 10, "core:" + "2" * 10)
    assert "3 cases" in tomllib.loads(text)["same"][0]["evidence"]


def test_cases_run_through_every_room_that_a_cpu_has(script):
    same_digits = importlib.import_module("same_digits")
    rooms = script.case_rooms(same_digits.fits())
    seen = {room for own in rooms.values() for room in own}
    only_elsewhere = {"streamed tables", "float32 predictions"}
    assert {CORE, *(room.name for room in ROOMS)} - seen == only_elsewhere


def test_the_stored_ledger_can_be_read():
    assert Ledger.read(LEDGER).groups


def test_a_case_that_was_meant_to_differ_is_left_out_and_named(script, tmp_path, monkeypatch, capsys):
    then = dict.fromkeys(rooms_now(), "0" * 10)
    monkeypatch.setattr(script, "changed_since", lambda *_: (["core"], then, rooms_now()))
    found = tmp_path / "distances.json"
    distances = {"pol/svgp": 0.0, "pol/dcsvgp": 1.0}
    found.write_text(json.dumps({"distances": distances, "tolerance": 1e-6}))
    given = ["abc", "--distances", str(found)]
    assert script.main(given) == 1
    assert "STALE  core" in capsys.readouterr().out
    assert script.main([*given, "--meant", "pol/dcsvgp", "--because", "another patience"]) == 0
    assert "without pol/dcsvgp (another patience): 1 cases" in capsys.readouterr().out
    for wrong in (["--meant", "pol/dcsvgp"], ["--meant", "pol/none", "--because", "?"]):
        with pytest.raises(SystemExit):
            script.main([*given, *wrong])
