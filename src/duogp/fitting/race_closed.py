"""A race under Gaussian noise: GPs whose q(u) has a formula, with trees as their mean and without.

The exact GP where it is affordable, else a sparse one. Trees then learn where the best of them is too sure
(the log excess), and on larger tables predictive methods go on from there (`race_predictive`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.fitting.builder import Builder, start_from, take_prior
from duogp.fitting.dataset import Dataset
from duogp.fitting.plan import Plan
from duogp.fitting.race import Array, Candidate, Race, Verdict, label
from duogp.fitting.race_logs import OF_LOGS, in_target_units, log_scale_of, on_logs
from duogp.fitting.race_predictive import PredictiveRounds
from duogp.fitting.race_rows import RowMeans, exact_on_rows, exact_on_samples
from duogp.fitting.stacking import mixture_law
from duogp.fitting.training_plan import SAMPLE_ROWS
from duogp.inference.leave_one_out import LeftOut, leave_one_out
from duogp.means.crossfit import CrossFit, Goal, cross_fit
from duogp.methods import METHODS
from duogp.methods.settings import BY_DIMENSION, Settings
from duogp.models.model import Model, take_replicate
from duogp.numerics.rounding import Rounding
from duogp.posterior.gp import GP
from duogp.posterior.laws import EXCESS_BOUNDS, bounded_excess
from duogp.posterior.log_target import LogUnits
from duogp.training import Callback, Curvature, History, settle, train


class ClosedRace(Race):
    """Gaussian noise."""

    in_turn = "every row left out in its turn"

    def __init__(
        self, data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback]
    ) -> None:
        super().__init__(data, given, settings, callbacks)
        device = settings.torch_device.type
        few = self.rules.small if self.small else self.rules.exact_rows.on(device)
        exact = self.n - self.num_held <= few and "num_inducing" not in given
        self.method = "exact" if exact else "svgp"
        self.predictive = self.rules.predictive if settings.solver == "auto" and not self.small else ()
        self.units: LogUnits | None = None  # of a race on the log scale
        self.pace = 0.0  # seconds a row of a closed form's step, where steps on a sample have told
        own: dict[str, Any] = {} if exact else self.points(self.rules.closed_points.on(device))
        if settings.steps is None and settings.epochs is None:
            own["epochs"] = self.rules.closed_steps.on(device)
        if "lengthscale_prior" not in given and isinstance(settings.kernel, str):
            own["lengthscale_prior"] = BY_DIMENSION  # few rows say nothing about the columns that hardly vary
        self.settings = self.settings.but(**own)
        self.logs = log_scale_of(data, self.rules.least_skew)
        self.after_training = 0.0  # seconds that a small candidate took after its last step
        if self.small and "mean" not in given and data.X.shape[1] <= self.rules.ridge_columns:
            self.means.append("ridge")  # what a line says, a kernel of few rows says worse
        of_rows = self.rules.stacking_pace * (self.n if self.small else self.num_held)
        laws = len(self.planned()) * (1 if self.logs is None else 2)
        self.clock.reserved += laws * (self.rules.stacking_seconds + of_rows)

    def planned(self) -> list[str]:
        also = [] if self.logs is None else [f"{name} {OF_LOGS}" for name in super().planned()]
        return [*super().planned(), *also, *self.predictive]

    def candidates(self) -> list[Candidate]:
        """Closed forms, on the log scale too where there is one; the better scale goes on."""
        scales = [self] if self.logs is None else [self, self._race_of_logs()]
        closed = self._closed_forms(scales)
        leader, best = min(
            ((race, race._best(own)) for race, own in closed), key=lambda pair: pair[0]._place(pair[1])
        )
        self.excess = leader._excess(best)
        for race in scales:
            if race is not leader:
                race.regrown.clear()
        found = []
        for race, own in closed:
            own = own + race._more(own) if race is leader else own
            found += own if race is self else [race._in_target_units(candidate) for candidate in own]
        return found

    def _race_of_logs(self) -> ClosedRace:
        """A race on the log scale by the same clock."""
        assert self.logs is not None
        other = ClosedRace(on_logs(self.data, self.logs), self.given, self.settings, self.callbacks)
        other.settings, other.logs = self.settings, None
        other.units = LogUnits.of(self.logs, self.data.target.values[self.data.rows[0]])
        other.clock, other.notes, other.ended = self.clock, self.notes, self.ended
        other.checkpoints = self.checkpoints
        other.title = OF_LOGS
        return other

    def _more(self, closed: list[Candidate]) -> list[Candidate]:
        """Candidates that start from the closed forms."""
        found: list[Candidate] = []
        if self._takes_row_means():
            share = self.rules.trees_share + self.rules.closed_share + self.rules.rows_share
            found += RowMeans(self).run(sorted(closed, key=self._nll), self.clock.until(share))
        if self.predictive:
            some = self.affordable_rows(self.rules.refit_share * self.clock.seconds)
            more = PredictiveRounds(self, self.predictive, some).run(sorted(closed, key=self._nll))
            found += more
            if not more:
                self.notes.append("predictive methods were not tried: the time was up")
        return found

    def _takes_row_means(self) -> bool:
        """Whether the exact mean of all rows is affordable, and no exact GP has it already."""
        few = self.rules.row_means.on(self.settings.torch_device.type)
        wanted = not self.small and "num_inducing" not in self.given and self.n <= few
        return wanted and not METHODS[self.method].recipe.points_are_rows

    def _closed_forms(self, scales: list[ClosedRace]) -> list[tuple[ClosedRace, list[Candidate]]]:
        """Of every scale one with every mean; a scale that is far behind with the first gets no other."""
        found: list[tuple[ClosedRace, list[Candidate]]] = [(race, []) for race in scales]
        end = 0.9 if self.small else self.rules.trees_share + self.rules.closed_share
        for i, mean in enumerate(self.means):
            racing = found if i == 0 else self._near_the_best(found)
            plans = [race.plan(race.method, mean, solver="closed-form") for race, _ in racing]  # of any size
            for j, (race, _) in enumerate(racing):
                race.grow_trees(plans[j], self.rules.trees_share * (j + 1) / len(scales))
            for j, (race, own) in enumerate(racing):
                left = len(racing) * (len(self.means) - i) - j
                ahead = self.clock.until(end) - time.perf_counter()
                allowed = ahead / left - race.after_training
                name = label(race.method, mean)
                if i > 0 and ahead < race.after_training + self.rules.least_seconds:
                    self.notes.append(f"{name} {race.title}".strip() + ": not tried, the time was up")
                    continue
                own.append(race._closed_form(plans[j], name, max(allowed, self.rules.least_seconds)))
        return found

    def _near_the_best(
        self, found: list[tuple[ClosedRace, list[Candidate]]]
    ) -> list[tuple[ClosedRace, list[Candidate]]]:
        """The scales that are worth further candidates."""
        places = [race._place(race._best(own)) for race, own in found]
        near = min(places) + self.rules.scale_gap
        return [pair for pair, place in zip(found, places, strict=True) if place <= near]

    def _best(self, found: list[Candidate]) -> Candidate:
        return min(found, key=self._nll)

    def _place(self, candidate: Candidate) -> float:
        """The NLL a row of the target, less a constant; comparable between scales."""
        score = 0.5 * self._nll(candidate)
        if self.units is not None:  # the density of y, not of its logarithm
            score += float(self.data.target.values[self.rows_judged([candidate])].mean())
        return score

    def _in_target_units(self, candidate: Candidate) -> Candidate:
        assert self.units is not None
        return in_target_units(candidate, self.units)

    def _closed_form(self, plan: Plan, name: str, seconds: float) -> Candidate:
        end = time.perf_counter() + seconds
        builder = Builder(self.data, plan)
        model = builder.model()
        halves = self.small and self._is_judged_by_halves(builder)
        history, factors = self._train(builder, model, seconds * (0.5 if halves else 1.0), name)
        self.note(name, history)
        if self.small:
            return self._small(builder, model, history, name, factors, end if halves else None)
        begun = time.perf_counter()
        gp = builder.fitted(model, history)
        held = self.moments(gp, plan)
        # Solving for q(u) with all rows costs about a step.
        affordable = self.affordable_rows(self.rules.refit_share * self.clock.seconds) is None
        self.clock.reserved += time.perf_counter() - begun + affordable * self.pace * builder.n

        def refit() -> GP:
            if self.data.validation_rows is not None:
                return gp
            if not affordable:
                self.notes.append(
                    f"{name}: trained without the rows held out: the time was too short to add them"
                )
                return gp
            if float(model.likelihood.noise().detach().min()) < self.rules.least_noise:  # type: ignore[operator]
                self.notes.append(f"{name}: trained without the rows held out: its noise is close to zero")
                return gp
            self.regrow(builder)
            self._solve_for_all(builder, model, held[0])
            return builder.fitted(model, history)

        return Candidate(name, gp, held, refit, builder, model)

    def _small(
        self, builder: Builder, model: Model, history: History, name: str, factors: Any, end: float | None
    ) -> Candidate:
        """A candidate of a small table, which every row has judged in its turn.

        ``end``: until when halves of the rows may learn kernels to be judged by; None without halves.
        """
        begun = time.perf_counter()
        if factors is None:
            with torch.no_grad():
                factors = model.factors()
        left = leave_one_out(model, builder.table.gather(builder.rows), factors)
        gp = builder.fitted(model, history).freeze(factors)
        self.after_training += time.perf_counter() - begun
        if end is not None and end - time.perf_counter() < self.rules.least_seconds:
            self.notes.append(f"{name} {self.title}".strip() + ": judged by its own kernel, the time was up")
            end = None
        held = self._left_out(builder, left, name, end)
        return Candidate(name, gp, held, None, builder, model, left)

    def _train(self, builder: Builder, model: Model, seconds: float, name: str) -> tuple[History, Any]:
        """Steps on a sample where there are many rows, then on all rows, if there is time for a few.

        With the history come the factors of the model, or None where they are not at hand.
        """
        rules, plan, training = self.rules, builder.plan, builder.plan.training
        begun, curvature, self.after_training = time.perf_counter(), Curvature(), 0.0
        if plan.sample_starts:
            sampled = replace(
                plan.sample_starts[0].training, seconds=rules.sample_share * seconds, follows_clock=False
            )
            on_sample, slot = builder.closed_form(model, sample=SAMPLE_ROWS), self.slot(f"{name} sample")
            (history,) = train(model, on_sample, sampled, slot=slot, curvature=curvature)
            curvature.scale(builder.n / SAMPLE_ROWS)  # the loss of a sample is divided by all rows
            self.pace = history.seconds / max(1, history[-1].epoch if len(history) else 1) / SAMPLE_ROWS
        elif plan.method.recipe.points_are_rows and builder.n >= 2 * rules.exact_sample:
            most = rules.exact_rows.on(self.settings.torch_device.type)
            sizes = [rules.exact_sample] if builder.n <= most else [rules.exact_sample, most]
            start, history = exact_on_samples(self, builder, sizes, rules.sample_share * seconds, name)
            start_from(start, model)
            if builder.n > most:  # steps on all rows take too long
                solving = time.perf_counter()
                factors = settle(model, builder.problem(model))
                self.after_training = time.perf_counter() - solving
                history.notes.append(f"its kernel was learned on {most} of the rows")
                return history, factors
            training = replace(training, fewest_steps=10, check_every=5)
        seconds = max(seconds - (time.perf_counter() - begun), 0.1)
        if plan.sample_starts and rules.fewest_whole_steps * self.pace * builder.n > seconds:
            some = self.affordable_rows(seconds)
            settle(model, builder.closed_form(model, sample=some))
            own = "" if some is None else f", its q(u) on {some}"
            history.notes.append(
                f"its kernel was learned on {SAMPLE_ROWS} of the rows{own}: the time was too short for all"
            )
            return history, None
        training = replace(training, seconds=seconds, follows_clock=False)
        problem, slot = builder.problem(model), self.slot(name)
        (history,) = train(model, problem, training, None, self.callbacks, slot, curvature)
        return history, None

    def affordable_rows(self, seconds: float) -> int | None:
        """How many rows a step may have that takes so long; None where that is all of them."""
        some = int(seconds / self.pace) if self.pace > 0 else self.n
        return None if some >= self.n else max(some, SAMPLE_ROWS)

    def _is_judged_by_halves(self, builder: Builder) -> bool:
        """Whether its kernel is that of all rows, and so many that a half of them learns one too."""
        exact = builder.plan.method.recipe.points_are_rows
        return exact and self.rules.least_halves <= builder.n < 2 * self.rules.exact_sample

    def _left_out(self, builder: Builder, left: LeftOut, name: str, end: float | None) -> tuple[Array, Array]:
        """Moments of every row by the leave-one-out formula, [n, outputs] in the user's units.

        A kernel learned from a row knows it, and where columns are many it knows it by heart. An exact GP
        whose kernel is that of all rows is judged by two others, each learned from a half of the rows: a
        row is left out under the kernel that has not seen it. ``end``: until when they learn.
        """
        y = builder.y_scalers[0]
        if end is not None:
            left = self._left_out_by_halves(builder, left, name, end)
        mean = y.inverse(left.mean[0].mT.double().cpu().numpy())
        variance = left.variance[0].mT.double().cpu().numpy() * y.scale**2
        return mean, variance

    def _left_out_by_halves(self, builder: Builder, left: LeftOut, name: str, end: float) -> LeftOut:
        order = np.random.default_rng(self.data.seeds[0]).permutation(builder.n)
        halves = np.array_split(order, 2)
        mean, variance = left.mean.clone(), left.variance.clone()
        for judged, kernel in zip(halves, self._kernels_of(builder, halves[::-1], name, end), strict=True):
            model = builder.model()
            take_prior(kernel, model)
            factors = settle(model, builder.problem(model))
            own = leave_one_out(model, builder.table.gather(builder.rows), factors)
            which = torch.as_tensor(judged, device=mean.device)
            mean[..., which], variance[..., which] = own.mean[..., which], own.variance[..., which]
        return LeftOut(mean, variance)

    def _kernels_of(
        self, builder: Builder, parts: Sequence[NDArray[np.intp]], name: str, end: float
    ) -> list[Model]:
        """Exact GPs on parts of the rows; parts of one size are trained at once, in less time."""
        rows = [builder.rows[:, torch.as_tensor(np.sort(p), device=builder.rows.device)] for p in parts]
        if len({own.shape for own in rows}) == 1:
            seconds = max(end - time.perf_counter(), self.rules.least_seconds)
            model, _ = exact_on_rows(self, builder, torch.cat(rows), seconds, f"{name} halves")
            return [take_replicate(model, k) for k in range(len(rows))]
        found = []
        for k, own in enumerate(rows):
            seconds = max((end - time.perf_counter()) / (len(rows) - k), self.rules.least_seconds)
            found.append(exact_on_rows(self, builder, own, seconds, f"{name} half {k}")[0])
        return found

    def _solve_for_all(self, builder: Builder, model: Model, before: Array) -> None:
        """q(u) of all rows, unless its squared error on the rows held out has grown (ill-conditioning)."""
        y, kept = builder.y_scalers[0], {n: t.clone() for n, t in model.state_dict().items()}
        settle(model, builder.closed_form(model, with_validation=True))
        batch = builder.validation()
        assert batch is not None
        with torch.no_grad():
            mean = y.inverse(model.marginals(batch.x).mean[0].mT.double().cpu().numpy())
        target = y.inverse(batch.y[0].mT.double().cpu().numpy())
        if not np.square(mean - target).mean() <= np.square(before - target).mean():
            model.load_state_dict(kept)
            self.notes.append("trained without the rows held out: q(u) of all rows was no better on them")

    def _excess(self, best: Candidate) -> CrossFit | None:
        """The log of how much larger squared errors are than the best candidate's variances."""
        assert best.builder is not None and best.model is not None
        builder = best.builder
        if builder.n < self.rules.excess_rows or self.data.noise is not None:
            return None
        allowed = min(self.rules.excess_share * self.clock.seconds, self.clock.left)
        if allowed < self.rules.least_seconds:
            self.notes.append("the log excess was not learned: the time was up")
            return None
        squares = []
        few = builder.rows[:, : self.rules.most_excess_rows]
        for rows in few.split(4096 if best.left is None else builder.n, 1):
            batch = builder.table.gather(rows)
            left = leave_one_out(best.model, batch) if best.left is None else best.left
            squares.append(((batch.y - left.mean).square() / left.variance)[0].double().cpu())
        square = torch.cat(squares, -1).mT.numpy().clip(*EXCESS_BOUNDS)
        plan = builder.plan
        train_rows = plan.train[0][: self.rules.most_excess_rows]
        return cross_fit(
            self.rules.excess_trees,
            self.data.X[train_rows][:, plan.columns],
            square,
            Goal("positive", outputs=square.shape[1]),
            weights=self.row_weights(train_rows),
            seed=self.data.seeds[0],
            deadline=time.perf_counter() + allowed,
        )

    def _nll(self, candidate: Candidate) -> float:
        """Of a Gaussian with the moments of the rows held out."""
        rows = self.rows_judged([candidate])
        y = self.data.target.values[rows]
        mean, variance = candidate.held
        return float(np.mean(np.log(variance) + (y - mean) ** 2 / variance))

    def verdict(self, found: list[Candidate]) -> Verdict:
        """A law for every output."""
        rows = self.rows_judged(found)
        y = self.data.target.values[rows]
        g = np.zeros_like(y)
        if self.excess is not None:
            columns = found[0].builder.plan.columns  # type: ignore[union-attr]
            unseen = self.excess.held_out if self.small else self.excess.at(self.data.X[rows][:, columns])[0]
            assert unseen is not None
            g = bounded_excess(unseen)
        mean, variance = (np.stack(part) for part in zip(*(c.held for c in found), strict=True))
        weights = self.row_weights(rows)
        laws, scores = zip(
            *(
                mixture_law(
                    y[:, p],
                    mean[..., p],
                    variance[..., p],
                    g[:, p],
                    weights,
                    self.logs,
                    Rounding.of(self.data.target.values[:, p]),
                )
                for p in range(y.shape[1])
            ),
            strict=True,
        )
        shares = np.mean([own.of_members + own.mean_weights for own in laws], axis=0)
        return Verdict(list(laws), float(np.sum(scores)), shares)
