"""Files in and out: every format, in pieces as in one, and clear words for what cannot be read."""

from __future__ import annotations

import datetime as dt
import gzip
import sys

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from duogp.tables import (  # noqa: E402
    Schema,
    column_names_of,
    format_of,
    read_chunks,
    read_table,
    table_writer,
    write_table,
)
from duogp.tables.files import column_types_of  # noqa: E402

ENDINGS = ["csv", "csv.gz", "tsv", "tsv.gz", "parquet", "pq", "arrow", "feather", "ipc", "CSV"]


@pytest.fixture(scope="module")
def table():
    n = 300
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "x": pa.array(rng.normal(size=n), mask=rng.random(n) < 0.1),
            "größe, cm": rng.normal(size=n),
            "c": pa.array(rng.choice(["a", "b,b", 'q"', "007"], n), mask=rng.random(n) < 0.1),
            "b": rng.random(n) < 0.5,
            "d": [dt.date(2020, 1, 1) + dt.timedelta(days=3 * i) for i in range(n)],
            "t": pa.array([dt.datetime(2020, 1, 1) + dt.timedelta(hours=7 * i) for i in range(n)]),
            "id": [f"{i:05d}" for i in range(n)],
            "y": rng.normal(size=n),
        }
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_any_format_gives_the_same_numbers_whole_and_in_pieces(tmp_path, table, ending):
    path = tmp_path / f"data.{ending}"
    write_table(table, path)
    expected = Schema.learn(table, "y")
    read = read_table(path, text=["id"])
    schema = Schema.learn(read, "y")
    assert schema.names == expected.names
    matrix = schema.encode(read).matrix
    np.testing.assert_allclose(matrix, expected.encode(table).matrix, rtol=1e-15)
    pieces = list(read_chunks(path, schema.csv_types(target=True), keep=["id"], rows=64))
    assert max(piece.num_rows for piece in pieces) <= 64
    np.testing.assert_array_equal(np.concatenate([schema.encode(p).matrix for p in pieces]), matrix)
    assert [v for p in pieces for v in p.column("id").to_pylist()] == table.column("id").to_pylist()
    assert column_names_of(path) == table.column_names
    assert list(tmp_path.iterdir()) == [path]  # nothing half-written is left


def test_arrow_streams_are_read_too(tmp_path, table):
    path = tmp_path / "data.arrow"
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    assert read_table(path).equals(table)
    assert sum(p.num_rows for p in read_chunks(path, {"x": None}, rows=30)) == 300


def test_gzip_is_gzip(tmp_path, table):
    write_table(table, tmp_path / "data.csv.gz")
    head = gzip.decompress((tmp_path / "data.csv.gz").read_bytes()).decode().splitlines()[0]
    assert head == 'x,"größe, cm",c,b,d,t,id,y'


def test_a_writer_takes_several_tables(tmp_path, table):
    for ending in ("csv", "parquet", "arrow"):
        path = tmp_path / f"out.{ending}"
        with table_writer(path) as write:
            write(table.slice(0, 100))
            write(table.slice(100))
        assert read_table(path, text=["id"]).num_rows == 300


def test_a_file_appears_only_when_complete(tmp_path, table):
    path = tmp_path / "out.csv"
    with pytest.raises(pa.ArrowException), table_writer(path) as write:
        write(pa.table({"x": [[1, 2]]}))  # CSV has no lists
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no rows"), table_writer(path):
        pass


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_with_other_separators(tmp_path, separator):
    path = tmp_path / "data.csv"
    path.write_text(separator.join(["a", "b"]) + "\n" + separator.join(["1", "x"]) + "\n", encoding="utf-8")
    assert read_table(path).to_pydict() == {"a": [1], "b": ["x"]}


def test_marks_of_missing_values_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\n1,x\n?,\nNA,y\n.,None\n")
    assert read_table(path).to_pydict() == {"a": [1, None, None, None], "b": ["x", None, "y", None]}


def test_types_of_columns_need_the_whole_csv(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("i,f,s\n1,1,1\n2,2.5,x\n")
    assert [str(t) for t in column_types_of(path, ["i", "f", "s", "none"]).values()] == [
        "int64",
        "double",
        "string",
    ]


@pytest.mark.parametrize("name", ["data", "data.txt", "data.xlsx", "data.parquet.gz", "data.gz"])
def test_endings_that_say_nothing(name):
    with pytest.raises(ValueError, match=r"\.parquet, \.arrow or \.feather"):
        format_of(name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"a,b\n1\n", "Expected 2 columns, got 1"),
        ("a.csv", "é,b\n1,2\n".encode("latin-1"), "not UTF-8"),
        ("a.parquet", b"not parquet at all", "cannot be read"),
        ("a.arrow", b"not arrow at all", "cannot be read"),
        ("a.csv.gz", b"not gzip", "cannot be read"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_table(path)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_table(pa.table({"a": [1]}), tmp_path / "no" / "a.csv")


def test_a_cell_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,weight\n1,2\n1,heavy\n")
    # pyarrow knows the line only where it reads with one thread
    told = "column 'weight' holds an invalid value 'heavy'( in line 3)?, expected a number"
    with pytest.raises(ValueError, match=told):
        list(read_chunks(path, {"weight": pa.float64()}))


def test_repeated_columns_matter_only_where_they_are_needed(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b,b\n1,2,3\n")
    assert [p.to_pydict() for p in read_chunks(path, {"a": pa.float64()})] == [{"a": [1.0]}]
    with pytest.raises(ValueError, match="same name: 'b'"):
        list(read_chunks(path, {"b": pa.float64()}))


def test_without_pyarrow_there_is_a_hint(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        read_table(tmp_path / "a.csv")


def test_numbers_are_written_without_dictionaries(tmp_path):
    """They hardly repeat; texts do."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "out.parquet"
    with table_writer(path) as write:
        write(pa.table({"mean": [0.5, 1.5], "label": ["a", "a"]}))
    mean, label = (parquet.ParquetFile(path).metadata.row_group(0).column(i) for i in range(2))
    assert not mean.has_dictionary_page
    assert label.has_dictionary_page
    assert parquet.read_table(path).to_pydict() == {"mean": [0.5, 1.5], "label": ["a", "a"]}
