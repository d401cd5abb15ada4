"""`DuoGPSampler`: studies of Optuna with the proposals of duogp.

    import optuna
    from duogp.bo.optuna import DuoGPSampler

    study = optuna.create_study(sampler=DuoGPSampler(seed=0))
    study.optimize(objective, n_trials=100)

Parameters that all trials have are proposed together (Optuna's relative sampling); others, of search spaces
that branch, by the independent sampler. Directions, several objectives and constraints are those of the
study. Pruned and failed trials lead away from their points, running ones are taken into account.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.study import StudyDirection
    from optuna.trial import TrialState
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "optuna":
        raise
    raise ModuleNotFoundError(
        "duogp.bo.optuna needs Optuna: pip install 'duogp[optuna]'", name=error.name
    ) from error

from duogp.bo.candidates import Floats
from duogp.bo.spaces import Categorical, Integer, Parameter, Real, Space
from duogp.bo.studies.proposers import MODEL, Proposer, make_proposer
from duogp.bo.studies.trials import History

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

#: Complete trials before the model takes over.
STARTUP = 10
#: Where Optuna keeps the constraints of a trial.
CONSTRAINTS = "constraints"

ConstraintsFunction = Callable[["FrozenTrial"], Sequence[float]]


class DuoGPSampler(BaseSampler):
    """A sampler that proposes by a Gaussian process of duogp.

    ``n_startup_trials``: complete trials before the model takes over; until then, and for parameters that
    not all trials have, ``independent_sampler`` (random by default).
    ``constraints_func``: values of a trial that must be at most 0, as in Optuna's own samplers; those of
    ``trial.set_constraint`` are read, too.
    ``strategy`` and ``method`` are those of `duogp.bo.Study`: "model", "thompson", "turbo" (one objective),
    and a GP of the registry; ``settings`` are the GP's.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        n_startup_trials: int = STARTUP,
        independent_sampler: BaseSampler | None = None,
        constraints_func: ConstraintsFunction | None = None,
        strategy: str = MODEL,
        method: str | None = None,
        **settings: Any,
    ) -> None:
        if n_startup_trials < 2:
            raise ValueError(f"n_startup_trials must be at least 2, got {n_startup_trials}")
        self._seed = seed
        self._number = _random_number() if seed is None else seed
        self._startup = n_startup_trials
        self._independent = independent_sampler or RandomSampler(seed=seed)
        self._constraints_func = constraints_func
        self._options = {"strategy": strategy, "method": method, **settings}
        self._intersection = IntersectionSearchSpace(include_pruned=True)
        self._lock = threading.RLock()
        self._known: _KnownSpace | None = None
        self._running: dict[int, dict[str, Any]] = {}  # proposals whose trials have not ended
        make_proposer(space=Space({"x": Real(0, 1)}), seed=0, initial=1, objectives=1, **self._options)

    def reseed_rng(self) -> None:
        self._number = _random_number()
        self._known = None
        self._independent.reseed_rng()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_known": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    # -- Optuna's interface ----------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        found = self._intersection.calculate(study)
        return {name: distribution for name, distribution in found.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Values of all parameters of the search space; none, while too few trials are complete."""
        if not search_space:
            return {}
        with self._lock:
            if self._known is None or self._known.distributions != search_space:
                self._known = _KnownSpace(search_space)
            known = self._known
            history = known.history(study, trial, self._running)
            if int(history.known.sum()) < self._startup:
                return {}
            proposer = known.proposer(self._number, history.Y.shape[1], self._options)
            point = known.space.decode(proposer.propose(history, 1))[0]
            values = {name: known.translators[name].value(point[name]) for name in search_space}
            self._running[trial.number] = values
        return values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._independent.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._running.pop(trial.number, None)
        if self._constraints_func is not None and state in (TrialState.COMPLETE, TrialState.PRUNED):
            told = tuple(float(value) for value in self._constraints_func(trial))
            if np.isnan(told).any():
                raise ValueError(f"constraints must not be NaN, got {told} of trial {trial.number}")
            study._storage.set_trial_system_attr(trial._trial_id, CONSTRAINTS, told)
        self._independent.after_trial(study, trial, state, values)


class _Translator:
    """A distribution of Optuna as a parameter of a space, and values there and back."""

    def __init__(self, name: str, distribution: BaseDistribution) -> None:
        self.name, self.distribution = name, distribution
        self.step: float | None = None
        self.parameter: Parameter
        if isinstance(distribution, CategoricalDistribution):
            self.parameter = Categorical([str(i) for i in range(len(distribution.choices))])
        elif isinstance(distribution, (FloatDistribution, IntDistribution)):
            whole = isinstance(distribution, IntDistribution)
            self.step = distribution.step if not whole or distribution.step != 1 else None
            if self.step is not None:
                steps = round((distribution.high - distribution.low) / self.step)
                self.parameter = Integer(0, steps)
            else:
                kind = Integer if whole else Real
                self.parameter = kind(distribution.low, distribution.high, distribution.log)
        else:
            raise ValueError(f"parameter {name!r}: {distribution!r} is not supported")

    def raw(self, value: Any) -> float:
        """A value of Optuna as a raw one of the parameter."""
        if isinstance(self.distribution, CategoricalDistribution):
            return float(self.distribution.to_internal_repr(value))
        if self.step is not None:
            return float(round((value - self.distribution.low) / self.step))  # type: ignore[attr-defined]
        return float(value)

    def value(self, value: Any) -> Any:
        """A value of the parameter as one of Optuna."""
        if isinstance(self.distribution, CategoricalDistribution):
            return self.distribution.choices[int(value)]
        if self.step is None:
            return value
        reached = self.distribution.low + self.step * value  # type: ignore[attr-defined]
        if isinstance(self.distribution, IntDistribution):
            return int(reached)
        return min(float(reached), self.distribution.high)  # type: ignore[attr-defined]


class _KnownSpace:
    """A search space, what is known of it, and its proposer."""

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self.distributions = dict(distributions)
        self.translators = {name: _Translator(name, d) for name, d in distributions.items()}
        self.space = Space({name: t.parameter for name, t in self.translators.items()})
        self._rows: dict[int, Floats] = {}  # of trials that have ended, by their number
        self._proposer: Proposer | None = None

    def proposer(self, seed: int, objectives: int, options: dict[str, Any]) -> Proposer:
        if self._proposer is None:
            self._proposer = make_proposer(
                space=self.space, seed=seed, initial=1, objectives=objectives, **options
            )
        return self._proposer

    def history(self, study: Study, trial: FrozenTrial, running: dict[int, dict[str, Any]]) -> History:
        """The trials of a study: complete ones with values, pruned and failed ones without, running ones."""
        signs = np.array([-1.0 if d == StudyDirection.MINIMIZE else 1.0 for d in study.directions])
        found = study.get_trials(deepcopy=False)
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        told = [t for t in found if t.state in ended and self.distributions.keys() <= t.params.keys()]
        told.sort(key=lambda t: (t.datetime_complete is None, t.datetime_complete, t.number))
        limits = [_constraints(t) for t in told]
        number = max(map(len, limits), default=0)
        Y, C = np.full((len(told), len(signs)), np.nan), np.full((len(told), number), np.nan)
        for i, (t, excess) in enumerate(zip(told, limits, strict=True)):
            if t.state == TrialState.COMPLETE and len(excess) == number and np.isfinite(t.values).all():
                Y[i], C[i] = signs * np.array(t.values), excess
        waiting = [
            self._params(t, running)
            for t in found
            if t.state == TrialState.RUNNING and t.number != trial.number
        ]
        pending = [self._row(params) for params in waiting if self.distributions.keys() <= params.keys()]
        rows = [self._cached(t) for t in told]
        empty = np.empty((0, self.space.width))
        return History(
            X=np.concatenate(rows) if rows else empty,
            Y=Y,
            C=C,
            pending=np.concatenate(pending) if pending else empty,
            asked=trial.number,
        )

    def _params(self, trial: FrozenTrial, running: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Parameters of a running trial: those that it has suggested, or that were proposed to it."""
        return running.get(trial.number, {}) | trial.params

    def _cached(self, trial: FrozenTrial) -> Floats:
        if trial.number not in self._rows:
            self._rows[trial.number] = self._row(trial.params)
        return self._rows[trial.number]

    def _row(self, params: dict[str, Any]) -> Floats:
        """Parameters as a row of the cube; values outside the present bounds at the nearest bound."""
        raw = np.array([[t.raw(params[name]) for name, t in self.translators.items()]])
        return np.clip(self.space.to_cube(raw), 0.0, 1.0)


def _constraints(trial: FrozenTrial) -> list[float]:
    """Constraints of a trial in the order of their names; at most 0 where they hold."""
    named = getattr(trial, CONSTRAINTS, None)
    if named is None:  # before Optuna 5
        return list(trial.system_attrs.get(CONSTRAINTS) or ())
    return [named[name] for name in sorted(named)]


def _random_number() -> int:
    return int(np.random.default_rng().integers(2**31))
