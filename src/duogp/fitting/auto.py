"""``method="auto"``: which method suits a table, found out by trying it.

Small tables are answered by rule, because a race on a few validation rows is decided by luck: q(u) in closed
form where the noise is Gaussian, natural gradients otherwise. Larger ones are raced, in a given number of
steps, or, where those take too long, in a given time (then no two runs need be alike):

    start     a coupled GP in closed form; its kernel is learned on a sample of the rows
    race      every candidate trains from there for a moment; the validation rows say who is ahead
    finish    the winner trains on for the rest of the time, and leaves with its best state

Candidates differ in what they maximise and in whose points the mean has. The predictive objectives win most
races on noisy tables, the closed form those on smooth functions (MATH §10 has measured both).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from duogp.errors import NumericalWarning
from duogp.fitting.builder import Builder, start_from
from duogp.fitting.dataset import Dataset
from duogp.fitting.factories import is_gaussian
from duogp.fitting.plan import Plan, make_plan
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings, as_list
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import Callback, History, TrainingPlan, make_schedule, settle, train
from duogp.training.validation import mean_nll

#: Rows up to which a rule decides.
SMALL = 2000
#: Inducing points of a small table: measured to be as good as 200 on smooth functions.
SMALL_POINTS = 100
NATURAL: dict[str, Any] = {"steps": 80, "learning_rate": 0.05, "natural_rate": 0.2}
#: With this many rows times latent functions (classes), points and steps are fewer: two seconds are the aim.
MUCH, FEWER_POINTS, FEWER_STEPS = 1000, 64, 50

#: Seconds of a race unless told otherwise: so many for a thousand rows, and at most.
SECONDS_PER_THOUSAND, MOST_SECONDS = 5.0, 55.0
#: Inducing points of a race by device.
POINTS = {"cpu": 300, "cuda": 600}
#: Rows whose collapsed bound chooses the first kernel, and most validation rows.
START_ROWS, VALIDATION_ROWS = 2000, 5000
#: Steps of the three parts, the second for each candidate, and most of the time that the first two may take.
START_STEPS, RACE_STEPS, FINISH_STEPS = 60, 60, 3000
START_SHARE, RACE_SHARE = 0.2, 0.35
#: Of Adam on the collapsed bound, and on minibatches.
START_RATE, RATE = 0.1, 0.03
#: Steps between looks at the validation rows, and looks without improvement before the finish ends.
LOOK_EVERY, PATIENCE = 40, 25

GAUSSIAN = ("ppgpr-chol", "dcppgpr", "odppgpr", "dcsvgp")
OTHERS = ("coupled-nat", "orthnat", "dcsvgp-nat")
WORDS = {
    "svgp": "the closed form",
    "coupled-nat": "the coupled basis",
    "orthnat": "a second block for the mean",
    "dcsvgp-nat": "decoupled conditionals",
    "dcsvgp": "decoupled conditionals",
    "odsvgp": "a second block for the mean",
    "ppgpr-chol": "the predictive objective",
    "dcppgpr": "the predictive objective with decoupled conditionals",
    "odppgpr": "the predictive objective with a second block for the mean",
}


class Choice(NamedTuple):
    """A method by rule."""

    method: str
    settings: dict[str, Any]
    reason: str


def choose(data: Dataset, given: Mapping[str, Any], settings: Settings) -> Choice | None:
    """The method and settings for a small table, by rule; None where there should be a race."""
    n, solver = len(data.rows[0]), settings.solver
    latents = data.num_classes if (data.num_classes or 0) > 2 else 1
    assert latents is not None
    if n > SMALL and solver != "closed-form":
        return None
    if n > SMALL or "beta2" in given or "whitening" in given:
        why = "solver='closed-form' is asked for" if n > SMALL else "beta2 and whitening are theirs"
        return Choice("dcsvgp", {}, f"dcsvgp, decoupled conditionals: {why}")
    gaussian = is_gaussian(settings)
    own: dict[str, Any] = {}
    if "num_inducing" not in given and n > 1.5 * SMALL_POINTS:  # below that, all rows
        own["num_inducing"] = SMALL_POINTS
    timed = "epochs" in given or "steps" in given
    if gaussian and solver in ("auto", "closed-form") and "num_latents" not in given:
        return Choice("sgpr", own, f"sgpr: {n} rows are few, and Gaussian noise leaves q(u) a closed form")
    if gaussian:
        return Choice("svgp", own, f"svgp: {n} rows are few")
    own |= {} if timed or solver == "stochastic" else NATURAL
    if latents > 1 and n * latents > MUCH:
        own |= {"num_inducing": FEWER_POINTS} | ({"steps": FEWER_STEPS} if "steps" in own else {})
    return Choice("svgp", own, f"svgp: {n} rows are few, and this likelihood has no closed form")


def candidates(given: Mapping[str, Any], settings: Settings) -> list[Method]:
    """The methods of a race: those that accept the given settings."""
    names: tuple[str, ...] = GAUSSIAN if is_gaussian(settings) else OTHERS
    if settings.solver == "natural":
        names = OTHERS
    if "beta2" in given or "whitening" in given:
        names = tuple(name for name in names if METHODS[name].recipe.has_omega)
    return [METHODS[name] for name in names]


@dataclass
class Racer:
    """A candidate, and how far it has come."""

    method: Method
    model: Model
    history: History

    @property
    def nll(self) -> float:
        found = self.history.validation_nll
        return float("inf") if found is None or found != found else found


@dataclass(frozen=True, eq=False)
class RacePlan:
    """What a race will do: the candidates, the seconds, and the plan that they share."""

    candidates: list[Method]
    seconds: float
    shared: Plan

    def __str__(self) -> str:
        shares = f"{START_SHARE:.0%} for the start, {RACE_SHARE:.0%} for the race, the rest for the winner"
        names = ", ".join(method.name for method in self.candidates)
        return f"race        of {names}, in at most {self.seconds:.0f} s: {shares}\n{self.shared}"


def plan_race(data: Dataset, given: Mapping[str, Any], settings: Settings) -> RacePlan:
    """Candidates, seconds, and the plan of the method whose points serve all of them.

    One set of points for all: those of a second block are a few rows more, which others have no use for.
    """
    n = len(data.rows[0])
    settings = _settings(given, settings, n)
    seconds = settings.time_budget or min(MOST_SECONDS, SECONDS_PER_THOUSAND * n / 1000)
    natural = settings.solver == "natural" or not is_gaussian(settings)
    host = METHODS["orthnat" if natural else "odppgpr"]
    return RacePlan(candidates(given, settings), seconds, make_plan(data, host, settings))


def race(
    data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback] = ()
) -> GP:
    """The best candidate for a table of one set of rows; its history says in words why it is this one."""
    begun = time.perf_counter()
    raced_plan = plan_race(data, given, settings)
    plan, seconds = raced_plan.shared, raced_plan.seconds
    settings = plan.settings
    builder = Builder(data, plan)
    validation = builder.validation()
    assert validation is not None

    def run(racer: Racer, steps: int | None, allowed: float, schedule: Any, **watched: Any) -> None:
        """Train it on; it keeps the best state of this run."""
        own = _plan(builder, plan.training, steps, allowed, schedule, settings)
        (racer.history,) = train(racer.model, builder.problem(racer.model), own, validation, **watched)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # the history of the winner speaks of it
        start = None
        if is_gaussian(settings) and settings.num_latents is None:
            start = _closed_form_start(builder, START_SHARE * seconds)
        field = [
            Racer(method, _at_start(builder, method, settings, start), History())
            for method in raced_plan.candidates
        ]
        for racer in field:
            run(racer, RACE_STEPS, RACE_SHARE * seconds / len(field), "constant")
        ranked = sorted([*field, *([start] if start else [])], key=lambda racer: racer.nll)
        reasons = _standings(ranked, seconds)
        # The closed form cannot get better, so the time that is left belongs to the best of the others.
        winner = min(field, key=lambda racer: racer.nll)
        raced, before = winner.nll, {name: t.clone() for name, t in winner.model.state_dict().items()}
        left = begun + seconds - time.perf_counter()
        if left > 0:
            steps = None if settings.epochs is not None else settings.steps or FINISH_STEPS
            run(winner, steps, left, settings.schedule or "cosine", callbacks=callbacks)
            if not winner.nll <= raced:  # nothing was gained
                winner.model.load_state_dict(before)
                winner.history.validation_nll = raced
        if start is not None and start.nll <= winner.nll:
            winner = start
            settle(
                winner.model, builder.closed_form(winner.model, with_validation=data.validation_rows is None)
            )

    name = winner.method.name
    reasons.insert(0, f"{name} ({WORDS[name]}): the best on the validation rows, NLL {winner.nll:.3f}")
    winner.history.notes[:0] = reasons
    winner.history.seconds = time.perf_counter() - begun
    final = settings.but(
        solver="closed-form" if winner is start else plan.solver,
        beta2=float(winner.model.beta2[0]),
        time_budget=seconds,
    )
    return builder.fitted(winner.model, winner.history, method=winner.method, settings=final)


def _settings(given: Mapping[str, Any], settings: Settings, n: int) -> Settings:
    """The settings of a race: what is not given is chosen for speed."""
    for name in ("beta1", "beta2"):
        if len(as_list(getattr(settings, name))) > 1:
            raise ValueError(f"method='auto' takes one {name}; lists are for methods by name")
    own: dict[str, Any] = {"extra_init": settings.extra_init or "random"}
    if "dtype" not in given:  # minibatches forgive rounding; failed factorisations are undone
        own["dtype"] = "float32"
    if settings.num_inducing is None:
        own["num_inducing"] = min(POINTS[settings.torch_device.type], n)
    if settings.validation_fraction is None or settings.validation_fraction * n < 1:
        own["validation_fraction"] = min(0.1, VALIDATION_ROWS / n)
    return settings.but(**own)


def _closed_form_start(builder: Builder, seconds: float) -> Racer:
    """A coupled GP whose kernel a sample has chosen, and whose q(u) knows all training rows."""
    method = METHODS["svgp"]
    builder.betas = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    model = builder.model(method)
    cosine = make_schedule("cosine")
    plan = TrainingPlan(START_STEPS, START_RATE, schedule=cosine, check_every=10, seconds=seconds)
    (history,) = train(model, builder.closed_form(model, sample=START_ROWS), plan)
    settle(model, builder.closed_form(model))
    validation = builder.validation()
    assert validation is not None
    history.validation_nll = float(mean_nll(model, validation)[0])
    return Racer(method, model, history)


def _at_start(builder: Builder, method: Method, settings: Settings, start: Racer | None) -> Model:
    beta2: Any = 0.0  # validation rows do Ω's work, at a quarter of the cost of a step
    if method.recipe.has_omega and settings.beta2 is not None:
        beta2 = settings.beta2
    builder.betas = torch.tensor([[float(as_list(settings.beta1)[0]), float(as_list(beta2)[0])]]).double()
    model = builder.model(method)
    if start is not None:
        start_from(start.model, model)
    return model


def _plan(
    builder: Builder, base: TrainingPlan, steps: int | None, seconds: float, schedule: Any, settings: Settings
) -> TrainingPlan:
    per_epoch = max(1, -(-builder.n // settings.batch_size))
    return replace(
        base,
        epochs=settings.epochs or 1,
        steps=steps,
        learning_rate=settings.learning_rate or RATE,
        schedule=make_schedule(schedule),
        evaluate_every=settings.evaluate_every or -(-LOOK_EVERY // per_epoch),
        patience=settings.patience or PATIENCE,
        restore_best=True,
        seconds=max(seconds, 1e-3),
    )


def _standings(ranked: list[Racer], seconds: float) -> list[str]:
    """How the race went, for people."""
    board = ", ".join(f"{racer.method.name} {racer.nll:.3f}" for racer in ranked)
    return [
        f"after the race the validation NLL in scaled units was: {board}",
        f"all of it was to take no more than {seconds:.0f} s",
    ]
