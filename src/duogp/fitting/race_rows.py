"""Candidates whose mean stands on all rows: the exact posterior mean, with the covariance of few points.

A sparse GP of some hundred points cannot follow a function that changes over short distances, whatever its
kernel, and therefore calls such changes noise. An exact GP on a sample of the rows learns the kernel without
that error; the exact mean of all rows with this kernel then costs one factorisation, and predictions cost
O(n) (`inference.row_weights`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from duogp.fitting.builder import Builder, start_from
from duogp.fitting.race import Candidate, Race, label
from duogp.inference.row_weights import mean_of_rows
from duogp.methods import METHODS
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import Evidence, History, settle, train

METHOD = METHODS["hybrid"]
#: Rows of the factorisation that tells how long a larger one takes.
PROBE = {"cpu": 1000, "cuda": 4000}


class RowMeans:
    """The closed forms of a race once more, with a mean on all rows."""

    def __init__(self, race: Race) -> None:
        self.race = race

    def run(self, found: list[Candidate], end: float) -> list[Candidate]:
        """As many as there is time for until ``end`` (of `time.perf_counter`), the best closed form first."""
        out: list[Candidate] = []
        for i, closed in enumerate(found):
            allowed = (end - time.perf_counter()) / (len(found) - i)
            if allowed < 0.5:
                break
            candidate = self._candidate(closed, allowed)
            if candidate is not None:
                out.append(candidate)
        return out

    def _candidate(self, closed: Candidate, seconds: float) -> Candidate | None:
        race = self.race
        assert closed.builder is not None and closed.model is not None
        builder = closed.builder
        name = label(METHOD.name, builder.settings.mean)
        begun = time.perf_counter()
        device = race.settings.torch_device
        size = race.rules.rows_sample.on(device.type)
        # A sparse GP that takes all for noise is a bad place to begin: an exact one on few rows may be better.
        few, _ = exact_on_sample(race, builder, race.rules.exact_sample, 0.1 * seconds, name)
        kernel, history = exact_on_sample(race, builder, size, 0.5 * seconds, name, (few, closed.model))
        if seconds_of_factor(device, builder.n) > seconds - (time.perf_counter() - begun):
            race.notes.append(f"{name}: not tried, the time was too short")
            return None
        model = self._solved(builder, kernel, closed.model, False)
        settings = builder.settings.but(solver="closed-form")
        gp = builder.fitted(model, history, method=METHOD, settings=settings)
        held = race.moments(gp, builder.plan)
        race.clock.reserved += time.perf_counter() - begun - history.seconds
        race.note(name, history)

        def refit() -> GP:
            if race.data.validation_rows is not None:
                return gp
            own = self._solved(builder, kernel, closed.model, True)  # type: ignore[arg-type]
            return builder.fitted(own, history, method=METHOD, settings=settings)

        return Candidate(name, gp, held, refit, builder, model)

    def _solved(self, builder: Builder, kernel: Model, closed: Model, with_validation: bool) -> Model:
        """Mean and q(u) with the learned kernel, of the training rows or of all."""
        rows = builder.rows
        if with_validation and builder.held_out is not None:
            rows = torch.cat([rows, builder.held_out], 1)
        batch = builder.table.gather(rows)
        model = builder.model(METHOD, extra=batch.x.unsqueeze(1))
        start_from(closed, model)  # inducing points
        start_from(kernel, model)  # kernel, noise and prior mean
        mean_of_rows(model, batch)
        settle(model, builder.closed_form(model, with_validation=with_validation))
        return model


def exact_on_sample(
    race: Race, builder: Builder, size: int, seconds: float, name: str, starts: Sequence[Model] = ()
) -> tuple[Model, History]:
    """An exact GP on some of the rows, whose steps cost a fraction: its kernel, noise and mean.

    ``starts``: models of the same kernel; that of most evidence on these rows is where it begins.
    """
    rows = builder.sample(size)
    model = builder.model(METHODS["exact"], rows=rows)
    problem = Evidence(model, builder.table, rows)
    if starts:
        start_from(max(starts, key=lambda start: _evidence(start, model, problem)), model)
    training = replace(builder.plan.training, seconds=seconds, follows_clock=False, tolerance=0.01)
    (history,) = train(model, problem, training, slot=race.slot(f"{name} sample of {size}"))
    return model, history


def _evidence(start: Model, model: Model, problem: Evidence) -> float:
    """Of the rows of the problem, with the kernel of another model; minus infinity where there is none."""
    start_from(start, model)
    value = -float(problem.loss().sum())
    return value if math.isfinite(value) else -math.inf


def seconds_of_factor(device: torch.device, n: int) -> float:
    """What the factorisation of n rows will take here, from that of a few."""
    few = PROBE[device.type]
    K = torch.eye(few, dtype=torch.float64, device=device)
    tries = []
    for _ in range(3):
        begun = time.perf_counter()
        torch.linalg.cholesky(K)[0, 0].item()
        tries.append(time.perf_counter() - begun)
    return min(tries) * (n / few) ** 3
