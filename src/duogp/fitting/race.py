"""A race of candidates for ``method="auto"``: what races of all likelihoods share.

    rules             sizes, steps and shares of the time
    race_closed       Gaussian noise: closed forms, the log excess, and the law of their mixture
    race_rows         larger tables: the exact posterior mean of all rows, the covariance of few points
    race_predictive   larger tables: methods that maximise the predictive density, from the closed forms on
    race_natural      other likelihoods: natural gradients, trees and regressions without a GP

A race says which candidates there will be, trains them, and judges them by rows that they have not seen.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.fitting import rules
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.learned import cross_fits, learned_spec
from duogp.fitting.plan import Plan, make_plan
from duogp.inference.leave_one_out import LeftOut
from duogp.means.crossfit import CrossFit
from duogp.methods import METHODS
from duogp.methods.settings import Settings, as_list
from duogp.models.model import Model
from duogp.training import Callback, Checkpoints, History
from duogp.training.checkpoint import Slot

Array = NDArray[np.float64]


@dataclass
class Candidate:
    """A fitted model and what it says about rows that it has not seen."""

    label: str
    gp: Any  # GP or LearnedOnly
    held: Any  # moments (mean, variance) [n, outputs], probabilities [n, C], or log densities [n]
    refit: Callable[[], Any] | None = None  # the same model with all rows in its q(u)
    builder: Builder | None = None
    model: Model | None = None
    left: LeftOut | None = None  # of its own rows, scaled, by the leave-one-out formula


class Verdict(NamedTuple):
    """How candidates are mixed."""

    law: Any  # as `posterior.stack.Stack` takes it
    score: float  # log score a row of the mixture; nan where it is not known
    shares: Array  # of every candidate


@dataclass
class Clock:
    """Seconds of the whole race; ``reserved``: of them, for what comes after the last training."""

    seconds: float
    begun: float = field(default_factory=time.perf_counter)
    reserved: float = 0.0
    for_means: float = 0.0  # of the reserved ones

    @property
    def left(self) -> float:
        """For training."""
        return self.begun + self.seconds - self.reserved - time.perf_counter()

    def reserve_for_means(self, seconds: float) -> None:
        """Keep so much for growing learned means again; of several scales one will do it."""
        more = max(0.0, seconds - self.for_means)
        self.for_means += more
        self.reserved += more

    def until(self, share: float) -> float:
        """The value of `time.perf_counter` at which so much of the time for training is over."""
        return self.begun + share * max(self.seconds - self.reserved, 0.0)


def label(method: str, mean: Any) -> str:
    """The label of a candidate: "svgp" or "svgp + trees"; of a mean without a method its own name."""
    name = mean if isinstance(mean, str) else type(mean).__name__
    if not method:
        return name
    return method if name == "constant" else f"{method} + {name}"


class Race(ABC):
    """Candidates of one table in the making."""

    #: The method of the candidates that come first.
    method = "svgp"
    #: What sets it apart from another race of the same table.
    title = ""
    #: What small tables are judged by, in words.
    in_turn: str

    def __init__(
        self, data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback]
    ) -> None:
        for name in ("beta1", "beta2"):
            if len(as_list(getattr(settings, name))) > 1:
                raise ValueError(f"method='auto' takes one {name}; lists are for methods by name")
        self.data, self.given, self.callbacks = data, given, callbacks
        self.rules = rules.RULES
        self.n = len(data.rows[0])
        self.small = self.n <= self.rules.small and data.validation_rows is None
        self.clock = Clock(settings.time_budget or self.rules.seconds)
        self.notes: list[str] = []
        self.ended: list[str] = []  # candidates whose training the clock ended
        self.checkpoints: Checkpoints | None = None
        self.regrow_share = self.rules.regrow_share
        self.regrown: dict[str, float] = {}  # seconds that learned means will take on all rows
        self.means: list[Any] = [settings.mean] if "mean" in given else ["trees", "constant"]
        self.excess: CrossFit | None = None  # the log excess, where one is learned
        if data.validation_rows is None:
            self.num_held = (
                0 if self.small else min(round(self.rules.held_out * self.n), self.rules.most_held_out)
            )
        else:
            self.num_held = len(data.validation_rows[0])
        # The clock is kept here; every training ends by itself or when its share of the time is over.
        own: dict[str, Any] = {"early_stopping": False, "refit": False, "time_budget": None}
        if "tolerance" not in given:
            own["tolerance"] = self.rules.tolerance
        if data.validation_rows is None:
            own["validation_fraction"] = self.num_held / self.n
        self.settings = settings.but(**own)

    def points(self, most: int) -> dict[str, Any]:
        """Settings of the inducing points where their number is not given."""
        if self.settings.num_inducing is not None:
            return {}
        own: dict[str, Any] = {"num_inducing": min(most, self.n - self.num_held)}
        if own["num_inducing"] > self.rules.most_centres and self.settings.inducing_init is None:
            own["inducing_init"] = "random"
        return own

    # -- what every kind of race does in its own way ---------------------------------------------------------

    @abstractmethod
    def candidates(self) -> list[Candidate]:
        """The candidates, trained."""

    @abstractmethod
    def verdict(self, found: list[Candidate]) -> Verdict:
        """How the candidates are best mixed, by the log score of the rows that they have not seen."""

    def planned(self) -> list[str]:
        """Labels of the candidates before anything is trained."""
        return [label(self.method, mean) for mean in self.means]

    # -- what they share -------------------------------------------------------------------------------------

    def plan(self, method: str, mean: Any, **changes: Any) -> Plan:
        return make_plan(self.data, METHODS[method], self.settings.but(mean=mean, **changes))

    def slot(self, name: str) -> Slot | None:
        """The checkpoints of one training of the race; each has a name of its own."""
        return None if self.checkpoints is None else self.checkpoints.slot(f"{name} {self.title}".strip())

    def grow_trees(self, plan: Plan, share: float) -> None:
        """The learned mean of all candidates, in its share of the time."""
        if learned_spec(plan.settings) is None:
            return
        name, begun = label("", plan.settings.mean), time.perf_counter()
        hurried = any(fit.hurried for fit in cross_fits(self.data, plan, self.clock.until(share)))
        seconds = self.rules.regrow_cost * (time.perf_counter() - begun)
        if hurried:
            self.notes.append(f"{name}: growing stopped early: the time was up")
        elif self._regrows(plan) and seconds < self.regrow_share * self.clock.seconds:
            self.regrown[name] = seconds
            self.clock.reserve_for_means(sum(self.regrown.values()))

    def _regrows(self, plan: Plan) -> bool:
        """Whether there are rows that its learned mean has not seen and may see in the end."""
        return plan.validation is not None and self.data.validation_rows is None

    def mean_of_all_rows(self, plan: Plan) -> tuple[Plan, list[CrossFit]] | None:
        """A learned mean grown once more, on the rows held out too; None where the time is too short.

        A model of five folds has seen four fifths of the rows that are not held out, which is two thirds of
        all: those that come back make more of a difference to trees than to a GP.
        """
        name = label("", plan.settings.mean)
        if name not in self.regrown or plan.validation is None:
            return None
        every = np.sort(np.concatenate([plan.train, plan.validation], 1))
        whole = replace(plan, train=every, validation=None)
        # The time that is kept for it, and what training has left: on a busy machine it takes longer.
        end = time.perf_counter() + self.regrown[name] + max(self.clock.left, 0.0)
        fits = cross_fits(self.data, whole, end)
        if any(fit.hurried for fit in fits):
            self.notes.append(f"{name}: not grown again on all rows: the time was too short")
            del self.regrown[name]  # nor for other members
            return None
        return whole, fits

    def regrow(self, builder: Builder) -> None:
        """The learned mean of a builder, from all rows."""
        if builder.cross_fits is not None and (found := self.mean_of_all_rows(builder.plan)) is not None:
            builder.take_means(*found)

    def moments(self, gp: Any, plan: Plan) -> tuple[Array, Array]:
        """Of the rows held out, [n, outputs] in the user's units."""
        assert plan.validation is not None
        rows = plan.validation[0]
        noise = None if self.data.noise is None else self.data.noise[rows]
        p: Any = gp.predict(self.data.X[rows], noise=noise)  # as it will be asked: rounding counts too
        return p.mean.reshape(len(rows), -1), p.variance.reshape(len(rows), -1)

    def rows_judged(self, found: list[Candidate]) -> NDArray[np.intp]:
        """Numbers [k] of the rows that candidates are judged by: those held out, or all of them."""
        plan = next(c.builder.plan for c in found if c.builder is not None)
        return plan.train[0] if plan.validation is None else plan.validation[0]

    def row_weights(self, rows: NDArray[np.intp]) -> Array | None:
        return None if self.data.weights is None else self.data.weights[rows]

    @property
    def threads(self) -> int | None:
        """The most threads of the race on a CPU; None for as many as there are."""
        return self.rules.small_threads if self.small and self.settings.torch_device.type == "cpu" else None

    def note(self, name: str, history: History) -> None:
        title = f"{name} {self.title}".strip()
        if history.ended_by_clock:
            self.ended.append(title)
        self.notes += [f"{title}: {note}" for note in history.notes]
