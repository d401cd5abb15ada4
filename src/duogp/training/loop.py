"""One loop for all: minibatch or closed form, eager or captured, one model or many replicates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from duogp.errors import NumericalWarning
from duogp.inference.natural import NaturalGradient
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import MAX_JITTER
from duogp.training.backends import Backend, is_capturable, make_backend
from duogp.training.guard import Guard
from duogp.training.history import History, Record
from duogp.training.problems import ClosedForm, Problem
from duogp.training.progress import Progress
from duogp.training.schedules import Schedule, constant, ramp
from duogp.training.threads import modest_threads
from duogp.training.validation import BestState, mean_nll


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast to train."""

    epochs: int
    learning_rate: float
    schedule: Schedule = constant
    evaluate_every: int = 1  # epochs between looks at the validation rows
    patience: int | None = None  # evaluations without improvement before a replicate stops; None: never
    restore_best: bool = True  # leave with the state that was best on the validation rows
    check_every: int = 50  # steps between looks at the device's health
    natural_rate: float | None = None  # step size of natural gradients on q(u); None: Adam there too
    mean_rule: str = "adam"  # of means that no covariance belongs to, beside natural gradients
    weight_decay: float = 0.0  # of the weights of networks
    steps: int | None = None  # optimiser steps in all; None: whole epochs
    seconds: float | None = None  # after which training ends; the schedule then follows the clock
    backend: Backend = "auto"
    verbose: bool = False


@dataclass(frozen=True)
class Progression:
    """What a callback sees after every epoch."""

    epoch: int
    model: Model
    records: Sequence[Record]  # one per replicate


#: A callback may return True to stop training.
Callback = Callable[[Progression], bool | None]


