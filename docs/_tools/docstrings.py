"""Docstrings of the library as reStructuredText.

They are written for a reader of the source: `name` is code, indented lines are formulas or examples, "- "
begins an item. Sphinx would read single backticks as titles and indented formulas as quotations. `to_rst`
turns them into code and literal blocks and escapes what else reStructuredText would take for markup.
"""

from __future__ import annotations

import re
from typing import Any

CODE = re.compile(r"(?P<quote>``?)(?P<text>[^`]+)(?P=quote)")
SPECIAL = re.compile(r"([*|_\\])")


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx' event `autodoc-process-docstring`; it changes the list in place."""
    lines[:] = to_rst(lines)


def to_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring, its indentation removed, as lines of reStructuredText."""
    found: list[str] = []
    for block, indented in _blocks(lines):
        if indented:
            found += ["::", "", *("    " + line for line in block), ""]
        else:
            found += [*_inline("\n".join(block)).split("\n"), ""]
    return found


def _blocks(lines: list[str]) -> list[tuple[list[str], bool]]:
    """Paragraphs, items and indented blocks, in order; the second entry says whether a block is indented."""
    found: list[tuple[list[str], bool]] = []
    item = False  # inside an item, whose further lines are indented too
    for line in lines:
        if not line.strip():
            if found and found[-1][1]:
                found[-1][0].append("")  # formulas may have gaps
            elif found and found[-1][0]:
                found.append(([], False))
            continue
        starts_item = line.lstrip().startswith(("- ", "* "))
        indented = line.startswith(" ") and not starts_item and not (item and found and found[-1][0])
        if starts_item:
            found.append(([], False))
            item = True
        elif not line.startswith(" "):
            item = False
            if found and found[-1][0] and found[-1][0][0].lstrip().startswith("- "):
                found.append(([], False))
        if not found or found[-1][1] != indented:
            found.append(([], indented))
        found[-1][0].append(line if indented or starts_item else ("  " if item else "") + line.strip())
    return [(_trimmed(block), indented) for block, indented in found if any(block)]


def _trimmed(block: list[str]) -> list[str]:
    while block and not block[-1].strip():
        block.pop()
    margin = min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)
    items = block[0].lstrip().startswith(("- ", "* "))
    return block if items and margin == 0 else [line[margin:] for line in block]


def _inline(text: str) -> str:
    """A paragraph with its code in double backticks and its other special characters escaped."""
    parts, end = [], 0
    for found in CODE.finditer(text):
        parts.append(_escaped(text[end : found.start()]))
        words = " ".join(found["text"].split())
        after = text[found.end() : found.end() + 1]
        parts.append(f"``{words}``" + ("\\ " if after.isalnum() else ""))
        end = found.end()
    parts.append(_escaped(text[end:]))
    return "".join(parts)


def _escaped(text: str) -> str:
    lead = re.match(r"\s*[-*] ", text)
    start = lead[0].replace("*", "-") if lead else ""
    return start + SPECIAL.sub(r"\\\1", text[len(start) :]).replace("`", "\\`")
