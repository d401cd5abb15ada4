"""README and pages of the site: code runs, links and anchors lead somewhere, numbers are those stored."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import pytest

from duogp import METHODS, GPClassifier, GPRegressor, Settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"

if not (DOCS / "conf.py").exists():
    pytest.skip("no docs folder beside these tests", allow_module_level=True)

PAGES = [README, *sorted(p for p in DOCS.rglob("*.md") if not {"_build", "auto_gallery"} & set(p.parts))]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]

#: What runs the Python blocks of a page: here, or a test that needs more than an empty folder.
ELSEWHERE = {
    "docs/bayesian-optimisation.md": "tests/bo/test_bo_docs.py",
    "docs/extending.md": "tests/extending/test_extending.py",
    "docs/large-data.md": "tests/fitting/test_large_data_docs.py",
    "docs/serving.md": "tests/serving/test_page.py",
}
NEEDS = {"docs/howto/gpytorch-kernel.md": "gpytorch", "docs/howto/intervals.md": "matplotlib"}
#: What a page's blocks find when they start.
BEFORE = {
    "docs/reliability.md": "import numpy as np, duogp\nX = np.linspace(0, 1, 40)[:, None]\ny = X[:, 0] ** 2",
}


def blocks(path: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


def test_every_page_with_code_has_a_test():
    for name, test in ELSEWHERE.items():
        assert blocks(ROOT / name), f"{name} has no code"
        assert Path(name).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not read {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n, p in zip(NAMES, PAGES, strict=True) if blocks(p) and n not in ELSEWHERE]
)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for package in ("pandas", NEEDS.get(name, "numpy")):
        pytest.importorskip(package)
    names: dict = {"__name__": "example"}
    exec(BEFORE.get(name, ""), names)
    for example in blocks(ROOT / name):
        exec(compile(example, name, "exec"), names)  # each goes on where the one before ended


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_page_is_python(name):
    for example in blocks(ROOT / name):
        compile(example, name, "exec")


# -- links -------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    """A page without its code, where brackets are no links and "#" begins no heading."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", lambda m: m[0].replace("](", "] ("), text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,4} (.+)$", without_code(path.read_text(encoding="utf-8")), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(slug)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_links_and_anchors_lead_somewhere(name):
    path = ROOT / name
    text = without_code(path.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        where = (path.parent / target).resolve() if target else path
        if "auto_gallery" in target:  # made from docs/gallery when the site is built
            script = DOCS / "gallery" / f"{where.name}.py"
            ok = where.name == "index" or script.exists()
        else:
            ok = where.exists() and (not anchor or anchor in anchors(where))
        if not ok:
            broken.append(link)
    assert broken == []


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for path in PAGES[1:]:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M):
            for entry in block.splitlines():
                if entry and not entry.startswith(":"):
                    listed.add((path.parent / f"{entry.rstrip('?')}.md").resolve())
    assert [path for path in PAGES[1:] if path not in listed] == []


# -- what pages say of the code ----------------------------------------------------------------------------


def test_the_settings_that_the_page_names_exist():
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) > 15
    assert set(named) <= {f.name for f in dataclasses.fields(Settings)}


def test_the_page_says_which_settings_are_parameters_of_the_estimators():
    own = set(GPRegressor().get_params()) & set(GPClassifier().get_params())
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    for line in (line for line in text.splitlines() if line.startswith("| `")):
        _, first, where, *_ = line.split("|")
        names = re.findall(r"`(\w+)`", first)
        said = [word.strip() for word in where.split(",")]
        said = said * len(names) if len(said) == 1 else said
        assert said == ["parameter" if name in own else "in `settings`" for name in names], line


def test_the_texts_that_are_gaps_are_those_of_the_reader():
    formats = pytest.importorskip("pyarrow.csv")
    from duogp.tables.files import MORE_MISSING

    text = (DOCS / "tables.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| CSV and TSV files"))
    read = {*formats.ConvertOptions().null_values, *MORE_MISSING} - {""}
    assert set(re.findall(r"`([^`]+)`", row)) == read


def test_the_numbers_of_the_first_figure_are_the_stored_ones():
    stored = json.loads((DOCS / "images" / "hero.json").read_text(encoding="utf-8"))
    ten, twelve = stored["10"], stored["12"]
    text = " ".join(README.read_text(encoding="utf-8").replace("−", "-").split())
    assert f"from {ten['svgp']['rmse']:.2f} to {ten['dcsvgp']['rmse']:.2f}" in text
    assert f"NLL from {ten['svgp']['nll']:.2f} to {ten['dcsvgp']['nll']:.2f}" in text
    assert f"{100 * ten['svgp']['coverage']:.0f} % and {100 * ten['dcsvgp']['coverage']:.0f} %" in text
    assert f"{twelve['svgp']['nll']:.2f} and {twelve['dcsvgp']['nll']:.2f}" in text
    assert f"{len(METHODS)} methods" in text
    page = (DOCS / "families" / "conditional.md").read_text(encoding="utf-8").replace("−", "-")
    for points, found in (("10", ten), ("12", twelve)):
        for method, row in found.items():
            cells = f"{row['rmse']:.3f} | {row['nll']:.3f} | {row['coverage']:.3f} |"
            assert f"| {points} | {method.upper()} | {cells}" in page


def test_the_chooser_of_the_page_is_that_of_the_library():
    path = DOCS / "_tools" / "chooser.py"
    spec = importlib.util.spec_from_file_location("chooser", path)
    assert spec and spec.loader
    chooser = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chooser)
    text = chooser.PAGE.read_text(encoding="utf-8")
    assert text == chooser.page_of(text), "run python docs/_tools/chooser.py"
    assert text.count("\n6. **") == 1


def test_the_readme_has_two_screens():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_every_public_name_has_a_docstring():
    import importlib
    import inspect
    import sys

    sys.path.insert(0, str(DOCS / "_tools"))
    try:
        import reference
    finally:
        sys.path.pop(0)
    missing = []
    for path in sorted((DOCS / "api").glob("*.md")):
        for entry in reference.ENTRY.finditer(path.read_text(encoding="utf-8")):
            module = importlib.import_module(entry["module"])
            for name in (entry["names"] or "").split() or reference.names_of(entry["module"]):
                value = getattr(module, name)
                is_ours = str(getattr(value, "__module__", "")).startswith("duogp")
                if is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
                    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
                    if not text or text.startswith(f"{name}("):  # what dataclasses and named tuples make
                        missing.append(f"{entry['module']}.{name}")
    assert missing == []
