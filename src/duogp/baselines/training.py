"""The loop: AdamW on minibatches, every member on its own, and the state that validation rows liked best.

The loss is a sum over members, and clipping, early stopping and the guard against numbers that are not finite
look at each alone: a member ends where it would have ended by itself. A step of Adam is bounded whatever the
gradient, and a gradient that is not finite is taken as zero, so weights stay finite.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.baselines.networks import Committee
from duogp.models.model import Batch
from duogp.training.feed import Minibatches, Table
from duogp.training.history import History, Record
from duogp.training.progress import Progress
from duogp.training.schedules import Schedule, cosine
from duogp.training.validation import BestState

#: Rows that a look at the validation rows takes at once.
CHUNK = 4096


@dataclass(frozen=True)
class Course:
    """How long and how fast to train."""

    epochs: int
    batch_size: int
    learning_rate: float
    steps: int | None = None  # optimiser steps in all; None: whole epochs
    schedule: Schedule = cosine
    weight_decay: float = 0.0  # of matrices, decoupled: w ← (1 − rate · decay) w
    clip: float = 1.0  # largest norm of a member's gradient
    evaluate_every: int = 1
    patience: int | None = None  # evaluations without improvement before a member stops; None: never
    restore_best: bool = True
    verbose: bool = False


def member_losses(network: Committee, batch: Batch, mean_weight: Tensor | float, raw: Tensor) -> Tensor:
    """−(1/B) Σ (w/w̄) log p(y) of every member, [members].

    Over all rows at once, whole weights count like repeated rows.
    """
    nll = -network.head.log_prob(raw, batch.y)
    return (nll if batch.weight is None else nll * batch.weight / mean_weight).mean(-1)


def train(
    network: Committee,
    table: Table,
    rows: Tensor,
    held_out: Tensor | None,
    course: Course,
    seeds: Sequence[int],
) -> History:
    """``rows`` [n] and ``held_out`` [n_val] of the table are the same for all members, their order is not."""
    descent = Descent(network, table, rows, course, seeds)
    best = None
    if held_out is not None:
        state = [*network.parameters(), *network.net.buffers()]  # running moments belong to their weights
        best = BestState(network, state, course.patience)  # type: ignore[arg-type]  # counts replicates only
    history = History(solver="stochastic")
    stop = False
    start = time.perf_counter()
    with Progress("training", descent.epochs, course.verbose) as bar:
        for epoch in range(1, descent.epochs + 1):
            loss = descent.run_epoch()
            due = epoch % course.evaluate_every == 0 or epoch == descent.epochs
            nll = None
            if best is not None and held_out is not None and due:
                each = validation_nll(network, table, held_out)
                stop = best.update(each, epoch)
                nll = float(each.mean())
            history.records.append(Record(epoch, loss, time.perf_counter() - start, nll, descent.rate))
            bar.advance(f"loss {loss:.4f}" + ("" if nll is None else f"  validation NLL {nll:.4f}"))
            if stop:
                break
    network.eval()
    for p in network.parameters():
        p.grad = None  # a fitted network carries no gradients around
    if best is not None and course.restore_best and bool(torch.isfinite(best.nll).any()):
        best.restore()
        kept = ", ".join(str(e) for e in best.epoch)
        history.notes.append(f"kept epoch {kept} of {history[-1].epoch}, the best on the validation rows")
        history.best_epoch = sorted(best.epoch)[len(best.epoch) // 2]  # the median member's
    history.stopped_early = stop
    if skipped := int(descent.skipped):
        history.notes.append(f"{skipped} gradients were not finite and were left out")
    history.seconds = time.perf_counter() - start
    return history


class Descent:
    """Minibatches, gradients, steps."""

    def __init__(
        self, network: Committee, table: Table, rows: Tensor, course: Course, seeds: Sequence[int]
    ) -> None:
        self.network, self.table, self.course = network, table, course
        self.generators = [torch.Generator(rows.device).manual_seed(seed + 2) for seed in seeds]
        self.feed = Minibatches(rows.expand(network.members, -1), course.batch_size, self.generators)
        self.total = course.steps or course.epochs * self.feed.steps
        self.epochs = -(-self.total // self.feed.steps)
        self.step = 0
        self.rate = course.learning_rate
        self.skipped = torch.zeros((), dtype=torch.long, device=rows.device)
        self.mean_weight = 1.0 if table.weight is None else table.weight[rows].mean()
        self.parameters = list(network.parameters())
        self.optimiser = make_optimiser(network, course)

    def run_epoch(self) -> float:
        """One pass over the rows, or what is left of the steps; the mean loss of its steps and members."""
        self.network.train()
        batches = self.feed.epoch()[: self.total - self.step]
        losses = torch.zeros((), dtype=torch.float64, device=batches.device)
        for rows in batches:
            self.rate = self.course.learning_rate * self.course.schedule(self.step / self.total)
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate
            self.optimiser.zero_grad(set_to_none=True)
            batch = self.table.gather(rows)
            loss = member_losses(
                self.network, batch, self.mean_weight, self.network(batch.x, self.generators)
            )
            loss.sum().backward()
            healthy = clip_gradients(self.parameters, self.course.clip)
            self.optimiser.step()
            self.step += 1
            losses += torch.where(healthy, loss.detach(), 0.0).mean()
            self.skipped += (~healthy).sum()
        return float(losses) / len(batches)


def make_optimiser(network: Committee, course: Course) -> torch.optim.Optimizer:
    """AdamW; biases, norms and noise levels do not decay."""
    matrices = [p for p in network.net.layers.parameters() if p.dim() == 3]
    others = [p for p in network.parameters() if all(p is not m for m in matrices)]
    groups = [
        {"params": matrices, "weight_decay": course.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=course.learning_rate, fused=True)


def clip_gradients(parameters: Sequence[Tensor], largest: float) -> Tensor:
    """Bound the norm of each member's gradient [members, ...]; one that is not finite becomes zero.

    Returns which members' gradients were finite.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    square = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
    finite = torch.isfinite(square)
    factor = (largest * square.clamp_min(1e-30).rsqrt()).clamp_max(1.0)
    factor = torch.where(finite, factor, torch.zeros_like(factor))
    for g in gradients:
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1))).nan_to_num_(0.0)  # 0 · ∞
    return finite


@torch.no_grad()
def validation_nll(network: Committee, table: Table, rows: Tensor) -> Tensor:
    """−mean log density of every member [members]; infinite where it is not a number."""
    network.eval()
    total = torch.zeros(network.members, dtype=torch.float64, device=table.x.device)
    weights = torch.zeros((), dtype=torch.float64, device=table.x.device)
    for part in rows.split(CHUNK):
        batch = table.gather(part.unsqueeze(0))
        density = network.scores(batch.x[0], batch.y[0]).double()
        weight = torch.ones_like(density[0]) if batch.weight is None else batch.weight[0].double()
        total += (density * weight).sum(-1)
        weights += weight.sum()
    nll = -total / weights
    return torch.where(torch.isfinite(nll), nll, torch.inf)
