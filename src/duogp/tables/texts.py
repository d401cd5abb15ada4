"""Numbers and dates that are written as text: "$1,234.50", "1.234,5 €", "12 %", "31.12.2024 14:05".

A column has one way of writing. Where its cells leave two open ("1,234", "01/02/2024") nothing is guessed:
`Ambiguous` says what to specify. A few cells that cannot be read are gaps, which the schema reports.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.tables.arrow import arrow
from duogp.tables.values import Floats, plain

#: Least share of the cells that must be readable for a column to be numbers or dates.
READABLE = 0.9
#: Cells by which the way of writing is recognised.
SAMPLE = 20_000

CURRENCY = r"[$€£¥₹]|USD|EUR|GBP|CHF"
UNIT = r"(?P<unit>%|[^\W\d_]{1,3})?"
BEFORE, AFTER = (
    rf"^\s*(?P<sign>[-+−]?)\s*(?:{CURRENCY})?\s*(?P<minus>-?)",
    rf"\s*(?:(?:{CURRENCY})|{UNIT})\s*$",
)
#: By the decimal mark: digits, alone or in groups of three, and a fraction.
EXPONENT = r"(?P<exponent>[eE][-+]?\d+)?"
DIGITS = {
    ".": r"(?P<whole>[1-9]\d{0,2}(?:[,' \u00a0\u202f]\d{3})+|\d+)?(?P<part>\.\d*)?" + EXPONENT,
    ",": r"(?P<whole>[1-9]\d{0,2}(?:[.' \u00a0\u202f]\d{3})+|\d+)?(?P<part>,\d*)?" + EXPONENT,
}
NUMBERS = {mark: re.compile(BEFORE + digits + AFTER) for mark, digits in DIGITS.items()}
ZEROS = re.compile(r"^\s*0\d+\s*$")

#: Ways of writing a date, and of the time behind it. Those of a pair differ in the order of day and month.
DATES = {
    r"^\d{1,2}\.\d{1,2}\.\d{4}": ("%d.%m.%Y",),
    r"^\d{1,2}/\d{1,2}/\d{4}": ("%d/%m/%Y", "%m/%d/%Y"),
    r"^\d{1,2}-\d{1,2}-\d{4}": ("%d-%m-%Y", "%m-%d-%Y"),
    r"^\d{4}/\d{1,2}/\d{1,2}": ("%Y/%m/%d",),
    r"^\d{4}-\d{1,2}-\d{1,2}": ("%Y-%m-%d",),
    r"^\d{1,2}\.\d{1,2}\.\d{2}(?!\d)": ("%d.%m.%y",),
    r"^\d{1,2}/\d{1,2}/\d{2}(?!\d)": ("%d/%m/%y", "%m/%d/%y"),
    r"^\d{1,2} [A-Za-z]{3} \d{4}": ("%d %b %Y",),
    r"^\d{1,2}-[A-Za-z]{3}-\d{4}": ("%d-%b-%Y",),
    r"^[A-Za-z]{3} \d{1,2}, \d{4}": ("%b %d, %Y",),
}
TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p")


class Ambiguous(Exception):
    """Cells that can be read in two ways; the message says how to decide."""


def number_of(text: str, mark: str) -> float:
    """The number that a text is, or NaN; one in brackets is negative, as in accounts."""
    if text.startswith("(") and text.endswith(")"):
        return -number_of(text[1:-1], mark)
    found = NUMBERS[mark].match(text)
    if not found or not (found["whole"] or (found["part"] or "")[1:]):
        return float("nan")
    whole = re.sub(r"\D", "", found["whole"] or "0")
    part = (found["part"] or "").replace(",", ".")
    sign = -1 if (found["sign"] in ("-", "−")) != bool(found["minus"]) else 1
    return sign * float(f"{whole}{part}{found['exponent'] or ''}")


def parse_numbers(values: Any, mark: str) -> Floats:
    """Cells of text as numbers [n], NaN where they are missing or no number."""
    encoded = plain(values).combine_chunks().dictionary_encode()
    levels = np.array([number_of(text, mark) for text in encoded.dictionary.to_pylist()] + [np.nan])
    return levels[encoded.indices.fill_null(len(levels) - 1).to_numpy()]


def decimal_mark(texts: list[str], given: str | None = None) -> str | None:
    """The decimal mark by which most of some cells are numbers with one unit; None where they are none.

    Codes such as "007" are no numbers.
    """
    if sum(bool(ZEROS.match(text)) for text in texts) > (1 - READABLE) * len(texts):
        return None
    read = {mark: [number_of(text, mark) for text in texts] for mark in ([given] if given else NUMBERS)}
    fits = {mark: np.mean(~np.isnan(values)) for mark, values in read.items()}
    good = [mark for mark, share in fits.items() if share >= READABLE and _one_unit(texts, mark)]
    if len(good) < 2 or fits["."] != fits[","]:
        return max(good, key=lambda mark: fits[mark], default=None)
    differs = [i for i, (a, b) in enumerate(zip(read["."], read[","], strict=True)) if a != b and a == a]
    if differs:
        text, one, two = texts[differs[0]], read["."][differs[0]], read[","][differs[0]]
        raise Ambiguous(
            f"its numbers are written as text that can be read in two ways ({text!r} as {one:g} or {two:g}): "
            "say decimal='.' or decimal=',' (--decimal)"
        )
    return "."


def _one_unit(texts: list[str], mark: str) -> bool:
    found = (NUMBERS[mark].match(text) for text in texts)
    return len({match["unit"] for match in found if match}) <= 1


def date_format(texts: list[str], given: str | None = None) -> str | None:
    """The format by which most of some cells are dates; None where they are none."""
    if given is not None:
        return given if _share(texts, given) >= READABLE else None
    for pattern, formats in DATES.items():
        if sum(bool(re.match(pattern, text)) for text in texts) < READABLE * len(texts):
            continue
        for time in TIMES:
            shares = {f + time: _share(texts, f + time) for f in formats}
            best = max(shares.values())
            if best < READABLE:
                continue
            good = [f for f, share in shares.items() if share == best]
            if len(good) > 1 and not _same(texts, *good):
                raise Ambiguous(
                    f"its dates can be read in two ways ({texts[0]!r}): say date_format={good[0]!r} or "
                    f"{good[1]!r} (--date-format)"
                )
            return good[0]
    return None


def parse_dates(values: Any, format_: str) -> Any:
    """Cells of text as timestamps, null where they are missing or not in the format."""
    return arrow("compute").strptime(plain(values), format=format_, unit="us", error_is_null=True)


def unreadable(before: Any, gaps: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Numbers [k] of the rows whose cells hold text and were read as gaps [n]."""
    return np.flatnonzero(gaps & ~np.asarray(before.is_null().to_numpy()))


def _share(texts: list[str], format_: str) -> float:
    found = parse_dates(arrow().chunked_array([texts], arrow().large_string()), format_)
    return 1 - found.null_count / max(1, len(texts))


def _same(texts: list[str], one: str, two: str) -> bool:
    column = arrow().chunked_array([texts], arrow().large_string())
    return bool(parse_dates(column, one).equals(parse_dates(column, two)))
