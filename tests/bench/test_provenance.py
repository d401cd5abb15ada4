"""The provenance of a row: numerics versions, resolved settings, and when a row is stale."""

from __future__ import annotations

import ast
import subprocess

import pytest

from duogp.bench import numerics, run_cell
from duogp.bench.numerics import Ledger, numerics_at, numerics_version, version_of
from duogp.bench.provenance import changed_defaults, configuration, resolved, staleness, stamp, tree_state
from duogp.bench.rooms import room_hashes

MODULE = '"""About."""\nimport math\n\n\ndef f(x):\n    """Twice."""\n    return 2 * x  # why\n'


def test_a_row_holds_what_its_result_depends_on(suite, stub):
    cell = suite.cells(["sklearn/diabetes"], ["slow"])[1]
    row = run_cell(cell, "cpu")
    fields = {"commit", "dirty", "numerics", "versions", "device", "device_name", "seed", "resolved"}
    assert fields | {"configuration", "finished", "settings", "hash"} <= row.keys()
    assert row["settings"] == cell.settings  # as the suite writes them
    assert row["resolved"]["epochs"] == 3 and row["resolved"]["whitening"] == "Q"
    assert row["configuration"] == configuration(cell) != cell.hash
    assert staleness(row, Ledger()) == []


def test_a_failed_row_says_where_it_failed(suite, stub):
    row = run_cell(suite.cells(["sklearn/diabetes"], ["map"])[0], "cpu")
    assert row["status"] == "failed"
    assert row["numerics"] == numerics_version() and row["finished"]


def test_resolved_settings_have_the_defaults_of_method_and_library():
    full = resolved("dcsvgp", {"epochs": 3, "trace": True, "random_state": 4})
    assert (full["epochs"], full["beta2"], full["dtype"]) == (3, 1e-3, "float64")
    assert resolved("dcsvgp", {"beta2": 0.5})["beta2"] == 0.5
    assert not {"trace", "random_state", "device", "verbose"} & full.keys()
    assert resolved("deep-ensemble", {"epochs": 2})["members"] == 5
    assert resolved("auto", {})["kernel"] == "matern52"  # no method of the registry


