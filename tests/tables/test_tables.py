"""Tables as numbers: what each column becomes, what is refused and why, the same encoding ever after."""

from __future__ import annotations

import datetime as dt
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from duogp.tables import Boolean, Category, Moment, Number, Schema, as_arrow  # noqa: E402
from duogp.tables.slices import slice_of, typical_row  # noqa: E402


def learn(columns: dict, target: str | None = None, **options) -> Schema:
    return Schema.learn(pa.table(columns), target, **options)


def only(columns: dict, **options):
    (column,) = learn(columns, **options).columns
    return column


def round_trip(schema: Schema) -> Schema:
    return Schema.from_dict(json.loads(json.dumps(schema.to_dict(), allow_nan=False)))


# -- what columns become -----------------------------------------------------------------------------------


def test_numbers_stay_numbers():
    schema = learn({"x": [1, 2, 3], "z": [0.5, -1.0, 2.0]})
    matrix, names = schema.encode(pa.table({"z": [7.0], "x": [4], "extra": ["ignored"]}))
    assert names == ["x", "z"]
    np.testing.assert_array_equal(matrix, [[4.0, 7.0]])
    assert matrix.dtype == np.float64


@pytest.mark.parametrize(
    "type_", [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(10, 2), pa.int64()]
)
def test_every_type_of_number(type_):
    values = pa.array([1, 2, 5], pa.int64()).cast(pa.float64()).cast(type_)
    np.testing.assert_array_equal(
        learn({"x": values}).encode(pa.table({"x": values})).matrix, [[1], [2], [5]]
    )


def test_gaps_become_the_median_with_an_indicator():
    table = {"x": [1.0, None, 10.0, 4.0, float("nan")]}
    assert only(table) == Number("x", 4.0, True, True)
    matrix, names = learn(table).encode(pa.table(table))
    assert names == ["x", "x (missing)"]
    np.testing.assert_array_equal(matrix, [[1, 0], [4, 1], [10, 0], [4, 0], [4, 1]])


def test_infinity_is_neither_a_number_nor_a_gap():
    with pytest.raises(ValueError, match=r"column 'x' holds -inf in row 1 \(1 such values\)"):
        learn({"x": [1.0, float("-inf"), 2.0]})
    with pytest.raises(ValueError, match="column 'x' holds inf in row 0"):
        learn({"x": [1.0, 2.0]}).encode(pa.table({"x": [float("inf")]}))
    with pytest.raises(ValueError, match="column 'y' holds inf in row 1"):
        learn({"x": [1, 2], "y": [1.0, float("inf")]}, "y").targets(pa.table({"y": [1.0, float("inf")]}))


