"""Sources of rows: every row once for any number of processes, numbers as they are in the files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, dataset, feather, parquet

from duogp.data.arrow_source import ArrowSource, files_of
from duogp.data.sources import ArraySource, Chunk, Source, below, is_source, place_hashes, row_hashes

N = 103


def frame(n: int = N):
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "a": np.arange(n, dtype=np.int64),
            "b": rng.normal(size=n).astype(np.float32),
            "y": rng.normal(size=n),
            "c": rng.normal(size=n) > 0,
            "w": rng.uniform(size=n),
        }
    )


@pytest.fixture(params=["arrays", "parquet", "one parquet", "arrow", "csv"])
def source(request, tmp_path) -> Source:
    t, kind = frame(), request.param
    if kind == "arrays":
        X = np.column_stack([t["a"], t["b"], t["c"]]).astype(float)
        return ArraySource(X, t["y"].to_numpy(), sample_weight=t["w"].to_numpy(), chunk_rows=10)
    files = 1 if kind == "one parquet" else 3
    for i in range(files):
        part = t.slice(i * -(-N // files), -(-N // files))
        if kind == "csv":
            csv.write_csv(part, tmp_path / f"{i}.csv")
        elif kind == "arrow":
            feather.write_feather(part, str(tmp_path / f"{i}.feather"), compression="uncompressed")
        else:
            parquet.write_table(part, tmp_path / f"{i}.parquet", row_group_size=25)
    return ArrowSource(tmp_path, "y", weight="w", chunk_rows=10)


def together(chunks: list[Chunk]) -> np.ndarray:
    rows = [np.column_stack([c.x, c.y, c.weight]) for c in chunks]
    return np.concatenate(rows) if rows else np.empty((0, 5))


@pytest.mark.parametrize("world", [1, 2, 3, 40])
def test_every_row_belongs_to_one_rank(source, world):
    t = frame()
    expected = np.column_stack([t["a"], t["b"], t["c"], t["y"], t["w"]]).astype(float)
    parts = [list(source.chunks(rank, world)) for rank in range(world)]
    found = together([c for part in parts for c in part])
    np.testing.assert_allclose(found[found[:, 0].argsort()], expected, rtol=1e-6, atol=0)
    assert all(1 <= len(c.x) <= 10 for part in parts for c in part)
    assert isinstance(source, Source)


@pytest.mark.parametrize("world", [2, 40])
def test_chunks_and_their_numbers_do_not_depend_on_the_world(source, world):
    alone = {c.number: c.x for c in source.chunks()}
    shared = {c.number: c.x for rank in range(world) for c in source.chunks(rank, world)}
    assert alone.keys() == shared.keys()
    assert all(np.array_equal(alone[k], shared[k]) for k in alone)


def test_arrays_with_an_attribute_chunks_are_no_sources():
    class Blocked:
        """As arrays of dask and columns of pyarrow have it."""

        @property
        def chunks(self) -> tuple[int, ...]:
            return (1, 2)

    assert not is_source(Blocked()) and not is_source(pa.chunked_array([[1.0], [2.0]]))
    assert is_source(ArraySource(np.ones((3, 1)), np.ones(3)))


def test_a_source_can_be_read_again(source):
    assert np.array_equal(together(list(source.chunks())), together(list(source.chunks())))


def test_names_and_columns(tmp_path):
    parquet.write_table(frame(), tmp_path / "t.parquet")
    found = ArrowSource(str(tmp_path / "*.parquet"), ["y", "b"], columns=["c", "a"])
    (chunk,) = found.chunks()
    assert found.names == ["c", "a"] and chunk.y.shape == (N, 2) and not found.single_output
    np.testing.assert_array_equal(chunk.x[:, 1], np.arange(N))
    again = ArrowSource(dataset.dataset(str(tmp_path / "t.parquet")), "y", noise="w")
    assert again.names == ["a", "b", "c"] and next(again.chunks()).noise.shape == (N, 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["x"] * N), "holds string"),
        (pa.array([None] + [1.0] * (N - 1)), "missing values"),
        (pa.array([float("nan")] + [1.0] * (N - 1)), "not finite"),
    ],
)
def test_what_is_no_number_is_named(tmp_path, column, message):
    parquet.write_table(frame().append_column("bad", column), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=message) as error:
        list(ArrowSource(tmp_path / "t.parquet", "y").chunks())
    assert "'bad'" in str(error.value)
    assert len(list(ArrowSource(tmp_path / "t.parquet", "y", columns=["a"]).chunks())) == 1


def test_unclear_arguments_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        files_of(tmp_path / "nothing*.parquet")
    parquet.write_table(frame(), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="no column 'z'"):
        ArrowSource(tmp_path / "t.parquet", "z")
    with pytest.raises(ValueError, match="'y' cannot be"):
        ArrowSource(tmp_path / "t.parquet", "y", columns=["a", "y"])
    with pytest.raises(ValueError, match="chunk_rows"):
        ArrowSource(tmp_path / "t.parquet", "y", chunk_rows=0)
    (tmp_path / "t.txt").write_text("a\n1\n")
    with pytest.raises(ValueError, match="unknown ending"):
        ArrowSource(tmp_path / "t.txt", "y")


def test_hashes_are_uniform_and_repeatable():
    first = place_hashes(3, 10_000, 7)
    assert np.array_equal(first, place_hashes(3, 10_000, 7))
    assert (
        len(np.unique(np.concatenate([first, place_hashes(4, 10_000, 7), place_hashes(3, 10_000, 8)])))
        == 30_000
    )
    for fraction in (0.1, 0.5):  # six standard deviations of a binomial share
        spread = np.sqrt(fraction * (1 - fraction) / 10_000)
        assert abs(below(first, fraction).mean() - fraction) < 6 * spread
    assert not below(first, 0.0).any() and below(first, 1.0).all()


def test_equal_rows_have_equal_hashes_wherever_they_stand():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)), rng.normal(size=(50, 1))
    hashes = row_hashes(Chunk(x, y, number=1), 5)
    assert np.array_equal(hashes[::-1], row_hashes(Chunk(x[::-1], y[::-1], number=9), 5))
    assert len(np.unique(hashes)) == 50 and not np.array_equal(hashes, row_hashes(Chunk(x, y), 6))
    zeros = row_hashes(Chunk(np.array([[0.0], [-0.0]]), np.zeros((2, 1))), 0)
    assert zeros[0] == zeros[1]


def test_labels_of_a_dataset_and_of_a_table(tmp_path):
    labels = np.array(["b", "a", "c", "a", "b", "b"])
    X = np.arange(6.0)[:, None]
    table = pa.table({"x": X[:, 0], "y": pa.array(labels).dictionary_encode()})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    files = ArrowSource(str(tmp_path / "t.parquet"), "y", labels=True)
    memory = ArraySource(X, labels, labels=True, chunk_rows=2)
    for source in (files, memory):
        assert source.classes.tolist() == ["a", "b", "c"]
        codes = np.concatenate([chunk.y for chunk in source.chunks()])[:, 0]
        assert source.classes[codes.astype(int)].tolist() == labels.tolist()
    with pytest.raises(ValueError, match="without a label"):
        ArrowSource(dataset.dataset(pa.table({"x": [1.0, 2.0], "y": ["a", None]})), "y", labels=True)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shuffled_chunks_are_the_same_chunks(tmp_path, world):
    X = np.arange(40.0)[:, None]
    parquet.write_table(pa.table({"x": X[:, 0], "y": X[:, 0]}), tmp_path / "t.parquet", row_group_size=4)
    for source in (ArrowSource(str(tmp_path / "t.parquet"), "y"), ArraySource(X, X[:, 0], chunk_rows=4)):
        orders = []
        for seed in (0, 1):
            found = [list(source.shuffled(rank, world, seed)) for rank in range(world)]
            for rank, chunks in enumerate(found):
                plain = {chunk.number: chunk for chunk in source.chunks(rank, world)}
                assert sorted(chunk.number for chunk in chunks) == sorted(plain)
                assert all(np.array_equal(chunk.x, plain[chunk.number].x) for chunk in chunks)
            orders.append([chunk.number for chunk in found[0]])
        assert orders[0] != orders[1]
