"""What a training step differentiates: a minibatch of the objective, or the collapsed bound of all rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from duogp.fused.direct import DirectStep
from duogp.inference.closed_form import CollapsedObjective
from duogp.models.model import Model
from duogp.numerics.groups import Group
from duogp.training.feed import Feed, Table, chunks
from duogp.training.joint import CompiledStep

if TYPE_CHECKING:
    from duogp.bases.exact import Exact


#: Multiplications of a product with all rows from which float32, where it is precise enough, is worth it.
QUICK_WORK = 100_000_000


class Problem(ABC):
    """`select` chooses the rows of step i (outside the captured step); `backward` is its mathematics."""

    model: Model
    steps_per_epoch: int
    rows_at_once: int | None = None  # of a replicate, where that is known
    can_compile = False
    can_capture = True  # as a CUDA graph
    group = Group()  # the processes that take the steps together
    generators: Sequence[torch.Generator] = ()  # what `start_epoch` and `select` draw from

    @property
    def has_direct_step(self) -> bool:
        """Whether steps are written by hand without a tape: compiling them would gain little."""
        return False

    def start_epoch(self) -> None:
        """Prepare the row order of the next epoch."""

    def select(self, step: int) -> None:
        """Point the static buffers at step i of this epoch."""

    @abstractmethod
    def backward(self) -> Tensor:
        """Accumulate gradients and return the loss per datum [R], detached."""

    def finish(self, factors: Any | None = None) -> None:
        """Called with the final hyperparameters; ``factors``: those of the model, where they are known."""

    def compile(self, wanted: bool = True) -> None:
        """Have the mathematics of later steps compiled, or no more, where `can_compile`."""


class Stochastic(Problem):
    """Minibatch steps on the rows of a feed; with several processes on the rows of all their feeds."""

    can_compile = True

    def __init__(self, model: Model, feed: Feed, group: Group | None = None) -> None:
        self.model, self.feed = model, feed
        self.group = Group() if group is None else group
        self.can_capture = self.group.world == 1  # sums over processes are no part of a graph
        self.compiled: Callable[[], Tensor] | None = None
        self.steps_per_epoch, self.rows_at_once = feed.steps, feed.batch_size
        self.generators = feed.generators

    def start_epoch(self) -> None:
        self.feed.start_epoch()

    def select(self, step: int) -> None:
        self.feed.select(step)
        self.model.draw(self.feed.generators)

    def compile(self, wanted: bool = True) -> None:
        self.compiled = CompiledStep(self.model, self.feed) if wanted else None

    def backward(self) -> Tensor:
        if self.compiled is not None:
            return self._of_all(self.compiled())
        return self._of_all(self.model.backward(self.feed.batch(self.feed.tensors), self.direct))

    @cached_property
    def direct(self) -> DirectStep | None:
        """The step without a tape, where there is one; all batches have the shape of the first."""
        return self.model.direct(self.feed.batch(self.feed.tensors))

    @property
    def has_direct_step(self) -> bool:
        return self.direct is not None

    @torch.no_grad()
    def _of_all(self, loss: Tensor) -> Tensor:
        """Loss, gradients and failures over the processes, by one all-reduce.

        The loss per datum of all rows is the mean of those of the processes, weighed by their rows: the
        regulariser is the same everywhere, and the weights add up to 1.
        """
        if self.group.world == 1:
            return loss
        failed, share = self.model.numerics.failed, self.feed.share
        moved = [p for p in self.model.parameters() if p.grad is not None]
        own: list[Tensor] = [loss, *(p.grad for p in moved if p.grad is not None)]
        # A process without rows has nothing to say, not even that its nothing is no number.
        parts = [t * share if share else torch.zeros_like(t) for t in own]
        failures, total, *gradients = self.group.add([failed.double(), *parts])
        failed.copy_(failures > 0)
        for p, gradient in zip(moved, gradients, strict=True):
            p.grad = gradient
        return total


class ClosedForm(Problem):
    """Full-batch steps on the collapsed bound; q(u) is never a parameter, only written at the end.

    ``quick``: large products of a step may be float32.
    """

    steps_per_epoch = 1

    def __init__(self, model: Model, table: Table, rows: Tensor, chunk: int, *, quick: bool = False) -> None:
        self.model = model
        self.rows_at_once = min(chunk, rows.shape[1])
        quick = quick and rows.shape[1] * model.basis.q.size**2 >= QUICK_WORK
        self.objective = CollapsedObjective(model, chunks(table, rows, chunk), quick=quick)

    def backward(self) -> Tensor:
        return self.objective.backward()

    def finish(self, factors: Any | None = None) -> None:
        best = self.objective.solve(factors)
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
        evidence = self.basis.quick_log_evidence(self._target(), self.model.numerics)
        return -(evidence + self.model.prior()) / self.model.num_data

    @torch.no_grad()
    def finish(self, factors: Any | None = None) -> None:
        self.basis.condition(self._target(), self.model.factors() if factors is None else factors)

    def _target(self) -> Tensor:
        return self.batch.y - self.model.mean(self.batch.x.unsqueeze(-3))
