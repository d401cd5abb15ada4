"""The core needs numpy, scipy, scikit-learn and torch alone; everything else is imported where it is used."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

OPTIONAL = (
    *("typer", "rich", "pyarrow", "matplotlib", "safetensors", "pandas", "gpytorch", "linear_operator"),
    *("botorch", "optuna", "gymnasium", "rdkit", "selfies", "duogp_tasks"),
    *("onnx", "onnxscript", "onnxruntime", "starlette", "uvicorn"),
)

# The finder of installed packages and of their entry points without some, as after `pip uninstall`.
BLOCK = f"""
import sys
from importlib.machinery import PathFinder

class Core(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL!r} else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        found = super().find_distributions(*context)
        return (d for d in found if d.metadata["Name"].replace("-", "_") not in {OPTIONAL!r})

sys.meta_path[sys.meta_path.index(PathFinder)] = Core
"""


def run_without_extras(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )


def test_the_blockade_works():
    done = run_without_extras("import matplotlib")
    assert done.returncode != 0
    assert "No module named 'matplotlib'" in done.stderr


def test_import_fit_predict_and_sample_with_the_core_alone():
    done = run_without_extras(
        """
        import numpy as np
        import duogp
        X = np.linspace(-1, 1, 30)[:, None]
        for method in ("dcsvgp", "ppgpr"):
            gp = duogp.fit(X, np.sin(3 * X[:, 0]), method, num_inducing=5, epochs=2, verbose=True)
            assert np.isfinite(gp.predict(X).std).all()
            assert gp.sample(X, 2, seed=0).shape == (2, 30)
        print("done")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"
    assert all(line.startswith("training ") for line in done.stderr.splitlines())


def test_estimators_with_the_core_alone():
    done = run_without_extras(
        """
        import numpy as np
        from duogp import GPRegressor
        X = np.linspace(-1, 1, 30)[:, None]
        model = GPRegressor(num_inducing=5, epochs=2, random_state=0).fit(X, X[:, 0])
        assert model.feature_importances_.tolist() == [1.0]
        """
    )
    assert done.returncode == 0, done.stderr


def test_export_and_serving_name_the_extra_that_is_missing():
    done = run_without_extras(
        """
        import tempfile
        import numpy as np
        import duogp
        X = np.linspace(-1, 1, 30)[:, None]
        gp = duogp.fit(X, X[:, 0], "svgp", num_inducing=5, epochs=1)
        folder = tempfile.TemporaryDirectory()
        for attempt in (
            lambda: duogp.export_model(gp, folder.name + "/model.onnx"),
            lambda: duogp.serving.build_app(duogp.serving.ServedModel(gp)),
        ):
            try:
                attempt()
            except ModuleNotFoundError as error:
                print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    export, serve = done.stdout.splitlines()
    assert "duogp[export]" in export and "duogp[serve]" in serve


@pytest.mark.slow
def test_optimisation_with_the_core_alone():
    done = run_without_extras(
        """
        import pytest
        import duogp.bo
        settings = {"num_inducing": 10, "steps": 2, "first_steps": 2, "warm_start": 0, "candidates": 50}
        found = duogp.bo.optimise("push", "dcsvgp", evaluations=16, initial=8, **settings)
        assert len(found) == 16
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'duogp\\[bo\\]'"):
            duogp.bo.DuoGPModel
        with pytest.raises(ModuleNotFoundError, match="pip install 'duogp-tasks'"):
            duogp.bo.optimise("rover", "random", evaluations=1)
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_benchmark_runner_starts_with_the_core_alone():
    done = run_without_extras(
        """
        import runpy
        sys.argv = ["duogp.bench", "--help"]
        runpy.run_module("duogp.bench", run_name="__main__", alter_sys=True)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout and "table" in done.stdout and "missing" in done.stdout
