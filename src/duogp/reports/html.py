"""Pieces of an HTML page that stands alone: no script, nothing loaded from elsewhere, all text escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

#: The style of every page. Tables scroll inside their frame, so that a page is never wider than the screen.
STYLE = """
:root { --ink: #1f2328; --soft: #656d76; --line: #d8dee4; --blue: #0072b2 }
* { box-sizing: border-box }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); margin: 0 auto; max-width: 62rem;
padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .3rem }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem }
p, ul { margin: .5rem 0 } p.soft, .soft { color: var(--soft); font-size: 13.5px }
nav { font-size: 13.5px; margin: .8rem 0 }
nav a { color: var(--blue); margin-right: .9rem; white-space: nowrap }
.frame { overflow-x: auto; margin: .6rem 0 }
table { border-collapse: collapse; min-width: 100%; font-size: 13.5px; overflow-wrap: normal }
th, td { text-align: right; padding: 4px 9px; border-bottom: 1px solid var(--line); vertical-align: top }
th { font-weight: 600; background: #f6f8fa; white-space: nowrap } th.words, td.words { text-align: left }
td.words { overflow-wrap: anywhere; min-width: 8.5rem } td.number { white-space: nowrap;
font-variant-numeric: tabular-nums }
tr.best td { background: #e8f1fb; font-weight: 600 } tr.failed td { color: #8c959f }
.findings { list-style: none; padding: 0 } .findings li { padding: .45rem .7rem; margin: .35rem 0;
border-left: 4px solid var(--line); background: #f6f8fa } .findings li.good { border-color: #009e73 }
.findings li.look { border-color: #d55e00 } .findings b { display: inline-block; min-width: 3.2rem }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 1.2rem; align-items: flex-start }
figure { margin: .4rem 0; flex: 0 1 auto; max-width: 100% } figure img { max-width: 100%; height: auto }
.bar { background: var(--blue); height: 12px; display: inline-block }
footer { margin-top: 3rem; color: var(--soft); font-size: 13px }
@media (max-width: 34rem) { body { padding: 1rem .8rem 3rem }
figure { width: 100% } figure img { width: 100% } }
@media print { body { max-width: none } h2, figure, tr { break-inside: avoid } }
"""


def text(value: Any) -> str:
    """A value as text of a page: nothing in it is markup."""
    return html.escape(str(value), quote=True)


def number(value: Any, digits: int = 4) -> str:
    """A number to be read; "–" for None, NaN and infinities."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.1f}"


def percent(value: Any) -> str:
    """A share in per cent; "–" for None."""
    return "–" if value is None else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Words:
    """A cell of a table that is words, and stands on the left."""

    value: Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in a frame of its own; cells are escaped, those that are no `Words` stand on the right."""
    cells = [list(row) for row in rows]
    words = [any(isinstance(row[j], Words) for row in cells) for j in range(len(head))]
    heads = "".join(
        f"<th class='{'words' if left else 'number'}'>{text(name)}</th>"
        for name, left in zip(head, words, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in cells)
    return f'<div class="frame"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """Names and values in two columns of words; pairs without a value are left out."""
    lines = "".join(
        f'<tr><td class="words soft">{text(name)}</td><td class="words">{text(value)}</td></tr>'
        for name, value in rows
        if value is not None and value != ""
    )
    return f'<div class="frame"><table><tbody>{lines}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, Words):
        return f'<td class="words">{text(value.value)}</td>'
    return f'<td class="number">{text(value)}</td>'


def paragraph(words: str, soft: bool = False) -> str:
    """A paragraph of plain words."""
    return f"<p class='{'soft' if soft else 'plain'}'>{text(words)}</p>"


def bars(shares: Iterable[tuple[str, float, str]]) -> str:
    """Names with bars: (name, share of the full width in [0, 1], what stands beside the name)."""
    rows = "".join(
        f'<tr><td class="words">{text(name)}</td><td class="number">{text(shown)}</td><td class="words" '
        f'style="width:60%"><span class="bar" style="width:{100 * share:.1f}%"></span></td></tr>'
        for name, share, shown in shares
    )
    return f'<div class="frame"><table>{rows}</table></div>'


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """A whole page of parts that are HTML already."""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head><body>"
    )
    return "\n".join([head, *(part for part in parts if part), "</body></html>\n"])