def train(
    model: Model,
    problem: Problem,
    plan: TrainingPlan,
    validation: Batch | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[History]:
    """Train all replicates; returns one history for each. Never raises for numerical trouble."""
    with conditions(model, problem):
        epochs = in_epochs(model, problem, plan, validation, callbacks)
        while True:
            try:
                next(epochs)
            except StopIteration as end:
                return end.value


@contextmanager
def conditions(model: Model, problem: Problem) -> Iterator[None]:
    """Precision and threads while steps are taken."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # TF32 in φ makes variances negative (MATH §11 C3)
    try:
        with modest_threads(model, problem.rows_at_once):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def in_epochs(
    model: Model,
    problem: Problem,
    plan: TrainingPlan,
    validation: Batch | None = None,
    callbacks: Sequence[Callback] = (),
) -> Generator[None, None, list[History]]:
    """`train` with a pause after every epoch, for who takes turns; to be advanced under `conditions`."""
    parameters: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    if isinstance(problem, ClosedForm):  # q(u) is solved for, not descended
        of_q = {id(p) for p in model.basis.q.parameters()}
        parameters = [p for p in parameters if id(p) not in of_q]
    if not parameters:
        if isinstance(problem, ClosedForm):  # everything but q(u) is given, and q(u) has a formula
            problem.finish()
            return [History(solver="closed-form") for _ in range(model.replicates)]
        raise ValueError("there is nothing to train: every parameter is fixed")
    natural = None
    if plan.natural_rate is not None:
        # A log-concave ELBO or VFITC keeps the precision positive by itself, predictive objectives do not.
        safe = model.objective.keeps_precision_positive and model.likelihood.is_log_concave
        natural = NaturalGradient(
            model.basis,
            model.num_data,
            plan.natural_rate,
            always_positive=not safe,
            mean_rule=plan.mean_rule,
            beta1=model.beta1,
        )
    total_steps = plan.steps or plan.epochs * problem.steps_per_epoch
    backend = make_backend(
        plan.backend,
        problem,
        parameters,
        plan.learning_rate,
        natural,
        capturable=is_capturable(model),
        weight_decay=plan.weight_decay,
        steps=total_steps if plan.seconds is None else 0,
    )
    guard = Guard(model, backend)
    best = None if validation is None else BestState(model, parameters, plan.patience)
    solver = "closed-form" if isinstance(problem, ClosedForm) else "natural" if natural else "stochastic"
    histories = [History(solver=solver) for _ in range(model.replicates)]
    epochs = -(-total_steps // problem.steps_per_epoch)
    check_every = max(1, min(plan.check_every, total_steps // 20))  # a rollback must not undo it all
    unchecked = torch.zeros_like(model.num_data)  # losses since the last look
    start = time.perf_counter()
    step = 0
    exhausted = False
    out_of_time = False
    latest: torch.Tensor | None = None  # validation NLL when it was last looked at

    def done() -> float:
        """How much of the training is behind us: of its steps, or of its time."""
        share = step / total_steps
        return share if plan.seconds is None else max(share, (time.perf_counter() - start) / plan.seconds)

    with Progress("training", epochs, plan.verbose) as bar:
        for epoch in range(1, epochs + 1):
            problem.start_epoch()
            loss_sum = torch.zeros_like(model.num_data)
            steps_now = min(problem.steps_per_epoch, total_steps - step)
            for i in range(steps_now):
                decay = plan.schedule(min(done(), 1.0)) * guard.rate_factor
                rate = plan.learning_rate * decay
                backend.set_learning_rate(rate)
                if natural is not None and plan.natural_rate is not None:
                    natural.set_rate(plan.natural_rate * ramp(step, total_steps) * decay)
                problem.select(i)
                loss = backend.run()
                loss_sum += loss
                unchecked += loss
                step += 1
                out_of_time = plan.seconds is not None and done() >= 1 and step < total_steps
                if step % check_every == 0 or step == total_steps or out_of_time:
                    healthy = guard.healthy(unchecked)
                    unchecked.zero_()
                    if healthy:
                        guard.save()
                    else:
                        exhausted = not guard.roll_back()
                        loss_sum = torch.full_like(loss_sum, torch.nan)
                        if exhausted:
                            break
                if out_of_time:
                    steps_now = i + 1
                    break
            ended = exhausted or out_of_time
            due = epoch % plan.evaluate_every == 0 or epoch == epochs or ended
            nll = None
            stop = ended
            stopped_before = [] if best is None else list(best.stopped)
            if best is not None and validation is not None and due:
                if isinstance(problem, ClosedForm):
                    problem.finish()
                latest = mean_nll(model, validation)
                nll = latest.tolist()
                stop |= best.update(latest, epoch)
            if due or callbacks or epoch == 1:
                seconds = time.perf_counter() - start
                losses = (loss_sum / steps_now).tolist()
                for r, history in enumerate(histories):
                    if best is None or not stopped_before[r]:
                        record = Record(epoch, losses[r], seconds, None if nll is None else nll[r], rate)
                        history.records.append(record)
                newest = [history.records[-1] for history in histories]
                for callback in callbacks:
                    stop |= bool(callback(Progression(epoch, model, newest)))
                bar.advance(
                    f"loss {losses[0]:.4f}" + ("" if nll is None else f"  validation NLL {nll[0]:.4f}")
                )
            else:
                bar.advance("")
            if stop:
                break
            yield

    if not guard.healthy(torch.zeros_like(model.num_data)):
        guard.roll_back()
    if best is not None and plan.restore_best and bool(torch.isfinite(best.nll).any()):
        best.restore()
    settle(model, problem, guard)
    left = None
    if best is not None and validation is not None:
        left = (
            best.nll if plan.restore_best else latest if latest is not None else mean_nll(model, validation)
        )
    for p in model.parameters():
        p.grad = None  # a fitted model carries no gradients around
    model.basis.keep_record, model.basis.recorded = False, None
    for r, history in enumerate(histories):
        history.seconds = time.perf_counter() - start
        history.rollbacks = guard.rollbacks
        history.jitter = float(model.numerics.jitter[r])
        if left is not None:
            history.validation_nll = float(left[r])
        if best is not None:
            history.best_epoch = best.epoch[r]
            history.stopped_early = best.stopped[r]
            if plan.restore_best:
                last = history.records[-1].epoch if history.records else 0
                history.notes.append(f"kept epoch {best.epoch[r]} of {last}, the best on the validation rows")
    if out_of_time:
        for history in histories:
            history.notes.append(f"stopped after {step} of {total_steps} steps: the time was up")
    if guard.rollbacks:
        message = (
            f"{guard.rollbacks} numerical difficulties during training (a covariance that could not be "
            f"factorised, or a loss that was not finite); each was undone and training went on with relative "
            f"jitter up to {float(model.numerics.jitter.max()):.0e}"
        )
        for history in histories:
            history.notes.append(message)
        warnings.warn(message, NumericalWarning, stacklevel=2)
    return histories


@torch.no_grad()
def settle(model: Model, problem: Problem | None = None, guard: Guard | None = None) -> None:
    """Leave with jitter under which the final state factorises and the final q(u) is finite.

    ``problem``: what solves for q(u); None: q(u) stays.
    """
    failed = model.numerics.failed
    restored = False
    while True:
        failed.zero_()
        if problem is not None:
            problem.finish()
        model.factors()
        bad = failed.clone()
        failed.zero_()
        for p in model.basis.q.parameters():
            bad |= ~torch.isfinite(p.reshape(model.replicates, -1).sum(1))
        if not bool(bad.any()):
            return
        if not bool((bad & (model.numerics.jitter.squeeze(-1) >= MAX_JITTER)).any()):
            model.numerics.raise_jitter(bad)
            if guard is not None:
                guard.rollbacks += 1
        elif guard is not None and not restored:  # the last steps went where nothing helps
            guard.restore()
            restored = True
        else:
            return