def test_gaps_that_training_had_not_are_filled_without_an_indicator():
    schema = learn({"x": [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(schema.encode(pa.table({"x": [None, 9.0]})).matrix, [[2.0], [9.0]])
    np.testing.assert_array_equal(schema.encode(pa.table({"x": pa.nulls(2)})).matrix, [[2.0], [2.0]])


def test_a_constant_with_gaps_is_its_indicator():
    column = only({"x": [5, None, 5]})
    assert (column.value, column.indicator, column.features) == (False, True, ["x (missing)"])


def test_booleans():
    column = only({"b": [True, False, True]})
    assert isinstance(column, Boolean)
    schema = learn({"b": [True, False, None]})
    np.testing.assert_array_equal(
        schema.encode(pa.table({"b": [1, 0, None]})).matrix, [[1, 0], [0, 0], [0, 1]]
    )
    with pytest.raises(TypeError, match="held true and false when the model was fitted"):
        schema.encode(pa.table({"b": [2, 1]}))


def test_categories_are_indicators_and_a_gap_is_a_level():
    table = {"c": ["b", "a", "b", None, "a"]}
    assert only(table) == Category("c", ("a", "b"), indicator=True)
    matrix, names = learn(table).encode(pa.table(table))
    assert names == ["c=a", "c=b", "c (missing)"]
    np.testing.assert_array_equal(matrix, [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])


def test_unseen_levels_are_all_zero_without_rare_ones():
    schema = learn({"c": ["a", "b", "a", "b", None]})
    np.testing.assert_array_equal(
        schema.encode(pa.table({"c": ["new", None]})).matrix, [[0, 0, 0], [0, 0, 1]]
    )


def test_rare_and_unseen_levels_share_an_indicator():
    schema = learn({"c": ["a"] * 5 + ["b"] * 4 + ["once", "single"]})
    assert schema.names == ["c=a", "c=b", "c (other)"]
    matrix = schema.encode(pa.table({"c": ["once", "new", "a", None]})).matrix
    np.testing.assert_array_equal(matrix, [[0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 1]])


def test_only_the_most_frequent_levels_have_their_own():
    names = [f"town {i}" for i in range(30)]
    values = [name for i, name in enumerate(names) for _ in range(40 - i)]
    column = only({"c": values}, max_levels=5)
    assert column.levels == tuple(names[:5])
    assert column.other


@pytest.mark.parametrize("values", [[3, 5, 3, 5, 5], [3.0, 5.0, 3.0, 5.0, None]])
def test_numbers_can_be_names(values):
    column = only({"code": values}, category=["code"])
    assert column.levels == ("3", "5")
    schema = learn({"code": values}, category=["code"])
    for same in ([3.0], [3], ["3"]):
        assert schema.encode(pa.table({"code": same})).matrix[0, 0] == 1


def test_dictionaries_are_categories():
    values = pa.array(["x", "y", "x"]).dictionary_encode()
    assert only({"c": values}).levels == ("x",)  # one row of y is rare
    np.testing.assert_array_equal(
        learn({"c": values}).encode(pa.table({"c": values})).matrix[:, 0], [1, 0, 1]
    )


def test_dates_are_days_and_the_cycles_they_go_through():
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=3 * i) for i in range(200)]
    column = only({"d": days})
    assert isinstance(column, Moment)
    assert column.cycles == ("day of week", "time of year")
    matrix, names = learn({"d": days}).encode(pa.table({"d": [dt.date(2021, 1, 1)]}))
    assert names[0] == "d" and len(names) == 5
    friday = 2 * np.pi * 4 / 7
    np.testing.assert_allclose(matrix, [[18628, np.sin(friday), np.cos(friday), 0, 1]], atol=1e-12)


def test_timestamps_have_a_time_of_day_and_a_span_below_a_week_has_no_weekday():
    moments = [dt.datetime(2020, 1, 1) + dt.timedelta(hours=5 * i) for i in range(20)]
    assert only({"t": moments}).cycles == ("time of day",)


def test_a_gap_in_a_date_is_the_centre_of_its_circles():
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(20)] + [None]
    matrix = learn({"d": days}).encode(pa.table({"d": pa.array([None], pa.date32())})).matrix
    np.testing.assert_array_equal(matrix[0, 1:], [0, 0, 1])


def test_times_of_day():
    column = only({"t": [dt.time(6), dt.time(12), dt.time(18)]})
    assert column.features == ["t (time of day, sine)", "t (time of day, cosine)"]
    np.testing.assert_allclose(column.encode(pa.chunked_array([[dt.time(6)]])), [[1, 0]], atol=1e-12)


def test_durations_are_seconds():
    values = [dt.timedelta(minutes=1), dt.timedelta(minutes=2)]
    np.testing.assert_array_equal(learn({"d": values}).encode(pa.table({"d": values})).matrix, [[60], [120]])


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f"])
def test_dates_written_as_text_are_dates(form):
    moments = [dt.datetime(2020, 1, 1) + dt.timedelta(days=i) for i in range(10)]
    text = [m.strftime(form) for m in moments]
    assert isinstance(only({"d": text}), Moment)
    schema = learn({"d": text})
    np.testing.assert_array_equal(
        schema.encode(pa.table({"d": moments})).matrix, schema.encode(pa.table({"d": text})).matrix
    )


