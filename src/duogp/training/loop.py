"""One loop for all: minibatch or closed form, eager or captured, one model or many replicates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from duogp.errors import NumericalWarning
from duogp.inference.natural import NaturalGradient
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import MAX_JITTER
from duogp.training.adam import BETAS
from duogp.training.backends import Backend, Optimiser, make_backend
from duogp.training.checkpoint import Slot
from duogp.training.convergence import FEWEST_STEPS, Rest
from duogp.training.cycles import Cycles, first_cycle
from duogp.training.guard import Guard
from duogp.training.history import History, Record
from duogp.training.lbfgs import Curvature
from duogp.training.problems import ClosedForm, Problem
from duogp.training.progress import Progress
from duogp.training.schedules import Schedule, constant, cycles, ramp
from duogp.training.snapshots import final_snapshot, restore, restore_final, snapshot_of
from duogp.training.threads import full_precision, modest_threads
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
    adam_betas: tuple[float, float] = BETAS  # of Adam's means of gradients and of their squares
    weight_decay: float = 0.0  # of the weights of networks
    steps: int | None = None  # optimiser steps in all; None: whole epochs
    seconds: float | None = None  # after which training ends; the schedule then follows the clock, unless
    follows_clock: bool = True  # is off: then the clock changes nothing until it ends the training
    optimiser: Optimiser = "adam"  # "lbfgs": for losses of all rows
    fewest_steps: int = FEWEST_STEPS  # before a loss may be called at rest; fewer after a good start
    tolerance: float = 0.0  # nats a row: what more steps must gain; 0: all steps are taken
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
    slot: Slot | None = None,
    curvature: Curvature | None = None,
) -> list[History]:
    """Train all replicates; returns one history for each. Never raises for numerical trouble.

    ``slot``: where checkpoints of this training are; it goes on from the newest, and writes new ones.
    ``curvature``: what L-BFGS begins with, and what it has found in the end.
    """
    with conditions(model, problem):
        epochs = in_epochs(model, problem, plan, validation, callbacks, slot, curvature)
        while True:
            try:
                next(epochs)
            except StopIteration as end:
                return end.value


@contextmanager
def conditions(model: Model, problem: Problem) -> Iterator[None]:
    """Precision and threads while steps are taken."""
    with full_precision(), modest_threads(model, problem.rows_at_once):
        yield


def in_epochs(
    model: Model,
    problem: Problem,
    plan: TrainingPlan,
    validation: Batch | None = None,
    callbacks: Sequence[Callback] = (),
    slot: Slot | None = None,
    curvature: Curvature | None = None,
) -> Generator[None, None, list[History]]:
    """`train` with a pause after every epoch, for callers that take turns; advance it under `conditions`."""
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    if isinstance(problem, ClosedForm):  # q(u) is solved for, not descended
        of_q = {id(p) for p in model.basis.q.parameters()}
        parameters = [p for p in parameters if id(p) not in of_q]
    if not parameters:
        if isinstance(problem, ClosedForm):  # everything but q(u) is given, and q(u) has a formula
            problem.finish()
            return [History(solver="closed-form") for _ in range(model.replicates)]
        raise ValueError("there is nothing to train: every parameter is fixed")
    if not isinstance(problem, ClosedForm):  # minibatches are no deterministic loss
        plan = replace(plan, optimiser="adam")
    found = None if slot is None else slot.load()
    if found is not None and found.values["finished"]:
        return restore_final(model, found, curvature)
    run = Run(model, problem, plan, parameters, validation, slot)
    if curvature is not None:
        run.backend.inherit(curvature)
    if found is not None:
        restore(run, found)
    with Progress("training", run.epochs, plan.verbose) as bar:
        bar.advance("", run.at_epoch - 1)
        for epoch in range(run.at_epoch, run.epochs + 1):
            if run.epoch(epoch, callbacks, bar):
                break
            yield
    if curvature is not None:
        run.backend.keep(curvature)
    histories = run.finish()
    if slot is not None:
        slot.save(run.step + 1, final_snapshot(model, histories, run.step + 1, curvature))
    return histories


class Run:
    """A training in progress: what moves the parameters, what guards them, and how far it has come."""

    def __init__(
        self,
        model: Model,
        problem: Problem,
        plan: TrainingPlan,
        parameters: list[Tensor],
        validation: Batch | None,
        slot: Slot | None = None,
    ) -> None:
        self.model, self.problem, self.plan, self.validation = model, problem, plan, validation
        self.slot = slot
        self.total_steps = plan.steps or plan.epochs * problem.steps_per_epoch
        self.epochs = -(-self.total_steps // problem.steps_per_epoch)
        self.check_every = max(1, min(plan.check_every, self.total_steps // 20))  # no rollback undoes it all
        self.natural = None
        if plan.natural_rate is not None:
            self.natural = natural_gradient(model, plan.natural_rate, plan.mean_rule)
        self.backend = make_backend(
            plan.backend,
            problem,
            parameters,
            plan.learning_rate,
            self.natural,
            weight_decay=plan.weight_decay,
            betas=plan.adam_betas,
            steps=self.total_steps if plan.seconds is None else 0,
            optimiser=plan.optimiser,
        )
        self.guard = Guard(model, self.backend)
        self.best = None if validation is None else BestState(model.replicates, parameters, plan.patience)
        closed = isinstance(problem, ClosedForm)
        solver = "closed-form" if closed else "natural" if self.natural else "stochastic"
        self.histories = [History(solver=solver) for _ in range(model.replicates)]
        self.unchecked = torch.zeros_like(model.num_data)  # losses since the last look
        self.latest: Tensor | None = None  # validation NLL when it was last looked at
        # Adam on minibatches ends with a cycle of rates, L-BFGS at a point; other schedules take all steps.
        self.cycles: Cycles | None = None
        if plan.schedule is cycles and plan.optimiser != "lbfgs":
            ends = BestState(model.replicates, parameters, None)
            first = first_cycle(problem.steps_per_epoch, problem.rows_at_once)
            self.cycles = Cycles(plan.tolerance, self.total_steps, ends, first)
        self.rest: Rest | None = None
        if plan.optimiser == "lbfgs":
            self.rest = Rest(plan.tolerance, model.replicates, plan.fewest_steps)
        self.step = 0
        self.at_epoch, self.position = 1, 0  # the epoch, from 1 on, and its steps that are taken
        self.loss_sum = torch.zeros_like(model.num_data)  # of this epoch
        self.rate = 0.0  # of the last step
        self.epoch_generators: list[Tensor] = []  # their states at the start of the epoch, for checkpoints
        self.exhausted = self.out_of_time = False
        self.asked_to_stop = False  # by a callback, which has seen the state
        self.start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def done(self) -> float:
        """The share of the training that is over: of its steps, or of its time."""
        share = self.step / self.total_steps
        if self.plan.seconds is None or not self.plan.follows_clock:
            return share
        return max(share, self.seconds() / self.plan.seconds)

    def epoch(self, epoch: int, callbacks: Sequence[Callback], bar: Progress) -> bool:
        """One pass over the rows, its evaluation and its records; True where training ends with it."""
        # A replicate that has stopped gets no more records.
        self.at_epoch = epoch
        recorded = [r for r in range(len(self.histories)) if not self._stopped(r)]
        loss, rate = self._steps()
        stop = self.exhausted or self.out_of_time or self._at_rest(loss)
        due = epoch % self.plan.evaluate_every == 0 or epoch == self.epochs or stop
        nll = None
        if due and self.best is not None and self.validation is not None:
            if isinstance(self.problem, ClosedForm):
                self.problem.finish()
            self.latest = mean_nll(self.model, self.validation)
            self.problem.group.same([self.latest])  # so that all stop together
            nll = self.latest.tolist()
            self.best.update(self.latest, epoch)
            stop |= all(map(self._stopped, range(len(self.histories))))
        if not (due or callbacks or epoch == 1):
            bar.advance("")
            return stop
        losses, seconds = loss.tolist(), self.seconds()
        for r in recorded:
            record = Record(epoch, losses[r], seconds, None if nll is None else nll[r], rate)
            self.histories[r].records.append(record)
        newest = [history.records[-1] for history in self.histories]
        for callback in callbacks:
            self.asked_to_stop |= bool(callback(Progression(epoch, self.model, newest))) and not stop
        if callbacks:
            self.backend.refresh()
        stop |= self.asked_to_stop
        bar.advance(f"loss {losses[0]:.4f}" + ("" if nll is None else f"  validation NLL {nll[0]:.4f}"))
        return stop

    def _stopped(self, r: int) -> bool:
        """Whether a replicate has run out of patience, or its loss is at rest."""
        return (self.best is not None and self.best.stopped[r]) or (
            self.rest is not None and self.rest.reached[r]
        )

    def _at_rest(self, loss: Tensor) -> bool:
        """Whether the losses of all replicates are at rest; ``loss`` [R]: of this epoch."""
        if self.cycles is not None:
            return self.cycles.ended
        if self.rest is not None and self.plan.tolerance > 0 and self.step % self.check_every == 0:
            promised = self.backend.promised() if self.step < FEWEST_STEPS else None
            self.rest.update(self.step, loss.tolist(), None if promised is None else promised.tolist())
            found = self.backend.given_up()
            for r, lost in enumerate([] if found is None else found.tolist()):
                if lost and not self.rest.reached[r]:
                    self.rest.end(r, self.step)
            self.backend.freeze(torch.tensor(self.rest.reached, device=loss.device))
        return self.rest is not None and all(map(self._stopped, range(len(self.histories))))

    def _steps(self) -> tuple[Tensor, float]:
        """The steps of an epoch: their mean loss [R], on the device, and the last learning rate."""
        if self.position == 0:
            if self.slot is not None:
                self.epoch_generators = [g.get_state() for g in self.problem.generators]
            self.problem.start_epoch()
            self.loss_sum = torch.zeros_like(self.model.num_data)
        count = min(self.problem.steps_per_epoch, self.total_steps - (self.step - self.position))
        for i in range(self.position, count):
            self.rate = self._set_rates()
            self.problem.select(i)
            loss = self.backend.run()
            self.loss_sum += loss
            self.unchecked += loss
            self.step += 1
            last = self.step == self.total_steps
            seconds = self.plan.seconds
            self.out_of_time = seconds is not None and self.seconds() >= seconds and not last
            due = self.step % self.check_every == 0 or last or self.out_of_time
            undone = due and not self._check()
            if undone:
                self.loss_sum = torch.full_like(self.loss_sum, torch.nan)
            if self.cycles is not None:
                sound = partial(self.guard.healthy, self.unchecked)
                share = min(self.done(), 1.0)
                if self.cycles.take(share, None if undone else loss, self.at_epoch, sound):
                    self.guard.accept()
            if self.exhausted or self.out_of_time or (self.cycles is not None and self.cycles.ended):
                count = i + 1
                break
            self.position = i + 1
            if self.slot is not None and self.slot.due(self.step):
                self.slot.save(self.step, snapshot_of(self))
        self.position = 0
        return self.loss_sum / count, self.rate

    def _set_rates(self) -> float:
        """The learning rate of the next step, of Adam and of natural gradients; that of Adam."""
        plan = self.plan
        decay = plan.schedule(min(self.done(), 1.0)) * self.guard.rate_factor
        if self.cycles is not None:
            decay *= self.cycles.factor(min(self.done(), 1.0))
        self.backend.set_learning_rate(plan.learning_rate * decay)
        if self.natural is not None and plan.natural_rate is not None:
            self.natural.set_rate(plan.natural_rate * ramp(self.step, self.total_steps) * decay)
        return plan.learning_rate * decay

    def _check(self) -> bool:
        """Whether all went well since the last look: then the state is saved, otherwise it is rolled back."""
        healthy = self.guard.healthy(self.unchecked)
        self.unchecked.zero_()
        if healthy:
            self.guard.save()
        else:
            self.exhausted = not self.guard.roll_back()
            if self.rest is not None:
                self.rest.forget()
        return healthy

    def finish(self) -> list[History]:
        """Leave the model in its final state, and complete the histories."""
        model, guard, best, keeps_best = self.model, self.guard, self.best, self.plan.restore_best
        if not guard.healthy(torch.zeros_like(model.num_data)):
            guard.roll_back()
        kept = None if self.cycles is None or self.asked_to_stop else self.cycles.best
        if best is not None and keeps_best:
            kept = best
        if kept is not None and bool(torch.isfinite(kept.nll).any()):
            kept.restore()
            self.latest = None  # the validation NLL of another state
        settle(model, self.problem, guard)
        left = None
        if best is not None and self.validation is not None:
            left = best.nll if keeps_best else self.latest
            left = mean_nll(model, self.validation) if left is None else left
        for p in model.parameters():
            p.grad = None  # a fitted model carries no gradients around
        model.basis.keep_record, model.basis.recorded = False, None
        seconds = self.seconds()
        for r, history in enumerate(self.histories):
            history.seconds, history.rollbacks = seconds, guard.rollbacks
            history.jitter = float(model.numerics.jitter[r])
            if left is not None:
                history.validation_nll = float(left[r])
            if best is not None:
                history.best_epoch, history.stopped_early = best.epoch[r], best.stopped[r]
            if best is not None and keeps_best:
                last = history.records[-1].epoch if history.records else 0
                history.notes.append(f"kept epoch {best.epoch[r]} of {last}, the best on the validation rows")
            self._conclude(r, history)
        if guard.rollbacks:
            message = (
                f"{guard.rollbacks} numerical difficulties during training (a covariance that could not be "
                f"factorised, or a loss that was not finite); each was undone and training went on with "
                f"relative jitter up to {float(model.numerics.jitter.max()):.0e}"
            )
            for history in self.histories:
                history.notes.append(message)
            warnings.warn(message, NumericalWarning, stacklevel=3)
        return self.histories

    def _conclude(self, r: int, history: History) -> None:
        """Say whether a replicate's training converged, where that was to be found out, and why it ended."""
        most, note = self.total_steps, None
        if self.asked_to_stop:
            note = f"stopped after {self.step} of {most} steps by a callback"
        elif self.out_of_time:
            history.converged, history.ended_by_clock = False, True
            note = f"stopped after {self.step} of {most} steps: the time was up ({self.plan.seconds:.3g} s)"
        elif self.rest is not None and self.rest.reached[r]:
            history.converged = True
            note = f"stopped after {self.rest.at[r]} steps: the bound no longer improved"
        elif self.cycles is not None and self.cycles.ended:
            history.converged = True
            note = f"stopped after {self.step} steps: the loss no longer improved"
        elif history.stopped_early:
            history.converged = True  # as far as the validation rows let it
        elif self.cycles is not None and len(self.cycles.ends) < 2:
            note = f"stopped after {self.step} steps, too few to say whether the loss still improved"
        elif self.plan.tolerance > 0 and (self.rest is not None or self.cycles is not None):
            history.converged = False
            led_up = self.cycles is not None and self.cycles.led_up
            why = "the last cycle of rates led up and was undone" if led_up else "the loss still improved"
            note = f"not converged: {why} when training ended after {self.step} steps"
        if note is not None:
            history.notes.append(note)


