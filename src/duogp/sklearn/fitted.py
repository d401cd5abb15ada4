"""What a fitted estimator of either kind gives: its model, new rows as it takes them, variances in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from duogp.data.validation import as_row_vector
from duogp.online import OnlineGP
from duogp.posterior.prediction import Prediction
from duogp.saveable import Saveable
from duogp.sklearn.conformal import Calibration
from duogp.sklearn.fit_keywords import seed_of
from duogp.sklearn.frames import arrow_table, check_columns, collected, is_frame, selected, table_of_array
from duogp.sklearn.importances import shares_of_columns
from duogp.sklearn.new_rows import NewRows, new_rows
from duogp.sklearn.streamed import by_chunks
from duogp.sklearn.training_rows import dense, read_inputs, within_reach
from duogp.tables.frames import as_arrow
from duogp.tables.schema import Completions, Schema
from duogp.training.history import History


class VarianceParts(NamedTuple):
    """The variance at new rows in four parts, each shaped as the mean of `predict`, in squared units."""

    within_data: NDArray[np.float64]  # explained: what q(u) contributes
    distributional: NDArray[np.float64]  # residual: prior variance that u leaves unexplained
    noise: NDArray[np.float64]  # of an observation; zero for the latent functions of classes
    disagreement: NDArray[np.float64]  # between the folds of a learned mean and the members of a stack

    @property
    def total(self) -> NDArray[np.float64]:
        """The variance of an observation, the sum of the parts, [n] or [n, outputs]."""
        return self.within_data + self.distributional + self.noise + self.disagreement


class FittedGP(Saveable, BaseEstimator, ABC):
    """The half of an estimator that reads what `fit` and `partial_fit` have left: see `BaseGP`."""

    method_: str
    n_features_in_: int
    schema_: Schema | None
    calibration_: Calibration | None
    _gp: Any  # None while a stream has not come far enough
    _learner: OnlineGP | None  # of a stream
    _sample: NDArray | None  # rows for `feature_importances_`
    _table_names: list[str] | None  # columns of the table behind the schema

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_gp", None) is not None or getattr(self, "_learner", None) is not None

    @property
    def gp_(self) -> Any:
        """The fitted `duogp.GP`, `Stack` or baseline; of a stream, the present model."""
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

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The share of each column of X in what moves the predictions, [n_features_in_], with sum one.

        A column's part is the mean square change of the predictive mean (of the class probabilities) at a
        sample of training rows when the column is shuffled among them; columns that were left out have none.
        Of correlated columns each has a part of what they tell together.
        """
        gp = self.gp_
        if getattr(self, "_sample", None) is None:
            raise AttributeError("this model was saved without the rows that feature_importances_ needs")
        assert self._sample is not None
        places = self._places()
        return shares_of_columns(gp, within_reach(self._sample, gp), places, self.n_features_in_)

    def _places(self) -> NDArray[np.intp]:
        """The place among the columns of X of every column of the matrix."""
        schema = getattr(self, "schema_", None)
        if schema is None or self._by_name:
            return np.arange(len(self.gp_.columns))
        place = {name: i for i, name in enumerate(self._table_names or ())}
        return np.array([place[name] for name in schema.sources])

    @property
    def _by_name(self) -> bool:
        """Whether the schema is that of an encoded matrix, without the columns of the table behind it."""
        return getattr(self, "schema_", None) is not None and getattr(self, "_table_names", None) is None

    def explain_variance(self, X: Any, *, noise: Any = None) -> VarianceParts:
        """The variance at new rows in its parts."""
        prediction = self._predict(X, noise)
        explained, residual = prediction.explained, prediction.residual
        between = np.broadcast_to(np.float64(prediction.disagreement), explained.shape)
        if isinstance(prediction, Prediction):
            return VarianceParts(explained, residual, prediction.noise, between)
        if explained.shape[1] == 1:  # one latent function
            explained, residual, between = explained[:, 0], residual[:, 0], between[:, 0]
        return VarianceParts(explained, residual, np.zeros_like(explained), between)

    # -- new rows --------------------------------------------------------------------------------------------

    def _encoded(self, X: Any) -> tuple[NDArray, Completions | None]:
        """New rows as a matrix, and completions of those with values that the training rows did not have."""
        X, schema = collected(X), getattr(self, "schema_", None)
        names = getattr(self, "feature_names_in_", None)
        if is_frame(X) and names is not None:
            X = selected(X, names.tolist(), [] if schema is None else list(schema.dropped))
        if schema is None:
            return read_inputs(self, X, reset=False), None
        if self._by_name:  # a model that the command line fitted before frames were
            if not is_frame(X):
                return read_inputs(self, X, reset=False), None
            table = as_arrow(X)
        else:
            check_columns(self, X, reset=False)
            own = self._table_names or []
            table = arrow_table(X, own) if is_frame(X) else table_of_array(dense(X), own)
        matrix = schema.encode(table).matrix
        # A folder of a version before frames predicts what it did.
        return matrix, None if self._by_name else schema.completions(table, matrix)

    def _rows(self, X: Any) -> NewRows:
        """New rows as the model takes them."""
        return new_rows(self.gp_, *self._encoded(X))

    def _over(self, dataset: Any, function: Any, **refused: Any) -> Any:
        """The results of a function of tables for all rows of a dataset, read in chunks."""
        check_is_fitted(self)
        if given := [name for name, value in refused.items() if value is not None and value is not False]:
            raise ValueError(f"{given[0]} is not possible for a dataset that is read in chunks")
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            raise ValueError("a dataset has columns with names: this model was fitted without")
        return by_chunks(function, dataset, names.tolist())

    def _predict(self, X: Any, noise: Any = None) -> Any:
        """A `Prediction` or a `ClassPrediction`."""
        return self._rows(X).predict(noise)

    def _calibrated(self, X: Any, y: Any, noise: Any = None) -> Self:
        rows = self._rows(X)
        variances = None if noise is None else as_row_vector(noise, len(rows), "noise")
        self._calibrate(rows, self._read_target(y, len(rows)), variances)
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
        seed = seed_of(random_state)
        return self._rows(X).draws(n_samples, seed=seed, observation_noise=not function, noise=noise)

    # -- columns and targets ---------------------------------------------------------------------------------

    def _column_names(self) -> list[str] | None:
        """Names of the columns of the matrix that the model takes."""
        if getattr(self, "schema_", None) is not None:
            return self.schema_.names  # type: ignore[union-attr]
        return getattr(self, "feature_names_in_", np.array([])).tolist() or None

    @abstractmethod
    def _read_target(self, y: Any, n: int, name: str = "y") -> NDArray: ...

    @abstractmethod
    def _calibrate(self, rows: NewRows, y: NDArray, noise: Any) -> None: ...