def test_zones_are_read_on_their_own_clock():
    utc = pa.array([dt.datetime(2020, 7, 1, h) for h in range(24)] * 2, pa.timestamp("us", "UTC"))
    paris = utc.cast(pa.timestamp("us", "Europe/Paris"))
    schema = learn({"t": paris})
    np.testing.assert_array_equal(
        schema.encode(pa.table({"t": utc})).matrix, schema.encode(pa.table({"t": paris})).matrix
    )
    with pytest.raises(TypeError, match="had a time zone when the model was fitted, now it has none"):
        schema.encode(pa.table({"t": [dt.datetime(2020, 1, 1)]}))


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([f"name {i}" for i in range(50)], "names or prose"),
        ([f"{i + 1},500" for i in range(50)], r"'1,500' as 1500 or 1.5\): say decimal="),
        ([f"{i % 12 + 1:02d}/{i % 11 + 1:02d}/2024" for i in range(50)], "say date_format='%d/%m/%Y' or"),
        ([[1], [2]] * 25, "type list"),
        ([b"\xff", b"a"] * 25, "not UTF-8"),
        ([3] * 50, "it is 3 in every row"),
        (["x"] * 50, "it is 'x' in every row"),
        ([None] * 50, "no values"),
        ([float("nan")] * 50, "no finite values"),
        ([{"a": 1}] * 50, "type struct"),
    ],
)
def test_columns_that_cannot_be_used_are_left_out_with_the_reason(values, reason):
    schema = learn({"good": list(range(50)), "bad": values})
    assert re.search(reason, schema.dropped["bad"])
    assert schema.names == ["good"]


def test_nothing_left_is_an_error_that_says_why():
    with pytest.raises(ValueError, match=r"no column to predict from.*'x': it is 1 in every row"):
        learn({"x": [1, 1, 1]})
    with pytest.raises(ValueError, match="no column to predict from"):
        learn({"y": [1.0, 2.0]}, "y")


def test_missing_refused_names_columns_and_counts():
    table = {"a": [1, None, None], "b": [1.0, 2.0, 3.0], "c": ["u", "u", None]}
    with pytest.raises(ValueError, match=r"missing in 'a' \(2\), 'c' \(1\) of 3 rows"):
        learn(table, missing="refuse")
    schema = learn({"b": [1.0, 2.0, 3.0]}, missing="refuse")
    with pytest.raises(ValueError, match=r"missing in 'b' \(1\)"):
        schema.encode(pa.table({"b": [None, 1.0]}))
    with pytest.raises(ValueError, match="missing must be"):
        learn(table, missing="whatever")


def test_lacking_columns_are_named_with_the_nearest():
    schema = learn({"age": [1, 2, 3], "Height": [1, 2, 4]})
    with pytest.raises(ValueError, match=r"lacks the 2 columns 'age', 'Height' .*did you mean 'Age'"):
        schema.encode(pa.table({"Age": [1]}))
    with pytest.raises(ValueError, match=r"lacks the column 'y' \(target\); it has 'age'"):
        learn({"age": [1, 2]}, "y")


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ([1.0, 2.0], ["x", "y"], "held numbers when the model was fitted, now it holds text"),
        ([1.0, 2.0], [dt.date(2020, 1, 1)] * 2, "now it holds dates"),
        (["a", "a", "b", "b"], [1.0, 2.0], "held text when the model was fitted, now it holds numbers"),
        ([dt.date(2020, 1, 1), dt.date(2020, 1, 5)], [1, 2], "held dates .* now it holds numbers"),
        ([dt.date(2020, 1, 1), dt.date(2020, 1, 5)], ["soon", "late"], "now it holds text"),
        ([1, 2], [[1], [2]], "list"),
    ],
)
def test_changed_types_are_told_apart(was, now, message):
    with pytest.raises(TypeError, match=message):
        learn({"x": was}).encode(pa.table({"x": now}))


def test_repeated_names_are_an_error():
    table = pa.Table.from_arrays([pa.array([1, 2])] * 3, ["a", "b", "a"])
    with pytest.raises(ValueError, match="same name: 'a'"):
        Schema.learn(table)
    schema = learn({"a": [1, 2]})
    with pytest.raises(ValueError, match="same name: 'a'"):
        schema.encode(table)


def test_odd_names_are_names():
    names = ["größe", "a b", "a=x", "日本", "🙂", "a", "x'y\"z", "$m$"]
    table = pa.table({name: [i, i + 1.5] for i, name in enumerate(names)} | {"": [1, 2], "  ": [1, 2]})
    schema = Schema.learn(table)
    assert schema.names == names
    assert schema.dropped == {"": "it has no name", "  ": "it has no name"}
    assert round_trip(schema) == schema


