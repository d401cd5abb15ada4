"""Toctree entries that end in "?" are pages that may be absent: they are listed where the file exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

OPTIONAL = re.compile(r"^(?P<name>[\w/-]+)\?$\n?", re.M)


def keep_existing(app: Any, docname: str, source: list[str]) -> None:
    """Sphinx' event `source-read`: the text of a page with its optional entries settled."""
    folder = Path(app.srcdir) / Path(docname).parent

    def settled(found: re.Match[str]) -> str:
        return f"{found['name']}\n" if (folder / f"{found['name']}.md").exists() else ""

    source[0] = OPTIONAL.sub(settled, source[0])
