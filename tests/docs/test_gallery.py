"""The scripts of the gallery run and draw one figure each; the notebooks are their scripts, and run."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("plot_*.py"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))

if not SCRIPTS:
    pytest.skip("no docs folder beside these tests", allow_module_level=True)


@pytest.fixture
def pyplot(tmp_path, monkeypatch):
    """Matplotlib without a screen; the figures that were shown are counted."""
    monkeypatch.chdir(tmp_path)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()))
    with matplotlib.rc_context():
        plt.close("all")
        yield plt, shown
        plt.close("all")


def check(plt, shown) -> None:
    assert len(shown) == 1
    figure = plt.figure(shown[0])
    figure.canvas.draw()  # labels and legends can be laid out
    axes = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert all(ax.get_xlabel() or ax.get_shared_x_axes().get_siblings(ax) != [ax] for ax in axes)
    assert any(ax.get_ylabel() for ax in axes)


def test_there_are_enough_of_them_in_one_style():
    assert len(SCRIPTS) >= 12
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        assert "plt.rcParams.update(STYLE)" in text, script.name
        assert re.match(r'"""\n.+\n=+\n\n', text), f"{script.name} has no title"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_and_draws(script, pyplot):
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), {"__name__": "__main__"})
    check(*pyplot)


def test_the_notebooks_are_their_scripts():
    path = DOCS / "_tools" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.NAMES:
        stored = json.loads(
            (DOCS / "notebooks" / f"{name.split('_', 2)[2]}.ipynb").read_text(encoding="utf-8")
        )
        script = (DOCS / "gallery" / f"{name}.py").read_text(encoding="utf-8")
        assert stored == module.notebook_of(script), "run python docs/_tools/notebooks.py"
    assert len(NOTEBOOKS) == len(module.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, pyplot):
    """Its code cells one after the other in one namespace, as a kernel runs them."""
    names: dict = {"__name__": "__main__"}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    check(*pyplot)
