"""Boosted trees: CatBoost, LightGBM, NGBoost, HistGradientBoosting with conformal intervals, GPBoost."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arena.base import Contestant, Vector, aligned, constant_law
from arena.encoding import OneHot, categories, codes
from arena.laws import Gaussian, Law, choose_factor, sample_law

TREES = 3000
PATIENCE = 100
LEAST_VARIANCE = 1e-10


class CatBoost(Contestant):
    """CatBoost at its defaults (its own learning rate), stopped by validation rows; categories are its own.

    CatBoost sets its learning rate by the number of trees, here up to 3,000. RMSE has no variance: the
    residuals of the validation rows give a constant one.
    """

    needs = ("catboost",)
    loss = "RMSE"

    def _frame(self, X: pd.DataFrame) -> pd.DataFrame:
        X = X.copy()
        for name in categories(X):
            X[name] = X[name].astype(object).where(X[name].notna(), "(missing)").astype(str)
        return X

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        from catboost import CatBoostClassifier, CatBoostRegressor, Pool

        own = self

        class Clock:
            def after_iteration(self, info: Any) -> bool:
                return not own.late

        fit, val = self.held_out(y)
        names = categories(X)
        X = self._frame(X)
        common = {
            "iterations": TREES,
            "early_stopping_rounds": PATIENCE,
            "random_seed": self.seed,
            "thread_count": self.threads,
            "verbose": False,
            "allow_writing_files": False,
        }
        if self.kind == "regression":
            self.model = CatBoostRegressor(loss_function=self.loss, **common)
        else:
            loss = "Logloss" if self.classes == 2 else "MultiClass"
            self.model = CatBoostClassifier(loss_function=loss, **common)
        self.model.fit(
            Pool(X.iloc[fit], y[fit], cat_features=names),
            eval_set=Pool(X.iloc[val], y[val], cat_features=names),
            use_best_model=True,
            callbacks=[Clock()],
        )
        self.notes["trees"] = int(self.model.tree_count_)
        if self.kind == "regression" and self.loss == "RMSE":
            self.residuals = y[val] - self.model.predict(X.iloc[val])

    def law(self, X: pd.DataFrame) -> Law:
        return constant_law(self.model.predict(self._frame(X)), self.residuals)

    def probabilities(self, X: pd.DataFrame) -> Vector:
        return aligned(self.model.predict_proba(self._frame(X)), self.model.classes_, self.classes)


class CatBoostUncertainty(CatBoost):
    """RMSEWithUncertainty: a mean and a variance per row."""

    loss = "RMSEWithUncertainty"

    def law(self, X: pd.DataFrame) -> Law:
        found = self.model.predict(self._frame(X))
        return Gaussian(found[:, 0], np.sqrt(np.maximum(found[:, 1], LEAST_VARIANCE)))


class LightGBM(Contestant):
    """LightGBM: learning rate 0.05, stopped by validation rows; categories are its own.

    The variance is a second model of the log squared residuals of the first, which are out of fold (five
    folds with the number of trees that was found); a factor makes the mean squared z-score of these rows 1.
    """

    needs = ("lightgbm",)
    settings: ClassVar[dict[str, Any]] = {"learning_rate": 0.05, "num_leaves": 31, "verbosity": -1}
    folds = 5

    def _train(self, X: pd.DataFrame, y: NDArray, objective: dict[str, Any]) -> Any:
        """A model stopped by validation rows."""
        import lightgbm as lgb

        fit, val = self.held_out(y)
        data = lgb.Dataset(X.iloc[fit], y[fit])
        return lgb.train(
            self._settings(objective),
            data,
            TREES,
            valid_sets=[lgb.Dataset(X.iloc[val], y[val], reference=data)],
            callbacks=[lgb.early_stopping(PATIENCE, verbose=False), self._clock],
        )

    def _settings(self, objective: dict[str, Any]) -> dict[str, Any]:
        return self.settings | objective | {"seed": self.seed, "num_threads": self.threads}

    def _clock(self, env: Any) -> None:
        from lightgbm.callback import EarlyStopException

        if self.late:
            raise EarlyStopException(env.iteration, env.evaluation_result_list)

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        if self.kind == "classification":
            loss = {"objective": "multiclass", "num_class": self.classes}
            self.model = self._train(X, y, {"objective": "binary"} if self.classes == 2 else loss)
            return
        self.model = self._train(X, y, {"objective": "regression"})
        trees = max(1, self.model.best_iteration or self.model.num_trees())
        residuals = self._out_of_fold(X, y, trees)
        log = np.log(residuals**2 + 1e-6 * np.mean(residuals**2))
        self.variance = self._train(X, log, {"objective": "regression"})
        self.factor = float(np.mean(residuals**2 / np.exp(self.variance.predict(X))))
        self.notes["trees"] = trees

    def _out_of_fold(self, X: pd.DataFrame, y: NDArray, trees: int) -> NDArray:
        import lightgbm as lgb

        fold = np.random.default_rng(self.seed).permutation(len(y)) % self.folds
        residuals = np.zeros(len(y))
        for k in range(self.folds):
            data = lgb.Dataset(X.loc[fold != k], y[fold != k])
            model = lgb.train(
                self._settings({"objective": "regression"}), data, trees, callbacks=[self._clock]
            )
            residuals[fold == k] = y[fold == k] - model.predict(X.loc[fold == k])
        return residuals

    def law(self, X: pd.DataFrame) -> Law:
        variance = self.factor * np.exp(self.variance.predict(X))
        return Gaussian(self.model.predict(X), np.sqrt(np.maximum(variance, LEAST_VARIANCE)))

    def probabilities(self, X: pd.DataFrame) -> Vector:
        p = self.model.predict(X)
        return np.column_stack([1 - p, p]) if self.classes == 2 else np.asarray(p)


class NGBoost(Contestant):
    """NGBoost of a Normal law: learning rate 0.01, up to 2,000 rounds, stopped by validation rows."""

    needs = ("ngboost",)
    trees = 2000

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        from ngboost import NGBRegressor

        contestant = self

        class Late(Exception):
            pass

        class Clocked(NGBRegressor):
            def fit_base(self, *arguments: Any, **named: Any) -> Any:
                if contestant.late:
                    raise Late
                return super().fit_base(*arguments, **named)

        fit, val = self.held_out(y)
        self.encode = OneHot(X.iloc[fit])
        Z = self.encode(X)
        self.shift, self.scale = float(y.mean()), float(y.std())
        t = (y - self.shift) / self.scale
        self.model = Clocked(
            n_estimators=self.trees, learning_rate=0.01, verbose=False, random_state=self.seed
        )
        try:
            self.model.fit(Z[fit], t[fit], X_val=Z[val], Y_val=t[val], early_stopping_rounds=50)
        except Late:
            self.notes["stopped"] = "by the clock"
        self.notes["trees"] = len(self.model.base_models)

    def law(self, X: pd.DataFrame) -> Law:
        best = self.model.best_val_loss_itr
        found = self.model.pred_dist(self.encode(X), max_iter=best)
        return Gaussian(self.shift + self.scale * found.loc, self.scale * np.maximum(found.scale, 1e-6))


class HistGradient(Contestant):
    """scikit-learn's HistGradientBoosting; for regression with MAPIE's CV+ conformal intervals.

    Intervals of ten levels are quantiles at twenty levels, which the arena turns into a law (see `laws`); the
    factor of its bandwidth is found on a fifth of the training rows with a model of the others.
    """

    needs = ("sklearn.ensemble",)
    levels = 10
    folds = 5

    def _estimator(self, places: list[int]) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingRegressor if self.kind == "regression" else HistGradientBoostingClassifier
        return kind(
            categorical_features=places or None,
            early_stopping=True,
            max_iter=1000,
            learning_rate=0.05,
            n_iter_no_change=20,
            validation_fraction=0.1,
            random_state=self.seed,
        )

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        Z, places = codes(X)
        places = [i for i in places if np.nanmax(Z[:, i], initial=0) < 255]
        if self.kind == "classification":
            self.model = self._estimator(places).fit(Z, y)
            return
        from mapie.regression import CrossConformalRegressor

        inner = (np.arange(self.levels) + 0.5) / self.levels  # of central intervals
        self.model = CrossConformalRegressor(
            self._estimator(places), confidence_level=[float(v) for v in inner], cv=self.folds, method="plus"
        )
        self.model.fit_conformalize(Z, y)
        self.least = 1e-3 * float(y.std())
        fold = np.random.default_rng(self.seed).permutation(len(y)) % self.folds
        fit, val = fold > 0, fold == 0  # one more model, for the bandwidth alone
        mean = self._estimator(places).fit(Z[fit], y[fit]).predict(Z[val])
        residuals = np.sort(np.abs(y[val] - mean))
        half = np.quantile(residuals, inner)
        sample = mean[:, None] + np.concatenate([-half[::-1], half])
        self.factor = choose_factor(sample, y[val], self.least)

    def law(self, X: pd.DataFrame) -> Law:
        Z, _ = codes(X)
        mean, ends = self.model.predict_interval(Z)  # [n], [n, 2, levels]
        sample = np.concatenate([ends[:, 0, ::-1], ends[:, 1]], axis=1)
        return sample_law(sample, self.least, self.factor, centre=np.asarray(mean))

    def probabilities(self, X: pd.DataFrame) -> Vector:
        return aligned(self.model.predict_proba(codes(X)[0]), self.model.classes_, self.classes)


class GPBoost(Contestant):
    """GPBoost: boosted trees for the mean and a Vecchia Gaussian process over all columns."""

    needs = ("gpboost",)
    neighbours = 20
    rounds = 300

    def _process(self, coordinates: NDArray) -> Any:
        import gpboost as gpb

        return gpb.GPModel(
            gp_coords=coordinates,
            cov_function="matern",
            cov_fct_shape=1.5,
            gp_approx="vecchia",
            num_neighbors=self.neighbours,
            likelihood="gaussian",
            num_parallel_threads=self.threads,
            seed=self.seed,
        )

    def fit(self, X: pd.DataFrame, y: NDArray) -> None:
        import gpboost as gpb

        fit, val = self.held_out(y)
        self.encode = OneHot(X.iloc[fit])
        Z = self.encode(X)
        settings = {"learning_rate": 0.1, "max_depth": 5, "num_leaves": 31, "verbose": -1}
        settings |= {"num_threads": self.threads, "seed": self.seed}
        process = self._process(Z[fit])
        process.set_prediction_data(gp_coords_pred=Z[val])
        data = gpb.Dataset(Z[fit], y[fit])
        first = gpb.train(
            settings,
            data,
            self.rounds,
            gp_model=process,
            valid_sets=gpb.Dataset(Z[val], y[val], reference=data),
            early_stopping_rounds=10,
            verbose_eval=False,
            callbacks=[self._clock],
        )
        trees = max(1, first.best_iteration)
        self.notes["trees"] = trees
        self.model = gpb.train(settings, gpb.Dataset(Z, y), trees, gp_model=self._process(Z))

    def _clock(self, env: Any) -> None:
        from gpboost.callback import EarlyStopException

        if self.late:
            raise EarlyStopException(env.iteration, env.evaluation_result_list)

    def law(self, X: pd.DataFrame) -> Law:
        Z = self.encode(X)
        found = self.model.predict(data=Z, gp_coords_pred=Z, predict_var=True, pred_latent=False)
        variance = np.maximum(np.asarray(found["response_var"]), LEAST_VARIANCE)
        return Gaussian(np.asarray(found["response_mean"]), np.sqrt(variance))
