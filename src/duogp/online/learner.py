"""`OnlineGP`: a GP learned from a stream of minibatches, in memory that does not depend on its length."""

from __future__ import annotations

import copy
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import encode
from duogp.data.targets import raw_target
from duogp.errors import DataWarning
from duogp.fitting.factories import target_kind
from duogp.fitting.training_plan import NATURAL_RATE
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.online.grower import Grower
from duogp.online.observations import Observations, Reader
from duogp.online.options import IDLE_SETTINGS, online_settings, uses_natural_gradients
from duogp.online.start import Scales, first_model
from duogp.online.stepper import Stepper
from duogp.posterior.gp import GP
from duogp.posterior.prediction import ClassPrediction, Prediction
from duogp.training.history import History
from duogp.training.loop import settle
from duogp.training.threads import full_precision

#: Noise at the start, as a share of the variance of y. The paper has 1, its code 1/100 (MATH §6.4). At the
#: default learning rate 1 falls slowly where there is little noise, and 1/100 is overconfident for hundreds
#: of steps where there is much.
NOISE_SHARE = 0.1
#: Most rows collected before the first step of a basis of fixed size.
START_ROWS = 2048
#: First rows from which scales are estimated without a warning.
FEW_ROWS = 10
#: Methods solved in closed form, and the stochastic methods with the same optimum.
CONTINUED_AS = {"sgpr": "coupled-nat", "fitc": "vfitc"}


