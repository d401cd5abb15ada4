"""The six lines of docs/which-method.md, from `duogp.methods.CHOOSER`.

python docs/_tools/chooser.py    rewrite what stands between the markers; a test compares
"""

from __future__ import annotations

import re
from pathlib import Path

from duogp.methods import CHOOSER, METHODS

PAGE = Path(__file__).resolve().parents[1] / "which-method.md"
BEGIN, END = "<!-- chooser -->\n", "<!-- /chooser -->"
#: Words that are set as code: methods, names of the library, commands.
NAMES = (*METHODS, "auto", "GPRegressor()", "GPClassifier()", "duogp fit", "partial_fit", "duogp.OnlineGP")


def lines() -> str:
    """The chooser as a numbered list of Markdown."""
    names = "|".join(re.escape(name) for name in sorted(NAMES, key=len, reverse=True))
    code = re.compile(rf"(?<![\w-])({names})(?![\w-])")
    return "".join(
        f"{i}. **{when}:** {code.sub(lambda m: f'`{m[0]}`', method)}.\n"
        for i, (when, method) in enumerate(CHOOSER, 1)
    )


def page_of(text: str) -> str:
    """The text of the page with the lines between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"{PAGE.name} has no markers {BEGIN.strip()} and {END}")
    return before + BEGIN + lines() + END + after


if __name__ == "__main__":
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
