"""Old import paths keep working, with one warning that names the new path; `import duogp` is light."""

from __future__ import annotations

import ast
import importlib
import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import duogp
from duogp import _moved

#: Old public paths and names, and the module that has the name now.
OLD = [
    ("duogp.build", "build_model", "duogp.fitting.build"),
    ("duogp.deep", "DeepGP", "duogp.posterior.deep"),
    ("duogp.deep", "DeepModel", "duogp.models.deep"),
    ("duogp.deep", "Layer", "duogp.models.layers"),
    ("duogp.deep", "LayerDraws", "duogp.models.draws"),
    ("duogp.deep", "MixtureDensity", "duogp.models.sample_mixture"),
    ("duogp.deep", "SkipMean", "duogp.means"),
    ("duogp.deep.gp", "LayerVariances", "duogp.posterior.deep"),
    ("duogp.estimators", "GPRegressor", "duogp.sklearn"),
    ("duogp.estimators", "Calibration", "duogp.sklearn"),
    ("duogp.estimators.quantiles", "predictive_quantiles", "duogp.sklearn.quantiles"),
    ("duogp.bench.tables", "text_table", "duogp.bench.report"),
    ("duogp.bo.posterior", "Process", "duogp.bo.processes"),
    ("duogp.gp", "GP", "duogp"),
    ("duogp.inducing", "INITIALISERS", "duogp.bases.inducing"),
    ("duogp.kernels.deep", "Deep", "duogp.kernels"),
    ("duogp.linalg", "Numerics", "duogp.numerics.factorisation"),
    ("duogp.linalg", "norm2", "duogp.numerics.factorisation"),
    ("duogp.mixing", "LinearMixing", "duogp.models.mixing"),
    ("duogp.model", "Model", "duogp.models.model"),
    ("duogp.model", "Batch", "duogp.models.model"),
    ("duogp.nets", "MLP", "duogp.numerics.networks"),
    ("duogp.neural", "fit_neural", "duogp.baselines"),
    ("duogp.neural.networks", "Committee", "duogp.baselines.networks"),
    ("duogp.optim", "NaturalGradient", "duogp.inference.natural"),
    ("duogp.optim.natural", "NaturalGradient", "duogp.inference.natural"),
    ("duogp.parameters", "Positive", "duogp.numerics.parameters"),
    ("duogp.parameters", "batched", "duogp.numerics.parameters"),
    ("duogp.prediction", "Prediction", "duogp"),
    ("duogp.ridge", "RidgeQ", "duogp.variational"),
    ("duogp.saving", "SavedModelError", "duogp.io"),
    ("duogp.saving", "register_kind", "duogp.io"),
    ("duogp.saving.folder", "write_folder", "duogp.io"),
    ("duogp.settings", "Settings", "duogp"),
]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_old_paths_warn_once_and_give_the_same_objects():
    found = json.loads(
        run(
            f"""
            import importlib, json, warnings
            import duogp
            out = []
            for old, name, new in {OLD!r}:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    there, here = (getattr(importlib.import_module(m), name) for m in (old, new))
                    importlib.import_module(old)
                told = [str(w.message) for w in caught if w.category is DeprecationWarning]
                out.append((old, there is here, told))
            print(json.dumps(out))
            """
        )
    )
    seen = set()
    for old, same, told in found:
        assert same, old
        about = [message for message in told if message.startswith(f"{old} has moved to ")]
        assert len(about) == (0 if old in seen else 1), (old, told)
        for message in told:  # the package of an old module is imported, and named, before it
            seen.add(message.partition(" ")[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("old", [name for name, new in _moved.MOVED.items() if "duogp_" not in str(new)])
def test_every_line_of_the_table_leads_to_a_module(old):
    assert importlib.util.find_spec(f"duogp.{old}") is not None
    for new in _moved.new_path(f"duogp.{old}"):
        assert importlib.util.find_spec(new) is not None, new


@pytest.mark.slow
def test_a_moved_module_is_executed_once_and_keeps_its_name():
    run(
        """
        import warnings
        warnings.simplefilter("ignore")
        import duogp.neural.fitting, duogp.baselines.fit
        assert duogp.neural.fitting is duogp.baselines.fit
        assert duogp.baselines.__spec__.name == duogp.baselines.__name__ == "duogp.baselines"
        assert duogp.linalg.Numerics is duogp.numerics.factorisation.Numerics
        from duogp.deep import *
        """
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_never_was_is_not_found():
    for name in ("duogp.nothing", "duogp.neural.nothing", "duogp.deep.nothing"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = duogp.nothing


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pickles_of_old_paths():
    assert pickle.loads(b"cduogp.prediction\nPrediction\n.") is duogp.Prediction


# -- the root ------------------------------------------------------------------------------------------------


def test_importing_duogp_imports_no_numerical_package():
    out = run(
        """
        import sys
        import duogp
        heavy = ("torch", "numpy", "scipy", "sklearn", "pandas")
        print([name for name in heavy if name in sys.modules], "fit" in dir(duogp), duogp.__version__)
        """
    )
    assert out.split()[:2] == ["[]", "True"]


def test_every_public_name_is_there():
    assert set(duogp.__all__) <= set(dir(duogp))
    for name in duogp.__all__:
        assert getattr(duogp, name) is not None
    out = run("from duogp import *; print(fit.__name__, GP.__name__, kernels.__name__, GPRegressor.__name__)")
    assert out.split() == ["fit", "GP", "duogp.kernels", "GPRegressor"]
    for name in duogp._PACKAGES:
        assert importlib.util.find_spec(f"duogp.{name}") is not None


def test_type_checkers_see_what_is_found_at_run_time():
    """The names under TYPE_CHECKING are those of the table, from the same modules."""
    tree = ast.parse(Path(duogp.__file__).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {a.name: node.module for node in block.body for a in node.names}
    assert {n: m for n, m in seen.items() if m not in ("duogp", "pathlib")} == {
        name: f"duogp.{module}" for name, module in duogp._HOMES.items()
    }
    known = {*duogp._HOMES, *(n for n, m in seen.items() if m == "duogp")}
    warned = {"ConvergenceWarning", "DataWarning", "DuoGPWarning", "NumericalWarning"}
    assert {*warned, "__version__", *known} == set(duogp.__all__)


def test_the_tasks_of_the_paper_are_a_distribution_of_their_own(tmp_path, monkeypatch):
    finder, old = _moved.MovedFinder(), "duogp.bo.tasks.rover"
    for name in ("duogp_tasks", "duogp_tasks.rover"):
        monkeypatch.setitem(sys.modules, name, None)
    with (
        pytest.raises(ModuleNotFoundError, match="duogp-tasks"),
        pytest.warns(DeprecationWarning, match="rover"),
    ):
        importlib.util.module_from_spec(finder.find_spec(old, []))
    (tmp_path / "duogp_tasks").mkdir()
    (tmp_path / "duogp_tasks" / "__init__.py").touch()
    (tmp_path / "duogp_tasks" / "rover.py").write_text("here = True")
    for name in ("duogp_tasks", "duogp_tasks.rover"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"has moved to duogp_tasks\.rover"):
        module = importlib.util.module_from_spec(finder.find_spec(old, []))
    finder.exec_module(module)
    assert module.here and module.__spec__.name == "duogp_tasks.rover"


@pytest.mark.parametrize("old", _moved.RENAMED)
def test_renamed_names_of_a_package_warn_and_give_the_new_object(old):
    package, _, name = old.rpartition(".")
    module, _, attribute = _moved.RENAMED[old].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"is now duogp.{_moved.RENAMED[old]}"):
        found = getattr(importlib.import_module(f"duogp.{package}"), name)
    assert found is getattr(importlib.import_module(f"duogp.{module}"), attribute)