def natural_gradient(model: Model, rate: float, mean_rule: str) -> NaturalGradient:
    """Natural gradients on the q(u) of a model, by the always-positive rule where they need it."""
    # A log-concave ELBO or VFITC keeps the precision positive by itself, predictive objectives do not.
    safe = model.objective.keeps_precision_positive and model.likelihood.is_log_concave
    return NaturalGradient(
        model.basis,
        model.num_data,
        rate,
        always_positive=not safe,
        mean_rule=mean_rule,
        beta1=model.beta1,
    )


@torch.no_grad()
def settle(model: Model, problem: Problem | None = None, guard: Guard | None = None) -> Any:
    """Leave with jitter under which the final state factorises and the final q(u) is finite: its factors.

    ``problem``: what solves for q(u); None: q(u) stays.
    """
    failed = model.numerics.failed
    restored = False
    while True:
        failed.zero_()
        factors = model.factors()
        if problem is not None:
            problem.finish(factors)
        bad = failed.clone()
        failed.zero_()
        for p in model.basis.q.parameters():
            bad |= ~torch.isfinite(p.reshape(model.replicates, -1).sum(1))
        if problem is not None:
            bad = problem.group.add([bad.double()])[0] > 0
        if not bool(bad.any()):
            return factors
        if not bool((bad & (model.numerics.jitter.squeeze(-1) >= MAX_JITTER)).any()):
            model.numerics.raise_jitter(bad)
            if guard is not None:
                guard.rollbacks += 1
        elif guard is not None and not restored:  # the last steps went where nothing helps
            guard.restore()
            restored = True
        else:
            return factors