class OnlineGP:
    """A GP learned from an unbounded stream; every call of `partial_fit` is a minibatch.

    ``method``: any method with a stochastic objective. "svdgp" and "ivsgpr" start with one point and grow by
    up to ``growth`` points with every minibatch until there are ``num_inducing`` (and, of svdgp's mean,
    ``num_extra``); the others choose their points among the first rows, once there are enough of them (or
    ``start_rows``). Methods with natural gradients ("svi", "ivsgpr", "orthnat", …) average over about the
    last ``batch_size / natural_rate`` rows.

    Scales of inputs and targets and the first lengthscales come from the rows of the start, and stay.
    ``num_data``: n in the objective; by default the number of rows seen. ``classes``: all labels of the
    stream, unless the first call has them all. ``learning_rate``: of Adam; by default 0.05 beside natural
    gradients, where it moves the hyperparameters alone, else 0.01. After t steps the rates of Adam and of
    natural gradients are divided by ``1 + rate_decay √t``. All other keywords are `duogp.Settings`.

        learner = OnlineGP("ivsgpr", num_inducing=50)
        for rows in range(0, len(X), 50):
            learner.partial_fit(X[rows : rows + 50], y[rows : rows + 50])
        mean = learner.gp.predict(X_new).mean
    """

    def __init__(
        self,
        method: str | Method = "ivsgpr",
        *,
        num_inducing: int = 128,
        num_extra: int | None = None,
        growth: int = 128,
        num_data: int | None = None,
        steps_per_batch: int = 1,
        learning_rate: float | None = None,
        rate_decay: float = 0.01,
        start_rows: int | None = None,
        classes: Any = None,
        **settings: Any,
    ) -> None:
        self.method = METHODS[method]
        self.settings = online_settings(self.method, num_inducing, num_extra, learning_rate, settings)
        self.growth = _at_least("growth", growth, 1)
        self.num_data = None if num_data is None else _at_least("num_data", num_data, 1)
        self.steps_per_batch = _at_least("steps_per_batch", steps_per_batch, 1)
        if isinstance(rate_decay, bool) or not rate_decay >= 0:
            raise ValueError(f"rate_decay must be a number ≥ 0, got {rate_decay!r}")
        self.rate_decay = float(rate_decay)
        self.start_rows = self._rows_to_start(start_rows)
        self.num_seen = 0  #: rows that came, those still waiting included
        self.num_steps = 0  #: optimiser steps so far
        self._reader = Reader(target_kind(self.settings.likelihood), _classes(classes, self.settings))
        self._noise_share = None if "initial_noise" in settings else NOISE_SHARE
        self._rng = np.random.default_rng(self.settings.random_state)
        self._waiting: list[Observations] = []
        self._earlier = 0  # rows that a model learned from before it came here
        self._trained = 0  # rows that steps have been taken on
        self._model: Model | None = None
        self._grower: Grower | None = None
        self._gp: GP | None = None
        self._history = History(solver="online")

    @classmethod
    def from_gp(cls, gp: GP, *, num_data: int | None = None, **options: Any) -> OnlineGP:
        """A learner at the scales, hyperparameters and posterior of a fitted model, for new rows.

        Before any update it predicts what ``gp`` predicts; ``gp`` itself does not change. Rows of the fit
        count as seen, unless ``num_data`` is given. ``options`` are those of `OnlineGP`; what is not given is
        as it was in the fit.
        """
        if gp.model.basis.points_are_rows:
            raise ValueError(f"{gp.method.name!r} keeps all rows: it cannot go on with a stream")
        if gp.learned is not None:
            raise ValueError(
                "the prior mean of gp is cross-fitted to its rows: it cannot go on with a stream"
            )
        if gp.known_noise:
            raise ValueError("gp was fitted with known noise of every row: new rows would have none")
        if options.get("dtype", gp.settings.dtype) != gp.settings.dtype:
            raise ValueError(f"dtype must stay what it was in the fit, {gp.settings.dtype!r}")
        name = CONTINUED_AS.get(gp.method.name, gp.method.name)
        asked = _settings_of(gp)
        if gp.settings.solver == "closed-form":  # the optimum is no longer solved for, but followed
            asked["solver"] = "natural" if METHODS[name].q_class.has_natural_gradient else "stochastic"
        out = cls(name, num_data=num_data, **{**asked, **options})
        reader = out._reader
        reader.dims, reader.names = len(gp.columns), gp.column_names
        reader.outputs, reader.single_output = len(gp.y_scaler.scale), gp.single_output
        reader.classes = gp.classes
        device, dtype = out.settings.torch_device, out.settings.torch_dtype
        model = copy.deepcopy(gp.model).train().to(device)
        out._earlier = int(model.num_data.max())
        out._begin(model, Scales(gp.columns, gp.x_scaler, gp.y_scaler, dtype, device))
        return out

    def __repr__(self) -> str:
        points = "" if self._model is None else f", points={self.num_points}"
        return f"OnlineGP({self.method.name!r}, seen={self.num_seen}, steps={self.num_steps}{points})"

    # -- learning --------------------------------------------------------------------------------------------

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> OnlineGP:
        """Learn from one minibatch X [n, d], y [n] or [n, outputs]; ones above ``batch_size`` are cut up."""
        rows = self._reader.read(X, y, sample_weight)
        if rows.size == 0:  # none of any weight
            return self
        self._gp = None
        self.num_seen += rows.size
        start = time.perf_counter()
        if self._model is None:
            self._waiting.append(rows)
            if sum(part.size for part in self._waiting) < self.start_rows:
                return self
            rows, self._waiting = Observations.join(self._waiting), []
            if rows.size < FEW_ROWS:
                warnings.warn(
                    f"scales and lengthscales come from the first {rows.size} rows alone; start_rows= waits "
                    "for more",
                    DataWarning,
                    stacklevel=2,
                )
            target = self._reader.target(rows)
            self._begin(
                *first_model(self.method, self.settings, rows.X, target, rows.weight, self._noise_share)
            )
        with full_precision():
            for part in rows.pieces(self.settings.batch_size, self._rng):
                self._learn(part)
        self._history.seconds += time.perf_counter() - start
        return self

    @property
    def started(self) -> bool:
        """Whether there is a model: enough rows have come to choose its scales and points."""
        return self._model is not None

    @property
    def model(self) -> Model:
        """The model in training; `gp` is a copy to keep."""
        if self._model is None:
            missing = self.start_rows - sum(part.size for part in self._waiting)
            raise ValueError(
                f"there is no model yet: {self.num_seen} rows have been seen, {missing} more are needed to "
                "start; call partial_fit with them, or ask for fewer by start_rows"
            )
        return self._model

    @property
    def classes(self) -> NDArray | None:
        """The labels [C] behind class numbers; None for regression, and before the first call."""
        return self._reader.classes

    @property
    def num_points(self) -> int | tuple[int, int]:
        """Inducing points; of a subspace basis those of the mean and of the covariance."""
        return self.model.basis.num_points

    # -- prediction ------------------------------------------------------------------------------------------

    @property
    def gp(self) -> GP:
        """A copy of the present model as a `duogp.GP`, which later rows do not change."""
        if self._gp is None:
            model = self.model
            self._stepper.look()
            for p in model.parameters():
                p.grad = None
            history = copy.deepcopy(self._history)
            history.rollbacks = self._stepper.rollbacks
            history.jitter = float(model.numerics.jitter.max())
            frozen = copy.deepcopy(model)
            settle(frozen)
            frozen.basis.keep_record = False
            self._gp = GP(
                frozen,
                method=self.method,
                settings=self.settings.but(beta1=float(frozen.beta1[0]), beta2=float(frozen.beta2[0])),
                columns=self._scales.columns,
                x_scaler=self._scales.x,
                y_scaler=self._scales.y,
                single_output=self._reader.single_output,
                history=history,
                column_names=self._reader.names,
                classes=self.classes,
            )
        return self._gp

    def predict(self, X: Any) -> Prediction | ClassPrediction:
        """Mean and variances of new rows X [n, d]; class probabilities where the targets are labels."""
        return self.gp.predict(X)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities [n, classes], in the order of `classes`."""
        return self.gp.predict_proba(X)

    def log_density(self, X: Any, y: Any) -> NDArray[np.float64]:
        """log p(y | x, the rows so far) [n] of rows X [n, d], y [n] or [n, outputs], summed over outputs."""
        return self.gp.log_density(X, y)

    # -- inside ----------------------------------------------------------------------------------------------

    def _learn(self, rows: Observations) -> None:
        """Take the steps of one minibatch."""
        self._trained += rows.size
        seen = self._earlier + self._trained
        self.model.num_data.fill_(seen if self.num_data is None else self.num_data)
        batch = self._scales.batch(*rows)
        if self._grower is not None:
            self._grower.feed(batch)
        settings = self.settings
        assert settings.learning_rate is not None
        natural = settings.natural_rate or NATURAL_RATE[self.model.likelihood.is_log_concave]
        share = natural * min(1.0, rows.size / settings.batch_size)
        for _ in range(self.steps_per_batch):
            decay = 1 / (1 + self.rate_decay * self.num_steps**0.5)
            # A running mean over all rows, later over the latest ones: a step of size one, which is exact, on
            # a batch that is all there is.
            natural_rate = min(max(share * decay, rows.size / seen), self._stepper.largest_step)
            self._stepper.step(batch, settings.learning_rate * decay, natural_rate)
            self.num_steps += 1

    def _rows_to_start(self, asked: int | None) -> int:
        """Rows needed before the first step: as asked, or as many as there are points to choose."""
        if asked is not None:
            return _at_least("start_rows", asked, 2)
        if self.method.learns_online:
            return 2
        first, second = self.settings.num_inducing or 0, self.settings.num_extra or 0
        points = first + second if self.method.has_second_block else max(first, second)
        return min(max(2, points), START_ROWS)

    def _begin(self, model: Model, scales: Scales) -> None:
        settings = self.settings
        self._model, self._scales = model, scales
        natural = uses_natural_gradients(self.method, settings)
        seed = settings.random_state + 1
        self._stepper = Stepper(model, natural=natural, mean_rule=settings.mean_rule, seed=seed)
        if self.method.learns_online:
            self._grower = Grower(self._stepper, settings, self.growth, self._rng)


def _at_least(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}")
    return int(value)


def _classes(given: Any, settings: Settings) -> NDArray | None:
    """The labels given for a stream, sorted."""
    if given is None:
        return None
    if target_kind(settings.likelihood) != "classes":
        raise ValueError(f"classes are for labels, but likelihood={settings.likelihood!r}")
    classes = encode(raw_target(given, len(given), "classes", "classes"), "classes")[1]
    if len(classes) < 2:
        raise ValueError(f"classes must be at least two different labels, got {classes.tolist()}")
    return classes


def _settings_of(gp: GP) -> dict[str, Any]:
    """The settings of a fit that differ from the defaults and have a meaning for a stream."""
    default = Settings()
    kept = {name: getattr(gp.settings, name) for name in vars(default) if name not in IDLE_SETTINGS}
    return {name: v for name, v in kept.items() if v is not None and v != getattr(default, name)}