def test_a_changed_default_makes_a_row_stale(suite, stub, monkeypatch):
    row = run_cell(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu")
    old = row | {"resolved": row["resolved"] | {"kernel": "rbf", "gone": 1}}
    assert changed_defaults(old) == ['kernel: "rbf" → "matern52"']
    assert staleness(old, Ledger()) == ['default changed: kernel: "rbf" → "matern52"']


def test_a_row_of_another_source_is_stale_unless_the_ledger_has_both(suite, stub):
    row = run_cell(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu") | {"numerics": "0" * 16}
    del row["rooms"], row["commit"], row["versions"]
    assert staleness(row, Ledger()) == ["numerics changed"]
    assert staleness(row, Ledger((frozenset({"0" * 16, numerics_version()}),))) == []


def test_a_row_whose_rooms_are_what_they_were_is_fresh(suite, stub):
    row = run_cell(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu") | {"numerics": "0" * 16}
    assert staleness(row, Ledger()) == []  # other code changed
    changed = row | {"rooms": row["rooms"] | {"closed form": "1" * 10}}
    assert staleness(changed, Ledger()) == ["numerics changed: closed form"]
    shown = Ledger((frozenset({"closed form:" + "1" * 10, "closed form:" + row["rooms"]["closed form"]}),))
    assert staleness(changed, shown) == []
    assert staleness(row | {"rooms": {}}, Ledger())[0].startswith("numerics changed: core, ")


def test_a_row_with_a_clean_commit_has_the_rooms_of_it(suite, stub, monkeypatch):
    row = run_cell(suite.cells(["sklearn/diabetes"], ["svgp"])[0], "cpu")
    old = {name: value for name, value in row.items() if name != "rooms"}
    old |= {"numerics": "0" * 16, "commit": "abc", "dirty": False}
    modules = dict(numerics.module_hashes())
    at = {"abc": modules | {"fitting/race.py": "another race", "baselines/fit.py": "another network"}}
    monkeypatch.setattr("duogp.bench.provenance.module_hashes_at", at.get)
    assert staleness(old, Ledger()) == []
    at["abc"] = modules | {"kernels/base.py": "another kernel"}
    assert staleness(old, Ledger()) == ["numerics changed: core"]
    assert staleness(old | {"dirty": True}, Ledger()) == ["numerics changed"]


def test_a_row_of_many_methods_depends_on_all_rooms(monkeypatch):
    modules = dict(numerics.module_hashes())
    at = {"abc": modules}
    monkeypatch.setattr("duogp.bench.provenance.module_hashes_at", at.get)
    row = {"numerics": "0" * 16, "commit": "abc", "dirty": False}
    assert staleness(row, Ledger()) == []
    at["abc"] = modules | {"fitting/race.py": "another race"}
    assert staleness(row, Ledger()) == ["numerics changed: auto"]
    then, now = (room_hashes(each)["auto"] for each in (at["abc"], modules))
    assert staleness(row, Ledger((frozenset({f"auto:{then}", f"auto:{now}"}),))) == []
    lost = row | {"commit": "unknown"}
    assert staleness(lost, Ledger()) == ["numerics changed"]
    assert staleness(lost, Ledger(commits={"0" * 16: "abc"})) == ["numerics changed: auto"]


def test_commits_of_the_ledger_have_the_versions_that_it_names():
    for version, commit in Ledger.read().commits.items():
        assert numerics.numerics_at(commit) in (version, None)  # None: no history here


def test_a_row_from_before_has_no_provenance():
    assert staleness({"versions": {"duogp": "0.1.0"}}, Ledger()) == ["no provenance"]
    assert staleness({"versions": {"commit": "0000000+"}}, Ledger()) == ["no provenance"]  # changes not known


def test_a_row_with_a_clean_commit_has_its_numerics(monkeypatch):
    monkeypatch.setattr(
        "duogp.bench.provenance.numerics_at", {"abc": numerics_version(), "old": "1" * 16}.get
    )
    assert staleness({"versions": {"commit": "abc"}}, Ledger()) == []
    assert staleness({"commit": "abc", "dirty": True}, Ledger()) == ["no provenance"]
    assert staleness({"commit": "old", "dirty": False}, Ledger()) == ["numerics changed"]
    assert staleness({"commit": "old"}, Ledger((frozenset({"1" * 16, numerics_version()}),))) == []
    assert staleness({"commit": "unheard"}, Ledger()) == ["no provenance"]


def test_versions_ignore_comments_and_docstrings_and_notice_an_operator():
    known = version_of({"a.py": MODULE, "b.py": "x = 1"})
    assert version_of({"b.py": "x = 1  # one", "a.py": MODULE.replace("Twice", "Double")}) == known
    assert version_of({"a.py": MODULE.replace('    """Twice."""\n', ""), "b.py": "x = 1"}) == known
    assert version_of({"a.py": MODULE.replace("2 * x", "2 + x"), "b.py": "x = 1"}) != known
    assert version_of({"a.py": MODULE, "c.py": "x = 1"}) != known
    assert len(known) == numerics.DIGITS


def test_texts_side_by_side_in_an_f_string_are_one():
    """Python 3.12 keeps some of them apart, other versions join them."""
    apart = ast.JoinedStr([ast.Constant("a"), ast.Constant(""), ast.Constant("b"), ast.Name("x")])
    one = ast.JoinedStr([ast.Constant("ab"), ast.Name("x")])
    other = ast.JoinedStr([ast.Constant("a"), ast.Name("x"), ast.Constant("b")])
    texts = ["".join(numerics._tokens(tree)) for tree in (apart, one, other)]
    assert texts[0] == texts[1] != texts[2]


def test_the_version_of_a_commit_is_that_of_its_files(tmp_path):
    package = tmp_path / "src" / "duogp"
    (package / "kernels").mkdir(parents=True)
    (package / "kernels" / "rbf.py").write_text(MODULE)
    (package / "cli.py").write_text("no part of it")

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    try:
        git("init", "-q")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git is not installed")
    git("add", ".")
    git("commit", "-qm", "first")
    assert numerics_at("HEAD", tmp_path) == version_of({"kernels/rbf.py": MODULE})
    assert numerics_at("nothing", tmp_path) is None


def test_a_commit_may_be_named_from_outside(monkeypatch):
    tree_state.cache_clear()
    monkeypatch.setenv("DUOGP_COMMIT", "abc1234+")
    assert tree_state() == ("abc1234", True)
    tree_state.cache_clear()
    monkeypatch.setenv("DUOGP_COMMIT", "abc1234")
    assert stamp()["commit"] == "abc1234" and stamp()["dirty"] is False
    tree_state.cache_clear()


def test_ledgers_join_groups_and_want_evidence(tmp_path):
    path = tmp_path / "numerics.toml"
    group = '[[same]]\nversions = ["{}", "{}"]\nevidence = "run"\n'
    path.write_text(group.format("a", "b") + group.format("b", "c"))
    assert Ledger.read(path).same("a", "c") and not Ledger.read(path).same("a", "d")
    assert Ledger.read(tmp_path / "none.toml") == Ledger()
    path.write_text('[[same]]\nversions = ["a", "b"]\n')
    with pytest.raises(ValueError, match="evidence"):
        Ledger.read(path)


def test_every_part_of_the_numerics_exists():
    assert all((numerics.SOURCE / part).exists() for part in numerics.PARTS)
