"""The rows of a source for a fit: which train, their scales and labels, a sample of them, and streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.data.columns import informative_columns
from duogp.data.labels import MAX_CLASSES, encode
from duogp.data.prefetch import ahead
from duogp.data.scaling import Scaler
from duogp.data.sources import Chunk, LabelledSource, Source, below, row_hashes
from duogp.data.survey import Survey, survey
from duogp.data.targets import Target, require_support
from duogp.fitting.builder import CPU_CHUNK_ROWS
from duogp.fitting.dataset import Dataset
from duogp.fitting.factories import target_kind
from duogp.fitting.plan import category_columns
from duogp.methods.settings import Settings
from duogp.numerics.groups import Group
from duogp.posterior.statistics import scaled_batch
from duogp.training.stream import Stream

#: Rows at once on a GPU, in closed form.
CUDA_BATCH_ROWS = 16_384
#: Memory that the scaled rows of a process may take up: then they are read once, and not in every pass.
HELD_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """What one pass found out about a source, and streams of its rows in a model's units."""

    source: Source
    settings: Settings
    group: Group
    fraction: float  # of the rows, held out by a hash of their values
    found: Survey
    counts: list[int]  # training rows of every lane, see `duogp.training.stream`
    columns: NDArray[np.bool_]  # those that vary
    x_scaler: Scaler
    y_scaler: Scaler

    @classmethod
    def of(
        cls,
        source: Source,
        settings: Settings,
        *,
        fraction: float,
        sample: int,
        lanes: int | None = None,
        group: Group,
    ) -> StreamedRows:
        """One pass over the rows, lane by lane; another one before it where class labels must be found."""
        lanes = group.world if lanes is None else lanes
        if lanes % group.world:
            raise ValueError(f"lanes must be a multiple of the {group.world} processes, got {lanes}")
        kind = target_kind(settings.likelihood)
        if kind == "classes":
            source = with_labels(source, group)
        counts = torch.zeros(lanes, dtype=torch.float64)
        lane = group.rank  # the one that is being read

        def chunks() -> Iterator[Chunk]:
            nonlocal lane
            for lane in range(group.rank, lanes, group.world):
                for chunk in ahead(source.chunks(lane, lanes)):
                    require_support(chunk.y, kind)
                    yield chunk

        def counted(chunk: Chunk) -> NDArray[np.bool_]:
            mask = for_training(chunk, fraction=fraction, seed=settings.random_state)
            counts[lane] += float(mask.sum())
            return mask

        held_out = partial(for_validation, fraction=fraction, seed=settings.random_state)
        found = survey(
            chunks(),
            sample=sample,
            seed=settings.random_state,
            keep=counted,
            hold_out=held_out if fraction else None,
            group=group,
        )
        (counts,) = group.add([counts])
        if found.moments.rows < 2:
            raise ValueError(
                f"the source has {int(found.moments.rows)} rows to train on; at least 2 are required"
            )
        scales = _scales(found, settings, kind)
        return cls(source, settings, group, fraction, found, [int(c) for c in counts.tolist()], *scales)

    @property
    def n(self) -> int:
        """Rows to train on."""
        return int(self.found.moments.rows)

    @property
    def classes(self) -> NDArray | None:
        return getattr(self.source, "classes", None)

    @property
    def single_output(self) -> bool:
        return bool(getattr(self.source, "single_output", self.found.sample.y.shape[1] == 1))

    def stream(self, *, held_out: bool = False, on_host: bool = False) -> Stream:
        """The rows that train, or those held out; on the device, or on the host for minibatches."""
        device = self.settings.torch_device
        scaled = partial(
            scaled_batch,
            x_scaler=self.x_scaler,
            y_scaler=self.y_scaler,
            columns=self.columns,
            dtype=self.settings.torch_dtype,
            device=torch.device("cpu") if on_host else device,
        )
        choice = for_validation if held_out else for_training
        return Stream(
            self.source,
            scaled,
            keep=partial(choice, fraction=self.fraction, seed=self.settings.random_state),
            sample=self.found.sample,
            rows=CPU_CHUNK_ROWS if device.type == "cpu" else CUDA_BATCH_ROWS,
            group=self.group,
            pinned=on_host and device.type == "cuda",
            held=not on_host and not held_out and self._bytes() <= HELD_BYTES,
        )

    def _bytes(self) -> int:
        """Of the scaled rows that train, about; those of one process, if all have as many."""
        sample = self.found.sample
        columns = int(self.columns.sum()) + sample.y.shape[1] + sum(t is not None for t in sample[2:4])
        return columns * self.settings.torch_dtype.itemsize * self.n // self.group.world

    def dataset(self, settings: Settings, *, watched: bool) -> Dataset:
        """The scaled samples in memory; ``watched``: with that of the rows held out, to validate on."""
        parts = [self.found.sample]
        if watched and self.found.held_out is not None:
            parts.append(self.found.held_out)
        x, y = (np.concatenate(each) for each in zip(*((p.x, p.y) for p in parts), strict=True))
        noise = None if parts[0].noise is None else np.concatenate([_given(p.noise) for p in parts])
        weight = None if parts[0].weight is None else np.concatenate([_given(p.weight) for p in parts])
        n, kind = len(parts[0].x), target_kind(settings.likelihood)
        return Dataset(
            self.x_scaler.transform(x[:, self.columns]),
            Target(self.y_scaler.transform(y), self.single_output, kind, self.classes),
            None if noise is None else noise / self.y_scaler.scale**2,
            weight,
            [np.arange(n)],
            [np.arange(n, len(x))] if len(parts) > 1 else None,
            [settings.random_state],
            None,
        )


