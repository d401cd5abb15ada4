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


def test_the_mlflow_example_is_python():
    text = PAGE.read_text(encoding="utf-8")
    block = text[text.index("    import mlflow") : text.index("An exported graph is an ordinary ONNX model")]
    compile(re.sub(r"^    ", "", block, flags=re.M), "mlflow", "exec")
