"""Files as people have them: unreadable cells, dates and money of other countries, other encodings, pipes."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pytest
from typer.testing import CliRunner

pa = pytest.importorskip("pyarrow")

from duogp import cli, load  # noqa: E402
from duogp.tables import read_table, write_table  # noqa: E402

QUICK = ("--method", "svgp", "--num-inducing", "8", "--epochs", "8", "--device", "cpu")


def call(*arguments: object, input: bytes | None = None):
    return CliRunner().invoke(cli.build(), [str(argument) for argument in arguments], input=input)


def fine(*arguments: object, input: bytes | None = None):
    result = call(*arguments, input=input)
    assert result.exit_code == 0, result.stderr
    return result


def mistaken(*arguments: object, input: bytes | None = None) -> str:
    result = call(*arguments, input=input)
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert "Traceback" not in result.output
    return result.stderr


def rows(n: int = 60) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": f"{rng.normal():.4f}",
            "day": dt.date(2023, 1, 1) + dt.timedelta(days=7 * i),
            "city": rng.choice(["Köln", "Bonn"]),
            "y": f"{np.sin(i / 9):.4f}",
        }
        for i in range(n)
    ]


def csv_of(table: list[dict], mark: str = ",") -> str:
    lines = [mark.join(table[0]), *(mark.join(str(cell) for cell in row.values()) for row in table)]
    return "\n".join(lines) + "\n"


def fit(path, tmp_path, *more: object) -> dict:
    out = fine("fit", path, "-t", "y", "-o", tmp_path / "m", "-f", "--json", *QUICK, *more)
    return json.loads(out.stdout) | {"stderr": out.stderr}


def test_an_unreadable_cell_is_a_gap_that_is_named(tmp_path):
    table = rows()
    table[20]["x"] = "about 3"
    path = tmp_path / "t.csv"
    path.write_text(csv_of(table))
    report = fit(path, tmp_path)
    assert report["columns"]["x"] == "number"
    assert report["imputed"] == {"x": 1}
    assert "column 'x': 1 cells are no number and count as gaps: 'about 3' in line 22" in report["stderr"]
    fine("predict", tmp_path / "m", path)
    assert "'about 3' in row 20" in mistaken("fit", path, "-t", "y", "-o", tmp_path / "n", "--strict", *QUICK)


def test_a_target_that_is_no_number_is_named(tmp_path):
    table = rows()
    table[20]["y"] = "lost"
    path = tmp_path / "t.csv"
    path.write_text(csv_of(table))
    assert "the target 'y' holds 'lost' in row 20" in mistaken(
        "fit", path, "-t", "y", "-o", tmp_path / "n", *QUICK
    )


def test_rows_without_a_target_are_told(tmp_path):
    table = rows()
    table[7]["y"] = table[9]["y"] = ""
    path = tmp_path / "t.csv"
    path.write_text(csv_of(table))
    assert "2 of 60 rows have no 'y', the first in line 9: they are left out" in fit(path, tmp_path)["stderr"]
    error = mistaken("fit", path, "-t", "y", "-o", tmp_path / "n", "--strict", *QUICK)
    assert "2 of 60 rows have no 'y'" in error


def test_infinity_is_refused_with_its_place(tmp_path):
    table = rows()
    table[7]["x"] = "inf"
    path = tmp_path / "t.csv"
    path.write_text(csv_of(table))
    assert "column 'x' holds inf in line 9" in mistaken("fit", path, "-t", "y", "-o", tmp_path / "n", *QUICK)


@pytest.mark.parametrize("format_", ["%d/%m/%Y", "%d.%m.%Y", "%m/%d/%Y"])
def test_dates_of_other_countries(tmp_path, format_):
    table = rows()
    path, iso = tmp_path / "t.csv", tmp_path / "iso.csv"
    iso.write_text(csv_of(table))
    path.write_text(csv_of([row | {"day": row["day"].strftime(format_)} for row in table]))
    report = fit(path, tmp_path)
    assert report["columns"]["day"] == "moment"
    printed = fine("predict", tmp_path / "m", path).stdout
    fit(iso, tmp_path)
    assert fine("predict", tmp_path / "m", iso).stdout == printed


def test_dates_that_can_be_read_in_two_ways_ask_for_a_format(tmp_path):
    table = [
        row | {"day": f"{i % 12 + 1:02d}/{(i + i // 12) % 12 + 1:02d}/2023"} for i, row in enumerate(rows())
    ]
    path = tmp_path / "t.csv"
    path.write_text(csv_of(table))
    report = fit(path, tmp_path)
    assert "column 'day' is left out: its dates can be read in two ways" in report["stderr"]
    assert fit(path, tmp_path, "--date-format", "%d/%m/%Y")["columns"]["day"] == "moment"
    assert "--date-format" in mistaken("fit", path, "-t", "y", "-o", tmp_path / "n", "--strict", *QUICK)


def test_decimal_commas_and_money(tmp_path):
    table = [
        row | {"x": row["x"].replace(".", ","), "y": row["y"].replace(".", ","), "price": f"{i + 1}.000,50 €"}
        for i, row in enumerate(rows())
    ]
    path, plain = tmp_path / "t.csv", tmp_path / "plain.csv"
    path.write_text(csv_of(table, ";"))
    price = [f"{1000 * (i + 1)}.5" for i in range(60)]
    plain.write_text(csv_of([row | {"price": p} for row, p in zip(rows(), price, strict=True)]))
    fit(plain, tmp_path)
    expected = fine("predict", tmp_path / "m", plain).stdout
    for options in ((), ("--decimal", ",")):
        report = fit(path, tmp_path, *options)
        assert report["columns"]["x"] == report["columns"]["price"] == "number"
        assert report["task"] == "regression"
        assert fine("predict", tmp_path / "m", path).stdout == expected
        assert json.loads(fine("evaluate", tmp_path / "m", path, "--json").stdout)["rows"] == 60
    assert "decimal must be" in mistaken(
        "fit", path, "-t", "y", "-o", tmp_path / "n", "--decimal", ":", *QUICK
    )


def test_other_encodings_are_read_or_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(csv_of(rows()).encode("latin-1"))
    error = mistaken("fit", path, "-t", "y", "-o", tmp_path / "n", *QUICK)
    assert "column 'city' holds b'K\\xf6ln' in line" in error
    assert "--encoding latin-1 would read 'Köln'" in error
    fit(path, tmp_path, "--encoding", "latin-1")
    printed = fine("predict", tmp_path / "m", path).stdout  # with the encoding of the fit
    other = tmp_path / "utf8.csv"
    other.write_text(csv_of(rows()), encoding="utf-8")
    assert fine("predict", tmp_path / "m", other, "--encoding", "utf-8").stdout == printed
    assert "encoding must be" in mistaken(
        "fit", path, "-t", "y", "-o", tmp_path / "n", "--encoding", "klingon", *QUICK
    )


def test_a_dash_is_standard_input(tmp_path):
    content = csv_of(rows()).encode()
    fine("fit", "-", "-t", "y", "-o", tmp_path / "m", "-q", *QUICK, input=content)
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    expected = fine("predict", tmp_path / "m", path).stdout
    assert fine("predict", tmp_path / "m", "-", input=content).stdout == expected
    write_table(read_table(path), tmp_path / "t.parquet")
    binary = (tmp_path / "t.parquet").read_bytes()
    assert fine("predict", tmp_path / "m", "-", input=binary).stdout == expected
    assert "RMSE" in fine("evaluate", tmp_path / "m", "-", input=content).stdout
    assert "is empty" in mistaken("predict", tmp_path / "m", "-", input=b"")


def test_a_table_on_its_side_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "t.csv"
    head = ",".join(f"c{i}" for i in range(200_000))
    path.write_text(f"{head}\n{head.replace('c', '')}\n")
    error = mistaken("fit", path, "-t", "c0", "-o", tmp_path / "n", *QUICK)
    assert "200,000 columns, and a model takes at most 50,000" in error


def test_new_levels_and_gaps_widen_the_intervals_of_predict(tmp_path):
    rng = np.random.default_rng(0)
    city = rng.choice(["a", "b", "c"], 90)
    x = rng.normal(size=90)
    y = np.sin(x) + 2.0 * (city == "b") - (city == "c")
    table = pa.table({"x": x, "city": city, "y": y})
    write_table(table, tmp_path / "t.csv")
    fine("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", "-q", *QUICK)
    for name, values in (("city", pa.array(["new"] * 90)), ("x", pa.nulls(90, pa.float64()))):
        at = table.column_names.index(name)
        write_table(table.set_column(at, name, values), tmp_path / "new.csv")
        known, new = (
            fine("predict", tmp_path / "m", tmp_path / file, "-o", tmp_path / "p.csv", "--interval", "0.9")
            and read_table(tmp_path / "p.csv")
            for file in ("t.csv", "new.csv")
        )
        assert np.mean(new.column("std")) > np.mean(known.column("std"))
        width = [np.mean(np.subtract(t.column("upper"), t.column("lower"))) for t in (known, new)]
        assert width[1] > width[0]
        said = fine("predict", tmp_path / "m", tmp_path / "new.csv").stderr
        assert "with wider intervals" in said and f"{name!r}" in said


def test_a_model_of_the_command_line_is_an_estimator_of_frames(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(csv_of([{"": i, "id": f"n{i}"} | row for i, row in enumerate(rows())]))
    report = fit(path, tmp_path)
    assert report["dropped"][""] == "it has no name" and "names or prose" in report["dropped"]["id"]
    assert "column 'id' is left out" in report["stderr"]
    model = load(tmp_path / "m")
    assert model.feature_names_in_.tolist() == ["id", "x", "day", "city"]
    assert model.predict(read_table(path).drop(["id"])).shape == (60,)  # it is of no use
    with pytest.raises(ValueError, match="feature names"):
        model.predict(read_table(path).drop(["city"]))
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert model.predict(read_table(path)).shape == (60,)  # the target is among its columns