def _given(part: NDArray | None) -> NDArray:
    assert part is not None  # chunks of one source have the same parts
    return part


# -- which rows are for what ---------------------------------------------------------------------------------


def for_validation(chunk: Chunk, *, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Mask [n] of the rows that are held out; rows of no weight count nowhere."""
    return _of_weight(chunk) & below(row_hashes(chunk, seed), fraction)


def for_training(chunk: Chunk, *, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Mask [n] of all other rows."""
    if not fraction:
        return _of_weight(chunk)
    return _of_weight(chunk) & ~below(row_hashes(chunk, seed), fraction)


def _of_weight(chunk: Chunk) -> NDArray[np.bool_]:
    return np.ones(len(chunk.x), dtype=bool) if chunk.weight is None else chunk.weight > 0


# -- labels and scales ---------------------------------------------------------------------------------------


def with_labels(source: Source, group: Group) -> Source:
    """A source of class numbers: this one, or where it knows no classes, with those that a pass finds."""
    if getattr(source, "classes", None) is None:
        found = np.empty(0)
        for chunk in source.chunks(group.rank, group.world):
            if chunk.y.shape[1] != 1:
                raise ValueError(f"class labels are one column, got {chunk.y.shape[1]}")
            found = np.union1d(found, chunk.y[:, 0])
            if len(found) > MAX_CLASSES:
                raise ValueError(f"y has more than {MAX_CLASSES} different labels")
        together = group.rows(torch.as_tensor(found)[:, None]).numpy()[:, 0]
        _, classes = encode(together)
        source = LabelledSource(source, classes)
    if len(getattr(source, "classes", ())) < 2:
        raise ValueError("y has only one class: there is nothing to tell apart")
    return source


def _scales(found: Survey, settings: Settings, kind: str) -> tuple[NDArray[np.bool_], Scaler, Scaler]:
    """The columns that vary, and the scalers of those and of the targets, from all rows."""
    of_x, of_y = found.part(of_y=False), found.part(of_y=True)
    columns = np.ones(found.dims, dtype=bool)
    if isinstance(settings.kernel, str):
        columns = informative_columns(np.stack([of_x.low, of_x.high]))
        columns[0] |= not columns.any()
    scaler = of_x.scaler(settings.standardize)
    shift, scale = scaler.shift[columns].copy(), scaler.scale[columns].copy()
    codes = list(category_columns(settings, int(columns.sum())))  # category codes are no numbers to scale
    shift[codes], scale[codes] = 0.0, 1.0
    return columns, Scaler(shift, scale), of_y.scaler(bool(settings.standardize) and kind == "real")
