"""Frames as the peers want them: codes with gaps for trees, scaled one-hot columns without gaps for the rest.

Dates become days, month, weekday and hour for everybody. All is learned from the training rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MOST_LEVELS = 30  # of a category that become columns; rarer levels share none


def spread_dates(X: pd.DataFrame) -> pd.DataFrame:
    """The frame with every date column in four columns of numbers."""
    columns = {}
    for name in X.columns:
        column = X[name]
        if pd.api.types.is_datetime64_any_dtype(column):
            days = (column - pd.Timestamp(1970, 1, 1)) / pd.Timedelta(days=1)
            columns[f"{name} days"] = days.astype(np.float64)
            columns[f"{name} month"] = column.dt.month.astype(np.float64)
            columns[f"{name} weekday"] = column.dt.day_of_week.astype(np.float64)
            columns[f"{name} hour"] = column.dt.hour.astype(np.float64)
        else:
            columns[name] = column
    return pd.DataFrame(columns)


def is_category(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def categories(X: pd.DataFrame) -> list[str]:
    return [name for name in X.columns if is_category(X[name])]


def codes(X: pd.DataFrame) -> tuple[NDArray[np.float64], list[int]]:
    """Numbers and codes of categories as float64, gaps NaN, and the positions of the categories."""
    columns, places = [], []
    for i, name in enumerate(X.columns):
        if is_category(X[name]):
            code = X[name].cat.codes.to_numpy(np.float64)
            columns.append(np.where(code < 0, np.nan, code))
            places.append(i)
        else:
            columns.append(X[name].to_numpy(np.float64))
    return np.column_stack(columns), places


class OneHot:
    """Standardised numbers (gaps: the median, and a column that marks them) and one column per level."""

    def __init__(self, X: pd.DataFrame) -> None:
        self.levels = {
            name: list(X[name].value_counts().index[:MOST_LEVELS])
            for name in X.columns
            if is_category(X[name])
        }
        self.numbers = [name for name in X.columns if name not in self.levels]
        self.medians = {name: float(np.nan_to_num(X[name].median())) for name in self.numbers}
        self.gaps = [name for name in self.numbers if X[name].isna().any()]
        raw = self._raw(X)
        self.shift = raw.mean(0)
        spread = raw.std(0)
        self.kept = spread > 1e-12
        self.scale = np.where(self.kept, spread, 1.0)

    def _raw(self, X: pd.DataFrame) -> NDArray[np.float64]:
        columns = [X[name].fillna(self.medians[name]).to_numpy(np.float64) for name in self.numbers]
        columns += [X[name].isna().to_numpy(np.float64) for name in self.gaps]
        for name, levels in self.levels.items():
            columns += [(X[name] == level).to_numpy(np.float64) for level in levels]
        return np.column_stack(columns)

    def __call__(self, X: pd.DataFrame) -> NDArray[np.float64]:
        found = ((self._raw(X) - self.shift) / self.scale)[:, self.kept]
        return np.clip(found, -20, 20)
