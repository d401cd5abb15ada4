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
from duogp.fitting.assembly import Workshop, transplant
from duogp.fitting.dataset import Case, with_seed
from duogp.fitting.planning import is_gaussian
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings, as_list
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.training import Callback, History, Plan, make_schedule, settle, train
from duogp.training.validation import mean_nll

#: Rows up to which a rule decides.
SMALL = 2000
#: Inducing points and steps of a small table: measured to be as good as 200 of each on smooth functions.
SMALL_POINTS = 100
CLOSED_FORM: dict[str, Any] = {"steps": 60, "learning_rate": 0.1}
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


def choose(n: int, given: Mapping[str, Any], latents: int = 1) -> Choice | None:
    """What to do with n rows without a race; None where there should be one. ``latents``: their functions."""
    solver = given.get("solver", "auto")
    if n > SMALL and solver != "closed-form":
        return None
    if n > SMALL or "beta2" in given or "whitening" in given:
        why = "solver='closed-form' is asked for" if n > SMALL else "beta2 and whitening are theirs"
        return Choice("dcsvgp", {}, f"dcsvgp, decoupled conditionals: {why}")
    gaussian = is_gaussian(Settings(likelihood=given.get("likelihood", "gaussian")))
    own: dict[str, Any] = {}
    if "num_inducing" not in given and n > 1.5 * SMALL_POINTS:  # below that, all rows
        own["num_inducing"] = SMALL_POINTS
    timed = "epochs" in given or "steps" in given
    if gaussian and solver in ("auto", "closed-form") and "num_latents" not in given:
        own |= {} if timed else CLOSED_FORM
        return Choice("sgpr", own, f"sgpr: {n} rows are few, and Gaussian noise leaves q(u) a closed form")
    if gaussian:
        return Choice("svgp", own, f"svgp: {n} rows are few")
    own |= {} if timed or solver == "stochastic" else NATURAL
    if latents > 1 and n * latents > MUCH:
        own |= {"num_inducing": FEWER_POINTS} | ({"steps": FEWER_STEPS} if "steps" in own else {})
    return Choice("svgp", own, f"svgp: {n} rows are few, and this likelihood has no closed form")


def candidates(given: Mapping[str, Any], settings: Settings) -> list[Method]:
    """Who may race: everyone for whom the settings make sense."""
    names: tuple[str, ...] = GAUSSIAN if is_gaussian(settings) else OTHERS
    if settings.solver == "natural":
        names = OTHERS
    if "beta2" in given or "whitening" in given:
        names = tuple(name for name in names if METHODS[name].basis == "conditional")
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


def race(case: Case, given: Mapping[str, Any], callbacks: Sequence[Callback] = ()) -> GP:
    """The best candidate for a table of one set of rows; its history says in words why it is this one."""
    begun = time.perf_counter()
    n = len(case.rows[0])
    settings = _settings(given, n)
    seconds = settings.time_budget or min(MOST_SECONDS, SECONDS_PER_THOUSAND * n / 1000)
    natural = settings.solver == "natural" or not is_gaussian(settings)
    # One set of points for all: those of a second block are a few rows more, which others have no use for.
    host = METHODS["orthnat" if natural else "odppgpr"]
    splits = case.splits(host, settings)
    data = case.prepare(splits, settings)
    plan = case.decide(host, settings, splits)
    shop = case.workshop(host, settings, plan, splits, data)
    validation = shop.validation()
    assert validation is not None

    def run(racer: Racer, steps: int | None, allowed: float, schedule: Any, **watched: Any) -> None:
        """Train it on; it keeps the best state of this run."""
        own = _plan(shop, plan.training, steps, allowed, schedule, settings)
        (racer.history,) = train(racer.model, shop.problem(racer.model), own, validation, **watched)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # the history of the winner speaks of it
        start = None
        if is_gaussian(settings) and settings.num_latents is None:
            start = _closed_form_start(shop, START_SHARE * seconds)
        field = [
            Racer(method, _at_start(shop, method, settings, start), History())
            for method in candidates(given, settings)
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
            settle(winner.model, shop.closed_form(winner.model, with_validation=case.validation_rows is None))

    name = winner.method.name
    reasons.insert(0, f"{name} ({WORDS[name]}): the best on the validation rows, NLL {winner.nll:.3f}")
    winner.history.notes[:0] = reasons
    winner.history.seconds = time.perf_counter() - begun
    final = settings.but(
        solver="closed-form" if winner is start else plan.solver,
        beta2=float(winner.model.beta2[0]),
        time_budget=seconds,
    )
    return case.fitted(winner.model, winner.history, method=winner.method, settings=final, data=data)


def _settings(given: Mapping[str, Any], n: int) -> Settings:
    settings = Settings.of(with_seed(dict(given)))
    for name in ("beta1", "beta2"):
        if len(as_list(getattr(settings, name))) > 1:
            raise ValueError(f"method='auto' takes one {name}; lists are for methods by name")
    own: dict[str, Any] = {"extra_init": settings.extra_init or "random"}
    if (
        "dtype" not in given
    ):  # minibatches forgive rounding; factorisations are checked, and undone if they fail
        own["dtype"] = "float32"
    if settings.num_inducing is None:
        own["num_inducing"] = min(POINTS[settings.torch_device.type], n)
    if settings.validation_fraction is None or settings.validation_fraction * n < 1:
        own["validation_fraction"] = min(0.1, VALIDATION_ROWS / n)
    return settings.but(**own)


def _closed_form_start(shop: Workshop, seconds: float) -> Racer:
    """A coupled GP whose kernel a sample has chosen, and whose q(u) knows all training rows."""
    method = METHODS["svgp"]
    shop.betas = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    model = shop.model(method)
    cosine = make_schedule("cosine")
    plan = Plan(START_STEPS, START_RATE, schedule=cosine, check_every=10, seconds=seconds)
    (history,) = train(model, shop.closed_form(model, sample=START_ROWS), plan)
    settle(model, shop.closed_form(model))
    validation = shop.validation()
    assert validation is not None
    history.validation_nll = float(mean_nll(model, validation)[0])
    return Racer(method, model, history)


def _at_start(shop: Workshop, method: Method, settings: Settings, start: Racer | None) -> Model:
    beta2: Any = 0.0  # validation rows do Ω's work, at a quarter of the cost of a step
    if method.basis == "conditional" and settings.beta2 is not None:
        beta2 = settings.beta2
    shop.betas = torch.tensor([[float(as_list(settings.beta1)[0]), float(as_list(beta2)[0])]]).double()
    model = shop.model(method)
    if start is not None:
        transplant(start.model, model)
    return model


def _plan(
    shop: Workshop, base: Plan, steps: int | None, seconds: float, schedule: Any, settings: Settings
) -> Plan:
    per_epoch = max(1, -(-shop.n // settings.batch_size))
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
