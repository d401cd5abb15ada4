"""Files in chunks, encoded by the schema of a sample: categories, gaps, rows without a target."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import duogp
from duogp.tables import Schema
from duogp.tables.streamed import TableSource, sample_table

N = 500


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    size = rng.normal(size=N)
    city = rng.choice(["Ulm", "Rom", "Paris"], N)
    y = size + 2.0 * (city == "Rom") + 0.1 * rng.normal(size=N)
    table = pa.table(
        {
            "size": pa.array(size, mask=rng.random(N) < 0.1),
            "city": city,
            "y": pa.array(y, mask=np.arange(N) % 50 == 0),
            "w": np.ones(N),
        }
    )
    for i in range(2):
        parquet.write_table(table.slice(250 * i, 250), tmp_path / f"{i}.parquet", row_group_size=100)
    return str(tmp_path / "*.parquet"), table


def test_chunks_are_encoded_as_the_whole_table_is(files):
    pattern, table = files
    source = TableSource(pattern, "y", weights="w", chunk_rows=60)
    schema = Schema.learn(table, "y", weights="w")
    y, there = schema.targets(table)
    chunks = list(source.chunks())
    assert source.names == schema.names
    np.testing.assert_array_equal(np.concatenate([c.x for c in chunks]), schema.encode(table).matrix[there])
    np.testing.assert_array_equal(np.concatenate([c.y for c in chunks])[:, 0], y[there])
    shared = [c.number for rank in range(2) for c in source.chunks(rank, 2)]
    assert sorted(shared) == [c.number for c in chunks]


def test_the_sample_is_uniform_and_of_the_asked_size(files):
    pattern, _ = files
    source = TableSource(pattern, "y", weights="w")
    drawn = [sample_table(source.dataset, ["size", "y"], 40, seed, 33) for seed in range(2)]
    assert [t.num_rows for t in drawn] == [40, 40] and not drawn[0].equals(drawn[1])
    assert sample_table(source.dataset, ["y"], 10_000, 0, 33).num_rows == N


def test_a_fit_with_categories_and_gaps(files):
    pattern, table = files
    source = TableSource(pattern, "y", weights="w", chunk_rows=60)
    gp = duogp.fit(source, method="svgp", num_inducing=40, epochs=5)
    y, there = source.schema.targets(table)
    known = there & ~table["size"].is_null().to_numpy()
    mean = gp.predict(source.schema.encode(table).matrix).mean
    assert np.sqrt(np.mean((mean - y)[known] ** 2)) < 0.3  # the noise is 0.1


def test_labels_are_those_of_all_rows(files):
    pattern, table = files
    source = TableSource(pattern, "city", weights="w", drop=["y"], chunk_rows=60, sample_rows=20)
    assert source.classes.tolist() == ["Paris", "Rom", "Ulm"]
    codes = np.concatenate([c.y for c in source.chunks()])[:, 0].astype(int)
    assert source.classes[codes].tolist() == table["city"].to_pylist()
    shuffled = list(source.shuffled(0, 1, 3))
    assert sorted(c.number for c in shuffled) == [c.number for c in source.chunks()]
    assert [c.number for c in shuffled] != [c.number for c in source.chunks()]


def test_missing_columns_are_refused(files):
    pattern, _ = files
    with pytest.raises(ValueError, match="lacks the column 'z'"):
        TableSource(pattern, "z")


def late_table(n: int = 4000):
    """Everything that is new stands in the last rows: a gap, a level, a value, a label."""
    rng = np.random.default_rng(0)
    last = np.arange(n) == n - 1
    city = rng.choice(["Ulm", "Rom"], n).astype(object)
    city[-1] = "Paris"
    size = pa.array(rng.normal(size=n), mask=np.arange(n) == n - 2)
    return pa.table({"size": size, "constant": last * 1.0, "city": city, "y": rng.normal(size=n)})


def test_what_is_new_halfway_through_is_read_as_in_a_table_that_fits(tmp_path):
    table = late_table()
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    source = TableSource(str(tmp_path / "t.parquet"), "y", sample_rows=200)
    whole = Schema.learn(table, "y")
    assert source.sample.num_rows == 200
    assert source.names == whole.names  # the gap has its indicator, the column that is constant at first too
    assert not source.schema.dropped and not source.schema.unknown(table)


def test_csv_columns_that_turn_out_to_be_something_else(tmp_path):
    rows = 200_000  # more than pyarrow looks at
    numbers = np.arange(rows)
    lines = [f"{i},{i % 7},{i % 5}\n" for i in numbers]
    lines[-2:] = ["1.5,text,1\n", "2.5,3,2\n"]
    (tmp_path / "t.csv").write_text("whole,code,y\n" + "".join(lines) * 8)
    source = TableSource(str(tmp_path / "t.csv"), "y", sample_rows=1000)
    kinds = {column.name: column.kind for column in source.schema.columns}
    assert kinds == {"whole": "number", "code": "category"}
    assert sum(len(chunk.x) for chunk in source.chunks()) == 8 * rows
