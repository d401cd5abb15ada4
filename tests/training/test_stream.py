"""The collapsed bound of a stream: loss, gradients and optimum of the rows in memory, memory of a chunk."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import duogp
from duogp.data.scaling import Scaler
from duogp.data.sources import ArraySource, Chunk
from duogp.inference.closed_form import CollapsedObjective
from duogp.posterior.statistics import scaled_batch, scaled_on
from duogp.training.stream import Stream, StreamedClosedForm, streamed_nll
from duogp.training.validation import mean_nll

#: Sums in another order; the bound and its gradient are about 1.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


def table(n: int = 200):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)
    return X, y, rng.uniform(0.05, 0.3, n), rng.uniform(0.5, 2.0, n)


def everything(chunk: Chunk):
    return np.ones(len(chunk.x), dtype=bool)


def streamed(gp, source, *, rows: int = 13, keep=everything, sample=None) -> Stream:
    scaled = partial(
        scaled_batch,
        x_scaler=gp.x_scaler,
        y_scaler=gp.y_scaler,
        columns=gp.columns,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    first = next(source.chunks()) if sample is None else sample
    return Stream(source, scaled, keep=keep, sample=first, rows=rows)


def gradients(model, objective):
    model.train()
    for p in model.parameters():
        p.grad = None
    loss = objective.backward()
    return loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rows", ["plain", "noise", "weights"])
@pytest.mark.parametrize("method", ["svgp", "sgpr", "vfitc", "odsvgp", "solvegp"])
@pytest.mark.parametrize("chunk_rows", [17, 1000])
def test_loss_gradients_and_optimum_are_those_of_the_table(method, rows, chunk_rows):
    X, y, noise, weight = table()
    given = {"plain": {}, "noise": {"noise": noise}, "weights": {"sample_weight": weight}}[rows]
    gp = duogp.fit(X, y, method, solver="closed-form", num_inducing=12, epochs=3, dtype="float64", **given)
    stream = streamed(gp, ArraySource(X, y, **given, chunk_rows=chunk_rows))
    (whole,) = streamed(gp, ArraySource(X, y, **given), rows=1000).batches()
    loss, grads = gradients(gp.model, CollapsedObjective(gp.model, [lambda: whole]))
    again, found = gradients(gp.model, StreamedClosedForm(gp.model, stream).objective)
    assert_close(again, loss, **TOLERANCE)
    assert grads.keys() == found.keys() and len(grads) >= 4
    for name, gradient in grads.items():
        assert_close(found[name], gradient, **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")
    best, ours = (CollapsedObjective(gp.model, c).solve() for c in ([lambda: whole], stream))
    assert_close(ours.mean, best.mean, **TOLERANCE)


def test_rows_left_out_are_left_out():
    X, y, _, _ = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=12, epochs=3, dtype="float64")
    stream = streamed(gp, ArraySource(X, y, chunk_rows=17), keep=lambda chunk: chunk.x[:, 0] > 0)
    left = X[:, 0] > 0
    (part,) = streamed(gp, ArraySource(X[left], y[left]), rows=1000).batches()
    loss, _ = gradients(gp.model, StreamedClosedForm(gp.model, stream).objective)
    expected, _ = gradients(gp.model, CollapsedObjective(gp.model, [lambda: part]))
    assert_close(loss, expected, **TOLERANCE)
    nll, count = streamed_nll(gp.model.eval(), stream)
    assert count == left.sum()
    assert nll == pytest.approx(float(mean_nll(gp.model, part)), rel=1e-9)


class Counting:
    """A source of random chunks that knows how many of their rows are alive."""

    def __init__(self, chunks: int, rows: int) -> None:
        self.number, self.rows, self.alive, self.most = chunks, rows, 0, 0

    def chunks(self, rank: int = 0, world: int = 1):
        for number in range(rank, self.number, world):
            x = np.random.default_rng(number).normal(size=(self.rows, 3))
            self.alive += self.rows
            self.most = max(self.most, self.alive)
            weakref.finalize(x, self._gone)
            yield Chunk(x, np.sin(x[:, :1]), number=number)
            del x

    def _gone(self) -> None:
        self.alive -= self.rows


def test_memory_is_that_of_two_chunks():
    X, y, _, _ = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=5, epochs=2, dtype="float64")
    source = Counting(20, 50)
    stream = streamed(gp, source, sample=next(ArraySource(X, y).chunks()))
    gradients(gp.model, StreamedClosedForm(gp.model, stream).objective)
    gc.collect()
    assert source.alive == 0
    assert source.most <= 2 * source.rows
    fitted = Counting(20, 50)
    duogp.fit(fitted, method="svgp", num_inducing=5, epochs=2)
    assert fitted.most <= 2 * fitted.rows


def test_omega_is_refused():
    X, y, _, _ = table()
    gp = duogp.fit(X, y, "dcsvgp", solver="closed-form", beta2=1.0, num_inducing=5, epochs=2, dtype="float64")
    with pytest.raises(ValueError, match="Ω"):
        StreamedClosedForm(gp.model, streamed(gp, ArraySource(X, y)))


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e307])
def test_rows_that_a_device_scales_are_the_same_to_the_last_bit(size: float) -> None:
    rng = np.random.default_rng(0)
    rows = size * rng.normal(size=(50, 3))
    scaler = Scaler.standard(rows)
    found = scaled_on(torch.device("cpu"), rows, scaler)
    np.testing.assert_array_equal(found.numpy(), scaler.transform(rows))


def test_rows_that_are_held_are_read_once():
    X, y, *_ = table()
    gp = duogp.fit(X, y, "svgp", solver="closed-form", num_inducing=9, epochs=2, dtype="float64")
    passes = []

    class Counted(ArraySource):
        def chunks(self, rank=0, world=1):
            passes.append(rank)
            return super().chunks(rank, world)

    source = Counted(X, y, chunk_rows=50)
    sample = next(source.chunks())
    stream = streamed(gp, source, sample=sample)
    stream.held = True
    passes.clear()
    read = streamed(gp, source, sample=sample)
    for _ in range(3):
        for held, again in zip(stream.batches(), read.batches(), strict=True):
            assert torch.equal(held.x, again.x) and torch.equal(held.y, again.y)
    assert len(passes) == 1 + 3
    next(iter(broken := streamed(gp, source, sample=sample)))
    assert broken._batches is None  # a pass that was not whole
