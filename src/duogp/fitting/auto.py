"""``method="auto"``: candidates are raced, and those that are worth it are stacked into one model.

    trees       a boosted mean is cross-fitted (`means.crossfit`); every GP runs with and without it
    closed      GPs whose q(u) has a formula: the exact one where it is affordable, else a sparse one
    predictive  larger tables: methods that maximise the predictive density start where the closed forms
                ended; all of them for a moment, the best for longer
    stack       a mixture of what is left, by the log score of rows that the members have not seen
                (`fitting.stacking`); closed forms are then solved again on all rows

Rows that members have not seen: up to `SMALL` rows every row in its turn, because a single split of few rows
is luck (Gaussian noise: by the leave-one-out formula, otherwise by folds); above, a share that is held out.
The steps are the same in every run with the same seed unless the clock ends one of them, and then the notes
say so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.errors import NumericalWarning
from duogp.fitting.builder import Builder, start_from
from duogp.fitting.dataset import Dataset
from duogp.fitting.factories import is_gaussian
from duogp.fitting.learned import cross_fits, learned_spec
from duogp.fitting.plan import SAMPLE_ROWS, Plan, make_plan
from duogp.fitting.stacking import class_law, density_weights, mixture_law
from duogp.inference.leave_one_out import leave_one_out
from duogp.means.affine import Logistic
from duogp.means.bagging import Bagged
from duogp.means.crossfit import CrossFit, Goal, Trees, assign_folds, cross_fit
from duogp.methods import METHODS
from duogp.methods.settings import Settings, as_list
from duogp.models.model import Model
from duogp.posterior.gp import GP
from duogp.posterior.learned import LearnedMean, LearnedOnly
from duogp.posterior.stack import EXCESS_BOUNDS, Stack, bounded_excess
from duogp.training import Callback, History, make_schedule, settle, train

Array = NDArray[np.float64]

#: Rows up to which every row is left out in its turn.
SMALL = 2000
#: Rows up to which the exact GP is a candidate, by device.
EXACT = {"cpu": 1000, "cuda": 8000}
#: Inducing points of closed forms and of predictive methods, by device; fewer for several latent functions.
POINTS = {"cpu": 300, "cuda": 3000}
#: Of likelihoods without a closed form, and steps of their natural gradients: small tables and larger ones.
CLASS_POINTS, NATURAL_STEPS = (50, 100), (80, 400)
#: Most steps on a collapsed bound, by device: functions without noise improve for ever, and by little.
CLOSED_STEPS = {"cpu": 300, "cuda": 1000}
#: Nats a row that more steps of a candidate must gain: a stack forgives more than a single model.
TOLERANCE = 0.01
#: More points than these are rows, not centres of k-means.
MOST_CENTRES = 1000
#: Seconds unless told otherwise, which only large tables need: steps and trees end by themselves.
SECONDS = 55.0
#: Shares of the time: trees, closed forms, the log excess; the rest is for predictive methods.
TREES_SHARE, CLOSED_SHARE, EXCESS_SHARE = 0.3, 0.45, 0.08
#: Of the trees where GPs have no closed form: there they are more often the better half.
CLASS_TREES_SHARE = 0.45
#: Share of the rows of a larger table that is held out, and most of them.
HELD_OUT, MOST_HELD_OUT = 0.15, 5000
#: Rows of the sample that the kernel of an exact GP is first learned on, where there are twice as many.
EXACT_SAMPLE = 400
#: Share of the time of a closed form that it may spend on a sample of the rows.
SAMPLE_SHARE = 0.6
#: Noise variance, in scaled units, below which a model goes through its rows, and those held out would
#: change its variances by more than they have judged.
LEAST_NOISE = 1e-3
#: Steps on all rows for which there must be time; otherwise the kernel of the sample stays.
FEWEST_WHOLE_STEPS = 5
#: Fewest and most rows from which the log excess is learned.
EXCESS_ROWS, EXCESS_MOST = 300, 10_000
EXCESS_TREES = Trees(learning_rate=0.1, max_leaves=8, min_leaf=40, max_trees=100, trees_per_round=20)
#: Predictive candidates, the steps of their first round and of the second, and the rate.
PREDICTIVE = ("ppgpr-chol", "dcppgpr")
ROUND_STEPS, FINISH_STEPS, RATE = 80, {"cpu": 600, "cuda": 6000}, 0.02
#: Inducing points of predictive methods, by device.
PREDICTIVE_POINTS = {"cpu": 200, "cuda": 1000}
#: Steps between looks at the validation rows, and looks without improvement before it ends.
LOOK_EVERY, PATIENCE = 40, 15
FOLDS = 5


def choose(data: Dataset, given: Mapping[str, Any], settings: Settings) -> tuple[str, str] | None:
    """A single method and the reason, where what is given leaves no choice; None for a stack."""
    if "beta2" in given or "whitening" in given:
        return "dcsvgp", "dcsvgp, decoupled conditionals: beta2 and whitening are theirs"
    if settings.num_latents is not None:
        return "svgp", "svgp: num_latents mixes latent functions, which has no closed form"
    if settings.solver not in ("auto", "closed-form") or settings.inducing_space == "feature":
        return "svgp", f"svgp: solver={settings.solver!r} is asked for"
    return None


@dataclass
class Candidate:
    """A fitted model and what it says about rows that it has not seen."""

    label: str
    gp: Any  # GP or LearnedOnly
    held: Any  # moments (mean, variance) [n, outputs], probabilities [n, C], or log densities [n]
    refit: Callable[[], Any] | None = None  # the same model with all rows in its q(u)
    builder: Builder | None = None
    model: Model | None = None


class Runner(NamedTuple):
    """A predictive method after a round."""

    name: str
    builder: Builder
    model: Model
    history: History


@dataclass
class Clock:
    """Seconds of the whole, and notes about what it has ended."""

    seconds: float
    begun: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        return self.begun + self.seconds - time.perf_counter()

    def until(self, share: float) -> float:
        """The value of `time.perf_counter` at which so much of the time is over."""
        return self.begun + share * self.seconds


@dataclass(frozen=True, eq=False)
class StackPlan:
    """What ``method="auto"`` will do: print it."""

    candidates: list[str]
    seconds: float
    held_out: str
    shared: Plan

    def __str__(self) -> str:
        names = ", ".join(self.candidates)
        return f"stack       of {names}, in about {self.seconds:.0f} s, by {self.held_out}\n{self.shared}"


def plan_stack(data: Dataset, given: Mapping[str, Any], settings: Settings) -> StackPlan:
    """The candidates, the seconds, and the plan of the first of them."""
    race = _Race(data, given, settings, ())
    labels = [label(name, mean) for name in race.closed for mean in race.means]
    labels += [*race.predictive] if race.gaussian and not race.small else []
    how = "every row in its turn" if race.small else f"{race.num_held} rows that are held out"
    shown = make_plan(data, METHODS[race.closed[0]], race.settings)
    return StackPlan(labels, race.clock.seconds, how, shown)


def stack(
    data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback] = ()
) -> Stack:
    """The stack of the best candidates; its history says in words how it came about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # notes speak of it
        return _Race(data, given, settings, callbacks).run()


