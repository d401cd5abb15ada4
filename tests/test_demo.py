"""The demo runs, and the README says what the code says."""

import re
from pathlib import Path

import numpy as np
import pytest

from duogp import METHODS, demo

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def methods_table() -> str:
    """The README's table of methods, from the registry."""
    lines = [
        "| method | basis | q(u) | objective | bound | parameters | paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for m in METHODS.values():
        names = ", ".join(f"`{n}`" for n in [m.name, *(a for a, t in METHODS.aliases.items() if t == m.name)])
        cells = (names, m.basis, m.q, m.objective, "yes" if m.is_bound else "no", m.variational_parameters)
        lines.append(
            "| " + " | ".join((*cells, f"{m.reference.split(',')[0]} et al. {m.citation[-4:]}")) + " |"
        )
    return "\n".join(lines)


def section(name: str) -> str:
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.S)
    assert found, f"README.md has no section between <!-- {name} --> and <!-- /{name} -->"
    return found[1].strip()


def test_the_readme_lists_the_registry():
    assert section("methods") == methods_table(), "paste the output of `python tests/test_demo.py`"


def test_the_readmes_first_example_runs():
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert code
    names: dict = {}
    exec(code[1], names)
    assert np.isfinite(names["prediction"].mean).all()


def test_the_files_that_the_readme_links_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_demo_shows_the_papers_message(tmp_path, capsys):
    """Figure 1 of Zhu et al. 2023: with ten inducing points the decoupled mean lengthscale is the shorter."""
    pytest.importorskip("matplotlib")
    svgp, dcsvgp = demo.main(["--output", str(tmp_path), "--only", "one-dimensional"])
    assert dcsvgp["rmse"] < svgp["rmse"]
    assert dcsvgp["nll"] < svgp["nll"]
    assert "DCSVGP" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"one_dimensional.png", "calibration.png"}


def test_the_mean_lengthscale_is_the_shorter():
    learned = demo.run(demo.one_dimensional(), "dcsvgp").gp.hyperparameters()
    assert learned["lengthscale_mean"] < learned["lengthscale_covariance"]


def test_terrain_is_real_and_split():
    pytest.importorskip("matplotlib")
    task = demo.terrain(n=50, n_test=30)
    assert task.X.shape == (50, 2)
    assert len(task.y_test) == 30
    assert 200 < task.y.min() < task.y.max() < 1100  # metres


def test_the_table_needs_no_rich(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "rich.console", None)
    demo.print_table([dict(zip(demo.COLUMNS, ("a", "SVGP", 1.0, 2.0, 3.0, 0.9, 12.0), strict=True))])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == list(demo.COLUMNS)
    assert row.split() == ["a", "SVGP", "1.000", "2.000", "3.000", "0.900", "12.0"]


if __name__ == "__main__":
    print(methods_table())
