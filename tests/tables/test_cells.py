"""Values that no training row had, and numbers and dates that are written as text."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from duogp.tables import Moment, Schema  # noqa: E402


def learn(columns: dict, **options) -> Schema:
    return Schema.learn(pa.table(columns), **options)


def round_trip(schema: Schema) -> Schema:
    return Schema.from_dict(json.loads(json.dumps(schema.to_dict(), allow_nan=False)))


# -- values that no training row had -------------------------------------------------------------------------


def test_new_levels_and_new_gaps_are_completed_by_those_of_the_training_rows():
    table = pa.table({"c": ["a", "b", "c"] * 8, "x": np.arange(24.0), "g": [None, 1.0] * 12})
    schema = round_trip(Schema.learn(table))
    assert schema.completions(table) is None
    new = pa.table({"c": ["a", "new", None], "x": [1.0, 2.0, None], "g": [None, None, 1.0]})
    rows, matrices, inflation = schema.completions(new)
    assert rows.tolist() == [1, 2]
    assert inflation.tolist() == [2.0, 2.0]  # (K + 1)/(K − 1)
    np.testing.assert_allclose(matrices[:, 0, :3].mean(0), 1 / 3)
    np.testing.assert_array_equal(matrices[:, :, :3].sum(-1), 1)
    assert (matrices[:, 0, 3] == 2).all()
    assert matrices[:, 1, 3].mean() == pytest.approx(11.5, abs=0.5)
    assert matrices[:, 1, 3].std() == pytest.approx(np.arange(24).std(), rel=0.1)
    np.testing.assert_array_equal(schema.completions(new).matrices, matrices)
    assert schema.unseen(new) == {"c": 1}


def test_many_levels_have_their_frequency_and_mean_target():
    levels = [f"l{i:02d}" for i in range(40) for _ in range(i + 1)]
    y = np.array([float(level[1:]) for level in levels])
    table = pa.table({"c": levels})
    schema = round_trip(Schema.learn(table, y=y))
    column = schema.columns[0]
    assert len(column.levels) == 20 and len(column.rare) == 20 and column.other
    assert schema.names[-2:] == ["c (log frequency)", "c (mean target)"]
    matrix = schema.encode(pa.table({"c": ["l39", "l05", "l05", "never"]})).matrix
    np.testing.assert_allclose(matrix[:3, -2], np.log1p([40, 6, 6]))
    z = (y - y.mean()) / y.std()
    assert matrix[0, -1] == pytest.approx(z[-40:].sum() / 50)
    assert matrix[1, -1] == pytest.approx(z[15:21].sum() / 16)
    training = schema.encode_training(table, y).matrix
    np.testing.assert_array_equal(training[:, :-1], schema.encode(table).matrix[:, :-1])
    alone = levels.index("l00")
    assert training[alone, -1] == 0  # its only row does not know its own target
    assert schema.completions(pa.table({"c": ["never", "l00"]})).rows.tolist() == [0]
    assert "c (mean target)" not in Schema.learn(table).names


def test_a_model_of_the_first_version_is_still_read():
    state = learn({"x": [1.0, 2.0], "c": ["a", "a"]}).to_dict()
    old = {"kind": "number", "name": "x", "fill": 1.0, "value": True, "indicator": False}
    schema = Schema.from_dict({**state, "version": 1, "columns": [old]})
    assert schema.completions(pa.table({"x": [None]})) is None


# -- numbers and dates that are written as text --------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "decimal", "values"),
    [
        (lambda i: f"{i},5", None, np.arange(60) + 0.5),
        (lambda i: f"${1000 * (i + 1):,}.25", None, 1000 * np.arange(1, 61) + 0.25),
        (lambda i: f"1.{i:03d},5 €", None, 1000 + np.arange(60) + 0.5),
        (lambda i: f"{i} %", None, np.arange(60)),
        (lambda i: f"{i}.5 kg", None, np.arange(60) + 0.5),
        (lambda i: f"-1'{i:03d}", None, -1000.0 - np.arange(60)),
        (lambda i: f"(1,{i:03d}.5)", None, -1000.5 - np.arange(60)),
        (lambda i: f"0,{i:03d}", None, np.arange(60) / 1000),
        (lambda i: f"1,{i:03d}", ".", 1000 + np.arange(60)),
        (lambda i: f"1,{i:03d}", ",", 1 + np.arange(60) / 1000),
    ],
)
def test_numbers_with_marks_and_units(write, decimal, values):
    table = {"x": [write(i) for i in range(60)]}
    schema = round_trip(learn(table, decimal=decimal))
    np.testing.assert_allclose(schema.encode(pa.table(table)).matrix[:, 0], values)
    assert schema.csv_types()["x"] == pa.string()


@pytest.mark.parametrize(
    "texts", [[f"{i:05d}" for i in range(60)], [f"{i} kg" for i in range(30)] + ["1 g"] * 30]
)
def test_codes_and_mixed_units_are_no_numbers(texts):
    schema = learn({"x": texts, "z": list(range(60))})
    assert "x" not in schema.names


def test_unreadable_cells_are_gaps_that_are_named():
    cells = [str(i) for i in range(60)]
    cells[7], cells[9] = "twelve", None
    schema = learn({"x": cells})
    assert schema.notes["x"] == "1 of 60 cells are no number, and are gaps now: 'twelve' in row 7"
    np.testing.assert_array_equal(np.flatnonzero(schema.encode(pa.table({"x": cells})).matrix[:, 1]), [7, 9])
    with pytest.raises(ValueError, match=r"strict forbids \('x': 1 of 60 cells .* 'twelve' in row 7"):
        learn({"x": cells}, strict=True)
    with pytest.raises(ValueError, match=r"strict forbids .*'n': its 60 different texts"):
        learn({"x": list(range(60)), "n": [f"n{i}" for i in range(60)]}, strict=True)
    learn({"x": list(range(60)), "n": [f"n{i}" for i in range(60)]}, strict=True, drop=["n"])


@pytest.mark.parametrize(
    ("format_", "given"),
    [
        ("%d/%m/%Y", None),
        ("%m/%d/%Y", None),
        ("%d.%m.%Y", None),
        ("%Y/%m/%d", None),
        ("%d.%m.%Y %H:%M", None),
        ("%d/%m/%Y %H:%M:%S", None),
        ("%d.%m.%y", None),
        ("%m/%d/%y", None),
        ("%d %b %Y", None),
        ("%b %d, %Y", None),
        ("%m/%d/%Y %I:%M %p", None),
        ("%Y%m%d", "%Y%m%d"),
    ],
)
def test_dates_of_other_countries(format_, given):
    days = [dt.datetime(2020, 1, 1, 6) + dt.timedelta(days=i) for i in range(90)]
    text = {"t": [day.strftime(format_) for day in days]}
    schema = round_trip(learn(text, date_format=given))
    column = schema.columns[0]
    assert isinstance(column, Moment) and column.format == format_
    dates = pa.table({"t": [dt.datetime.strptime(cell, format_) for cell in text["t"]]})
    expected = Schema.learn(dates).encode(dates).matrix
    np.testing.assert_allclose(schema.encode(pa.table(text)).matrix, expected, atol=1e-9)
    text["t"][3] = "unknown"
    again = learn(text, date_format=given)
    assert again.notes["t"] == "1 of 90 cells are no date, and are gaps now: 'unknown' in row 3"


def test_a_million_columns_are_refused():
    table = pa.Table.from_arrays([pa.array([1, 2])] * 60_000, [f"c{i}" for i in range(60_000)])
    with pytest.raises(ValueError, match="60,000 columns, and a model takes at most 50,000"):
        Schema.learn(table)


def test_a_format_makes_dates_of_numbers():
    numbers = [20240101 + i for i in range(28)] + [20240201 + i for i in range(28)]
    table = pa.table({"day": numbers, "x": list(range(56))})
    schema = round_trip(Schema.learn(table, date_format="%Y%m%d"))
    assert [column.kind for column in schema.columns] == ["moment", "number"]
    encoded = schema.encode(table).matrix[:, 0]
    assert encoded[28] - encoded[0] == 31
    as_text = table.set_column(0, "day", pa.array(map(str, numbers)))
    np.testing.assert_array_equal(schema.encode(as_text).matrix[:, 0], encoded)
    assert [column.kind for column in Schema.learn(table).columns] == ["number", "number"]


def test_levels_of_many_keep_a_mean_of_every_outcome():
    """Of three classes their frequencies in each level; a row's own target has no part in its own."""
    rng = np.random.default_rng(0)
    place = np.array([f"p{i}" for i in rng.integers(0, 40, 800)])
    share = {name: rng.dirichlet(np.ones(3)) for name in np.unique(place)}
    codes = np.array([rng.choice(3, p=share[name]) for name in place])
    table, y = pa.table({"c": place}), np.eye(3)[codes]
    schema = Schema.learn(table, y=y)
    assert schema.names[-3:] == ["c (mean target 0)", "c (mean target 1)", "c (mean target 2)"]
    whole, own = schema.encode(table).matrix[:, -3:], schema.encode_training(table, y).matrix[:, -3:]
    at = place == place[0]
    expected = (y[at] - y.mean(0)).sum(0) / y.std(0) / (at.sum() + 10)
    np.testing.assert_allclose(whole[0], expected)
    assert np.abs(whole - own).max() > 0.01
    for k in range(3):
        true = np.array([share[name][k] for name in place])
        assert np.corrcoef(own[:, k], true)[0, 1] > 0.6
    again = Schema.from_dict(schema.to_dict())
    np.testing.assert_array_equal(again.encode(table).matrix, schema.encode(table).matrix)
    damaged = schema.to_dict()
    damaged["columns"][0]["outcomes"] = 2
    with pytest.raises(ValueError, match="means for"):
        Schema.from_dict(damaged)
