"""Markdown of the stored results; needs nothing but them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def stored() -> list[dict[str, Any]]:
    """Results files of the race: {"device_name", "versions", "rows"}, CUDA first."""
    paths = sorted(RESULTS.glob("race_*.json"), reverse=True)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def is_withdrawn(row: dict[str, Any]) -> bool:
    """Whether a time to quality is by the old protocol, which chose our run by test rows."""
    return row["part"] == "quality" and "target" not in row


def fastest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every course the row of the quickest peer of each library."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        library = row["peer"] if row["part"] == "quality" else row["peer"].split()[0]
        key = (row["part"], row["what"], row["M"], row["dtype"], library)
        if key not in best or _time(row) < _time(best[key]):
            best[key] = row
    return list(best.values())


def _time(row: dict[str, Any]) -> float:
    """Of the peer; one that did not get there is slower than any."""
    return float("inf") if row["peer_ms"] is None else row["peer_ms"]


def table() -> str:
    """A table for every device: the quickest peer of each library, times, ratio, share of the roofline."""
    return "\n\n".join(_of_device(found) for found in stored())


def _of_device(found: dict[str, Any]) -> str:
    head = ("what", "M", "dtype", "duogp", "peer", "its time", "ratio", "share of roofline")
    lines = [
        (
            row["what"] + (f" + {row['extra']}" if row.get("extra") else ""),
            str(row["M"]),
            row["dtype"],
            duration(row["ms"]),
            row["peer"],
            duration(row["peer_ms"]),
            _ratio(row),
            "" if row.get("roofline_share") is None else f"{100 * row['roofline_share']:.0f} %",
        )
        for row in fastest(row for row in found["rows"] if not is_withdrawn(row))
    ]
    versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
    where = f"{found['device_name']}; {versions}; TF32 off. Medians of interleaved rounds."
    return f"{_markdown(head, lines)}\n\n{where}"


def _ratio(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return ""
    return f"costs {row['ratio']:.2f} ×" if row["ratio_is"] == "ms / peer_ms" else f"{row['ratio']:.1f} ×"


def duration(ms: float | None) -> str:
    if ms is None:
        return "not reached"
    if ms >= 60_000:
        return f"{ms / 60_000:.1f} min"
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.0f} ms"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    right = {1, 3, 5, 6, 7}
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))
