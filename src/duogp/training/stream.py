"""Training on rows that never stand in memory together.

In closed form each evaluation is two passes over them. Minibatches come from lanes: lane l of L has the
chunks ``source.chunks(l, L)``, shuffles them in windows, and gives the same number of rows to every step. A
process has the lanes whose numbers are its rank, modulo the number of processes. So the rows of a step depend
on the lanes, not on how many processes share them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.data.prefetch import ahead
from duogp.data.sources import Chunk, Source, shuffled_chunks
from duogp.inference.closed_form import CollapsedObjective
from duogp.models.model import Batch, Model
from duogp.numerics.groups import Group
from duogp.training.problems import ClosedForm

#: Rows that are shuffled together, and the memory that they may take.
WINDOW_ROWS, WINDOW_BYTES = 2**18, 2**26


class Stream:
    """Batches of a source for a model, a new pass each time it is iterated over.

    ``scaled``: a chunk as a batch in the model's units; ``keep``: a mask of the rows that count; ``rows``: of
    a batch, at most. A process without rows gives one batch of none, of the shape of ``sample``. ``pinned``:
    windows are copied to a GPU later, from memory that stays where it is. ``held``: the batches of the first
    whole pass are kept, and the source is not read again.
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
        pinned: bool = False,
        held: bool = False,
    ) -> None:
        self.source, self.scaled, self.keep, self.rows = source, scaled, keep, rows
        self.pinned, self.held = pinned, held
        self._batches: list[Batch] | None = None  # those of a whole pass, where they are held
        self.group = Group() if group is None else group
        self.none = scaled(sample.take(np.zeros(0, dtype=np.intp)))

    def batches(self) -> Iterator[Batch]:
        """One pass over the rows of this process; the next chunk is read while one is worked on."""
        if self._batches is not None:
            yield from self._batches
            return
        found: list[Batch] = []
        for batch in ahead(self._scaled_chunks()):
            for part in batch.split(self.rows):
                if self.held:
                    found.append(part)
                yield part
            del batch
        if self.held:
            self._batches = found

    def _scaled_chunks(self) -> Iterator[Batch]:
        for chunk in self.source.chunks(self.group.rank, self.group.world):
            batch = self._scaled(chunk)
            del chunk  # only the scaled copy is kept while it is worked on
            if batch.x.shape[-2]:
                yield batch
            del batch

    def _scaled(self, chunk: Chunk) -> Batch:
        mask = self.keep(chunk)
        return self.scaled(chunk if mask.all() else chunk.take(mask))

    def windows(self, lane: int, lanes: int, seed: int, rows: int) -> Iterator[Batch]:
        """The rows of a lane on the host, shuffled within windows of about so many rows."""
        rng = np.random.default_rng((seed, lane, 1))  # that of the chunks is (seed, lane)
        pieces: list[Batch] = []
        for chunk in shuffled_chunks(self.source, lane, lanes, seed):
            pieces.append(self._scaled(chunk))
            del chunk
            if sum(piece.x.shape[-2] for piece in pieces) >= rows:
                yield self._shuffled(pieces, rng)
                pieces = []
        if any(piece.x.shape[-2] for piece in pieces):
            yield self._shuffled(pieces, rng)

    def _shuffled(self, pieces: list[Batch], rng: np.random.Generator) -> Batch:
        """The rows of several batches in a random order."""
        order = torch.from_numpy(rng.permutation(sum(piece.x.shape[-2] for piece in pieces)))
        columns: list[Tensor | None] = []
        for i, parts in enumerate(zip(*pieces, strict=True)):
            dim = -2 if i == 0 else -1
            whole = None if parts[0] is None else torch.cat(parts, dim).index_select(dim, order)
            columns.append(whole.pin_memory() if whole is not None and self.pinned else whole)
        return Batch(*columns)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Callable[[], Batch]]:
        empty = True
        for batch in self.batches():
            empty = False
            yield lambda batch=batch: batch  # type: ignore[misc]
            del batch
        if empty:
            yield lambda: self.none


class Lane:
    """The shuffled rows of a lane, epoch after epoch, in batches of ``size``.

    The rows that are missing to full batches at the end of an epoch are those of the last window once more.
    """

    def __init__(self, stream: Stream, number: int, lanes: int, size: int, window: int) -> None:
        self.stream, self.number, self.lanes, self.size = stream, number, lanes, size
        self.window = max(window, size)
        self._windows: Iterator[Batch] = iter(())
        self._rows: Batch | None = None
        self._at = 0

    def start(self, seed: int) -> None:
        """Begin an epoch."""
        self.close()
        self._windows = ahead(self.stream.windows(self.number, self.lanes, seed, self.window))
        self._rows, self._at = None, 0

    def close(self) -> None:
        close = getattr(self._windows, "close", None)
        if close is not None:
            close()

    def take(self) -> list[Batch]:
        """The rows of the next step, in pieces."""
        out: list[Batch] = []
        missing = self.size
        while missing:
            if self._rows is None or self._at == self._rows.x.shape[-2]:
                self._rows, self._at = next(self._windows, self._rows), 0
            assert self._rows is not None  # lanes without rows are not asked
            s = slice(self._at, self._at + missing)
            out.append(
                Batch(
                    self._rows.x[:, s],
                    *(None if t is None else t[..., s] for t in self._rows[1:]),  # type: ignore[arg-type]
                )
            )
            found = out[-1].x.shape[-2]
            self._at, missing = self._at + found, missing - found
        return out


