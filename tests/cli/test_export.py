"""`duogp export` and `duogp serve` on the command line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from duogp.cli.app import build

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, base = np.random.default_rng(0), tmp_path_factory.mktemp("export")
    with (base / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "city", "y"])
        for _ in range(80):
            a, city = rng.normal(), rng.choice(["Rome", "Oslo"])
            writer.writerow([a, city, np.sin(a) + (city == "Rome")])
    given = ["--target", "y", "-o", str(base / "model"), "--method", "svgp", "--set", "epochs=2", "-q"]
    done = runner.invoke(build(), ["fit", str(base / "table.csv"), *given])
    assert done.exit_code == 0, done.output
    return base


def test_export_checks_the_file_on_a_table_and_keeps_the_schema(folder):
    from duogp.export import read_description
    from duogp.tables import Schema

    target = folder / "model.pt2"
    given = ["--check", str(folder / "table.csv"), "--json"]
    done = runner.invoke(build(), ["export", str(folder / "model"), "-o", str(target), *given])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["rows_checked"] == 80 and max(report["error"].values()) <= 1e-6
    description = read_description(target)
    assert description["inputs"]["rows"] == Schema.from_dict(description["schema"]).names


def test_a_model_saved_from_python_is_exported_predicted_and_explained(folder, tmp_path):
    pd = pytest.importorskip("pandas")
    import duogp
    from duogp.export import read_description

    table = pd.read_csv(folder / "table.csv")
    model = duogp.GPRegressor("exact", random_state=0)
    noisy = table["y"] + 0.1 * np.random.default_rng(1).normal(size=len(table))
    model.fit(table[["a", "city"]], noisy).save(tmp_path / "m")
    done = runner.invoke(build(), ["export", str(tmp_path / "m"), "-o", str(tmp_path / "m.pt2")])
    assert done.exit_code == 0, done.output
    assert "m.pt2: writing the graph of exact" in done.stderr  # progress, on standard error
    description = read_description(tmp_path / "m.pt2")
    assert [column["name"] for column in description["schema"]["columns"]] == ["a", "city"]

    done = runner.invoke(build(), ["predict", str(tmp_path / "m"), str(folder / "table.csv")])
    assert done.exit_code == 0, done.output
    shown = np.array([float(line.split(",")[0]) for line in done.stdout.splitlines()[1:]])
    np.testing.assert_allclose(shown, model.predict(table[["a", "city"]]), rtol=1e-6)

    done = runner.invoke(build(), ["explain", str(tmp_path / "m"), str(folder / "table.csv")])
    assert "exact GP: within the data and far from them are not told apart" in " ".join(done.stdout.split())
    assert "far from the data" not in done.stdout

    done = runner.invoke(build(), ["evaluate", str(tmp_path / "m"), str(folder / "table.csv")])
    assert done.exit_code == 2 and "saved from Python" in done.output


def test_errors_of_export_are_one_line(folder):
    done = runner.invoke(build(), ["export", str(folder / "model"), "-o", "model.txt"])
    assert done.exit_code == 2 and "must end in .onnx or .pt2" in done.output
    done = runner.invoke(build(), ["export", str(folder / "none"), "-o", "model.pt2"])
    assert done.exit_code == 2 and "no model folder" in done.output
