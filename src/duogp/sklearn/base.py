"""The base class of both estimators: constructor, fitting, streams, the parts of the variance."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from duogp.api import fit
from duogp.data.validation import as_row_vector
from duogp.fitting.factories import target_kind
from duogp.methods import Method
from duogp.methods.settings import SHARE
from duogp.online import OnlineGP
from duogp.online.options import IDLE_SETTINGS
from duogp.posterior.gp import GP
from duogp.posterior.prediction import Prediction
from duogp.saveable import Saveable
from duogp.sklearn.conformal import Calibration, hold_out
from duogp.sklearn.fit_keywords import fit_keywords, seed_of
from duogp.sklearn.training_rows import (
    TrainingRows,
    join_repeated,
    read_inputs,
    read_weights,
    require_finite,
    within_reach,
)
from duogp.training.history import History

#: The default method of a stream: natural gradients, and points grown from the first rows on.
STREAM = "ivsgpr"


class VarianceParts(NamedTuple):
    """The variance at new rows in three parts, each shaped as the mean of `predict`, in squared units."""

    within_data: NDArray[np.float64]  # explained: what q(u) contributes
    distributional: NDArray[np.float64]  # residual: prior variance that u leaves unexplained
    noise: NDArray[np.float64]  # of an observation; zero for the latent functions of classes

    @property
    def total(self) -> NDArray[np.float64]:
        return self.within_data + self.distributional + self.noise


class BaseGP(Saveable, BaseEstimator, ABC):
    """See `GPRegressor` and `GPClassifier`. Nothing is checked before `fit` (scikit-learn's rule)."""

    #: the likelihood of ``likelihood=None``
    _default_likelihood: str
    #: the error for one of another estimator
    _refused_likelihood: str

    def __init__(
        self,
        method: str | Method = "auto",
        *,
        num_inducing: int | None = None,
        kernel: Any = "matern52",
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
        device: str | None = None,
        dtype: str = "float64",
        compile: bool | str = "auto",
        random_state: Any = None,
        verbose: bool = False,
        checkpoint_dir: Any = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.method, self.num_inducing, self.kernel, self.ard = method, num_inducing, kernel, ard
        self.inducing_init, self.likelihood, self.solver = inducing_init, likelihood, solver
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.beta1, self.beta2, self.whitening = beta1, beta2, whitening
        self.validation_fraction, self.calibration_fraction = validation_fraction, calibration_fraction
        self.early_stopping, self.time_budget, self.standardize = early_stopping, time_budget, standardize
        self.device, self.dtype, self.compile = device, dtype, compile
        self.random_state, self.verbose = random_state, verbose
        self.checkpoint_dir, self.settings = checkpoint_dir, settings

    # -- fitting ---------------------------------------------------------------------------------------------

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, *, validation: tuple[Any, Any] | None, noise: Any = None
    ) -> Self:
        seed = seed_of(self.random_state)
        settings = self._fit_settings(seed)
        share = self.calibration_fraction
        if not SHARE.holds(share):
            raise SHARE.error(f"calibration_fraction must {SHARE.what}, got {share!r}")
        matrix = read_inputs(self, X, reset=True, min_rows=2)
        n = len(matrix)
        target = self._read_target(y, n)
        variances = None if noise is None else as_row_vector(noise, n, "noise")
        rows = TrainingRows(matrix, target, read_weights(sample_weight, n), variances)
        if rows.weight is not None:  # rows of weight zero count neither for training nor for calibration
            rows = rows.take(np.flatnonzero(rows.weight))
        train, held_out = hold_out(len(rows.X), share, seed)
        calibration = rows.take(held_out)
        joined = join_repeated(rows.take(train))
        rows = joined if len(joined.X) > 1 else rows.take(train)  # one row has no scale
        if validation is not None:
            validation = self._read_validation(validation)
        given = {"validation": validation, "noise": rows.noise, "sample_weight": rows.weight, **settings}
        gp = fit(rows.X, rows.y, self.method, **given)
        reasons = list(gp.history.notes) if self._is_auto() else ["asked for by method="]
        require_finite(gp, rows)
        gp.column_names = self._column_names()
        self._gp: Any = gp
        self._learner: OnlineGP | None = None
        self.method_, self.reasons_ = self.method if gp.method is None else gp.method.name, reasons
        self.n_iter_ = gp.history[-1].epoch if len(gp.history) else 1
        self.calibration_: Calibration | None = None
        if len(held_out):
            self._calibrate(calibration.X, calibration.y, calibration.noise)
        if self.checkpoint_dir is not None:
            self.save(self.checkpoint_dir)
        return self

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
        matrix = read_inputs(self, validation[0], reset=False)
        return matrix, self._read_target(validation[1], len(matrix), "validation y")

    def _column_names(self) -> list[str] | None:
        return getattr(self, "feature_names_in_", np.array([])).tolist() or None

    @abstractmethod
    def _read_target(self, y: Any, n: int, name: str = "y") -> NDArray: ...

    @abstractmethod
    def _calibrate(self, X: NDArray, y: NDArray, noise: Any) -> None: ...

    # -- streams ---------------------------------------------------------------------------------------------

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        first = not self.__sklearn_is_fitted__()
        learner = getattr(self, "_learner", None)
        if learner is None and not first:
            if not isinstance(self._gp, GP):
                raise ValueError(f"{self.method_!r} cannot go on with a stream after fit")
            learner = OnlineGP.from_gp(self._gp)
        elif learner is None:
            given = self._fit_settings(seed_of(self.random_state))
            given = {name: value for name, value in given.items() if name not in IDLE_SETTINGS}
            method = STREAM if self._is_auto() else self.method
            learner = OnlineGP(method, classes=classes, **given)
        matrix = read_inputs(self, X, reset=first)
        target = self._read_target(y, len(matrix))
        learner.partial_fit(matrix, target, read_weights(sample_weight, len(matrix)))
        self._gp, self._learner = None, learner
        if first:
            reason = "points and posterior grow with a stream" if self._is_auto() else "asked for by method="
            self.method_, self.reasons_ = learner.method.name, [reason]
        self.n_iter_ = learner.num_steps
        self.calibration_ = None  # its scores were those of the model before
        return self

    # -- the fitted model ------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_gp", None) is not None or getattr(self, "_learner", None) is not None

    @property
    def gp_(self) -> Any:
        """The fitted `duogp.GP` (or baseline); of a stream, the present model."""
        check_is_fitted(self)
        if self._learner is None:
            return self._gp
        try:
            gp = self._learner.gp
        except ValueError as error:  # rows are still being collected
            raise NotFittedError(str(error)) from error
        gp.column_names = self._column_names()
        return gp

    @property
    def history_(self) -> History:
        """Losses and validation scores of the training."""
        return self.gp_.history

    def explain_variance(self, X: Any, *, noise: Any = None) -> VarianceParts:
        """The variance at new rows in its parts."""
        prediction = self._predict(X, noise)
        explained, residual = prediction.explained, prediction.residual
        if isinstance(prediction, Prediction):
            return VarianceParts(explained, residual, prediction.noise)
        if explained.shape[1] == 1:  # one latent function
            explained, residual = explained[:, 0], residual[:, 0]
        return VarianceParts(explained, residual, np.zeros_like(explained))

    # -- helpers ---------------------------------------------------------------------------------------------

    def _inputs(self, X: Any) -> NDArray:
        """New rows as the model takes them; a table like that of `duogp fit` is encoded by its schema."""
        gp = self.gp_
        schema = getattr(self, "schema_", None)
        if schema is not None and any(hasattr(X, name) for name in ("columns", "column_names")):
            X = schema.encode(X).matrix
        return within_reach(read_inputs(self, X, reset=False), gp)

    def _predict(self, X: Any, noise: Any = None) -> Any:
        """A `Prediction` or a `ClassPrediction`."""
        gp, matrix = self.gp_, self._inputs(X)
        if noise is None:
            return gp.predict(matrix)
        if "noise" not in inspect.signature(gp.predict).parameters:
            raise ValueError(f"{self.method_!r} takes no known noise")
        return gp.predict(matrix, noise=noise)

    def _calibrated(self, X: Any, y: Any, noise: Any = None) -> Self:
        matrix = self._inputs(X)
        variances = None if noise is None else as_row_vector(noise, len(matrix), "noise")
        self._calibrate(matrix, self._read_target(y, len(matrix)), variances)
        return self

    def _required_calibration(self, what: str) -> Calibration:
        if self.calibration_ is None:
            raise ValueError(
                f"conformal {what} need rows that the model has not seen: set calibration_fraction before "
                "fit, or call calibrate(X, y) with fresh rows (validation rows have steered training)"
            )
        return self.calibration_

    def _draws(self, X: Any, n_samples: int, random_state: Any, function: bool, noise: Any) -> NDArray:
        """Joint draws [n_samples, n, ...]."""
        gp = self.gp_
        if not hasattr(gp, "sample"):
            raise ValueError(f"{self.method_!r} has no joint draws")
        rows, seed = self._inputs(X), seed_of(random_state)
        given = {"seed": seed, "observation_noise": not function, "noise": noise}
        try:
            return gp.sample(rows, n_samples, **given)
        except ValueError:  # no Cholesky factor of the joint covariance; a wrong argument fails again
            return gp.sample(rows, n_samples, kind="pathwise", **given)
