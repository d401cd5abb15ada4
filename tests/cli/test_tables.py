"""The commands on real files: fit, predict, evaluate, explain, plot, info, and every mistake on the way."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pa = pytest.importorskip("pyarrow")

from duogp import cli, load  # noqa: E402
from duogp.bench.results import finite  # noqa: E402
from duogp.tables import read_table, write_table  # noqa: E402
from helpers.model_folders import without_checksum_of_table  # noqa: E402

QUICK = ("--method", "svgp", "--num-inducing", "8", "--epochs", "8", "--device", "cpu")


def call(*arguments: object):
    return CliRunner().invoke(cli.build(), [str(argument) for argument in arguments])


def fine(*arguments: object):
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def mistaken(*arguments: object) -> str:
    """The one line that a mistake is answered with."""
    result = call(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.output
    return errors[0]


def strict(text: str):
    """JSON without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of both kinds and a model of each."""
    root = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    n = 120
    x, c = rng.normal(size=n), rng.choice(["red", "green"], n)
    y = np.sin(2 * x) + (c == "red") + 0.1 * rng.normal(size=n)
    table = pa.table(
        {
            "size_cm": pa.array(x, mask=rng.random(n) < 0.1),
            "colour": c,
            "no use": np.zeros(n),
            "when": np.datetime64("2020-01-01") + 9 * np.arange(n),
            "id": [f"{i:04d}" for i in range(n)],
            "price": y,
            "kind": np.where(y > 0.8, "high", np.where(y < 0, "low", "middle")),
            "count": rng.poisson(2, n),
            "flag": y > 0,
            "w": rng.uniform(0.5, 1.5, n),
        }
    )
    for name, part in (("train", table.slice(0, 90)), ("new", table.slice(90))):
        for ending in ("csv", "parquet", "arrow", "tsv", "csv.gz"):
            write_table(part, root / f"{name}.{ending}")
    targets = {
        "numbers": ("price", "kind,flag"),
        "classes": ("kind", "price,flag"),
        "flags": ("flag", "price,kind"),
    }
    for model, (target, drop) in targets.items():
        fine("fit", root / "train.csv", "-t", target, "-o", root / model, "--drop", f"{drop},w,id", *QUICK)
    return root


# -- fit ---------------------------------------------------------------------------------------------------


def test_fit_says_what_it_did(folder, tmp_path):
    result = fine(
        "fit", folder / "train.csv", "--target", "price", "-o", tmp_path / "m",
        "--drop", "kind, flag,w", "--test-fraction", "0.2", *QUICK,
    )  # fmt: skip
    for words in (
        "regression of price",
        "72",
        "size_cm (",
        "svgp",
        "noise",
        "most important",
        "RMSE",
        "no use: it is 0",
    ):
        assert words in result.stdout
    assert {p.name for p in (tmp_path / "m").iterdir()} == {
        "manifest.json",
        "tensors.safetensors",
        "table.json",
    }


def test_fit_as_json(folder, tmp_path):
    result = fine(
        "fit", folder / "train.parquet", "-t", "price", "-o", tmp_path / "m", "--drop", "kind,flag",
        "--weights", "w", "--test-fraction", "0.2", "--seed", "3", "--json", *QUICK,
    )  # fmt: skip
    report = strict(result.stdout)
    assert report["task"] == "regression"
    assert report["rows"] + report["test_rows"] == 90
    assert report["columns"]["colour"] == "category"
    assert "w" not in report["columns"]
    assert report["dropped"]["kind"] == "as asked"
    assert "names or prose" in report["dropped"]["id"]
    assert report["imputed"]["size_cm"] > 0
    assert all(math.isclose(sum(report[name].values()), 1) for name in ("relevance", "importances"))
    assert set(report["test"]) >= {"rmse", "mae", "nll", "crps", "coverage_50", "coverage_90", "coverage_95"}


def test_fit_is_quiet_when_asked_and_the_same_for_a_seed(folder, tmp_path):
    for name in ("a", "b"):
        result = fine(
            "fit", folder / "train.csv", "-t", "price", "-o", tmp_path / name, "-q", "--seed", "5", *QUICK
        )
        assert result.stdout == ""
    first, second = (fine("predict", tmp_path / name, folder / "new.csv").stdout for name in ("a", "b"))
    assert first == second


def test_settings_reach_the_fit(folder, tmp_path):
    fine(
        "fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", "--kernel", "rbf+linear",
        "--set", "ard=false", "--set", "initial-noise=0.3", "--set", "mean=zero", *QUICK,
    )  # fmt: skip
    settings = load(tmp_path / "m").gp_.settings
    assert (settings.ard, settings.initial_noise, settings.mean) == (False, 0.3, "zero")
    assert settings.kernel == "rbf+linear"
    assert strict(fine("explain", tmp_path / "m", "--json").stdout)["relevance"] is None
    assert "importance" in fine("explain", tmp_path / "m").stdout


def test_auto_is_the_default_and_says_why(folder, tmp_path):
    report = strict(
        fine(
            "fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", "--drop", "kind,flag",
            "--num-inducing", "8", "--epochs", "3", "--json",
        ).stdout
    )  # fmt: skip
    assert report["method"] != "auto"
    assert report["reasons"]


def test_counts_and_whole_numbers_as_classes(folder, tmp_path):
    common = ("-t", "count", "--drop", "price,kind,flag,w,id,when", "--json", *QUICK)
    counts = strict(
        fine("fit", folder / "train.csv", "-o", tmp_path / "c", "--likelihood", "poisson", *common).stdout
    )
    assert counts["likelihood"] == "PoissonLikelihood"
    classes = strict(fine("fit", folder / "train.csv", "-o", tmp_path / "k", "--classify", *common).stdout)
    assert classes["task"] == "classification"
    labels = fine("predict", tmp_path / "k", folder / "new.csv").stdout.splitlines()
    assert labels[0].startswith("label,p_0,p_1")
    assert labels[1].split(",")[0].isdigit()
    found = strict(fine("evaluate", tmp_path / "c", folder / "new.csv", "--json").stdout)
    assert found["coverage_95"] > 0.7


def test_rows_without_a_target_are_left_out(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("x,y\n" + "".join(f"{i},{i % 7 if i % 5 else ''}\n" for i in range(40)))
    report = strict(fine("fit", path, "-t", "y", "-o", tmp_path / "m", "--json", *QUICK).stdout)
    assert (report["rows"], report["rows_without_target"]) == (32, 8)
    assert "8 without a target" in fine("fit", path, "-t", "y", "-o", tmp_path / "m", "-f", *QUICK).stdout
    error = mistaken("fit", path, "-t", "y", "-o", tmp_path / "n", "--missing", "refuse", *QUICK)
    assert "8 of 40 rows have no target" in error


def test_two_valued_numbers_get_a_hint(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    assert "--classify" in fine("fit", path, "-t", "y", "-o", tmp_path / "m", *QUICK).stderr


# -- predict -----------------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_loaded_model(folder, tmp_path):
    fine("predict", folder / "numbers", folder / "new.csv", "-o", tmp_path / "p.parquet", "--keep", "id,when")
    out = read_table(tmp_path / "p.parquet")
    assert out.column_names == ["id", "when", "mean", "std"]
    assert out.num_rows == 30
    assert out.column("std").to_numpy().min() > 0
    printed = fine("predict", folder / "numbers", folder / "new.csv").stdout.splitlines()
    assert printed[0] == "mean,std"
    assert float(printed[1].split(",")[0]) == out.column("mean")[0].as_py()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet", "arrow"])
def test_any_format_in_and_out(folder, tmp_path, ending):
    fine("predict", folder / "numbers", folder / f"new.{ending}", "-o", tmp_path / f"p.{ending}", "-q")
    expected = fine("predict", folder / "numbers", folder / "new.csv").stdout.splitlines()[1:]
    found = read_table(tmp_path / f"p.{ending}").column("mean").to_numpy()
    np.testing.assert_allclose(found, [float(line.split(",")[0]) for line in expected], rtol=1e-9)


def test_quantiles_and_intervals(folder, tmp_path):
    fine(
        "predict", folder / "numbers", folder / "new.csv", "-o", tmp_path / "p.arrow",
        "--quantiles", "0.05,0.5,0.95", "--interval", "0.9",
    )  # fmt: skip
    out = read_table(tmp_path / "p.arrow")
    assert out.column_names == ["mean", "std", "q0.05", "q0.5", "q0.95", "lower", "upper"]
    for quantile, end in (("q0.05", "lower"), ("q0.95", "upper")):
        np.testing.assert_allclose(out.column(quantile).to_numpy(), out.column(end).to_numpy())
    np.testing.assert_allclose(out.column("q0.5").to_numpy(), out.column("mean").to_numpy())


def test_conformal_intervals_need_rows_to_calibrate_on(folder, tmp_path):
    arguments = (folder / "new.csv", "--interval", "0.8", "--conformal")
    assert "calibration_fraction" in mistaken("predict", folder / "numbers", *arguments)
    fine(
        "fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", "--drop", "kind,flag",
        "--set", "calibration_fraction=0.3", "-q", *QUICK,
    )  # fmt: skip
    assert "lower,upper" in fine("predict", tmp_path / "m", *arguments).stdout


def test_labels_and_probabilities(folder, tmp_path):
    fine("predict", folder / "classes", folder / "new.csv", "-o", tmp_path / "p.parquet")
    out = read_table(tmp_path / "p.parquet")
    assert out.column_names == ["label", "p_high", "p_low", "p_middle"]
    p = np.stack([out.column(name).to_numpy() for name in out.column_names[1:]], 1)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    labels = np.array(["high", "low", "middle"])[p.argmax(1)]
    assert out.column("label").to_pylist() == labels.tolist()
    fine("predict", folder / "flags", folder / "new.csv", "-o", tmp_path / "f.parquet")
    assert read_table(tmp_path / "f.parquet").column("label").type == pa.bool_()


def test_predictions_as_json(folder, tmp_path):
    records = strict(fine("predict", folder / "classes", folder / "new.csv", "--keep", "id", "--json").stdout)
    assert len(records) == 30
    assert records[0]["id"] == "0090"
    summary = strict(
        fine("predict", folder / "numbers", folder / "new.csv", "-o", tmp_path / "p.csv", "--json").stdout
    )
    assert summary["rows"] == 30


def test_pieces_are_predicted_as_the_whole(folder, monkeypatch):
    whole = read_predictions(folder)
    monkeypatch.setattr("duogp.cli.model_folder.CHUNK_ROWS", 7)
    np.testing.assert_allclose(read_predictions(folder), whole, rtol=1e-12)


def test_order_and_extra_columns_do_not_matter(folder, tmp_path):
    table = read_table(folder / "new.parquet")
    changed = table.select(table.column_names[::-1]).append_column("extra", [["x"] * 30])
    write_table(changed, tmp_path / "new.parquet")
    first, second = (
        fine("predict", folder / "numbers", path).stdout
        for path in (folder / "new.parquet", tmp_path / "new.parquet")
    )
    assert first == second


# -- evaluate, explain, info, plot -------------------------------------------------------------------------


def test_evaluate_numbers(folder):
    found = strict(fine("evaluate", folder / "numbers", folder / "new.csv", "--json").stdout)
    assert found["rows"] == 30
    assert found["mae"] <= found["rmse"]
    assert 0 <= found["coverage_50"] <= found["coverage_90"] <= found["coverage_95"] <= 1
    predicted = read_predictions(folder)
    y = read_table(folder / "new.parquet").column("price").to_numpy()
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - predicted) ** 2)))
    assert "RMSE" in fine("evaluate", folder / "numbers", folder / "new.arrow").stdout


def read_predictions(folder: Path) -> np.ndarray:
    lines = fine("predict", folder / "numbers", folder / "new.csv").stdout.splitlines()[1:]
    return np.array([float(line.split(",")[0]) for line in lines])


def test_evaluate_classes(folder):
    found = strict(fine("evaluate", folder / "classes", folder / "new.csv", "--json").stdout)
    assert set(found) == {"model", "data", "rows", "accuracy", "log_loss", "brier", "calibration_error"}
    assert found["accuracy"] > 0.4
    assert "accuracy" in fine("evaluate", folder / "flags", folder / "new.parquet").stdout


def test_explain(folder):
    found = strict(fine("explain", folder / "numbers", folder / "new.csv", "--json").stdout)
    assert set(found["effect"]) == set(found["relevance"]) == {"size_cm", "colour", "when", "count"}
    shares = [value for name, value in found["variance"].items() if name.endswith("share")]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(1)
    assert "noise" in fine("explain", folder / "numbers", folder / "new.csv").stdout
    assert "noise" not in fine("explain", folder / "classes", folder / "new.csv").stdout


def test_info(folder):
    found = strict(fine("info", folder / "numbers", "--json").stdout)
    assert (found["method"], found["target"], found["rows"]) == ("svgp", "price", 90)
    assert found["written_by"]["duogp"]
    shown = fine("info", folder / "classes").stdout
    assert all(word in shown for word in ("classification of kind", "high, low, middle", "KiB", "Hensman"))


@pytest.mark.parametrize(
    "kind", ["predicted", "calibration", "zscore", "history", "relevance", "variance", "slices"]
)
def test_each_kind_of_figure(folder, tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    fine("plot", folder / "numbers", folder / "new.csv", "-o", path, "--kind", kind)
    assert path.read_bytes().startswith(b"\x89PNG")
    if kind != "zscore":
        fine("plot", folder / "classes", folder / "new.csv", "-o", path, "--kind", kind)


def test_all_figures_in_one(folder, tmp_path):
    pytest.importorskip("matplotlib")
    for model in ("numbers", "flags"):
        found = strict(
            fine("plot", folder / model, folder / "new.csv", "-o", tmp_path / f"{model}.svg", "--json").stdout
        )
        assert found["kind"] == "all"
        assert (tmp_path / f"{model}.svg").stat().st_size > 10_000


def test_networks_have_all_commands(folder, tmp_path):
    """They have neither inducing points nor lengthscales."""
    model = tmp_path / "m"
    common = ("--method", "deep-ensemble", "--epochs", "2", "--device", "cpu", "-q", "--drop", "kind,flag")
    fine("fit", folder / "train.csv", "-t", "price", "-o", model, *common)
    found = strict(fine("explain", model, folder / "new.csv", "--json").stdout)
    assert found["relevance"] is None and len(found["effect"]) == 6
    assert strict(fine("info", model, "--json").stdout)["num_inducing"] is None
    assert strict(fine("evaluate", model, folder / "new.csv", "--json").stdout)["rmse"] > 0
    assert "lower,upper" in fine("predict", model, folder / "new.csv", "--interval", "0.9").stdout
    if "matplotlib" in sys.modules:
        fine("plot", model, folder / "new.csv", "-o", tmp_path / "f.png")


# -- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "Missing argument"),
        (["fit", "{train}"], "--target"),
        (["fit", "{train}", "-t", "price"], "--output"),
        (["fit", "none.csv", "-t", "price", "-o", "{out}"], "there is no file 'none.csv'"),
        (["fit", "{root}", "-t", "price", "-o", "{out}"], "is a folder"),
        (["fit", "{train}", "-t", "prise", "-o", "{out}"], "did you mean 'price'"),
        (["fit", "{train}", "-t", "when", "-o", "{out}"], "the target 'when' holds dates"),
        (["fit", "{train}", "-t", "id", "-o", "{out}", "--category", "id"], "90 different labels in 90 rows"),
        (["fit", "{train}", "-t", "price", "-o", "{numbers}"], "use --force"),
        (["fit", "{train}", "-t", "price", "-o", "{root}"], "other things in it"),
        (["fit", "{train}", "-t", "price", "-o", "{train}"], "is a file"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--method", "svpg"], "did you mean 'svgp'"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--kernel", "matern"], "unknown kernel"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--likelihood", "gausian"], "unknown likelihood"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--likelihood", "poisson"], "whole numbers"),
        (["fit", "{train}", "-t", "kind", "-o", "{out}", "--likelihood", "gamma"], "GPRegressor|for numbers"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--classify"], "not whole"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--num-inducing", "0"], "num_inducing"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--num-inducing", "few"], "--num-inducing"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--epochs", "-3"], "epochs"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--time-budget", "-1"], "time_budget"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--seed", "-1"], "--seed"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--device", "tpu"], "device"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--missing", "ignore"], "'impute' or 'refuse'"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--missing", "refuse"], "missing in 'size_cm'"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--drop", "colr"], "did you mean 'colour'"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--weights", "size_cm"], "weights"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--weights", "colour"], "must be numbers"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--test-fraction", "20"], "did you mean 0.2"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--test-fraction", "0.999"], "too few"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--set", "ard"], "name=value"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--set", "lerning_rate=1"], "learning_rate"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--set", "schedule=5"], "schedule"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--epochs", "3", "--set", "epochs=4"], "give one"),
        (["fit", "{train}", "-t", "price", "-o", "{out}", "--frobnicate"], "No such option"),
        (["predict", "{root}/nothing", "{new}"], "there is no model folder"),
        (["predict", "{root}", "{new}"], "not a saved duogp model"),
        (["predict", "{train}", "{new}"], "folder"),
        (["predict", "{numbers}", "none.parquet"], "there is no file"),
        (["predict", "{numbers}", "{new}", "-o", "{root}/p.xlsx"], "ending"),
        (["predict", "{numbers}", "{new}", "-o", "{root}/no/p.csv"], "no folder"),
        (["predict", "{numbers}", "{new}", "--keep", "ID"], "did you mean 'id'"),
        (["predict", "{numbers}", "{new}", "--quantiles", "5,95"], "did you mean 0.05"),
        (["predict", "{numbers}", "{new}", "--quantiles", "a"], "numbers between 0 and 1"),
        (["predict", "{numbers}", "{new}", "--interval", "90"], "did you mean 0.9"),
        (["predict", "{numbers}", "{new}", "--conformal"], "--interval"),
        (["predict", "{classes}", "{new}", "--quantiles", "0.5"], "predicts classes"),
        (["evaluate", "{numbers}", "{lacking}"], "lacks the column 'price'"),
        (["explain", "{numbers}", "{lacking}"], "lacks the column 'colour'"),
        (["plot", "{numbers}", "{new}", "--kind", "pie"], "--kind must be one of"),
        (["plot", "{numbers}", "{new}", "-o", "{root}/f.gif"], "--output must end in"),
        (["plot", "{numbers}", "--kind", "slices"], "needs rows"),
        (["plot", "{numbers}", "{new}", "--kind", "slices", "--columns", "Count"], "did you mean 'count'"),
        (["plot", "{classes}", "{new}", "--kind", "zscore"], "use --kind calibration"),
        (["info", "{root}/nothing"], "there is no model folder"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_status_two(folder, tmp_path, monkeypatch, arguments, message):
    import re

    monkeypatch.chdir(tmp_path)
    write_table(pa.table({"size_cm": [1.0], "when": [dt.date(2020, 1, 1)], "count": [1]}), "lacking.csv")
    places = {
        "root": folder, "train": folder / "train.csv", "new": folder / "new.csv", "out": tmp_path / "out",
        "numbers": folder / "numbers", "classes": folder / "classes", "lacking": "lacking.csv",
    }  # fmt: skip
    error = mistaken(*(argument.format(**places) for argument in arguments))
    assert re.search(message, error), error
    assert not (tmp_path / "out").exists()
    assert "duogp/src" not in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "size_cm,colour,when,count\n1,red,2020-01-01,heavy\n",
            "column 'count' holds an invalid value 'heavy'",
        ),
        ("size_cm,colour,when,count\n1,red,someday,1\n", "held dates"),
        ("size_cm,colour,when,count\n", "has no rows"),
        ("size_cm,colour,colour,when,count\n1,red,red,2020-01-01,1\n", "same name: 'colour'"),
        ("size_cm,colour\n1\n", "Expected 2 columns"),
    ],
)
def test_new_rows_that_do_not_fit(folder, tmp_path, content, message):
    (tmp_path / "new.csv").write_text(content)
    error = mistaken("predict", folder / "numbers", tmp_path / "new.csv", "-o", tmp_path / "p.csv")
    assert message in error
    assert not (tmp_path / "p.csv").exists()


def test_a_changed_or_foreign_folder(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "numbers", tmp_path / "m")
    description = tmp_path / "m" / "table.json"
    description.write_text("{")
    assert "table.json was changed after it was written" in mistaken("info", tmp_path / "m")
    without_checksum_of_table(tmp_path / "m")
    assert "cannot be read" in mistaken("info", tmp_path / "m")
    description.write_text("[]")
    assert "not what duogp fit writes" in mistaken("info", tmp_path / "m")
    shutil.copy(folder / "classes" / "table.json", description)
    state = json.loads(description.read_text())
    state["schema"]["columns"].pop()
    description.write_text(json.dumps(state))
    assert "do not belong together" in mistaken("info", tmp_path / "m")
    description.unlink()
    assert "has no table.json" in mistaken("info", tmp_path / "m")
    (tmp_path / "m" / "tensors.safetensors").write_bytes(b"")
    assert "tensors.safetensors" in mistaken("info", tmp_path / "m")


# -- exit codes --------------------------------------------------------------------------------------------


def test_what_nobody_expected_is_status_one(folder, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("duogp.cli.info.describe", broken)
    result = call("info", folder / "numbers")
    assert result.exit_code == 1
    assert result.stderr == "error: unexpected ZeroDivisionError: of all things (--debug shows where)\n"
    assert "Traceback" in call("info", folder / "numbers", "--debug").stderr


def test_a_type_error_of_our_own_code_is_no_mistake_of_the_user(folder, monkeypatch):
    monkeypatch.setattr("duogp.cli.info.describe", lambda folder: len(3))
    assert call("info", folder / "numbers").exit_code == 1


def test_debug_shows_the_traceback_of_a_mistake(folder):
    result = call("info", folder / "nothing", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_an_interrupt_is_130(folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("duogp.cli.info.describe", interrupted)
    result = call("info", folder / "numbers")
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_warnings_are_notes(folder, tmp_path):
    result = fine(
        "fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", "--set", "gamma=1.2", "-q", *QUICK
    )
    assert result.stderr.startswith("note: ")
    assert "DataWarning" not in result.stderr


def test_numbers_in_json_are_finite():
    value = {"a": float("nan"), "b": [np.inf, np.float32(1)], "c": np.arange(2), "d": (np.bool_(True), None)}
    assert finite(value) == {"a": None, "b": [None, 1.0], "c": [0, 1], "d": [True, None]}


def test_help_names_every_command():
    shown = fine("--help").stdout
    for name in ("fit", "predict", "evaluate", "explain", "plot", "info", "methods", "bench"):
        assert name in shown
        assert fine(name, "--help").stdout
    assert fine().stdout == shown


@pytest.mark.slow
def test_a_real_process(folder, tmp_path):
    """The console script's entry point, its exit codes, and Ctrl-C."""
    start = [sys.executable, "-c", "from duogp.cli import main; print('ready', flush=True); main()"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    fit = ["fit", str(folder / "train.csv"), "-t", "price", "-o", str(tmp_path / "m"), "--device", "cpu"]
    long = subprocess.Popen(
        [*start, *fit, "--method", "svgp", "--epochs", "100000", "--set", "solver=stochastic"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    done = subprocess.run(
        [*start, "predict", str(folder / "numbers"), str(folder / "new.csv")],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 32
    assert long.stdout is not None
    assert long.stdout.readline() == "ready\n"
    time.sleep(2)
    long.send_signal(signal.SIGINT)
    out, error = long.communicate(timeout=60)
    assert long.returncode == 130, error
    assert out == ""
    assert "Traceback" not in error
    assert not (tmp_path / "m").exists()


# -- what a stranger stumbled over ---------------------------------------------------------------------------


def test_categories_that_the_model_never_saw_are_named(folder, tmp_path):
    table = read_table(folder / "new.csv")
    at = table.column_names.index("colour")
    write_table(table.set_column(at, "colour", pa.array(["blue"] * table.num_rows)), tmp_path / "blue.csv")
    for command in ("predict", "evaluate"):
        said = fine(command, folder / "numbers", tmp_path / "blue.csv").stderr
        assert "30 rows have a 'colour' that the model was not fitted on" in said
        assert "not fitted on" not in fine(command, folder / "numbers", folder / "new.csv").stderr


def test_a_model_of_the_command_line_takes_the_same_tables_in_python(folder):
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(folder / "new.csv")
    model = load(folder / "numbers")
    printed = [float(line.split(",")[0]) for line in
               fine("predict", folder / "numbers", folder / "new.csv").stdout.splitlines()[1:]]  # fmt: skip
    np.testing.assert_allclose(model.predict(frame), printed, rtol=1e-6)
    np.testing.assert_allclose(model.predict(read_table(folder / "new.csv")), printed, rtol=1e-6)


def test_a_constant_target_is_called_constant(folder, tmp_path):
    table = read_table(folder / "train.csv").append_column("same", pa.array([7.0] * 90))
    write_table(table, tmp_path / "same.csv")
    said = fine("fit", tmp_path / "same.csv", "-t", "same", "-o", tmp_path / "m", *QUICK).stderr
    assert "the same in every row" in said and "two values" not in said


def test_conformal_intervals_say_how_to_fit_for_them(folder):
    said = mistaken("predict", folder / "numbers", folder / "new.csv", "--interval", "0.9", "--conformal")
    assert "--set calibration_fraction=0.2" in said
