"""Closed-form training on rows that never stand in memory together: each evaluation is two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.data.sources import Chunk, Source
from duogp.inference.closed_form import CollapsedObjective
from duogp.models.model import Batch, Model
from duogp.numerics.groups import Group
from duogp.training.problems import ClosedForm


class Stream:
    """Batches of a source for a model, a new pass each time it is iterated over.

    ``scaled``: a chunk as a batch in the model's units; ``keep``: a mask of the rows that count; ``rows``: of
    a batch, at most. A process without rows gives one batch of none, of the shape of ``sample``.
    """

    def __init__(
        self,
        source: Source,
        scaled: Callable[[Chunk], Batch],
        *,
        keep: Callable[[Chunk], NDArray[np.bool_]],
        sample: Chunk,
        rows: int,
        group: Group | None = None,
    ) -> None:
        self.source, self.scaled, self.keep, self.rows = source, scaled, keep, rows
        self.group = Group() if group is None else group
        self._none = scaled(sample.take(np.zeros(0, dtype=np.intp)))

    def batches(self) -> Iterator[Batch]:
        """One pass over the rows of this process."""
        for chunk in self.source.chunks(self.group.rank, self.group.world):
            mask = self.keep(chunk)
            batch = self.scaled(chunk if mask.all() else chunk.take(mask))
            del chunk  # only the scaled copy is kept while it is worked on
            if batch.x.shape[-2]:
                yield from batch.split(self.rows)
            del batch

    def __iter__(self) -> Iterator[Callable[[], Batch]]:
        empty = True
        for batch in self.batches():
            empty = False
            yield lambda batch=batch: batch  # type: ignore[misc]
            del batch
        if empty:
            yield lambda: self._none


class StreamedClosedForm(ClosedForm):
    """Full-batch steps on the collapsed bound of a stream, and of the streams of other processes."""

    def __init__(self, model: Model, stream: Stream) -> None:
        self.model = model
        self.rows_at_once = stream.rows
        self.objective = CollapsedObjective(model, stream, stream.group)


@torch.no_grad()
def streamed_nll(model: Model, stream: Stream) -> tuple[float, int]:
    """−Σ w log p(y | x, data) / Σ w over a stream of rows, and their number; of all processes together."""
    was_training = model.training
    model.eval()
    factors = model.factors()
    total = torch.zeros(3, dtype=torch.float64)
    for batch in stream.batches():
        log_p = model.log_predictive(batch, factors).double()
        weight = torch.ones_like(log_p) if batch.weight is None else batch.weight.double()
        found = [(weight * log_p).sum(), weight.sum(), torch.tensor(float(log_p.shape[-1]))]
        total += torch.stack([v.cpu().double() for v in found])
    model.train(was_training)
    (total,) = stream.group.add([total])
    value, weights, rows = total.tolist()
    return (-value / weights if weights else float("nan")), int(rows)
