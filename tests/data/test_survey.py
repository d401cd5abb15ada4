"""One pass over chunks: the moments of all rows, and a sample that depends on no order."""

from __future__ import annotations

import numpy as np
import pytest

from duogp.data.scaling import Scaler
from duogp.data.sources import ArraySource, Chunk
from duogp.data.survey import survey

#: Sums of 400 numbers in another order.
ROUNDING = 1e-12


def rows(n: int = 400, weights: float | None = None):
    """A table with weights of that mean."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) * [1.0, 1e3, 1e-6] + [0.0, 1e6, 5.0]
    y = X[:, 0] + rng.normal(size=n)
    return X, y, None if weights is None else rng.uniform(0.4, 1.6, n) * weights


@pytest.mark.parametrize("weights", [None, 1.0, 1 / 400])
@pytest.mark.parametrize("chunk_rows", [1, 7, 400])
def test_the_scaler_is_that_of_the_table(chunk_rows, weights):
    X, y, w = rows(weights=weights)
    found = survey(ArraySource(X, y, sample_weight=w, chunk_rows=chunk_rows).chunks(), sample=10, seed=0)
    for own, table in ((found.part(False), X), (found.part(True), y[:, None])):
        expected = Scaler.standard(table) if w is None else Scaler.weighted(table, w)
        np.testing.assert_allclose(own.scaler(True).shift, expected.shift, rtol=ROUNDING, atol=ROUNDING)
        # the second column is 1e6 ± 1e3 and the third 5 ± 1e-6: deviations lose that many digits
        np.testing.assert_allclose(own.scaler(True).scale, expected.scale, rtol=1e-9)
        assert np.array_equal(own.scaler("minmax").scale, Scaler.minmax(table).scale)
        assert np.array_equal(own.scaler("cube").scale, Scaler.cube(table).scale)
        assert np.array_equal(own.scaler(False).scale, np.ones(table.shape[1]))
    assert found.moments.rows == 400


def test_a_constant_column_keeps_scale_one():
    X, y, _ = rows()
    X[:, 1] = 0.1
    scaler = survey(ArraySource(X, y, chunk_rows=7).chunks(), sample=3, seed=0).part(False).scaler(True)
    assert scaler.scale[1] == 1.0 and scaler.shift[1] == pytest.approx(0.1, rel=ROUNDING)


def test_columns_of_the_unit_cube():
    X = np.random.default_rng(0).random((40, 2)) * [1.0, 7.0]
    found = survey(ArraySource(X, X[:, 0], chunk_rows=7).chunks(), sample=3, seed=0).part(False)
    np.testing.assert_array_equal(found.scaler("cube").scale, Scaler.cube(X).scale)
    assert found.scaler("cube").scale[0] == found.scaler("cube").shift[0] == 0.5


def test_the_sample_depends_on_no_order_of_the_chunks():
    X, y, w = rows(weights=True)
    chunks = list(ArraySource(X, y, sample_weight=w, chunk_rows=30).chunks())
    first, second = (survey(each, sample=50, seed=3).sample for each in (chunks, chunks[::-1]))
    assert np.array_equal(first.x, second.x) and np.array_equal(first.weight, second.weight)
    assert len(np.unique(first.x[:, 0])) == 50
    moments = [survey(each, sample=50, seed=3).moments.as_row() for each in (chunks, chunks[::-1])]
    assert np.array_equal(*moments)
    other = survey(chunks, sample=50, seed=4).sample
    assert not np.array_equal(first.x, other.x)
    where = np.array([np.flatnonzero((x == X).all(1))[0] for x in first.x])
    assert np.array_equal(y[where], first.y[:, 0]) and np.array_equal(w[where], first.weight)


def test_every_row_is_drawn_equally_often():
    X, y = np.arange(40.0)[:, None], np.zeros(40)
    source = ArraySource(X, y, chunk_rows=9)
    counts = np.zeros(40)
    for seed in range(800):
        counts[survey(source.chunks(), sample=10, seed=seed).sample.x[:, 0].astype(int)] += 1
    assert np.abs(counts - 200).max() < 5 * np.sqrt(800 * 0.25 * 0.75)  # five standard deviations


def test_a_mask_leaves_rows_out():
    X, y, _ = rows()
    chunks = ArraySource(X, y, chunk_rows=30).chunks()
    found = survey(chunks, sample=1000, seed=0, keep=lambda chunk: chunk.x[:, 0] > 0)
    assert found.moments.rows == (X[:, 0] > 0).sum() == len(found.sample.x)
    assert found.moments.low[0] > 0


def test_sources_without_rows_or_with_changing_columns_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        survey([], sample=5, seed=0)
    parts = [Chunk(np.ones((2, d)), np.ones((2, 1)), number=d) for d in (2, 3)]
    with pytest.raises(ValueError, match="chunk 3 has other columns"):
        survey(parts, sample=5, seed=0)
