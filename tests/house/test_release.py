"""One version everywhere, and files of the release that say what the package says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import duogp

ROOT = Path(__file__).parents[2]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def requirements(of: list[str]) -> dict[str, str]:
    """Lower bounds by name: ``numpy>=1.26`` or ``numpy >=1.26``; "" for a name without one."""
    parts = (re.fullmatch(r"([\w-]+)\s*(?:>=([\d.]+))?", line.strip()) for line in of)
    return {found[1]: found[2] or "" for found in parts if found}


def test_one_version():
    version = duogp.__version__
    assert re.search(rf"^version: {re.escape(version)}$", text("CITATION.cff"), re.M)
    assert f'version: "{version}"' in text("conda/recipe.yaml")
    assert f"## [{version}]" in text("CHANGELOG.md")
    assert tomllib.loads(text("packages/duogp-tasks/pyproject.toml"))["project"]["version"] == version


#: Names of packages on conda-forge that differ from those on PyPI.
ON_CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    wanted = {ON_CONDA.get(n, n): bound for n, bound in requirements(project["dependencies"]).items()}
    assert len(wanted) == len(project["dependencies"])
    run = text("conda/recipe.yaml").partition("  run:\n")[2].partition("\ntests:")[0]
    found = requirements([line.strip(" -") for line in run.splitlines() if line.strip()])
    assert found == wanted | {"python": project["requires-python"].removeprefix(">=")}


def test_the_conda_recipe_renders():
    rattler_build = pytest.importorskip("rattler_build")
    (made,) = rattler_build.Stage0Recipe.from_file(str(ROOT / "conda" / "recipe.yaml")).render()
    recipe = made.recipe.to_dict()
    assert recipe["package"] == {"name": "duogp", "version": duogp.__version__}
    assert recipe["build"]["noarch"] == "python"


def test_classifiers_workflows_and_readme_name_the_same_pythons():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert named[0] == project["requires-python"].removeprefix(">=")
    for workflow in ("ci", "wheels"):
        (matrix,) = re.findall(r"python: \[(.*)\]", text(f".github/workflows/{workflow}.yml"))
        assert re.findall(r"3\.\d+", matrix) == named
    for page in ("README.md", "docs/start.md"):
        assert f"Python {named[0]} to {named[-1]}" in text(page)


def test_workflows_run_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    called = {
        target
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for target in re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8"))
    }
    assert called <= targets
    assert {"lint", "test-all", "docs"} <= called
