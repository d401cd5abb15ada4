"""Training the molecule autoencoder against the clock (numpy and torch only).

    loss = −log p(x | z) + β KL(q(z|x) ‖ N(0, I)),   z ~ q(z|x),   per molecule

The learning rate follows the share of the time budget that is spent: a short rise, then a cosine to zero. β
is controlled instead of guessed: every hundred steps it rises while more than `target` of a sample of
validation molecules are reconstructed exactly and falls while fewer are. The latent space is thus as smooth,
and prior samples as much like molecules of the corpus, as the wanted reconstruction permits, whatever the
budget. In the first half some of the previous tokens are hidden from the decoder, so that it learns to listen
to z; later it may rely on both, and z need not say what the previous tokens tell.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from duogp_tasks.molecules.alphabet import END, PAD
from duogp_tasks.molecules.corpus import TEST, TRAIN, VALIDATION, Corpus
from duogp_tasks.molecules.model import Architecture, SequenceVAE, divergence, shifted

BUCKET = 8  # rows of a batch are cut to a multiple of this length


@dataclass(frozen=True)
class Schedule:
    """How to spend the time."""

    seconds: float = 480.0
    steps: float = math.inf  # where this comes sooner, for runs that must not depend on the machine
    batch: int = 1024
    learning_rate: float = 1e-3
    warm_up: int = 500  # steps
    weight_decay: float = 0.05
    hidden: float = 0.4  # most tokens hidden from the decoder at first, as a share; none from half-time on
    target: float = 0.95  # wanted exact reconstruction of validation molecules
    beta_low: float = 0.01
    beta_high: float = 1.0
    beta_every: int = 100  # steps between two corrections of β
    beta_until: float = 0.9  # share of the time after which β stays
    report_every: float = 15.0  # seconds
    checkpoint_every: float = 60.0  # seconds

    def progress(self, step: int, elapsed: float) -> float:
        """The share of the budget that is spent."""
        return max(step / self.steps, elapsed / self.seconds)

    def rate(self, step: int, progress: float) -> float:
        """The learning rate."""
        rise, fall = min(1.0, (step + 1) / self.warm_up), 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * rise * fall

    def next_beta(self, beta: float, reconstructed: float) -> float:
        """Up to ten per cent more or less."""
        surplus = min(max(reconstructed - self.target, -0.05), 0.05)
        return min(max(beta * math.exp(2 * surplus), self.beta_low), self.beta_high)


@dataclass
class State:
    """Everything that training changes."""

    model: SequenceVAE
    optimiser: torch.optim.Optimizer
    beta: float
    step: int = 0
    elapsed: float = 0.0  # seconds, over all sittings


def start(architecture: Architecture, schedule: Schedule, device: torch.device, seed: int = 0) -> State:
    """An untrained model."""
    torch.manual_seed(seed)
    model = SequenceVAE(architecture).to(device)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim >= 2]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(
        groups,
        lr=schedule.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=schedule.weight_decay,
        fused=device.type == "cuda",
    )
    return State(model, optimiser, schedule.beta_low)


def save_checkpoint(state: State, path: Path) -> None:
    """Replaces the file in one move, so that a kill leaves the last one whole."""
    content = {
        "architecture": state.model.architecture.as_dict(),
        "model": state.model.state_dict(),
        "optimiser": state.optimiser.state_dict(),
        "beta": state.beta,
        "step": state.step,
        "elapsed": state.elapsed,
    }
    draft = path.with_suffix(".part")
    torch.save(content, draft)
    draft.replace(path)


def load_checkpoint(path: Path, schedule: Schedule, device: torch.device) -> State:
    """Continue where `save_checkpoint` left off."""
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    state = start(Architecture(**content["architecture"]), schedule, device)
    state.model.load_state_dict(content["model"])
    state.optimiser.load_state_dict(content["optimiser"])
    state.beta, state.step, state.elapsed = content["beta"], content["step"], content["elapsed"]
    return state


def train(
    state: State,
    corpus: Corpus,
    schedule: Schedule,
    *,
    checkpoint: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> None:
    """Train until the budget, what earlier sittings took included, is spent."""
    model, optimiser = state.model, state.optimiser
    device = next(model.parameters()).device
    rows = torch.as_tensor(with_end(corpus.part(TRAIN)), device=device)
    lengths = corpus.lengths[corpus.split == TRAIN] + 1
    held_out = torch.as_tensor(with_end(corpus.part(VALIDATION)), device=device)
    random = np.random.default_rng([seed, state.step])
    torch.manual_seed(seed + state.step)

    began, earlier = time.monotonic(), state.elapsed
    reported = saved = state.elapsed
    reported_step = state.step
    reconstructed = math.nan
    for epoch, index, length in endless_batches(lengths, schedule.batch, rows.shape[1], random, device):
        state.elapsed = earlier + time.monotonic() - began
        progress = schedule.progress(state.step, state.elapsed)
        if progress >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(state.step, progress)
        model.train()
        with precision(device):
            hidden = schedule.hidden * max(0.0, 1 - 2 * progress)
            nats, kl = losses(model, rows[index, :length].long(), hidden)
        # About 40 tokens to a molecule: gradients have the size that per-token losses give.
        ((nats + state.beta * kl) / 40).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        state.step += 1

        if state.step % schedule.beta_every == 0 and progress < schedule.beta_until:
            sample = torch.as_tensor(random.integers(len(held_out), size=2048), device=device)
            reconstructed = reconstruction(model, held_out[sample])
            state.beta = schedule.next_beta(state.beta, reconstructed)
        if state.elapsed - reported >= schedule.report_every:
            speed = (state.step - reported_step) * schedule.batch / (state.elapsed - reported)
            share = reconstruction(model, held_out[:4096])
            say(
                f"{state.elapsed:6.0f} s  epoch {epoch:3d}  step {state.step:6d}  nats {nats.item():7.3f}  "
                f"KL {kl.item():6.1f}  beta {state.beta:.4f}  held-out exact {share:.4f}  {speed:6.0f}/s"
            )
            reported, reported_step = state.elapsed, state.step
        if checkpoint is not None and state.elapsed - saved >= schedule.checkpoint_every:
            save_checkpoint(state, checkpoint)
            saved = state.elapsed
    if checkpoint is not None:
        save_checkpoint(state, checkpoint)


def losses(model: SequenceVAE, rows: Tensor, hidden: float) -> tuple[Tensor, Tensor]:
    """−log p(x|z) and KL, means over the molecules of a batch."""
    mean, log_variance = model.posterior(rows)
    z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    logits = model.logits(z, _hide(shifted(rows), hidden))
    nats = functional.cross_entropy(
        logits.flatten(0, 1).float(), rows.flatten(), ignore_index=PAD, reduction="sum"
    )
    return nats / len(rows), divergence(mean, log_variance).mean()


@torch.no_grad()
def reconstruction(model: SequenceVAE, rows: Tensor, batch: int = 4096) -> float:
    """The share of rows that greedy decoding of the posterior mean gives back exactly."""
    model.eval()
    with precision(rows.device):
        matches = [model.matches(part.long()) for part in rows.split(batch)]
    return float(torch.cat(matches).double().mean())


@torch.no_grad()
def report(
    model: SequenceVAE, corpus: Corpus, samples: int = 1000, rows: int = 25_000, seed: int = 0
) -> dict[str, float]:
    """What needs no RDKit: reconstruction of up to `rows` of each part, the posterior, prior samples."""
    model.eval()
    device = next(model.parameters()).device
    parts = {
        name: torch.as_tensor(with_end(corpus.part(which)[:rows]), device=device) for name, which in _PARTS
    }
    results = {f"{name}_exact": reconstruction(model, part) for name, part in parts.items()}
    with precision(device):
        mean, log_variance = model.posterior(parts["test"][:4096].long())
    results["kl"] = float(divergence(mean, log_variance).mean())
    results["mean_variance"] = float(mean.var(0).mean())  # + posterior_variance = 1 where q matches the prior
    results["posterior_variance"] = float(log_variance.exp().mean())
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, model.architecture.latent, generator=generator).to(device)
    decoded = model.float().greedy(z).cpu().numpy()
    results["prior_distinct"] = len(np.unique(decoded, axis=0)) / samples
    results["prior_length"] = float((decoded > END).sum(1).mean())
    return results


_PARTS = (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))


def with_end(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows with END behind each molecule, one longer."""
    wider = np.pad(rows, ((0, 0), (0, 1)), constant_values=PAD)
    wider[np.arange(len(rows)), (rows != PAD).sum(1)] = END
    return wider