def test_encoded_names_are_different():
    schema = learn({"a": ["x", "x", "y", "y"], "a=x": [1, 2, 3, 4]})
    assert schema.names == ["a=x", "a=y", "a=x (2)"]
    assert schema.sources == ["a", "a", "a=x"]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_needs_two_rows(rows):
    with pytest.raises(ValueError, match="at least 2"):
        learn({"x": pa.array([1.0] * rows, pa.float64())})


# -- targets and weights -----------------------------------------------------------------------------------


def test_what_the_target_is():
    x = [1, 2, 3, 4]
    assert learn({"x": x, "y": [1, 2, 1, 2]}, "y").target.labels is None
    assert learn({"x": x, "y": [1, 2, 1, 2]}, "y", classify=True).target.labels == "integer"
    assert learn({"x": x, "y": ["a", "b", "a", "b"]}, "y").target.labels == "text"
    assert learn({"x": x, "y": [True, False] * 2}, "y").target.labels == "boolean"


@pytest.mark.parametrize(
    ("y", "classify", "message"),
    [
        ([dt.date(2020, 1, 1)] * 4, False, "holds dates"),
        (["a"] * 4, False, "same in every row"),
        ([None] * 4, False, "no values"),
        ([1.5, 2.0, 1.0, 1.0], True, "not whole"),
    ],
)
def test_targets_that_cannot_be_predicted(y, classify, message):
    with pytest.raises(ValueError, match=message):
        learn({"x": [1, 2, 3, 4], "y": y}, "y", classify=classify)


def test_too_many_labels():
    labels = [f"l{i}" for i in range(300)]
    with pytest.raises(ValueError, match="300 different labels"):
        learn({"x": list(range(300)), "y": labels}, "y")


def test_rows_without_a_target_are_told():
    schema = learn({"x": [1, 2, 3], "y": [1.0, None, 2.0]}, "y")
    values, there = schema.targets(pa.table({"y": [1.0, None]}))
    assert there.tolist() == [True, False]
    assert values[0] == 1.0
    with pytest.raises(ValueError, match="1 of 3 rows have no target"):
        learn({"x": [1, 2, 3], "y": [1.0, None, 2.0]}, "y", missing="refuse").targets(
            pa.table({"y": [1.0, None, 2.0]})
        )


def test_weights():
    schema = learn({"x": [1, 2, 3], "w": [1.0, 0.0, 2.0]}, weights="w")
    assert schema.names == ["x"]
    np.testing.assert_array_equal(schema.row_weights(pa.table({"w": [1, 2]})), [1, 2])
    with pytest.raises(ValueError, match="1 of 2 are not, the first in row 1"):
        schema.row_weights(pa.table({"w": [1.0, None]}))
    with pytest.raises(TypeError, match="must be numbers"):
        schema.row_weights(pa.table({"w": ["a"]}))
    with pytest.raises(ValueError, match="cannot also be"):
        learn({"x": [1, 2], "y": [1, 2]}, "y", drop=["y"])


# -- plain data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "not the description"),
        ({"format": "duogp table", "version": 99}, "update duogp"),
        ({"format": "duogp table", "version": 1}, "damaged"),
    ],
)
def test_foreign_descriptions(state, message):
    with pytest.raises(ValueError, match=message):
        Schema.from_dict(state)


def test_damaged_columns():
    state = learn({"x": [1, 2]}).to_dict()
    for broken in ({"kind": "quantum", "name": "x"}, {"kind": "number", "nme": "x"}):
        with pytest.raises(ValueError, match=r"quantum|damaged"):
            Schema.from_dict(state | {"columns": [broken]})


optional = lambda values: st.one_of(st.none(), values)  # noqa: E731
VALUES = {
    "number": optional(st.floats(allow_nan=True, allow_infinity=True, width=64)),
    "integer": optional(st.integers(-(2**63), 2**63 - 1)),
    "boolean": optional(st.booleans()),
    "text": optional(st.text(st.characters(codec="utf-8"), max_size=6)),
    "level": optional(st.sampled_from(["a", "b", "Ω", "", "other", "(missing)"])),
    "date": optional(st.dates()),
    "moment": optional(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),
    "clock": optional(st.times()),
}
TYPES = {
    "number": pa.float64(),
    "integer": pa.int64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "level": pa.string(),
    "date": pa.date32(),
    "moment": pa.timestamp("us"),
    "clock": pa.time64("us"),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(2, 12))
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    names = st.text(st.characters(codec="utf-8"), max_size=5)
    labels = draw(st.lists(names, min_size=len(kinds), max_size=len(kinds), unique=True))
    columns = {
        label: pa.array(draw(st.lists(VALUES[kind], min_size=rows, max_size=rows)), TYPES[kind])
        for label, kind in zip(labels, kinds, strict=True)
    }
    return pa.table(columns)


