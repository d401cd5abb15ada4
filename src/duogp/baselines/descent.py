"""Training of networks: AdamW on minibatches, every member on its own, early stopping on validation rows.

The loss is a sum over members. Clipping, early stopping and the check for gradients that are not finite are
done for each member separately, so that a member ends where it would have ended if trained alone. A gradient
that is not finite is replaced by zero; steps of Adam are bounded, so weights stay finite.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.baselines.networks import Committee
from duogp.models.model import Batch
from duogp.training.adam import Adam
from duogp.training.backends import network_weights
from duogp.training.feed import Minibatches, Table
from duogp.training.history import History, Record
from duogp.training.loop import TrainingPlan
from duogp.training.progress import Progress
from duogp.training.validation import BestState, weighted_nll

#: Validation rows evaluated at once.
CHUNK = 4096


@dataclass(frozen=True)
class NetworkPlan(TrainingPlan):
    """Length and rate of a training; ``weight_decay`` is that of matrices: w ← (1 − rate · decay) w."""

    batch_size: int = 64
    clip: float = 1.0  # largest norm of a member's gradient


def member_losses(network: Committee, batch: Batch, mean_weight: Tensor | float, raw: Tensor) -> Tensor:
    """−(1/B) Σ (w/w̄) log p(y) of every member: [members].

    Over all rows at once, a row of integer weight w counts as w rows.
    """
    nll = -network.head.log_prob(raw, batch.y)
    return (nll if batch.weight is None else nll * batch.weight / mean_weight).mean(-1)


def train(
    network: Committee,
    table: Table,
    rows: Tensor,
    validation: Batch | None,
    plan: NetworkPlan,
    seeds: Sequence[int],
) -> History:
    """Train on ``rows`` [n], stop on ``validation``; members share the rows, not their order."""
    generators = [torch.Generator(rows.device).manual_seed(seed + 2) for seed in seeds]
    feed = Minibatches(rows.expand(network.members, -1), plan.batch_size, generators)
    total = plan.steps or plan.epochs * feed.steps
    epochs = -(-total // feed.steps)
    mean_weight = 1.0 if table.weight is None else table.weight[rows].mean()
    parameters: list[Tensor] = list(network.parameters())
    # AdamW; biases, norms and noise levels do not decay.
    matrices = {id(p) for p in network_weights(network)}
    decays = [plan.weight_decay if id(p) in matrices else 0.0 for p in parameters]
    adam = Adam(parameters, plan.learning_rate, decays)
    best = None
    if validation is not None:
        state = [*parameters, *network.net.buffers()]  # running moments belong to their weights
        best = BestState(network.members, state, plan.patience)
    history = History(solver="stochastic")
    skipped = torch.zeros((), dtype=torch.long, device=rows.device)
    step, stop = 0, False
    start = time.perf_counter()
    with Progress("training", epochs, plan.verbose) as bar:
        for epoch in range(1, epochs + 1):
            network.train()
            batches = feed.epoch()[: total - step]
            losses = torch.zeros((), dtype=torch.float64, device=rows.device)
            for part in batches:
                adam.rate = rate = plan.learning_rate * plan.schedule(step / total)
                adam.zero_grad()
                batch = table.gather(part)
                each = member_losses(network, batch, mean_weight, network(batch.x, generators))
                each.sum().backward()
                healthy = clip_gradients(parameters, plan.clip)
                adam.step()
                step += 1
                losses += torch.where(healthy, each.detach(), 0.0).mean()
                skipped += (~healthy).sum()
            loss = float(losses) / len(batches)
            nll = None
            due = epoch % plan.evaluate_every == 0 or epoch == epochs
            if best is not None and validation is not None and due:
                network.eval()
                each = weighted_nll(lambda part: network.scores(part.x[0], part.y[0]), validation, CHUNK)
                each = each.nan_to_num(torch.inf, torch.inf, torch.inf)
                stop = best.update(each, epoch)
                nll = float(each.mean())
            history.records.append(Record(epoch, loss, time.perf_counter() - start, nll, rate))
            bar.advance(f"loss {loss:.4f}" + ("" if nll is None else f"  validation NLL {nll:.4f}"))
            if stop:
                break
    network.eval()
    adam.zero_grad()
    if best is not None and plan.restore_best and bool(torch.isfinite(best.nll).any()):
        best.restore()
        kept = ", ".join(str(e) for e in best.epoch)
        history.notes.append(f"kept epoch {kept} of {history[-1].epoch}, the best on the validation rows")
        history.best_epoch = sorted(best.epoch)[len(best.epoch) // 2]  # the median member's
    history.stopped_early = stop
    if skipped:
        history.notes.append(f"{int(skipped)} gradients were not finite and were left out")
    history.seconds = time.perf_counter() - start
    return history


def clip_gradients(parameters: Sequence[Tensor], largest: float) -> Tensor:
    """Which members' gradients [members, ...] were finite; each is scaled to a norm of at most ``largest``.

    A gradient that is not finite becomes zero.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    square = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
    finite = torch.isfinite(square)
    factor = (largest * square.clamp_min(1e-30).rsqrt()).clamp_max(1.0)
    factor = torch.where(finite, factor, torch.zeros_like(factor))
    for g in gradients:
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1))).nan_to_num_(0.0)  # 0 · ∞
    return finite
