"""Minibatches of a stream: every row once an epoch, in another order each time, whatever shares them out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from duogp.data.sources import ArraySource, Chunk
from duogp.models.model import Batch
from duogp.numerics.groups import Group
from duogp.training.feed import Minibatches, Table, TableFeed
from duogp.training.stream import Stream, StreamFeed


class Rank(Group):
    """One of several processes that do not talk."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world


def scaled(chunk: Chunk) -> Batch:
    parts = (chunk.x, chunk.y.T, None if chunk.noise is None else chunk.noise.T, chunk.weight)
    return Batch(*(None if p is None else torch.as_tensor(np.ascontiguousarray(p))[None] for p in parts))


def everything(chunk: Chunk):
    return np.ones(len(chunk.x), dtype=bool)


def feed_of(n: int, *, lanes=1, rank=0, world=1, batch=10, chunk_rows=7, window=25, seed=0, **given):
    X = np.arange(n, dtype=np.float64)[:, None]
    source = ArraySource(X, 10 * X[:, 0], chunk_rows=chunk_rows, **given)
    counts = [sum(len(c.x) for c in source.chunks(lane, lanes)) for lane in range(lanes)]
    stream = Stream(
        source, scaled, keep=everything, sample=next(source.chunks()), rows=5, group=Rank(rank, world)
    )
    generator = torch.Generator().manual_seed(seed)
    return StreamFeed(stream, counts, batch, [generator], device=torch.device("cpu"), window=window)


def epoch(feed) -> list[Batch]:
    feed.start_epoch()
    out = []
    for step in range(feed.steps):
        feed.select(step)
        out.append(Batch(*(None if t is None else t.clone() for t in feed.batch(feed.tensors))))
    return out


def rows(batches: list[Batch]) -> list[int]:
    return [int(v) for b in batches for v in b.x[0, :, 0]]


@pytest.mark.parametrize("window", [1, 25, 1000])
@pytest.mark.parametrize("n", [60, 100])
def test_an_epoch_is_every_row_once(n, window):
    feed = feed_of(n, window=window)
    first, second = epoch(feed), epoch(feed)
    assert feed.batch_size == 10 and feed.steps == n // 10
    for batches in (first, second):
        assert sorted(rows(batches)) == list(range(n))
        assert all(torch.equal(b.y[:, 0], 10 * b.x[..., 0]) for b in batches)
        assert rows(batches) != list(range(n))
    assert rows(first) != rows(second)


def test_what_is_missing_to_full_batches_comes_from_the_last_window():
    feed = feed_of(53)
    found = rows(epoch(feed))
    assert feed.steps == 6 and feed.batch_size == 9 and len(found) == 54
    assert set(found) == set(range(53))


def test_the_rows_of_a_step_do_not_depend_on_the_processes():
    alone = epoch(feed_of(112, lanes=4, batch=16))
    ranks = [epoch(feed_of(112, lanes=4, batch=16, rank=r, world=2)) for r in range(2)]
    assert len(alone) == len(ranks[0]) == 7
    for step, batch in enumerate(alone):
        assert sorted(rows([batch])) == sorted(rows([own[step] for own in ranks]))
    assert sum(feed_of(112, lanes=4, rank=r, world=2).share for r in range(2)) == 1.0


@pytest.mark.parametrize("weighted", [False, True])
def test_lanes_of_different_size_are_weighed(weighted):
    """Σ w f(row) / B of a process, times its share, is on average the mean of f over all rows."""
    n = 47
    given = {"sample_weight": np.linspace(0.5, 1.5, n)} if weighted else {}
    own = np.linspace(0.5, 1.5, n) if weighted else np.ones(n)
    for world in (1, 3):
        total = np.zeros(n)
        feeds = [
            feed_of(n, lanes=3, batch=8, chunk_rows=20, rank=r, world=world, **given) for r in range(world)
        ]
        for feed in feeds:
            for batch in epoch(feed):
                weight = torch.ones_like(batch.x[..., 0]) if batch.weight is None else batch.weight
                np.add.at(total, rows([batch]), feed.share * weight[0].numpy() / feed.batch_size / feed.steps)
        # Lanes of 20, 20 and 7 rows in 6 steps of 4, 4 and 2: some rows come twice, none is left out.
        assert total.sum() == pytest.approx(own.mean(), rel=0.05)
        for lane in (slice(0, 20), slice(20, 40), slice(40, 47)):
            assert total[lane].sum() == pytest.approx(own[lane].sum() / n, rel=0.1)


def test_a_process_without_rows_has_no_share():
    feed = feed_of(10, lanes=2, rank=1, world=2, chunk_rows=10)
    (batch,) = epoch(feed)[:1]
    assert feed.share == 0.0 and batch.x.shape == (1, 1, 1)


def test_an_epoch_is_resumed_where_it_was():
    feed, other = feed_of(100, seed=3), feed_of(100, seed=3)
    whole = epoch(feed)
    other.start_epoch()
    other.select(6)
    assert torch.equal(other.batch(other.tensors).x, whole[6].x)
    other.close()


def test_noise_and_weights_stay_with_their_rows():
    n = 40
    feed = feed_of(n, noise=np.arange(n) + 1.0, sample_weight=np.arange(n) + 2.0)
    for batch in epoch(feed):
        assert torch.equal(batch.noise[:, 0], batch.x[..., 0] + 1)
        assert torch.equal(batch.weight, batch.x[..., 0] + 2)


def test_tensors_stay_where_they_are():
    """Captured and compiled steps read the same memory for ever; also those of a table."""
    X = torch.arange(30.0)[:, None]
    batches = Minibatches(torch.arange(30)[None], 10, [torch.Generator().manual_seed(0)])
    for feed in (feed_of(30), TableFeed(Table(X, X), batches)):
        before = {name: t.data_ptr() for name, t in feed.tensors.items()}
        found = epoch(feed)
        assert {name: t.data_ptr() for name, t in feed.tensors.items()} == before
        assert len({tuple(rows([b])) for b in found}) == 3