@settings(max_examples=120, deadline=None)
@given(tables())
def test_any_table_encodes_to_finite_numbers_and_the_same_after_a_round_trip(table):
    try:
        schema = Schema.learn(table)
    except ValueError as error:
        assert "no column to predict from" in str(error) or "infinity is no" in str(error)  # noqa: PT017
        return
    again = round_trip(schema)
    assert again == schema
    matrix, names = schema.encode(table)
    assert matrix.shape == (table.num_rows, len(names)) == (table.num_rows, len(schema.sources))
    assert len(set(names)) == len(names)
    assert np.isfinite(matrix).all()
    np.testing.assert_array_equal(matrix, again.encode(table).matrix)
    shuffled = table.select(table.column_names[::-1])
    np.testing.assert_array_equal(matrix, schema.encode(shuffled).matrix)
    np.testing.assert_array_equal(matrix[1:], schema.encode(table.slice(1)).matrix)
    assert typical_row(schema, table).shape == (len(names),)


# -- frames ------------------------------------------------------------------------------------------------


def test_pandas_and_polars_are_the_same_table():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pd.DataFrame(
        {
            "x": [1.0, np.nan, 3.0, 4.0],
            "c": ["a", "b", "a", "b"],
            "n": pd.array([1, None, 3, 4], dtype="Int64"),
            "k": pd.Categorical(["u", "u", "v", "v"]),
            "t": pd.date_range("2020", periods=4),
        }
    )
    schema = Schema.learn(frame)
    assert schema.names[:2] == ["x", "x (missing)"]
    expected = schema.encode(frame).matrix
    for same in (pl.from_pandas(frame), pl.from_pandas(frame).lazy(), as_arrow(frame)):
        np.testing.assert_array_equal(schema.encode(same).matrix, expected)
    np.testing.assert_array_equal(schema.encode(as_arrow(frame).to_batches()[0]).matrix, expected)


def test_pandas_with_mixed_or_repeated_columns():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="column 'm' cannot be read as one type"):
        Schema.learn(pd.DataFrame({"m": pd.Series([1, "a", 2.5], dtype=object)}))
    with pytest.raises(ValueError, match="same name"):
        Schema.learn(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))
    assert Schema.learn(pd.DataFrame([[1, 2], [3, 4]])).names == ["0", "1"]


def test_what_is_no_table():
    with pytest.raises(TypeError, match="expected a table"):
        as_arrow([[1, 2]])
    with pytest.raises(ValueError, match="one length"):
        as_arrow({"a": [1], "b": [1, 2]})


# -- slices ------------------------------------------------------------------------------------------------


def test_slices_vary_one_column_and_keep_the_rest_at_its_middle():
    table = pa.table(
        {
            "x": [1.0, 2.0, 3.0, 4.0, 100.0],
            "c": ["a", "a", "a", "b", "b"],
            "b": [True, True, False, True, None],
            "d": [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(5)],
        }
    )
    schema = Schema.learn(table)
    x = slice_of(schema, table, "x", points=5)
    assert x.matrix.shape == (5, len(schema.names))
    assert x.along[0] < x.along[-1]
    np.testing.assert_array_equal(x.matrix[:, schema.names.index("c=a")], 1)
    np.testing.assert_array_equal(x.matrix[:, schema.names.index("b")], 1)
    c = slice_of(schema, table, "c")
    assert c.along.tolist() == ["a", "b"]
    np.testing.assert_array_equal(c.matrix[:, schema.names.index("x")], 3.0)
    assert slice_of(schema, table, "b").along.tolist() == ["false", "true"]
    assert slice_of(schema, table, "d").along.dtype.kind == "M"
    with pytest.raises(ValueError, match="lacks the column 'z'"):
        slice_of(schema, table, "z")
