"""Rows for the training step: they live on the device and are gathered there, never copied from the host.

R replicates (splits, seeds, β values) share one X; each has its own rows and its own scaling. Every batch
has the same shape, so nothing is captured or compiled twice: the last batch of an epoch is filled up with
the first rows of the same permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from duogp.models.model import Batch


class Feed(Protocol):
    """Where the rows of minibatch steps come from: a table on the device (`TableFeed`), or a stream of files.

    ``tensors`` are what a step reads. They stay where they are, so that steps can be captured and compiled;
    `start_epoch` and `select` change their values, `batch` makes the rows of a step of them.
    """

    steps: int  # of an epoch
    batch_size: int  # rows of a replicate in a step
    share: float  # of all rows, which this process has
    generators: Sequence[torch.Generator]  # one for each replicate

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors that a captured step reads, by name; their values change in place."""
        ...

    def start_epoch(self) -> None:
        """Prepare the row order of the next epoch."""

    def select(self, step: int) -> None:
        """Make the tensors those of step i of this epoch."""

    def batch(self, tensors: Mapping[str, Tensor]) -> Batch:
        """The scaled rows of the step, x [R, n, d] and y [R, outputs, n]; a function of the tensors alone."""
        ...


class Scaling(NamedTuple):
    """Each replicate's own scaling, applied after the gather."""

    x_shift: Tensor  # [R, 1, d]
    x_scale: Tensor
    y_shift: Tensor  # [R, 1, outputs]
    y_scale: Tensor


@dataclass(frozen=True)
class Table:
    """All rows, on the device. Already scaled, or scaled per replicate when they are gathered."""

    x: Tensor  # [N, d]
    y: Tensor  # [N, outputs]
    noise: Tensor | None = None  # [N, outputs] fixed noise variance
    weight: Tensor | None = None  # [N]
    scaling: Scaling | None = None
    dtype: torch.dtype = torch.float64
    learned: Tensor | None = None  # [R, N, C], scaled: columns of each replicate, behind those of x

    def gather(self, rows: Tensor) -> Batch:
        """The scaled rows [R, n] of every replicate."""
        x, y = taken(self.x, rows), taken(self.y, rows)
        noise = None if self.noise is None else taken(self.noise, rows)  # [R, n, outputs]
        weight = None if self.weight is None else taken(self.weight, rows).to(self.dtype)
        if self.scaling is not None:
            x = (x - self.scaling.x_shift) / self.scaling.x_scale
            y = (y - self.scaling.y_shift) / self.scaling.y_scale
            noise = None if noise is None else noise / self.scaling.y_scale.square()
        if self.learned is not None:
            replicate = torch.arange(len(self.learned), device=rows.device).unsqueeze(-1)
            x = torch.cat([x, self.learned[replicate, rows].to(x.dtype)], -1)
        noise = None if noise is None else noise.mT.to(self.dtype)
        return Batch(x.to(self.dtype), y.mT.to(self.dtype), noise, weight)


def taken(values: Tensor, rows: Tensor) -> Tensor:
    """values[rows] for rows [R, n]; on a CPU the general indexing takes five times as long."""
    if rows.is_cuda:
        return values[rows]
    return values.index_select(0, rows.reshape(-1)).view(*rows.shape, *values.shape[1:])


class Minibatches:
    """Shuffled batches of every replicate's rows [R, n], each replicate by its own generator.

    With ``blocks`` the batches are a fixed partition of the rows, visited in random order. A partition
    needs equal blocks: the n mod (number of blocks) rows left over (fewer than there are blocks) sit out.
    """

    def __init__(
        self, rows: Tensor, batch_size: int, generators: Sequence[torch.Generator], *, blocks: bool = False
    ) -> None:
        self.rows = rows
        self.generators = generators
        replicates, n = rows.shape
        batch_size = min(batch_size, n)
        self.steps = -(-n // batch_size)
        self.batch_size = n // self.steps if blocks else batch_size
        self.partition: Tensor | None = None
        if blocks:
            kept = self._shuffle()[:, : self.steps * self.batch_size]
            self.partition = kept.reshape(replicates, self.steps, self.batch_size).transpose(0, 1)

    def epoch(self) -> Tensor:
        """Row indices of one pass over the data: [steps, R, batch]."""
        if self.partition is not None:
            orders = torch.stack([self._permutation(self.steps, g) for g in self.generators], 1)
            return self.partition.gather(0, orders.unsqueeze(-1).expand_as(self.partition))
        shuffled = self._shuffle()
        missing = self.steps * self.batch_size - shuffled.shape[1]
        shuffled = torch.cat([shuffled, shuffled[:, :missing]], 1)
        return shuffled.reshape(shuffled.shape[0], self.steps, self.batch_size).transpose(0, 1)

    def _shuffle(self) -> Tensor:
        return self.rows.gather(
            1, torch.stack([self._permutation(self.rows.shape[1], g) for g in self.generators])
        )

    def _permutation(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(n, generator=generator, device=self.rows.device)


class TableFeed:
    """Minibatches of a table: row numbers change between steps, the table stays."""

    #: columns of a table that may or may not be there
    COLUMNS = "x", "y", "noise", "weight"
    share = 1.0

    def __init__(self, table: Table, batches: Minibatches) -> None:
        self.table, self.minibatches = table, batches
        self.steps, self.batch_size = batches.steps, batches.batch_size
        self.generators = batches.generators
        device = batches.rows.device
        self.rows = torch.zeros(batches.rows.shape[0], batches.batch_size, dtype=torch.long, device=device)
        self._epoch = self.rows.unsqueeze(0)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors that a captured step reads, by name; their values change in place."""
        columns = {name: getattr(self.table, name) for name in self.COLUMNS}
        return {name: t for name, t in columns.items() if t is not None} | {"rows": self.rows}

    def start_epoch(self) -> None:
        """Draw the minibatches of a new epoch."""
        self._epoch = self.minibatches.epoch()

    def select(self, step: int) -> None:
        """Make the rows of a step of the epoch the present ones, in place."""
        self.rows.copy_(self._epoch[step])

    def batch(self, tensors: Mapping[str, Tensor]) -> Batch:
        """The rows of the present step, x [R, n, d] and y [R, outputs, n], gathered from the table."""
        columns: dict[str, Any] = {name: t for name, t in tensors.items() if name != "rows"}
        return replace(self.table, **columns).gather(tensors["rows"])


def chunks(table: Table, rows: Tensor, size: int) -> list[Callable[[], Batch]]:
    """All rows [R, n] in consecutive pieces of at most ``size``, each gathered when it is asked for."""
    return [lambda part=part: table.gather(part) for part in rows.split(size, dim=1)]  # type: ignore[misc]
