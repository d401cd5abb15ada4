"""Benchmark suites: their cells, hashes and mistakes, and the suites of this repository."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from duogp.bench import Cell, Results, compare, load_suite
from duogp.bench import suite as suites
from duogp.bench.suite import RUNNER_SETTINGS, canonical_json
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from helpers.bench_suite import SUITE


def test_cells_come_split_by_split_then_by_priority_then_as_declared(suite):
    names = [(c.split, c.data, c.label) for c in suite.cells()]
    first = [
        ("absent", "SVGP"),  # -1 + 0
        ("absent", "MAP"),
        ("sklearn/diabetes", "SVGP"),  # 0 + 0
        ("sklearn/diabetes", "MAP"),
        ("absent", "SLOW"),  # -1 + 2
        ("sklearn/diabetes", "SLOW"),
    ]
    assert names == [(split, *pair) for split in (0, 1) for pair in first]


def test_settings_of_data_and_methods_override_the_shared_ones(suite):
    cell = suite.cells(data=["sklearn/diabetes"], methods=["slow"])[0]
    assert cell.method == "dcsvgp"
    assert cell.settings == {
        "standardize": False, "epochs": 3, "dtype": "float64", "num_inducing": 5, "beta2": 1e-3,
    }  # fmt: skip


def test_cells_can_be_chosen_by_name_or_label(suite):
    assert len(suite.cells(methods=["svgp"], splits=1)) == 2
    assert suite.cells(methods=["SVGP"]) == suite.cells(methods=["svgp"])
    with pytest.raises(ValueError, match="methods: no nothing in this suite; it has slow, svgp, map"):
        suite.cells(methods=["nothing"])


def test_a_method_may_be_for_some_data_only(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(SUITE.replace('label = "MAP"', 'label = "MAP"\nonly = ["absent"]'))
    cells = load_suite(path).cells(splits=1)
    assert [c.data for c in cells if c.label == "MAP"] == ["absent"]
    assert "only" not in cells[0].settings
    assert len(compare(load_suite(path), Results())) == 2 * 5
    path.write_text(SUITE.replace('label = "MAP"', 'label = "MAP"\nonly = ["nowhere"]'))
    with pytest.raises(ValueError, match="only of map names data that the suite lacks: nowhere"):
        load_suite(path)


def test_hash_is_of_what_decides_the_result():
    def cell(**changes):
        fields = {
            "suite": "s",
            "data": "pol",
            "method": "svgp",
            "label": "SVGP",
            "protocol": "dc",
            "split": 0,
        }
        return Cell(**(fields | {"settings": {"beta1": 1.0, "epochs": 3}} | changes))

    deciding = (  # another spelling would orphan every committed result
        b'{"data":"pol","method":"svgp","protocol":"dc","seed":0,"settings":{"beta1":1,"epochs":3},"split":0}'
    )
    known = hashlib.sha256(deciding).hexdigest()
    assert cell().hash == known
    assert cell(suite="t", label="other").hash == known
    assert cell(settings={"epochs": 3, "beta1": 1}).hash == known
    changed = [cell(data="bike"), cell(split=1), cell(method="map"), cell(settings={}), cell(protocol="orth")]
    assert len({known, *(c.hash for c in changed)}) == 6


def test_canonical_json_keeps_booleans_apart_from_numbers():
    assert canonical_json({"b": True, "a": [1.0, 0.5]}) == '{"a":[1,0.5],"b":true}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = 3\n" + SUITE, "unknown keys epochs"),
        (SUITE.replace("splits = [0, 1]", "splits = []"), "splits must be a non-empty list"),
        (SUITE.replace('label = "MAP"', 'label = "SVGP"'), "declares SVGP more than once"),
        (SUITE.replace("epochs = 3", 'device = "cpu"'), "--device"),
        (SUITE.replace("SVGP = 1.0", 'SVGP = "one"'), "number"),
        ("name = ", "not valid TOML"),
        ('name = "x"', r"\[\[data\]\]"),
    ],
)
def test_mistakes_in_a_suite_are_named(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_suite(path)


def test_suites_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = load_suite("paper_dc")
    assert found.results.parts[-3:] == ("benchmarks", "results", "paper_dc.jsonl")
    with pytest.raises(FileNotFoundError, match=r"no suite 'nothing'.*paper_dc"):
        load_suite("nothing")


def test_the_paper_suite_is_the_papers_protocol():
    suite = load_suite("paper_dc")
    cells = suite.cells(splits=1)
    assert len(cells) == 42
    assert [c.label for c in cells[:4]] == ["SVGP", "DCSVGP", "SVGP", "DCSVGP"]
    assert {c.label: c.settings.get("beta2") for c in cells} == {
        "SVGP": None, "DCSVGP": 1e-3, "PPGPR": None, "DCPPGPR": 1e-3, "ODSVGP": None, "ODPPGPR": None,
    }  # fmt: skip
    points = {c.data: c.settings["num_inducing"] for c in cells if c.label == "SVGP"}
    for cell in cells:  # 4X points of SVGP are 3X and 7X here
        if cell.label in ("ODSVGP", "ODPPGPR"):
            sizes = (cell.settings["num_inducing"], cell.settings["num_extra"])
            assert sizes == (3 * points[cell.data] // 4, 7 * points[cell.data] // 4)
    assert suite.paper["nll"]["kin40k"]["DCSVGP"] == -0.502
    assert all(len(row) == 6 for table in suite.paper.values() for row in table.values())


@pytest.mark.parametrize(("name", "count"), [("smoke", 2), ("float32", 161)])
def test_the_other_suites_parse(name, count):
    assert len(load_suite(name).cells()) == count


def test_the_orthogonal_suite_is_the_papers_protocol():
    suite = load_suite("paper_orth")
    first, rest = suite.cells(splits=1)[:16], suite.cells(splits=1)[16:]
    assert {c.label for c in first} == {"COUPLED†", "ORTHNAT"}
    assert {c.data for c in first} == {c.data for c in suite.cells()} and len({c.data for c in first}) == 8
    order = list(dict.fromkeys(c.label for c in rest))
    assert order == ["ORTH", "COUPLED", "COUPLEDNAT", "HYBRID", "DECOUPLED", "COUPLEDNAT†"]
    assert len({c.data for c in rest if c.label == "DECOUPLED"}) == 8
    for cell in suite.cells(splits=1):
        sizes = (cell.settings["num_inducing"], cell.settings.get("num_extra"))
        assert sizes == {"COUPLED": (400, None), "COUPLEDNAT": (400, None), "DECOUPLED": (300, 1000)}.get(
            cell.label, (300, None) if cell.label.endswith("†") else (300, 700)
        )
        matern, rbf = cell.settings["initial_lengthscale"]
        assert rbf == pytest.approx(10 * matern, rel=1e-3)
    assert suite.paper["loglik"]["kin40k"]["ORTHNAT"] == 0.1931
    assert suite.paper["rmse"]["pol"] == {
        "COUPLED†": 0.2073, "COUPLEDNAT†": 0.2059, "COUPLED": 0.2012, "COUPLEDNAT": 0.2,
        "ORTHNAT": 0.1906, "ORTH": 0.1931, "DECOUPLED": 0.2867, "HYBRID": 0.2065,
    }  # fmt: skip


def test_the_orthogonal_classification_suite_is_the_papers_protocol():
    suite = load_suite("paper_orth_classification")
    assert {c.task for c in suite.cells(splits=1)} == {"classification"}
    names = {c.data for c in suite.cells(splits=1)}
    assert set(suite.paper["loglik"]) == set(suite.paper["accuracy_percent"])
    assert len(names) == 22 and len(names & set(suite.paper["loglik"])) == 18
    assert suite.paper["accuracy_percent"]["classification/letter"]["ORTHNAT"] == 93.45
    assert suite.paper["loglik"]["classification/waveform"]["COUPLED"] == -0.6207


PAPER_SUITES = [
    "paper_dc", "paper_dc_ard", "paper_dc_beta2", "paper_dc_whitening", "paper_dkl", "paper_orth",
    "paper_orth_classification", "paper_ppgpr", "paper_components", "paper_deep",
]  # fmt: skip


@pytest.mark.parametrize("name", PAPER_SUITES)
def test_numbers_of_a_paper_have_a_cell_or_a_reason_why_not(name):
    suite = load_suite(name)
    assert suite.absent and all(suite.absent.values())
    run = {entry.label for entry in (*suite.data, *suite.methods)}
    named = {key for table in suite.paper.values() for data, row in table.items() for key in (data, *row)}
    assert named - run <= set(suite.absent)


def test_ablations_share_cells_with_the_table_they_vary():
    table = {c.hash for c in load_suite("paper_dc").cells()}
    shared = {
        "paper_dc_whitening": {"DCSVGP Q", "DCPPGPR Q"},
        "paper_dc_beta2": {"DCSVGP β₂=0.001", "DCPPGPR β₂=0.001", "SVGP", "PPGPR"},
        "paper_dc_ard": set(),
    }
    for name, labels in shared.items():
        assert {c.label for c in load_suite(name).cells() if c.hash in table} == labels


def test_the_predictive_suite_has_the_papers_ranks():
    suite = load_suite("paper_ppgpr")
    labels = {method.label for method in suite.methods}
    for tables in suite.paper_ranks.values():
        for ranks in tables.values():
            assert set(ranks) <= labels
            assert sum(ranks.values()) == pytest.approx(21, abs=0.03)  # 1 + … + 6, each rounded


def test_a_method_may_have_settings_of_its_own_on_a_data_set(tmp_path):
    def written(line):
        path = tmp_path / "own.toml"
        path.write_text(SUITE.replace('label = "MAP"', f'label = "MAP"\n{line}'))
        return load_suite(path)

    cells = written("on = { absent = { num_inducing = 3 } }").cells()
    sizes = {c.data: c.settings["num_inducing"] for c in cells if c.label == "MAP"}
    assert sizes["absent"] == 3 and sizes["sklearn/diabetes"] != 3
    with pytest.raises(ValueError, match="on of map names data that the suite lacks: nowhere"):
        written("on = { nowhere = { num_inducing = 3 } }")
    with pytest.raises(ValueError, match="on of map must be data set → settings"):
        written("on = 3")


@pytest.mark.parametrize("name", ["smoke", "float32", *PAPER_SUITES])
def test_suites_use_words_that_the_library_knows(name):
    known = set(Settings.__dataclass_fields__) | RUNNER_SETTINGS
    for cell in load_suite(name).cells(splits=1):
        assert set(cell.settings) <= known
        assert cell.method in METHODS
        settings = {k: v for k, v in cell.settings.items() if k not in RUNNER_SETTINGS}
        Settings.of(settings)  # checks types and ranges


def test_installed_suites_are_found_and_write_nothing_into_the_package(tmp_path, monkeypatch):
    installed = tmp_path / "duogp" / "bench" / "suites"
    installed.mkdir(parents=True)
    text = (suites.REPOSITORY / "benchmarks" / "suites" / "smoke.toml").read_text(encoding="utf-8")
    (installed / "smoke.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(suites, "INSTALLED", installed)
    monkeypatch.setattr(suites, "REPOSITORY", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    found = load_suite("smoke")
    assert found.path == installed / "smoke.toml"
    assert found.results == Path("benchmarks/results/smoke.jsonl")
