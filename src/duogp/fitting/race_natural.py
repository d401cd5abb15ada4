"""A race under likelihoods without a closed form: GPs by natural gradients, with trees and without.

For classes there are members without a GP too: the trees alone, a logistic regression and bagged trees.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from duogp.data.rows import groups_of_inputs
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.learned import cross_fits
from duogp.fitting.plan import Plan, make_plan
from duogp.fitting.race import Array, Candidate, Race, Verdict, label
from duogp.fitting.stacking import class_law, density_weights
from duogp.means.affine import Logistic
from duogp.means.bagging import Bagged
from duogp.means.crossfit import CrossFit, assign_folds
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.posterior.gp import GP
from duogp.posterior.learned import LearnedMean, LearnedOnly
from duogp.training import Callback, History, train


class NaturalRace(Race):
    """Classes, counts, and every other likelihood that is not Gaussian."""

    def __init__(
        self, data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback]
    ) -> None:
        super().__init__(data, given, settings, callbacks)
        self.trained = 0.0  # seconds
        self.regrow_share = self.rules.natural_regrow_share
        self.in_turn = f"all rows, in {self.rules.folds} folds"
        own = self.points(self.rules.natural_points.of(self.small))
        self.settings = self.settings.but(**own, **self._natural(settings))

    def _natural(self, settings: Settings) -> dict[str, Any]:
        """What is not given of natural gradients: so many steps at such rates."""
        classes = self.data.num_classes or 0
        own: dict[str, Any] = {}
        if classes > 2 and settings.likelihood == "classes":
            own["likelihood"] = "softmax"
        if settings.steps is None and settings.epochs is None:
            own["steps"] = self.rules.natural_steps.of(self.small)
            own["schedule"] = settings.schedule or "cosine"
            own["learning_rate"] = settings.learning_rate or 0.05
            own["natural_rate"] = settings.natural_rate or (0.1 if classes > 2 else 0.2)
        return own

    def candidates(self) -> list[Candidate]:
        out: list[Candidate] = []
        learned = self._learned_fits()
        beside = 0.0  # seconds of the last candidate that were no training
        for i, mean in enumerate(self.means):
            plan = self.plan("svgp", mean)
            self.grow_trees(plan, self.rules.natural_trees_share)
            allowed = max(0.9 * self.clock.left / (len(self.means) - i) - beside, 0.5)
            begun, trained = time.perf_counter(), self.trained
            out += self._with_mean(plan, mean, allowed / 2 if self.small else allowed)
            beside = time.perf_counter() - begun - (self.trained - trained)
        return out + [self._learned_only(out[0].gp, *own) for own in learned]

    def _learned_fits(self) -> list[tuple[CrossFit, str, Plan]]:
        """Of classes: logistic regression, hard to beat on few rows, and bagged trees."""
        if self.data.num_classes is None or "mean" in self.given or self.n > self.rules.most_learned_rows:
            return []
        out = []
        for name, spec in {"logistic": Logistic(), "bagged": Bagged()}.items():
            plan = self.plan("svgp", spec)
            self.grow_trees(plan, self.rules.learned_share)
            out.append((cross_fits(self.data, plan)[0], name, plan))
        return out

    def _with_mean(self, plan: Plan, mean: Any, seconds: float) -> list[Candidate]:
        """A GP with this mean; for classes also a mean that was learned, without the GP."""
        builder = Builder(self.data, plan)
        model = builder.model()
        training = replace(plan.training, seconds=seconds, follows_clock=False)
        name = label("svgp", mean)
        (history,) = train(model, builder.problem(model), training, None, self.callbacks, self.slot(name))
        self.trained += history.seconds
        self.note(name, history)
        gp = builder.fitted(model, history)
        held = self._by_folds(plan, builder, seconds, name) if self.small else self._held_density(gp, plan)

        def refit() -> GP:
            self.regrow(builder)
            return builder.fitted(model, history)

        out = [Candidate(name, gp, held, refit, builder, model)]
        if builder.cross_fits is not None and self.data.num_classes is not None:
            fit = builder.cross_fits[0]
            bare = builder.fitted(builder.model(), History())
            out.append(self._learned_only(bare, fit, label("", mean), plan))
        return out

    def _held_density(self, gp: Any, plan: Plan) -> Array:
        assert plan.validation is not None
        rows = plan.validation[0]
        if self.data.num_classes is not None:
            probabilities: Array = gp.predict(self.data.X[rows], in_parts=False).probabilities
            return probabilities
        return gp.log_density(self.data.X[rows], self.data.target.values[rows])

    def _learned_only(self, gp: GP, fit: CrossFit, name: str, plan: Plan) -> Candidate:
        """A cross-fitted mean without a GP; ``gp``: another model of the same table."""
        own = LearnedOnly(gp, LearnedMean(replace(fit, held_out=None)))
        if self.small:
            assert fit.held_out is not None
            return Candidate(name, own, own.probabilities_of(fit.held_out))

        def refit() -> LearnedOnly:
            found = self.mean_of_all_rows(plan)
            return own if found is None else LearnedOnly(gp, LearnedMean(replace(found[1][0], held_out=None)))

        return Candidate(name, own, self._held_density(own, self.plan("svgp", "constant")), refit)

    def _by_folds(self, plan: Plan, builder: Builder, seconds: float, name: str) -> Array:
        """What models that were trained without a fold say about it: probabilities, or log densities."""
        data = self.data
        rows = plan.train[0]
        labels = data.target.values[rows, 0] if data.num_classes is not None else None
        groups = groups_of_inputs(data.X[rows], data.weights)
        fold = assign_folds(labels, len(rows), self.rules.folds, data.seeds[0], groups)
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
        training = replace(inner.plan.training, seconds=seconds, follows_clock=False)
        histories = train(model, inner.problem(model), training, slot=self.slot(f"{name} folds"))
        self.trained += max(history.seconds for history in histories)
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

    def verdict(self, found: list[Candidate]) -> Verdict:
        rows = self.rows_judged(found)
        weights = self.row_weights(rows)
        held = np.stack([c.held for c in found])
        if self.data.num_classes is None:
            shares = density_weights(held, weights)
            return Verdict(shares, float("nan"), shares)
        target = self.data.target.values
        codes = target[rows, 0].astype(np.intp)
        count = np.bincount(target[self.data.rows[0], 0].astype(int), minlength=self.data.num_classes)
        frequencies = (count + 1) / (count.sum() + len(count))
        law, score = class_law(codes, held, frequencies, weights)
        return Verdict(law, score, law.of_members)
