"""One version everywhere, and files of the release that say what the package says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import duogp

ROOT = Path(__file__).parents[2]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def requirements(of: list[str]) -> set[str]:
    return {re.split(r"[ >=<\[]", line)[0] for line in of}


def test_one_version():
    version = duogp.__version__
    assert re.search(rf"^version: {re.escape(version)}$", text("CITATION.cff"), re.M)
    assert f'version: "{version}"' in text("conda/recipe.yaml")
    assert f"## [{version}]" in text("CHANGELOG.md")
    assert tomllib.loads(text("packages/duogp-tasks/pyproject.toml"))["project"]["version"] == version


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    wanted = {"pytorch" if n == "torch" else n for n in requirements(project["dependencies"])}
    wanted = {"matplotlib-base" if n == "matplotlib" else n for n in wanted}
    run = text("conda/recipe.yaml").partition("  run:\n")[2].partition("\ntests:")[0]
    found = {line.strip(" -").split()[0] for line in run.splitlines() if line.strip()}
    assert found == wanted | {"python"}


def test_workflows_run_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    called = {
        target
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for target in re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8"))
    }
    assert called - {"docs"} <= targets  # `make docs` comes with the site
    assert {"lint", "test-all"} <= called
