from __future__ import annotations

import numpy as np
import pytest

from duogp.sklearn import GPClassifier, GPRegressor
from duogp.tables import as_arrow

ROWS = 150


@pytest.fixture(scope="session")
def table():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, ROWS))
    city = rng.choice(["Rome", "Oslo", "Bonn"], ROWS)
    y = np.sin(a) + (city == "Rome") + 0.1 * rng.normal(size=ROWS)
    return as_arrow({"a": a, "b": b, "city": city.tolist(), "y": y})


@pytest.fixture(scope="session")
def regressor(table):
    X = table.drop_columns(["y"])
    settings = {"method": "svgp", "num_inducing": 12, "epochs": 20, "random_state": 0}
    return GPRegressor(**settings).fit(X, table.column("y").to_numpy())


@pytest.fixture(scope="session")
def classifier(table):
    X = table.select(["a", "b"])
    labels = np.where(table.column("y").to_numpy() > 0.5, "high", "low")
    return GPClassifier(method="svgp", num_inducing=8, epochs=20, random_state=0).fit(X, labels)
