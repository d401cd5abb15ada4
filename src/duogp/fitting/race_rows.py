"""Candidates whose mean stands on all rows: the exact posterior mean, with the covariance of few points.

A sparse GP of some hundred points cannot follow a function that changes over short distances, whatever its
kernel, and therefore calls such changes noise. An exact GP on a sample of the rows learns the kernel without
that error; the exact mean of all rows with this kernel then costs one factorisation, and predictions cost
O(n) (`inference.row_mean`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from duogp.fitting.builder import Builder, start_from, take_prior
from duogp.fitting.race import Candidate, Race, label
from duogp.inference.row_mean import mean_of_rows
from duogp.methods import METHODS
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import Evidence, History, settle, train

METHOD = METHODS["hybrid"]


class RowMeans:
    """The closed forms of a race once more, with a mean on all rows."""

    def __init__(self, race: Race) -> None:
        self.race = race

    def run(self, found: list[Candidate], end: float) -> list[Candidate]:
        """As many as there is time for until ``end`` (of `time.perf_counter`), the best closed form first."""
        out: list[Candidate] = []
        for closed in found:
            allowed = end - time.perf_counter()
            if allowed < 0.5:
                break
            candidate = self._candidate(closed, allowed)
            if candidate is None:
                continue
            out.append(candidate)
            if not self._error(candidate) < self.race.rules.rows_gain * self._error(closed):
                break  # few points are enough here: the time is worth more elsewhere
        return out

    def _error(self, candidate: Candidate) -> float:
        """The mean squared error on the rows held out, relative to their variance, over all outputs."""
        y = self.race.data.target.values[self.race.rows_judged([candidate])]
        squares = np.square(y - candidate.held[0]).mean(0)
        return float(np.mean(squares / np.maximum(y.var(0), np.finfo(float).tiny)))

    def _candidate(self, closed: Candidate, seconds: float) -> Candidate | None:
        race = self.race
        assert closed.builder is not None and closed.model is not None
        builder = closed.builder
        name = label(METHOD.name, builder.settings.mean)
        begun = time.perf_counter()
        device = race.settings.torch_device.type
        sizes = (race.rules.exact_sample, race.rules.rows_sample.on(device))
        kernel, history = exact_on_samples(race, builder, sizes, 0.6 * seconds, name, closed.model)
        # Solved twice: for the rows that are not held out, and for all.
        needed = 2 * seconds_of_rows(kernel, builder, race.rules.rows_probe.on(device))
        if needed > seconds - (time.perf_counter() - begun):
            race.notes.append(f"{name}: not tried, the time was too short")
            return None
        solving = time.perf_counter()
        model = self._solved(builder, kernel, closed.model, False)
        race.clock.reserved += time.perf_counter() - solving  # for all rows, at the end
        settings = builder.settings.but(solver="closed-form")
        gp = builder.fitted(model, history, method=METHOD, settings=settings)
        held = race.moments(gp, builder.plan)
        race.note(name, history)

        def refit() -> GP:
            if race.data.validation_rows is not None:
                return gp
            race.regrow(builder)
            own = self._solved(builder, kernel, closed.model, True)  # type: ignore[arg-type]
            return builder.fitted(own, history, method=METHOD, settings=settings)

        return Candidate(name, gp, held, refit, builder, model)

    def _solved(self, builder: Builder, kernel: Model, closed: Model, with_validation: bool) -> Model:
        """Mean and q(u) with the learned kernel, of the training rows or of all."""
        rows = builder.rows
        if with_validation and builder.held_out is not None:
            rows = torch.cat([rows, builder.held_out], 1)
        batch = builder.table.gather(rows)
        coupled = builder.model(METHODS["svgp"])
        start_from(closed, coupled)  # its inducing points
        take_prior(kernel, coupled)
        settle(coupled, builder.closed_form(coupled, with_validation=with_validation))
        model = builder.model(METHOD, extra=batch.x.unsqueeze(1))
        start_from(coupled, model)
        mean_of_rows(model, batch)
        return model


def exact_on_samples(
    race: Race,
    builder: Builder,
    sizes: Sequence[int],
    seconds: float,
    name: str,
    other: Model | None = None,
) -> tuple[Model, History]:
    """An exact GP on some of the rows, whose steps cost a fraction: its kernel, noise and mean.

    On one sample after the other, each from the kernel of the one before. ``other``: a model of the same
    kernel, where later ones may begin as well. It is not where the first begins: a sparse GP that takes all
    for noise is a bad start.
    """
    end = time.perf_counter() + seconds
    starts: tuple[Model, ...] = ()
    for i, size in enumerate(sizes):
        allowed = max((end - time.perf_counter()) / (len(sizes) - i), 0.1)
        title = f"{name} sample of {size}"
        model, history = exact_on_rows(race, builder, builder.sample(size), allowed, title, starts)
        starts = (model,) if other is None else (model, other)
    return model, history


def exact_on_rows(
    race: Race, builder: Builder, rows: Tensor, seconds: float, name: str, starts: Sequence[Model] = ()
) -> tuple[Model, History]:
    """An exact GP on the given training rows [1, n]; of [R, n] as many, trained at once.

    The history is that of the first. ``starts``: models of the same kernel; that of most evidence on these
    rows is where it begins.
    """
    model = builder.model(METHODS["exact"], rows=rows)
    problem = Evidence(model, builder.table, rows)
    training = replace(builder.plan.training, seconds=seconds, follows_clock=False, tolerance=0.01)
    if starts:
        take_prior(max(starts, key=lambda start: _evidence(start, model, problem)), model)
        training = replace(training, fewest_steps=10, check_every=5)  # it is nearly there
    history, *_ = train(model, problem, training, slot=race.slot(name))
    return model, history


def _evidence(start: Model, model: Model, problem: Evidence) -> float:
    """Of the rows of the problem, with the kernel of another model; minus infinity where there is none."""
    take_prior(start, model)
    value = -float(problem.loss().sum())
    return value if math.isfinite(value) else -math.inf


@torch.no_grad()
def seconds_of_rows(kernel: Model, builder: Builder, few: int) -> float:
    """What the weights of all rows will take here, from those of a few: kernel values n², a root n³."""
    x = builder.table.gather(builder.rows[:, :few]).x.unsqueeze(-3).double()
    ratio = builder.n / x.shape[-2]
    begun = time.perf_counter()
    K = kernel.basis.kernel(x, x)
    K.diagonal(dim1=-2, dim2=-1).add_(1.0)
    K.sum().item()
    evaluated = time.perf_counter()
    torch.linalg.cholesky_ex(K)[1].sum().item()
    return (evaluated - begun) * ratio**2 + (time.perf_counter() - evaluated) * ratio**3