def label(method: str, mean: Any) -> str:
    """ "svgp" or "svgp + trees"; of a mean without a method its own name."""
    name = mean if isinstance(mean, str) else type(mean).__name__
    if not method:
        return name
    return method if name == "constant" else f"{method} + {name}"


class _Race:
    """Candidates of one table in the making."""

    def __init__(
        self, data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback]
    ) -> None:
        for name in ("beta1", "beta2"):
            if len(as_list(getattr(settings, name))) > 1:
                raise ValueError(f"method='auto' takes one {name}; lists are for methods by name")
        self.data, self.given, self.callbacks = data, given, callbacks
        n = len(data.rows[0])
        device = settings.torch_device.type
        self.gaussian = is_gaussian(settings)
        self.small = n <= SMALL and data.validation_rows is None
        seconds = settings.time_budget or SECONDS
        self.clock = Clock(seconds)
        self.notes: list[str] = []
        self.pace = 0.0  # seconds of a minibatch step
        self.means: list[Any] = [settings.mean] if "mean" in given else ["trees", "constant"]
        if data.validation_rows is None:
            self.num_held = 0 if self.small else min(round(HELD_OUT * n), MOST_HELD_OUT)
        else:
            self.num_held = len(data.validation_rows[0])
        exact = self.gaussian and n - self.num_held <= EXACT[device] and "num_inducing" not in given
        self.closed = ["exact" if exact else "svgp"]
        self.predictive: tuple[str, ...] = PREDICTIVE if settings.solver == "auto" else ()
        # The clock is kept here; every training ends by itself or when its share of the time is over.
        own: dict[str, Any] = {"early_stopping": False, "refit": False, "time_budget": None}
        if "tolerance" not in given:
            own["tolerance"] = TOLERANCE
        if self.gaussian and settings.steps is None and settings.epochs is None:
            own["epochs"] = CLOSED_STEPS[device]
        if data.validation_rows is None:
            own["validation_fraction"] = self.num_held / n
        if settings.num_inducing is None and not exact:
            most = POINTS[device] if self.gaussian else CLASS_POINTS[0 if self.small else 1]
            own["num_inducing"] = min(most, n - self.num_held)
            if own["num_inducing"] > MOST_CENTRES and settings.inducing_init is None:
                own["inducing_init"] = "random"
        if not self.gaussian:
            own |= self._natural(settings)
        self.settings = settings.but(**own)

    def _natural(self, settings: Settings) -> dict[str, Any]:
        """What is not given of natural gradients: so many steps at such rates."""
        classes = self.data.num_classes or 0
        own: dict[str, Any] = {}
        if classes > 2 and settings.likelihood == "classes":
            own["likelihood"] = "softmax"
        if settings.steps is None and settings.epochs is None:
            own["steps"] = NATURAL_STEPS[0 if self.small else 1]
            own["schedule"] = settings.schedule or "cosine"
            own["learning_rate"] = settings.learning_rate or 0.05
            own["natural_rate"] = settings.natural_rate or (0.1 if classes > 2 else 0.2)
        return own

    def run(self) -> Stack:
        found = self._closed_forms() if self.gaussian else self._others()
        excess: CrossFit | None = None
        if self.gaussian:
            excess = self._excess(found)
            if not self.small and self.settings.solver == "auto":
                more = self._predictive(found)
                found += more
                if not more:
                    self.notes.append("predictive methods were not tried: the time was up")
        return self._stacked(found, excess)

    # -- candidates ------------------------------------------------------------------------------------------

    def _plan(self, method: str, mean: Any, **changes: Any) -> Plan:
        return make_plan(self.data, METHODS[method], self.settings.but(mean=mean, **changes))

    def _grow_trees(self, plan: Plan) -> None:
        """The learned mean of all candidates, in its share of the time."""
        if learned_spec(plan.settings) is not None:
            until = self.clock.until(TREES_SHARE if self.gaussian else CLASS_TREES_SHARE)
            in_time = time.perf_counter() < until
            cross_fits(self.data, plan, until)
            if in_time and time.perf_counter() > until:
                self.notes.append("trees: they stopped growing: the time was up")

    def _closed_forms(self) -> list[Candidate]:
        out = []
        runs = [(method, mean) for method in self.closed for mean in self.means]
        for i, (method, mean) in enumerate(runs):
            plan = self._plan(method, mean)
            self._grow_trees(plan)
            end = TREES_SHARE + CLOSED_SHARE if not self.small else 0.9
            allowed = (self.clock.until(end) - time.perf_counter()) / (len(runs) - i)
            out.append(self._closed_form(plan, label(method, mean), max(allowed, 0.5)))
        return out

    def _closed_form(self, plan: Plan, name: str, seconds: float) -> Candidate:
        builder = Builder(self.data, plan)
        model = builder.model()
        begun = time.perf_counter()
        if plan.sample_start is not None:
            sampled = replace(plan.sample_start, seconds=SAMPLE_SHARE * seconds, follows_clock=False)
            (history,) = train(model, builder.closed_form(model, sample=SAMPLE_ROWS), sampled)
            pace = history.seconds / max(1, history[-1].epoch if len(history) else 1)
        elif plan.method.recipe.points_are_rows and builder.n >= 2 * EXACT_SAMPLE:
            self._start_on_sample(builder, model, SAMPLE_SHARE * seconds)
            plan = replace(plan, training=replace(plan.training, fewest_steps=10, check_every=5))
        seconds = max(seconds - (time.perf_counter() - begun), 0.1)
        if plan.sample_start is not None and FEWEST_WHOLE_STEPS * pace * builder.n / SAMPLE_ROWS > seconds:
            settle(model, builder.closed_form(model))
            history.notes.append(f"its kernel is that of {SAMPLE_ROWS} rows: the time was too short for all")
        else:
            training = replace(plan.training, seconds=seconds, follows_clock=False)
            (history,) = train(model, builder.problem(model), training, None, self.callbacks)
        self._note(name, history)
        if self.small:
            batch = builder.table.gather(builder.rows)
            y = builder.y_scalers[0]
            left = leave_one_out(model, batch)
            mean = y.inverse(left.mean[0].mT.double().cpu().numpy())
            variance = left.variance[0].mT.double().cpu().numpy() * y.scale**2
            gp = builder.fitted(model, history)
            return Candidate(name, gp, (mean, variance), None, builder, model)
        gp = builder.fitted(model, history)
        held = self._moments(gp, plan)

        def refit() -> GP:
            if self.data.validation_rows is not None:
                return gp
            if float(model.likelihood.noise().detach().min()) < LEAST_NOISE:  # type: ignore[operator]
                self.notes.append(
                    f"{name}: almost without noise, it stays as the rows held out have judged it"
                )
                return gp
            self._solve_for_all(builder, model, held[0])
            return builder.fitted(model, history)

        return Candidate(name, gp, held, refit, builder, model)

    def _solve_for_all(self, builder: Builder, model: Model, before: Array) -> None:
        """q(u) of all rows, unless it knows the rows held out worse than before: then numbers went astray."""
        y, kept = builder.y_scalers[0], {n: t.clone() for n, t in model.state_dict().items()}
        settle(model, builder.closed_form(model, with_validation=True))
        batch = builder.validation()
        assert batch is not None
        with torch.no_grad():
            mean = y.inverse(model.marginals(batch.x).mean[0].mT.double().cpu().numpy())
        target = y.inverse(batch.y[0].mT.double().cpu().numpy())
        if not np.square(mean - target).mean() <= np.square(before - target).mean():
            model.load_state_dict(kept)
            self.notes.append("the rows held out stayed outside: q(u) of all rows was no better on them")

    def _start_on_sample(self, builder: Builder, model: Model, seconds: float) -> None:
        """Kernel, noise and mean of an exact GP from one on some of the rows, whose steps cost a fraction."""
        data, whole = self.data, builder.plan
        learned = builder.table.learned
        chosen = np.random.default_rng(data.seeds[0]).permutation(whole.train[0])[:EXACT_SAMPLE]
        part = replace(
            data,
            rows=[np.sort(chosen)],
            validation_rows=None,
            offsets=None if learned is None else learned[0].double().cpu().numpy(),
            cross_fits={},
        )
        own = make_plan(part, whole.method, whole.settings, columns=whole.columns, split=False)
        small = Builder(part, own)
        start = small.model()
        train(
            start,
            small.problem(start),
            replace(small.plan.training, seconds=seconds, follows_clock=False, tolerance=0.01),
        )
        start_from(start, model)

    def _moments(self, gp: GP, plan: Plan) -> tuple[Array, Array]:
        """Of the rows held out, [n, outputs] in the user's units."""
        assert plan.validation is not None
        rows = plan.validation[0]
        noise = None if self.data.noise is None else self.data.noise[rows]
        p: Any = gp.predict(self.data.X[rows], noise=noise)  # as it will be asked: rounding counts too
        return p.mean.reshape(len(rows), -1), p.variance.reshape(len(rows), -1)

    def _predictive(self, found: list[Candidate]) -> list[Candidate]:
        """Predictive methods from every closed form on: a round for all, and another for the best of them."""
        device = self.settings.torch_device.type
        runs = [(closed, name) for closed in sorted(found, key=self._nll) for name in self.predictive]
        field_: list[Runner] = []
        starts: dict[int, tuple[Builder, Model]] = {}
        for i, (closed, name) in enumerate(runs):
            allowed = self.clock.left / (2 * (len(runs) - i))
            if allowed < 0.5:
                break
            if id(closed) not in starts:
                starts[id(closed)] = self._predictive_start(closed)
            builder, start = starts[id(closed)]
            model = builder.model(METHODS[name])
            start_from(start, model)
            history = self._round(builder, model, ROUND_STEPS, allowed / 2, "constant")
            field_.append(Runner(name, builder, model, history))
        if not field_:
            return []
        name, builder, model, before = min(field_, key=lambda run: _or_infinity(run.history.validation_nll))
        kept = {key: value.clone() for key, value in model.state_dict().items()}
        history = before
        if self.clock.left > 0.5:
            history = self._round(builder, model, FINISH_STEPS[device], 0.92 * self.clock.left, "cosine")
            if not _or_infinity(history.validation_nll) <= _or_infinity(before.validation_nll):
                model.load_state_dict(kept)
                history.validation_nll = before.validation_nll
        title = label(name, builder.settings.mean)
        self._note(title, history)
        settings = builder.settings.but(solver="stochastic")
        gp = builder.fitted(model, history, method=METHODS[name], settings=settings)
        return [Candidate(title, gp, self._moments(gp, builder.plan), None, builder, model)]

    def _predictive_start(self, closed: Candidate) -> tuple[Builder, Model]:
        """The builder of predictive methods with the mean of a closed form, and that form at its points."""
        assert closed.builder is not None and closed.model is not None
        own: dict[str, Any] = {} if "dtype" in self.given else {"dtype": "float32"}
        if "num_inducing" not in self.given:
            own["num_inducing"] = min(PREDICTIVE_POINTS[self.settings.torch_device.type], closed.builder.n)
        builder = Builder(self.data, self._plan(self.predictive[0], closed.builder.settings.mean, **own))
        start = builder.model(METHODS["svgp"])  # its points may be fewer than those of the closed form
        start_from(closed.model, start)
        settle(start, builder.closed_form(start))
        return builder, start

    def _round(self, builder: Builder, model: Model, steps: int, seconds: float, schedule: str) -> History:
        settings = self.settings
        assert builder.held_out is not None
        # Every second row held out is looked at; the others have not been before the stack.
        watched = builder.table.gather(builder.held_out[:, ::2])
        per_epoch = max(1, -(-builder.n // settings.batch_size))
        plan = replace(
            builder.plan.training,
            steps=steps,
            learning_rate=settings.learning_rate or RATE,
            schedule=make_schedule(settings.schedule or schedule),
            evaluate_every=-(-LOOK_EVERY // per_epoch),
            patience=settings.patience or PATIENCE,
            restore_best=True,
            seconds=max(seconds, 1e-3),
            follows_clock=self.pace * steps > seconds,  # where time is too short for all steps
        )
        begun = time.perf_counter()
        (history,) = train(model, builder.problem(model), plan, watched, self.callbacks)
        self.pace = (time.perf_counter() - begun) / max(
            1, history[-1].epoch * per_epoch if len(history) else 1
        )
        return history

    # -- likelihoods without a closed form -------------------------------------------------------------------

    def _others(self) -> list[Candidate]:
        """GPs by natural gradients with and without trees, and the trees alone."""
        out: list[Candidate] = []
        for i, mean in enumerate(self.means):
            plan = self._plan("svgp", mean)
            self._grow_trees(plan)
            allowed = max(0.9 * self.clock.left / (len(self.means) - i), 0.5)
            if self.small:
                allowed /= 2
            builder = Builder(self.data, plan)
            model = builder.model()
            training = replace(plan.training, seconds=allowed, follows_clock=False)
            (history,) = train(model, builder.problem(model), training, None, self.callbacks)
            name = label("svgp", mean)
            self._note(name, history)
            gp = builder.fitted(model, history)
            held = self._by_folds(plan, builder, allowed) if self.small else self._held_density(gp, plan)
            out.append(Candidate(name, gp, held, None, builder, model))
            if builder.cross_fits is not None and self.data.num_classes is not None:
                out.append(self._alone(builder, label("", mean)))
        if self.data.num_classes is not None and "mean" not in self.given:
            out += [
                self._learned(out[0].gp, Logistic(), "logistic"),
                self._learned(out[0].gp, Bagged(), "bagged"),
            ]
        return out

    def _held_density(self, gp: Any, plan: Plan) -> Array:
        assert plan.validation is not None
        rows = plan.validation[0]
        if self.data.num_classes is not None:
            probabilities: Array = gp.predict(self.data.X[rows], in_parts=False).probabilities
            return probabilities
        return gp.log_density(self.data.X[rows], self.data.target.values[rows])

    def _alone(self, builder: Builder, name: str) -> Candidate:
        """The cross-fitted mean of a GP without the GP."""
        assert builder.cross_fits is not None
        return self._learned_only(builder.fitted(builder.model(), History()), builder.cross_fits[0], name)

    def _learned(self, gp: GP, spec: Any, name: str) -> Candidate:
        """Logistic regression, hard to beat on a few hundred rows, or bagged trees, which err elsewhere."""
        return self._learned_only(gp, cross_fits(self.data, self._plan("svgp", spec))[0], name)

    def _learned_only(self, gp: GP, fit: CrossFit, name: str) -> Candidate:
        own = LearnedOnly(gp, LearnedMean(replace(fit, held_out=None)))
        if self.small:
            assert fit.held_out is not None
            return Candidate(name, own, own.probabilities_of(fit.held_out))
        return Candidate(name, own, self._held_density(own, self._plan("svgp", "constant")))

    def _by_folds(self, plan: Plan, builder: Builder, seconds: float) -> Array:
        """What models that were trained without a fold say about it: probabilities, or log densities."""
        data = self.data
        rows = plan.train[0]
        labels = data.target.values[rows, 0] if data.num_classes is not None else None
        fold = assign_folds(labels, len(rows), FOLDS, data.seeds[0])
        folds = int(fold.max()) + 1
        size = len(rows) - int(np.bincount(fold).max())
        parts = [rows[fold != k][:size] for k in range(folds)]
        offsets = None if builder.table.learned is None else builder.table.learned[0].double().cpu().numpy()
        own = replace(
            data,
            rows=parts,
            validation_rows=None,
            seeds=[data.seeds[0] + k for k in range(folds)],
            offsets=offsets,
            cross_fits={},
        )
        points = min(plan.settings.num_inducing or size, size)
        settings = plan.settings.but(validation_fraction=0.0, num_inducing=points)
        inner = Builder(own, make_plan(own, METHODS["svgp"], settings, columns=plan.columns, split=False))
        model = inner.model()
        train(model, inner.problem(model), replace(inner.plan.training, seconds=seconds, follows_clock=False))
        out: list[Array] = []
        model.eval()
        with torch.no_grad():
            every = torch.as_tensor(rows, device=inner.rows.device).expand(folds, -1)
            batch = inner.table.gather(every)
            f = model.marginals(batch.x)
            density = model.likelihood.bind()
            if data.num_classes is None:
                logs = density.log_predictive(batch.y, f.mean, f.variance)
                values = logs.double().cpu().numpy()[..., None]  # [K, n, 1]
            else:
                values = density.class_probabilities(f.mean, f.variance).mT.double().cpu().numpy()
        for i, k in enumerate(fold):
            out.append(values[k, i])
        found = np.stack(out)
        return found[:, 0] if data.num_classes is None else found

    # -- the stack -------------------------------------------------------------------------------------------

    def _excess(self, found: list[Candidate]) -> CrossFit | None:
        """The log of how much larger squared errors are than the best candidate's variances."""
        best = min(found, key=self._nll)
        assert best.builder is not None and best.model is not None
        builder = best.builder
        if builder.n < EXCESS_ROWS or self.data.noise is not None:
            return None
        squares = []
        few = builder.rows[:, :EXCESS_MOST]
        for rows in few.split(4096, 1):
            batch = builder.table.gather(rows)
            left = leave_one_out(best.model, batch)
            squares.append(((batch.y - left.mean).square() / left.variance)[0].double().cpu())
        square = torch.cat(squares, -1).mT.numpy().clip(*EXCESS_BOUNDS)
        plan = builder.plan
        train_rows = plan.train[0][:EXCESS_MOST]
        weights = None if self.data.weights is None else self.data.weights[train_rows]
        return cross_fit(
            EXCESS_TREES,
            self.data.X[train_rows][:, plan.columns],
            square,
            Goal("positive", outputs=square.shape[1]),
            weights=weights,
            seed=self.data.seeds[0],
            deadline=time.perf_counter() + EXCESS_SHARE * self.clock.seconds,
        )

    def _held_rows(self, found: list[Candidate]) -> NDArray[np.intp]:
        plan = next(c.builder.plan for c in found if c.builder is not None)
        return plan.train[0] if plan.validation is None else plan.validation[0]

    def _nll(self, candidate: Candidate) -> float:
        """Of a Gaussian with the moments of the rows held out."""
        rows = self._held_rows([candidate])
        y = self.data.target.values[rows]
        mean, variance = candidate.held
        return float(np.mean(np.log(variance) + (y - mean) ** 2 / variance))

    def _stacked(self, found: list[Candidate], excess: CrossFit | None) -> Stack:
        rows = self._held_rows(found)
        y = self.data.target.values[rows]
        weights = None if self.data.weights is None else self.data.weights[rows]
        law: Any
        if self.gaussian:
            g = np.zeros_like(y)
            if excess is not None:
                columns = found[0].builder.plan.columns  # type: ignore[union-attr]
                unseen = excess.held_out if self.small else excess.at(self.data.X[rows][:, columns])[0]
                assert unseen is not None
                g = bounded_excess(unseen)
            moments = [np.stack(part) for part in zip(*(c.held for c in found), strict=True)]
            laws = [
                mixture_law(y[:, p], moments[0][..., p], moments[1][..., p], g[:, p], weights)
                for p in range(y.shape[1])
            ]
            law, scores = [own for own, _ in laws], [value for _, value in laws]
            score = float(np.sum(scores) - 0.0)
            shares = np.mean([own.of_members + own.shared * own.mean_weights for own in law], axis=0)
        elif self.data.num_classes is not None:
            codes = y[:, 0].astype(np.intp)
            count = np.bincount(
                self.data.target.values[self.data.rows[0], 0].astype(int), minlength=self.data.num_classes
            )
            frequencies = (count + 1) / (count.sum() + len(count))
            law, score = class_law(codes, np.stack([c.held for c in found]), frequencies, weights)
            shares = law.of_members
        else:
            law = density_weights(np.stack([c.held for c in found]), weights)
            score, shares = float("nan"), law
        kept = [k for k, share in enumerate(shares) if share > 1e-4]
        if not any(found[k].builder is not None for k in kept):  # a stack has a GP
            kept = sorted({*kept, next(k for k, c in enumerate(found) if c.builder is not None)})
        law = _without(law, kept)
        members = [found[k].refit() if found[k].refit is not None else found[k].gp for k in kept]  # type: ignore[misc]
        labels = [found[k].label for k in kept]
        history = History(solver="stack", seconds=time.perf_counter() - self.clock.begun)
        history.records = [r for k in kept for r in getattr(found[k].gp, "history", History()).records][-1:]
        how = f"{len(rows)} rows held out"
        if self.small:
            how = "every row left out in its turn" if self.gaussian else f"all rows, in {FOLDS} folds"
        if score == score:
            history.validation_nll = -score
        made = Stack(members, law, labels=labels, settings=self.settings, history=history, excess=excess)
        ranked = sorted(made.weights.items(), key=lambda entry: -entry[1])
        board = ", ".join(f"{name} {weight:.2f}" for name, weight in ranked)
        history.notes = [f"a stack by the log score of {how}: {board}", *self.notes]
        return made

    def _note(self, name: str, history: History) -> None:
        self.notes += [f"{name}: {note}" for note in history.notes]


def _without(law: Any, kept: list[int]) -> Any:
    """A law of the members that have a weight."""
    if isinstance(law, list):
        return [
            replace(
                own,
                weights=own.weights[kept],
                log_scale=own.log_scale[kept],
                power=own.power[kept],
                mean_weights=own.mean_weights[kept],
            )
            for own in law
        ]
    if isinstance(law, np.ndarray):
        return law[kept]
    return type(law)(law.weights[[0, *(k + 1 for k in kept)]], law.temperature[kept], law.frequencies)


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None or value != value else value
