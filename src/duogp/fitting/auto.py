"""``method="auto"``: candidates are raced, and those that are worth it are stacked into one model.

    trees       a boosted mean is cross-fitted (`means.crossfit`); every GP runs with and without it
    closed      GPs whose q(u) has a formula: the exact one where it is affordable, else a sparse one
    rows        larger tables: the exact posterior mean of all rows beside the covariance of few points
    predictive  larger tables: methods that maximise the predictive density start where the closed forms
                ended; all of them for a moment, the best for longer
    stack       a mixture of what is left, by the log score of rows that the members have not seen
                (`fitting.stacking`); closed forms are then solved again on all rows

Rows that members have not seen: up to `Rules.small` rows every row in its turn, because a single split of few
rows is luck (Gaussian noise: by the leave-one-out formula, otherwise by folds); above, a share that is held
out. The steps are the same in every run with the same seed unless the clock ends one of them, and then the
notes say so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from duogp.data.scaling import Scaler
from duogp.errors import ConvergenceWarning, NumericalWarning
from duogp.fitting.dataset import Dataset
from duogp.fitting.factories import is_gaussian
from duogp.fitting.plan import Plan, make_plan
from duogp.fitting.race import Array, Candidate, Race
from duogp.fitting.race_closed import ClosedRace
from duogp.fitting.race_natural import NaturalRace
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.numerics.threads import at_most
from duogp.posterior.log_target import LogTargetGP
from duogp.posterior.stack import Stack
from duogp.training import Callback, Checkpoints, History
from duogp.training.progress import overall


def choose(data: Dataset, given: Mapping[str, Any], settings: Settings) -> tuple[str, str] | None:
    """A single method and the reason, where what is given leaves no choice; None for a stack."""
    if "beta2" in given or "whitening" in given:
        return "dcsvgp", "dcsvgp, decoupled conditionals: beta2 and whitening are theirs"
    if settings.num_latents is not None:
        return "svgp", "svgp: num_latents mixes latent functions, which has no closed form"
    if settings.solver not in ("auto", "closed-form") or settings.inducing_space == "feature":
        return "svgp", f"svgp: solver={settings.solver!r} is asked for"
    return None


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
    race = make_race(data, given, settings)
    how = "every row in its turn" if race.small else f"{race.num_held} rows that are held out"
    shown = make_plan(data, METHODS[race.method], race.settings)
    return StackPlan(race.planned(), race.clock.seconds, how, shown)


def stack(
    data: Dataset,
    given: Mapping[str, Any],
    settings: Settings,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
) -> Stack:
    """The stack of the best candidates; its history says in words how it came about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # notes speak of it
        race = make_race(data, given, settings, callbacks)
        race.checkpoints = checkpoints
        with at_most(race.threads), overall("training", race.clock.seconds, settings.verbose):
            found = race.candidates()
            law, score, shares = race.verdict(found)
            kept = worth_it(found, shares, race.rules.least_share)
            return _stacked(race, [found[k] for k in kept], _without(law, kept), score)


def make_race(
    data: Dataset, given: Mapping[str, Any], settings: Settings, callbacks: Sequence[Callback] = ()
) -> Race:
    """The race of a likelihood: with a closed form or without."""
    kind = ClosedRace if is_gaussian(settings) else NaturalRace
    return kind(data, given, settings, callbacks)


def worth_it(found: list[Candidate], shares: Array, least: float) -> list[int]:
    """Which candidates have a share; one GP is among them, because a stack has one."""
    kept = [k for k, share in enumerate(shares) if share > least]
    if not any(found[k].builder is not None for k in kept):
        kept = sorted({*kept, next(k for k, c in enumerate(found) if c.builder is not None)})
    return kept


def _stacked(race: Race, kept: list[Candidate], law: Any, score: float) -> Stack:
    rows = len(race.rows_judged(kept))
    members = [c.gp if c.refit is None else c.refit() for c in kept]
    history = History(solver="stack", seconds=time.perf_counter() - race.clock.begun)
    history.records = [r for c in kept for r in getattr(c.gp, "history", History()).records][-1:]
    if not np.isnan(score):  # the log score is that of the target in the user's units
        history.validation_nll_y = -score
        history.validation_nll = -score - float(np.log(_target_scale(race, members)).sum())
    ended = [name for name in race.ended if any(c.label == name for c in kept)]
    if race.small and ended and "time_budget" not in race.given:
        warnings.warn(
            f"the share of {', '.join(ended)} in the {race.clock.seconds:.0f} s of method='auto' was over "
            "before training had converged, which on a table of this size means many columns or a busy "
            "machine: give time_budget= more seconds, or fit again when it is not busy",
            ConvergenceWarning,
            stacklevel=3,
        )
    labels = [c.label for c in kept]
    made = Stack(members, law, labels=labels, settings=race.settings, history=history, excess=race.excess)
    ranked = sorted(made.weights.items(), key=lambda entry: -entry[1])
    board = ", ".join(f"{weight:.0%} {name}" for name, weight in ranked)
    how = race.in_turn if race.small else f"{rows} rows held out"
    history.notes = [
        f"a stack of {len(ranked)} models, its predictive density {board}: "
        f"the shares with the best log score of {how}",
        *_of_grids(law),
        *race.notes,
    ]
    return made


def _of_grids(law: Any) -> list[str]:
    """What is said of targets that are rounded to a grid."""
    grids = [own.rounding for own in law if own.rounding is not None] if isinstance(law, list) else []
    return [
        f"the target takes {len(grid.values)} values: its law is rounded to them, because the CRPS is better"
        for grid in grids
    ]


def _target_scale(race: Race, members: list[Any]) -> Array:
    """What the target was divided by for training, [outputs]; members on the log scale have another."""
    plain = next((m.y_scaler.scale for m in members if not isinstance(m, LogTargetGP)), None)
    return Scaler.standard(race.data.target.values).scale if plain is None else plain


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
