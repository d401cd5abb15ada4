"""The code of docs/serving.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("starlette")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        exec(example, names)  # each goes on where the one before ended
    prediction = names["gp"].predict(names["X"][:5])
    np.testing.assert_allclose(names["found"]["mean"], prediction.mean, rtol=1e-6)
    assert names["found"]["quantiles"].shape == (5, 3)
    assert max(names["made"].error.values()) < 1e-6
    assert names["app"].state.service.model.name == "sines"
    assert (tmp_path / "model.onnx").exists()

    # The encoder of the page, which needs no duogp, and the schema of the file agree.
    estimator, encode, columns = names["estimator"], names["encode"], names["columns"]
    frame = names["frame"]
    plain = frame.astype(object).where(frame.notna(), None).to_dict("records")
    expected = estimator.schema_.encode(frame).matrix
    np.testing.assert_allclose(np.array([encode(row, columns) for row in plain]), expected)
    import pandas as pd

    new = pd.DataFrame({"area": [70.0, None], "city": ["Oslo", "Rome"]})
    np.testing.assert_allclose(names["prediction"]["mean"], estimator.predict(new), rtol=1e-6)


def mlflow_example() -> str:
    text = PAGE.read_text(encoding="utf-8")
    block = text[text.index("    import mlflow") : text.index("An exported graph is an ordinary ONNX model")]
    return re.sub(r"^    ", "", block, flags=re.M)


def test_the_mlflow_example_is_python():
    compile(mlflow_example(), "mlflow", "exec")


@pytest.mark.slow
def test_the_mlflow_example_runs(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pd = pytest.importorskip("pandas")
    import duogp

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"area": rng.uniform(20, 120, 80), "city": rng.choice(["Rome", "Oslo"], 80)})
    estimator = duogp.GPRegressor("exact", random_state=0).fit(frame, 10 * frame["area"])
    names: dict = {"estimator": estimator, "frame": frame}
    exec(mlflow_example(), names)
    found = mlflow.pyfunc.load_model(names["info"].model_uri).predict(frame)
    np.testing.assert_allclose(found["mean"], estimator.predict(frame), rtol=1e-9)
