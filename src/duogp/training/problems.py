"""What a training step differentiates: a minibatch of the objective, or the collapsed bound of all rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from duogp.inference.closed_form import CollapsedObjective
from duogp.models.model import Model
from duogp.training.feed import Minibatches, Table, chunks
from duogp.training.joint import CompiledStep

if TYPE_CHECKING:
    from duogp.bases.exact import Exact


class Problem(ABC):
    """`select` chooses the rows of step i (outside the captured step); `backward` is its mathematics."""

    model: Model
    steps_per_epoch: int
    rows_at_once: int | None = None  # of a replicate, where that is known
    can_compile = False
    generators: Sequence[torch.Generator] = ()  # what `start_epoch` and `select` draw from

    def start_epoch(self) -> None:
        """Prepare the row order of the next epoch."""

    def select(self, step: int) -> None:
        """Point the static buffers at step i of this epoch."""

    @abstractmethod
    def backward(self) -> Tensor:
        """Accumulate gradients and return the loss per datum [R], detached."""

    def finish(self) -> None:
        """Called once with the final hyperparameters."""

    def compile(self, wanted: bool = True) -> None:
        """Have the mathematics of later steps compiled, or no more, where `can_compile`."""


class Stochastic(Problem):
    can_compile = True

    def __init__(self, model: Model, table: Table, batches: Minibatches) -> None:
        self.model, self.table, self.batches = model, table, batches
        self.compiled: Callable[[Tensor], Tensor] | None = None
        self.steps_per_epoch, self.rows_at_once = batches.steps, batches.batch_size
        self.generators = batches.generators
        self.rows = torch.zeros(
            batches.rows.shape[0], batches.batch_size, dtype=torch.long, device=batches.rows.device
        )
        self._epoch = self.rows.unsqueeze(0)

    def start_epoch(self) -> None:
        self._epoch = self.batches.epoch()

    def select(self, step: int) -> None:
        self.rows.copy_(self._epoch[step])
        self.model.draw(self.batches.generators)

    def compile(self, wanted: bool = True) -> None:
        self.compiled = CompiledStep(self.model, self.table) if wanted else None

    def backward(self) -> Tensor:
        if self.compiled is not None:
            return self.compiled(self.rows)
        loss = self.model.loss(self.table.gather(self.rows))
        loss.sum().backward()
        return loss.detach()


class ClosedForm(Problem):
    """Full-batch steps on the collapsed bound; q(u) is never a parameter, only written at the end."""

    steps_per_epoch = 1

    def __init__(self, model: Model, table: Table, rows: Tensor, chunk: int) -> None:
        self.model = model
        self.rows_at_once = min(chunk, rows.shape[1])
        self.objective = CollapsedObjective(model, chunks(table, rows, chunk))

    def backward(self) -> Tensor:
        return self.objective.backward()

    def finish(self) -> None:
        best = self.objective.solve()
        self.model.basis.q.set_(best.mean, best.root)


class Evidence(ClosedForm):
    """The log marginal likelihood itself: nothing is approximated, and each step costs n³."""

    def __init__(self, model: Model, table: Table, rows: Tensor) -> None:
        assert model.basis.points_are_rows
        self.model, self.basis = model, cast("Exact", model.basis)
        self.rows_at_once = rows.shape[1]
        self.batch = table.gather(rows)

    @torch.no_grad()
    def loss(self) -> Tensor:
        """Minus the log evidence per datum [R], at the current hyperparameters."""
        return self._loss()

    def backward(self) -> Tensor:
        loss = self._loss()
        loss.sum().backward()
        return loss.detach()

    def _loss(self) -> Tensor:
        evidence = self.basis.log_evidence(self._target(), self.model.factors())
        return -(evidence + self.model.prior()) / self.model.num_data

    @torch.no_grad()
    def finish(self) -> None:
        self.basis.condition(self._target(), self.model.factors())

    def _target(self) -> Tensor:
        return self.batch.y - self.model.mean(self.batch.x.unsqueeze(-3))
