"""`GPRegressor`: real numbers, counts, positive numbers and shares, with their predictive distributions."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags

from duogp.data.arrow_source import is_dataset
from duogp.data.targets import require_moderate, require_support
from duogp.data.validation import as_target
from duogp.posterior.prediction import Prediction
from duogp.sklearn.base import MOST_OUTCOMES, BaseGP
from duogp.sklearn.conformal import Calibration, Scale, check_level
from duogp.sklearn.new_rows import NewRows
from duogp.sklearn.quantiles import as_levels
from duogp.sklearn.streamed import fit_dataset, refuse_target
from duogp.sklearn.training_rows import read_weights

Array = NDArray[np.float64]


class GPRegressor(RegressorMixin, BaseGP):
    """Gaussian process regression of any size, as a scikit-learn estimator.

    ``method``: "auto", or a name of `duogp.METHODS`. ``likelihood``: None is "gaussian"; "student-t",
    "heteroscedastic", "poisson", "gamma", "beta", or an object. ``kernel``: a name or an object.
    ``mean``: the prior mean, a name, a module, or a scikit-learn model; None leaves it to the method.
    ``calibration_fraction``: share of the rows kept away from training for conformal intervals.
    ``time_budget``: seconds for the fit. ``compile``: True captures training steps where the device can.
    ``checkpoint_dir``: a folder that the fitted estimator is saved to, and where the state of training is
    kept every ``checkpoint_every`` seconds until then: after the process was ended, the same `fit` goes on.
    ``settings``: a dict of any other `duogp.Settings`. Inputs and targets are scaled inside
    (``standardize``); predictions are in the units of y.

    After `fit`: ``gp_`` (the `duogp.GP`, or the `Stack` of "auto"), ``method_``, ``reasons_``, ``history_``,
    ``calibration_``, ``n_iter_``, ``n_features_in_``, ``feature_names_in_``, ``feature_importances_``,
    ``schema_`` (of a frame, else None).

    Frames (pandas, polars, pyarrow) may hold categories, text, dates and gaps, which are read as by
    `duogp fit` (docs/tables.md). ``categorical_features``: columns of numbers that are categories;
    ``missing="refuse"``: gaps are an error; ``reading``: a dict of ``decimal``, ``date_format``,
    ``max_levels`` and ``strict``, for cells of text. ``random_state=None`` is a new seed for each fit, as in
    scikit-learn, and ``method="auto"`` the default here; `duogp.fit` has the seed 0 and one method.

        model = GPRegressor(method="svgp", num_inducing=100, random_state=0).fit(X, y)
        mean, std = model.predict(X_new, return_std=True)  # [n] each
        low, high = model.predict_interval(X_new, level=0.9)
        parts = model.explain_variance(X_new)  # within_data, distributional, noise, disagreement
    """

    _default_likelihood = "gaussian"
    _refused_likelihood = "for class labels: use GPClassifier"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.likelihood in ("poisson", "gamma", "beta")
        return tags

    # -- prediction ------------------------------------------------------------------------------------------

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, *, noise: Any = None
    ) -> Any:
        """The predictive mean at new rows, [n] or [n, outputs].

        With ``return_std`` also the standard deviation of an observation, noise included (that of the
        function is the root of the first two parts of `explain_variance`); with ``return_cov`` the covariance
        of observations at all rows, [n, n] or [n, n, outputs]. ``noise``: known noise variances of these
        rows, where the fit had some; without them the prediction is of the function. A `pyarrow.dataset` is
        read in chunks, in the order of its files' names.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov: ask for one of them")
        if is_dataset(X):
            return self._over(X, lambda part: self.predict(part, return_std), noise=noise, cov=return_cov)
        rows = self._rows(X)
        prediction: Prediction = rows.predict(noise)
        if return_std:
            return prediction.mean, prediction.std
        if return_cov:
            return prediction.mean, _observation_covariance(self.gp_, rows.matrix, prediction)
        return prediction.mean

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95), *, noise: Any = None) -> Array:
        """Quantiles of an observation, [n, quantiles] or [n, outputs, quantiles]; of one number [n, ...].

        Exact for Gaussian noise; for the other likelihoods by inverting the distribution function, with a
        probability right to about 1e-6; from 4,096 fixed draws for a likelihood of your own.
        """
        gp, levels = self.gp_, as_levels(quantiles)
        values = np.moveaxis(self._rows(X).quantiles(levels, noise), 0, -1)
        values = values[:, 0] if gp.single_output else values
        return values[..., 0] if np.ndim(quantiles) == 0 else values

    def predict_interval(
        self, X: Any, level: float = 0.9, kind: str = "model", *, noise: Any = None
    ) -> tuple[Array, Array]:
        """Ends (lower, upper), each [n] or [n, outputs], of an interval of probability ``level``.

        ``kind="model"``: the central interval of the predictive distribution. ``kind="conformal"``: an
        interval whose coverage holds for any model, on average over rows like those of the calibration
        (`calibration_fraction` or `calibrate`); each output for itself.
        """
        level = check_level(level)
        if kind == "model":
            ends = self.predict_quantiles(X, [(1 - level) / 2, (1 + level) / 2], noise=noise)
            return ends[..., 0], ends[..., 1]
        if kind != "conformal":
            raise ValueError(f"kind must be 'model' or 'conformal', got {kind!r}")
        return self._conformal_interval(self._rows(X), level, noise)

    def _conformal_interval(self, rows: NewRows, level: float, noise: Any = None) -> tuple[Array, Array]:
        calibration = self._required_calibration("intervals")
        scale = Scale.of(rows, noise)
        low, high = scale.interval(calibration.threshold(level), self._target_kind())
        return (low[:, 0], high[:, 0]) if rows.gp.single_output else (low, high)

    def calibrate(self, X: Any, y: Any, *, noise: Any = None) -> Self:
        """Calibrate conformal intervals on rows X [n, d], y [n] or [n, outputs] that the fit did not use."""
        return self._calibrated(X, y, noise)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, *, function: bool = False, noise: Any = None
    ) -> Array:
        """Joint draws of observations, [n, n_samples] or [n, outputs, n_samples].

        With ``function=True`` of the function. The last axis is that of the draws, as scikit-learn's Gaussian
        processes have it.
        """
        return np.moveaxis(self._draws(X, n_samples, random_state, function, noise), 0, -1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predictive mean at X [n, d] against y [n] or [n, outputs], averaged over outputs."""
        mean = self.predict(X)
        weight = read_weights(sample_weight, len(mean))
        return float(r2_score(as_target(y, len(mean)), mean, sample_weight=weight))

    def log_density(self, X: Any, y: Any, *, noise: Any = None) -> Array:
        """log p(y | x, data) [n] of rows X [n, d] and y [n] or [n, outputs], in the units of y."""
        rows = self._rows(X)
        return rows.log_density(self._read_target(y, len(rows)), noise)

    # -- fitting ---------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        target: str | None = None,
        validation: tuple[Any, Any] | None = None,
        noise: Any = None,
    ) -> Self:
        """Fit to X [n, d], y [n] or [n, outputs]: arrays, lists, tensors, frames of pandas or polars, arrow.

        A `pyarrow.dataset` with the name of its ``target`` column is read in chunks, and may be larger than
        memory (docs/large-data.md); ``sample_weight`` is then the name of a column.

        ``sample_weight``: a row of weight w counts as w rows (docs/tables.md). ``validation``: rows (X, y)
        for early stopping and the choice of β, instead of a ``validation_fraction`` of these. ``noise``:
        known noise variances of the rows (Gaussian likelihood).
        """
        if is_dataset(X):
            given = {"y": y, "sample_weight": sample_weight, "validation": validation, "noise": noise}
            fit_dataset(self, X, target, given)
            return self
        refuse_target(target)
        return self._fit(X, y, sample_weight, validation=validation, noise=noise)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from one more minibatch X [n, d], y [n] (`duogp.OnlineGP`), also after `fit`."""
        return self._partial_fit(X, y, sample_weight)

    def _level_target(self, target: NDArray) -> Array | None:
        outputs = target.reshape(len(target), -1)
        return outputs if outputs.shape[1] <= MOST_OUTCOMES else None

    def _read_target(self, y: Any, n: int, name: str = "y") -> NDArray:
        values = require_moderate(as_target(y, n, name).astype(np.float64, copy=False), name)
        require_support(values.reshape(n, -1), self._target_kind(), name)
        return values

    def _calibrate(self, rows: NewRows, y: NDArray, noise: Any) -> None:
        scale = Scale.of(rows, noise)
        if y.size != scale.median.size:
            raise ValueError(f"y has shape {y.shape}, predictions have {scale.median.shape}")
        self.calibration_ = Calibration.of(scale.scores(y))


def _observation_covariance(gp: Any, X: NDArray, prediction: Prediction) -> Array:
    """[n, n] of one output, [n, n, outputs] of several; its diagonal is the variance of the prediction."""
    if not hasattr(gp, "covariance"):
        raise ValueError(f"{gp.method.name!r} has no joint Gaussian over rows: use the draws of sample_y")
    values = gp.covariance(X)
    diagonal = np.arange(len(X))
    values[:, diagonal, diagonal] = prediction.variance.reshape(len(X), -1).T
    return values[0] if gp.single_output else values.transpose(1, 2, 0)
