"""duogp's contestants, through `duogp.fit` and what it returns: whatever a user gets is what is timed.

A training step is timed inside a real fit of many epochs, on data of which one epoch is a block; between
blocks the others have their turn. Backend, threads, schedule, guard and history are those that `fit` chooses
for ten thousand steps. All run in one thread: a second one would have its own pool of workers, and wait for
cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import duogp
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.plan import make_plan
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import conditions, in_epochs, settle
from racing.clock import Contestant, now
from racing.problem import LEARNING_RATE, Problem

#: Steps that the fit plans for; a backend that must pay for itself first sees this many to come.
PLANNED_STEPS = 10_000


class Fit(Contestant):
    """Epochs of a fit that goes on whenever `block` is called."""

    def __init__(self, problem: Problem, method: str, *, replicates: int = 1, **settings: Any) -> None:
        self.problem, self.method, self.replicates = problem, method, replicates
        self.settings = step_settings(problem) | settings
        self._started = False

    def _start(self) -> None:
        X, y = self.problem.arrays()
        self.model, shop, plan = workshop(X, y, self.method, self.settings, self.replicates)
        self.steps = shop.problem(self.model)
        self.epochs = in_epochs(self.model, self.steps, plan.training)
        self._started = True

    def block(self) -> float:
        if not self._started:
            self._start()
        begun = now(self.problem.device)
        with conditions(self.model, self.steps):
            next(self.epochs)
        return (now(self.problem.device) - begun) / self.problem.steps

    def close(self) -> None:
        if self._started:
            self.epochs.close()
            del self.model, self.steps, self.epochs
            self._started = False


def workshop(
    X: np.ndarray, y: np.ndarray, name: str, given: dict[str, Any], replicates: int = 1
) -> tuple[Model, Any, Any]:
    """What `fit` prepares before it trains: the model, where its problems are made, and the plan."""
    settings = Settings.of(given)
    data = Dataset.of_rows(X, y, [np.arange(len(X))] * replicates, settings)
    plan = make_plan(data, METHODS[name], settings)
    builder = Builder(data, plan)
    return builder.model(), builder, plan


def step_settings(problem: Problem) -> dict[str, Any]:
    """The model that every library trains: RBF with a lengthscale for each column, a constant mean."""
    return {
        "kernel": "rbf",
        "mean": "constant",
        "num_inducing": problem.inducing,
        "initial_lengthscale": problem.lengthscale,
        "inducing_init": "random",
        "solver": "stochastic",
        "epochs": max(20, PLANNED_STEPS // problem.steps),
        "batch_size": problem.batch,
        "learning_rate": LEARNING_RATE,
        "schedule": "constant",
        "standardize": False,
        "validation_fraction": 0.0,
        "early_stopping": False,
        "dtype": problem.dtype,
        "device": problem.device,
    } | ({"num_extra": problem.extra} if problem.extra else {})


class Call(Contestant):
    """A function that is timed once a block."""

    def __init__(self, device: str, function: Callable[[], Any], close: Callable[[], None] | None = None):
        self.device, self.function, self._close = device, function, close

    def block(self) -> float:
        begun = now(self.device)
        self.function()
        return now(self.device) - begun

    def close(self) -> None:
        if self._close is not None:
            self._close()


def fitted(problem: Problem, steps: int = 20) -> GP:
    """A model after a few steps: what it predicts is of no interest here, only how fast."""
    X, y = problem.arrays()
    settings = step_settings(problem) | {"steps": steps}
    del settings["epochs"]
    return duogp.fit(X, y, "svgp", **settings)


def optimal_q(X: np.ndarray, y: np.ndarray, problem: Problem) -> Callable[[], None]:
    """The optimal q(u) of all rows for given hyperparameters; rows and model are on the device already."""
    given: dict[str, Any] = {
        "kernel": "rbf",
        "num_inducing": problem.inducing,
        "inducing_init": "random",
        "solver": "closed-form",
        "dtype": problem.dtype,
        "device": problem.device,
    }
    model, shop, _ = workshop(X, y, "svgp", given)

    def solve() -> None:
        torch.set_float32_matmul_precision("highest")
        settle(model, shop.closed_form(model))

    return solve
