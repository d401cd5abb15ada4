"""Estimators on datasets: fitted and predicting in chunks, as on a table that fits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet
from sklearn.exceptions import NotFittedError

import duogp
from duogp.sklearn import GPClassifier, GPRegressor

QUICK = {"num_inducing": 20, "epochs": 4, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    n = 600
    size, city = rng.normal(size=n), rng.choice(["Ulm", "Rom"], n)
    y = np.sin(size) + 2.0 * (city == "Rom") + 0.1 * rng.normal(size=n)
    table = pa.table(
        {
            "size": pa.array(size, mask=rng.random(n) < 0.05),
            "city": city,
            "w": rng.integers(1, 3, n),
            "y": y,
            "kind": np.where(y > 1, "high", "low"),
        }
    )
    parquet.write_table(table, folder / "t.parquet", row_group_size=150)
    return dataset.dataset(str(folder / "t.parquet")), table


def without(files, *names: str):
    """A dataset of the other columns."""
    data, _ = files
    return dataset.dataset(data.to_table().drop_columns(list(names)))


def test_a_regressor(files, tmp_path):
    data, table = without(files, "kind"), files[1]
    model = GPRegressor(**QUICK).fit(data, target="y", sample_weight="w")
    assert model.method_ == "svgp" and "chunks" in model.reasons_[0]
    assert model.feature_names_in_.tolist() == ["size", "city"] and model.schema_ is not None
    mean, std = model.predict(data, return_std=True)
    np.testing.assert_allclose(mean, model.predict(table.select(["size", "city"])), rtol=1e-10)
    assert np.sqrt(np.mean((mean - table["y"].to_numpy()) ** 2)) < 0.4  # of rows without a size, 1
    assert std.shape == mean.shape and model.feature_importances_.shape == (2,)
    duogp.save(model, tmp_path / "model")
    assert np.array_equal(duogp.load(tmp_path / "model").predict(data), mean)
    model.calibrate(table.select(["size", "city"]), table["y"])
    low, high = model.predict_interval(table.select(["size", "city"]), kind="conformal")
    assert (low < high).all()


def test_a_classifier(files):
    data, table = without(files, "y", "w"), files[1]
    model = GPClassifier(method="svgp", **QUICK).fit(data, target="kind")
    assert model.classes_.tolist() == ["high", "low"]
    assert model.predict_proba(data).shape == (600, 2)
    assert (model.predict(data) == np.array(table["kind"].to_pylist())).mean() > 0.85


def test_what_a_dataset_cannot_have(files):
    data, table = files
    with pytest.raises(ValueError, match="target="):
        GPRegressor().fit(data)
    with pytest.raises(ValueError, match="takes no y"):
        GPRegressor().fit(data, table["y"], target="y")
    with pytest.raises(ValueError, match="its name"):
        GPRegressor().fit(data, target="y", sample_weight=np.ones(600))
    with pytest.raises(ValueError, match="calibrate"):
        GPRegressor(calibration_fraction=0.1).fit(data, target="y")
    with pytest.raises(ValueError, match="GPClassifier"):
        GPRegressor().fit(data, target="kind")
    with pytest.raises(ValueError, match="give y"):
        GPRegressor().fit(np.zeros((3, 1)), np.zeros(3), target="y")
    with pytest.raises(NotFittedError):
        GPRegressor().predict(data)
    with pytest.raises(ValueError, match="cov is not possible"):
        GPRegressor(**QUICK).fit(without(files, "kind"), target="y").predict(data, return_cov=True)