class StreamFeed:
    """Minibatches of a stream; see `duogp.training.feed.Feed`.

    ``counts``: the rows of every lane, those of the other processes too. A step has about ``batch_size`` rows
    in all. Lanes that have fewer rows for a step than their share, because the number is no whole one, are
    weighed accordingly, so that the mean loss of an epoch is that of all rows. ``window``: rows that a lane
    shuffles together.
    """

    def __init__(
        self,
        stream: Stream,
        counts: Sequence[int],
        batch_size: int,
        generators: Sequence[torch.Generator],
        *,
        device: torch.device,
        window: int | None = None,
    ) -> None:
        group, total = stream.group, sum(counts)
        self.generators = generators
        self.steps = -(-total // min(batch_size, total))
        sizes = [-(-count // self.steps) for count in counts]
        own = [lane for lane in range(group.rank, len(counts), group.world) if sizes[lane]]
        here = sum(counts[lane] for lane in own)
        self.share = here / total
        self.batch_size = max(sum(sizes[lane] for lane in own), 1)
        window = window_rows(stream) if window is None else window
        self.lanes = [Lane(stream, lane, len(counts), sizes[lane], window) for lane in own]
        # Row weights by which a batch of this process is an unbiased sample of its rows.
        parts = [counts[lane] * self.batch_size / (sizes[lane] * here) for lane in own]
        self._weights: Tensor | None = None
        if len(set(parts)) > 1:
            row_weights = [w for w, lane in zip(parts, own, strict=True) for _ in range(sizes[lane])]
            self._weights = torch.tensor(row_weights, dtype=torch.float64)[None]
        self._buffers = self._static(stream.none, device)
        self._step = 0

    def _static(self, none: Batch, device: torch.device) -> dict[str, Tensor]:
        """The tensors of a step. A process without rows has a row of zeros, whose share is 0."""
        n = self.batch_size
        out = {"x": none.x.new_zeros(1, n, none.x.shape[-1], device=device)}
        for name in ("y", "noise"):
            if (part := getattr(none, name)) is not None:
                out[name] = part.new_zeros(1, part.shape[1], n, device=device)
        if "noise" in out:
            out["noise"].fill_(1.0)
        if none.weight is not None or self._weights is not None:
            out["weight"] = none.x.new_ones(1, n, device=device)
        return out

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self._buffers)

    def batch(self, tensors: Mapping[str, Tensor]) -> Batch:
        return Batch(tensors["x"], tensors["y"], tensors.get("noise"), tensors.get("weight"))

    def start_epoch(self) -> None:
        """A new order of the rows; the generator of the first replicate says which."""
        generator = self.generators[0]
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        for lane in self.lanes:
            lane.start(seed)
        self._step = 0

    def select(self, step: int) -> None:
        while self._step < step:  # an epoch that is resumed
            self._take()
        self._fill(self._take())

    def _take(self) -> list[Batch]:
        self._step += 1
        return [piece for lane in self.lanes for piece in lane.take()]

    def _fill(self, pieces: list[Batch]) -> None:
        at = 0
        for piece in pieces:
            s = slice(at, at + piece.x.shape[-2])
            at = s.stop
            self._buffers["x"][:, s].copy_(piece.x, non_blocking=True)
            self._buffers["y"][..., s].copy_(piece.y, non_blocking=True)
            if piece.noise is not None:
                self._buffers["noise"][..., s].copy_(piece.noise, non_blocking=True)
            if piece.weight is not None:
                self._buffers["weight"][..., s].copy_(piece.weight, non_blocking=True)
            elif self._weights is not None:
                self._buffers["weight"][..., s].fill_(1.0)
        if self._weights is not None and pieces:
            self._buffers["weight"].mul_(self._weights.to(self._buffers["weight"]))

    def close(self) -> None:
        """End the readers."""
        for lane in self.lanes:
            lane.close()


def window_rows(stream: Stream) -> int:
    """Rows that are shuffled together: as many as fit into `WINDOW_BYTES`, within limits."""
    columns = sum(
        t.shape[-1] if i == 0 else t.shape[-2] for i, t in enumerate(stream.none[:2]) if t is not None
    )
    return min(max(WINDOW_BYTES // (8 * columns), 2**14), WINDOW_ROWS)


class StreamedClosedForm(ClosedForm):
    """Full-batch steps on the collapsed bound of a stream, and of the streams of other processes."""

    def __init__(self, model: Model, stream: Stream) -> None:
        self.model = model
        self.rows_at_once = stream.rows
        self.group = stream.group
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
