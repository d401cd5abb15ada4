"""Rounds of predictive methods from the closed forms on: all for a moment, the best for longer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from duogp.fitting.builder import Builder, start_from
from duogp.fitting.race import Candidate, Race, label
from duogp.fitting.training_plan import adam_betas
from duogp.methods import METHODS
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import History, make_schedule, settle, train
from duogp.training.adam import BETAS


class Runner(NamedTuple):
    """A predictive method after a round."""

    name: str
    builder: Builder
    model: Model
    history: History


class PredictiveRounds:
    """Two rounds of the methods ``names`` on the table, by the settings and in the time of a race."""

    def __init__(self, race: Race, names: Sequence[str], most_rows: int | None = None) -> None:
        self.race, self.names = race, names
        self.most_rows = most_rows  # of a closed form at their points; None: all
        self.pace = 0.0  # seconds of a minibatch step

    def run(self, found: list[Candidate]) -> list[Candidate]:
        """A round from every closed form on, and another for the best of all; nothing where time is up."""
        race, device = self.race, self.race.settings.torch_device.type
        runs = [(closed, name) for closed in found for name in self.names]
        field_: list[Runner] = []
        starts: dict[int, tuple[Builder, Model]] = {}
        for i, (closed, name) in enumerate(runs):
            allowed = race.clock.left / (2 * (len(runs) - i))
            if allowed < 0.5:
                break
            if id(closed) not in starts:
                starts[id(closed)] = self._start(closed)
            builder, start = starts[id(closed)]
            model = builder.model(METHODS[name])
            start_from(start, model)
            history = self._round(builder, model, race.rules.round_steps, allowed / 2, "constant", name)
            field_.append(Runner(name, builder, model, history))
        if not field_:
            return []
        name, builder, model, before = min(field_, key=lambda run: _or_infinity(run.history.validation_nll))
        kept = {key: value.clone() for key, value in model.state_dict().items()}
        history = before
        if race.clock.left > 0.5:
            steps, seconds = race.rules.finish_steps.on(device), 0.92 * race.clock.left
            history = self._round(builder, model, steps, seconds, "cosine", f"{name} finish")
            if not _or_infinity(history.validation_nll) <= _or_infinity(before.validation_nll):
                model.load_state_dict(kept)
                history.validation_nll = before.validation_nll
        title = label(name, builder.settings.mean)
        race.note(title, history)
        settings = builder.settings.but(solver="stochastic")
        gp = builder.fitted(model, history, method=METHODS[name], settings=settings)
        held = race.moments(gp, builder.plan)

        def refit() -> GP:
            """Parameters were learned with early stopping: only the learned mean sees all rows."""
            race.regrow(builder)
            return builder.fitted(model, history, method=METHODS[name], settings=settings)

        return [Candidate(title, gp, held, refit, builder, model)]

    def _start(self, closed: Candidate) -> tuple[Builder, Model]:
        """The builder of predictive methods with the mean of a closed form, and that form at its points."""
        race = self.race
        assert closed.builder is not None and closed.model is not None
        own: dict[str, Any] = {} if "dtype" in race.given else {"dtype": "float32"}
        if "num_inducing" not in race.given:
            own["num_inducing"] = min(
                race.rules.predictive_points.on(race.settings.torch_device.type), closed.builder.n
            )
        builder = Builder(race.data, race.plan(self.names[0], closed.builder.settings.mean, **own))
        start = builder.model(METHODS["svgp"])  # its points may be fewer than those of the closed form
        start_from(closed.model, start)
        settle(start, builder.closed_form(start, sample=self.most_rows))
        return builder, start

    def _round(
        self, builder: Builder, model: Model, steps: int, seconds: float, schedule: str, name: str
    ) -> History:
        settings, rules = self.race.settings, self.race.rules
        assert builder.held_out is not None
        # Every second row held out is looked at; the others have not been before the stack.
        watched = builder.table.gather(builder.held_out[:, ::2])
        per_epoch = max(1, -(-builder.n // settings.batch_size))
        plan = replace(
            builder.plan.training,
            steps=steps,
            learning_rate=settings.learning_rate or rules.predictive_rate,
            schedule=make_schedule(settings.schedule or schedule),
            adam_betas=adam_betas(settings, BETAS),
            evaluate_every=-(-rules.look_every // per_epoch),
            patience=settings.patience or rules.patience,
            restore_best=True,
            seconds=max(seconds, 1e-3),
            follows_clock=self.pace * steps > seconds,  # where time is too short for all steps
        )
        begun = time.perf_counter()
        slot = self.race.slot(label(name, builder.settings.mean))
        (history,) = train(model, builder.problem(model), plan, watched, self.race.callbacks, slot)
        spent = max(time.perf_counter() - begun, history.seconds)  # a checkpoint's seconds count too
        self.pace = spent / max(1, history[-1].epoch * per_epoch if len(history) else 1)
        return history


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None or value != value else value
