"""Models that duogp 0.1.0 saved are read, and predict what they predicted then (fixtures/make_saved.py).

The tolerance is 1e-8 of the largest number of an answer (of the total variance for its parts, which are
differences); 1e-5 for models in float32.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import duogp

FOLDER = Path(__file__).parent / "fixtures" / "saved_0_1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
TOLERANCE, TOLERANCE_32 = 1e-8, 1e-5


def answers(model: Any, rows: Any, noise: Any) -> dict[str, Any]:
    """By public means only: moments or probabilities; of estimators also labels, sets and intervals."""
    out: dict[str, Any] = {}
    known = {} if noise is None else {"noise": noise}
    if not isinstance(model, duogp.GPRegressor | duogp.GPClassifier):
        prediction = model.predict(rows, **known)
        if isinstance(prediction, duogp.ClassPrediction):
            out["probabilities"], out["latent_mean"] = prediction.probabilities, prediction.latent_mean
        else:
            out["mean"], out["variance"] = prediction.mean, prediction.variance
        return out | {"residual": prediction.residual, "explained": prediction.explained}
    parts = model.explain_variance(rows)
    out["residual"], out["explained"] = parts.distributional, parts.within_data
    if isinstance(model, duogp.GPClassifier):
        out["probabilities"], out["labels"] = model.predict_proba(rows), model.predict(rows)
        if model.calibration_ is not None:
            out["set"] = model.predict_set(rows, 0.7)
    else:
        out["mean"], std = model.predict(rows, return_std=True)
        out["variance"] = std**2
        if model.calibration_ is not None:
            out["interval"] = np.stack(model.predict_interval(rows, 0.7, "conformal"))
    return out


def test_every_folder_is_expected():
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_model_of_0_1_predicts_what_it_did(name):
    case = EXPECTED[name]
    rows = pd.DataFrame(case["table"]) if "table" in case else np.array(case["rows"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        model = duogp.load(FOLDER / name)
        found = answers(model, rows, case.get("noise"))
    tolerance = TOLERANCE_32 if name.startswith("float32") else TOLERANCE
    expected = {key: np.array(value) for key, value in case["answers"].items()}
    if isinstance(model, duogp.GPClassifier):
        expected.pop("latent_mean")  # theirs are the probabilities
    assert found.keys() == expected.keys()
    parts = ("residual", "explained")
    total = expected.get("variance", expected["residual"] + expected["explained"])
    for key, value in expected.items():
        got = np.asarray(found[key])
        if key in parts:
            got = got.reshape(value.shape)  # an estimator of two classes leaves out the one latent function
        assert got.shape == value.shape, key
        if value.dtype.kind != "f":
            np.testing.assert_array_equal(got, value, err_msg=key)
            continue
        scale = np.abs(total if key in parts else value).max()
        np.testing.assert_allclose(got, value, rtol=0, atol=tolerance * scale, err_msg=key)
