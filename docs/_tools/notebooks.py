"""Two gallery scripts as notebooks: `python docs/_tools/notebooks.py` writes `docs/notebooks/*.ipynb`.

The docstring of a script and its comments after ``# %%`` become Markdown cells, the code between them code
cells. The outputs are left empty. (The site has every script as a notebook, made by sphinx-gallery; these two
are in the repository, and a test holds them to their scripts and runs them.)
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
NAMES = ("plot_01_decoupled_lengthscales", "plot_13_conformal")


def cells_of(script: str) -> list[tuple[str, str]]:
    """Pairs of "markdown" or "code" and the text of a cell."""
    title, _, text = (ast.get_docstring(ast.parse(script)) or "").partition("\n")
    found = [("markdown", f"# {title}\n\n" + re.sub(r"^=+\n+", "", text.replace("``", "`")))]
    rest = script[script.index('"""', 3) + 3 :]
    for part in re.split(r"^# %%\n", rest, flags=re.M):
        words = re.match(r"(?:#.*\n)*", part)
        assert words is not None
        if words[0].strip():
            found.append(("markdown", re.sub(r"^# ?", "", words[0], flags=re.M).replace("``", "`").strip()))
        if code := part[words.end() :].strip():
            found.append(("code", code))
    return found


def notebook_of(script: str) -> dict[str, Any]:
    """The notebook as the JSON of format 4.5."""
    cells: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells_of(script)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(True)}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    (DOCS / "notebooks").mkdir(exist_ok=True)
    for name in NAMES:
        notebook = notebook_of((DOCS / "gallery" / f"{name}.py").read_text(encoding="utf-8"))
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        (DOCS / "notebooks" / f"{name.split('_', 2)[2]}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