def endless_batches(
    lengths: NDArray[np.int64], batch: int, longest: int, random: np.random.Generator, device: torch.device
) -> Iterator[tuple[int, Tensor, int]]:
    """Epoch, row numbers and the length to cut to, for ever.

    Each epoch is shuffled, cut into runs of sixteen batches and each run sorted by length, so that a batch
    holds molecules of similar length and little of it is padding; then the batches are shuffled.
    """
    epoch = 0
    while True:
        # What fills no batch is left out before the sorting, which would make it always the longest.
        order = random.permutation(len(lengths))[: max(batch, len(lengths) // batch * batch)]
        for begin in range(0, len(order), 16 * batch):
            run = order[begin : begin + 16 * batch]
            order[begin : begin + 16 * batch] = run[np.argsort(lengths[run], kind="stable")]
        on_device = torch.as_tensor(order, device=device)  # one transfer per epoch
        for begin in random.permutation(np.arange(0, len(order), batch)):
            chosen = slice(begin, begin + batch)
            needed = int(lengths[order[chosen]].max())
            yield epoch, on_device[chosen], min(longest, BUCKET * math.ceil(needed / BUCKET))
        epoch += 1


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 matrix products on a GPU, float32 elsewhere."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def _hide(previous: Tensor, most: float) -> Tensor:
    """Half of the molecules lose a random share, between none and `most`, of the tokens the decoder sees."""
    n = len(previous)
    share = most * torch.rand(n, 1, device=previous.device) * (torch.rand(n, 1, device=previous.device) < 0.5)
    lost = torch.rand(previous.shape, device=previous.device) < share
    return previous.masked_fill(lost, PAD)
