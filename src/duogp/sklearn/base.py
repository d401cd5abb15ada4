"""The base class of both estimators: constructor, fitting, streams; what is fitted: `fitted`."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags

from duogp.api import fit
from duogp.data.validation import as_matrix, as_row_vector
from duogp.fitting.factories import target_kind
from duogp.methods import METHODS, Method
from duogp.methods.settings import SHARE
from duogp.online import OnlineGP
from duogp.online.options import IDLE_SETTINGS
from duogp.posterior.gp import GP
from duogp.posterior.log_target import LogTargetGP
from duogp.posterior.stack import Stack
from duogp.sklearn.conformal import calibration_rows
from duogp.sklearn.fit_keywords import fit_keywords, misplaced, naming_settings, seed_of, time_left
from duogp.sklearn.fitted import FittedGP
from duogp.sklearn.frames import (
    all_numbers,
    arrow_table,
    check_columns,
    collected,
    is_frame,
    is_plain,
    learn_schema,
)
from duogp.sklearn.importances import sample_of
from duogp.sklearn.new_rows import NewRows
from duogp.sklearn.training_rows import (
    TrainingRows,
    join_repeated,
    look_at_weights,
    read_inputs,
    read_weights,
    require_finite,
    require_rows,
)
from duogp.tables.schema import NothingUsableError
from duogp.training.checkpoint import EVERY, FOLDER, CheckpointOptions, remembered_seed, remove
from duogp.training.progress import overall

#: Most outputs or classes of which categories with many levels keep a mean for each level.
MOST_OUTCOMES = 10
#: The default method of a stream: natural gradients, and points grown from the first rows on.
STREAM = "ivsgpr"


class BaseGP(FittedGP):
    """See `GPRegressor` and `GPClassifier`. Nothing is checked before `fit` (scikit-learn's rule)."""

    #: the likelihood of ``likelihood=None``
    _default_likelihood: str
    #: the error for one of another estimator
    _refused_likelihood: str

    @naming_settings
    def __init__(
        self,
        method: str | Method = "auto",
        *,
        num_inducing: int | None = None,
        kernel: Any = "matern52",
        mean: Any = None,
        ard: bool = True,
        inducing_init: str | None = None,
        likelihood: Any = None,
        solver: str = "auto",
        epochs: int | None = None,
        batch_size: int = 1024,
        learning_rate: float | None = None,
        beta1: Any = 1.0,
        beta2: Any = None,
        whitening: str = "Q",
        validation_fraction: float | None = None,
        calibration_fraction: float = 0.0,
        early_stopping: bool | None = None,
        time_budget: float | None = None,
        standardize: bool | str = True,
        categorical_features: Any = None,
        missing: str = "impute",
        reading: dict[str, Any] | None = None,
        device: str | None = None,
        dtype: str = "float64",
        compile: bool | str = "auto",
        random_state: Any = None,
        verbose: bool = False,
        checkpoint_dir: Any = None,
        checkpoint_every: float = EVERY,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.method, self.num_inducing, self.kernel, self.mean, self.ard = (
            method,
            num_inducing,
            kernel,
            mean,
            ard,
        )
        self.inducing_init, self.likelihood, self.solver = inducing_init, likelihood, solver
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.beta1, self.beta2, self.whitening = beta1, beta2, whitening
        self.validation_fraction, self.calibration_fraction = validation_fraction, calibration_fraction
        self.early_stopping, self.time_budget, self.standardize = early_stopping, time_budget, standardize
        self.categorical_features, self.missing, self.reading = categorical_features, missing, reading
        self.device, self.dtype, self.compile = device, dtype, compile
        self.random_state, self.verbose = random_state, verbose
        self.checkpoint_dir, self.checkpoint_every, self.settings = checkpoint_dir, checkpoint_every, settings

    def set_params(self, **params: Any) -> Self:
        """As in scikit-learn; of a setting without a parameter the error says where it goes."""
        known = self.get_params(deep=True)
        for name in params:
            if name not in known and "__" not in name:
                raise ValueError(str(misplaced(name, list(known))))
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # made dense
        return tags

    # -- fitting ---------------------------------------------------------------------------------------------

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, *, validation: tuple[Any, Any] | None, noise: Any = None
    ) -> Self:
        begun = time.perf_counter()
        checkpoint = self._checkpoint()
        seed = seed_of(self.random_state)
        if checkpoint is not None and self.random_state is None:
            seed = remembered_seed(checkpoint, seed)
        settings = self._fit_settings(seed)
        share = self.calibration_fraction
        if not SHARE.holds(share):
            raise SHARE.error(f"calibration_fraction must {SHARE.what}, got {share!r}")
        matrix, target = self._read_training(X, y)
        n = len(matrix)
        variances = None if noise is None else as_row_vector(noise, n, "noise")
        rows = TrainingRows(matrix, target, read_weights(sample_weight, n), variances)
        if rows.weight is not None:
            look_at_weights(rows.weight)
            # rows of weight zero count neither for training nor for calibration
            rows = rows.take(np.flatnonzero(rows.weight))
        train, held_out = calibration_rows(len(rows.X), share, seed)
        calibration = rows.take(held_out)
        joined = join_repeated(rows.take(train))
        rows = joined if len(joined.X) > 1 else rows.take(train)  # one row has no scale
        if validation is not None:
            validation = self._read_validation(validation)
        if "time_budget" in settings:  # of the whole fit; the error for a wrong one is that of `duogp.fit`
            settings["time_budget"] = time_left(settings["time_budget"], time.perf_counter() - begun)
        given = {"validation": validation, "noise": rows.noise, "sample_weight": rows.weight, **settings}
        if checkpoint is not None:
            given |= {"checkpoint_dir": checkpoint.folder, "checkpoint_every": checkpoint.every}
        with overall("fitting", settings.get("time_budget"), bool(self.verbose)):
            gp = fit(rows.X, rows.y, self.method, **given)
        reasons = list(gp.history.notes) if self._is_auto() else ["chosen by the argument method="]
        require_finite(gp, rows)
        gp.column_names = self._column_names()
        self._gp, self._sample, self._learner = gp, sample_of(matrix, seed), None
        self.method_ = Stack.name if isinstance(gp, Stack) else gp.method.name
        self.reasons_ = reasons
        self.n_iter_ = gp.history[-1].epoch if len(gp.history) else 1
        self.calibration_ = None
        if len(held_out):
            self._calibrate(NewRows(gp, calibration.X), calibration.y, calibration.noise)
        if self.checkpoint_dir is not None:
            self.save(self.checkpoint_dir)
            if checkpoint is not None:  # the model takes their place
                remove(checkpoint)
        return self

    def _checkpoint(self) -> CheckpointOptions | None:
        """Where the state of training is kept until the fit is over; None for streams and networks."""
        options = CheckpointOptions.of(self.checkpoint_dir, self.checkpoint_every)
        if options is None:
            return None
        if not self._is_auto() and (METHODS[self.method].is_baseline or METHODS[self.method].learns_online):
            return None
        return replace(options, folder=options.folder / FOLDER)

    def _fit_settings(self, seed: int) -> dict[str, Any]:
        if (self._target_kind() == "classes") != isinstance(self, ClassifierMixin):
            raise ValueError(f"likelihood={self.likelihood!r} is {self._refused_likelihood}")
        return fit_keywords({**self.get_params(deep=False), "likelihood": self._likelihood()}, seed)

    def _likelihood(self) -> Any:
        return self._default_likelihood if self.likelihood is None else self.likelihood

    def _target_kind(self) -> str:
        """The target of the likelihood: "real", "count", "positive", "unit" or "classes"."""
        return target_kind(self._likelihood())

    def _is_auto(self) -> bool:
        return isinstance(self.method, str) and self.method.lower() == "auto"

    def _read_validation(self, validation: Any) -> tuple[NDArray, NDArray]:
        if not (isinstance(validation, tuple | list) and len(validation) == 2):
            raise TypeError(f"validation must be a pair (X, y), got {type(validation).__name__}")
        matrix, _ = self._encoded(validation[0])
        return matrix, self._read_target(validation[1], len(matrix), "validation y")

    def _read_training(self, X: Any, y: Any) -> tuple[NDArray, NDArray]:
        """Inputs and targets of training rows; learns the columns, and the schema of a frame."""
        X = collected(X)
        self.schema_, self._table_names = None, None
        if not is_frame(X):
            if self.categorical_features is not None:
                raise ValueError(
                    "categorical_features names columns of a frame (pandas, polars, pyarrow); X is "
                    f"{type(X).__name__}"
                )
            matrix = read_inputs(self, X, reset=True, min_rows=2)
            return matrix, self._read_target(y, len(matrix))
        table = arrow_table(X)
        check_columns(self, X, reset=True)
        require_rows(table.num_rows)
        target = self._read_target(y, table.num_rows)
        levels = self._level_target(target)
        try:
            schema = learn_schema(
                table,
                categorical=self.categorical_features or (),
                missing=self.missing,
                reading=self.reading,
                level_target=levels,
            )
        except NothingUsableError:
            if not all_numbers(table):
                raise
            return as_matrix(X, "X"), target  # numbers, all of them constant
        self.schema_, self._table_names = schema, list(table.column_names)
        if is_plain(schema, table):
            return as_matrix(X, "X"), target
        return schema.encode_training(table, levels).matrix, target

    @abstractmethod
    def _level_target(self, target: NDArray) -> NDArray[np.float64] | None:
        """Numbers of which categories with many levels keep a mean for each level; None: they keep none."""

    # -- streams ---------------------------------------------------------------------------------------------

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        first = not self.__sklearn_is_fitted__()
        learner = getattr(self, "_learner", None)
        if learner is None and not first:
            if not isinstance(self._gp, GP | Stack):
                raise ValueError(f"{self.method_!r} cannot go on with a stream after fit")
            learner = OnlineGP.from_gp(_continued(self._gp))
        elif learner is None:
            given = self._fit_settings(seed_of(self.random_state))
            given = {name: value for name, value in given.items() if name not in IDLE_SETTINGS}
            method = STREAM if self._is_auto() else self.method
            learner = OnlineGP(method, classes=classes, **given)
        if first:
            matrix, target = self._read_training(X, y)
            self._sample = sample_of(matrix, 0)
        else:
            matrix, _ = self._encoded(X)
            target = self._read_target(y, len(matrix))
        learner.partial_fit(matrix, target, read_weights(sample_weight, len(matrix)))
        self._gp, self._learner = None, learner
        if first:
            streamed = "rows arrive in parts: inducing points and posterior grow with them"
            reason = streamed if self._is_auto() else "chosen by the argument method="
            self.method_, self.reasons_ = learner.method.name, [reason]
        self.n_iter_ = learner.num_steps
        self.calibration_ = None  # its scores were those of the model before
        return self


def _continued(gp: GP | Stack) -> GP:
    """The model that a stream goes on from: of a stack the best sparse GP without trees."""
    if isinstance(gp, GP):
        return gp
    order = np.argsort([-weight for weight in gp.weights.values()])
    for k in order:
        member = gp.members[k]
        plain = isinstance(member, GP) and not isinstance(member, LogTargetGP)
        if plain and member.learned is None and not member.method.recipe.points_are_rows:
            return member
    raise ValueError(
        "no member of the stack can go on with a stream: start with partial_fit, or fit with method='svgp'"
    )
