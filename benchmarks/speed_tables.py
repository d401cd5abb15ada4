"""Tables of steps and predictions on a GPU from the stored race and from `prediction_speed.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suite_tables import markdown

RESULTS = Path(__file__).with_name("results")
STEPS = RESULTS / "race_cuda_within.json"
PREDICTIONS = RESULTS / "prediction_speed.jsonl"
SIZES = (200, 500, 1000, 2000)
OURS = "duogp svgp"


def steps() -> str:
    """Milliseconds of a step, beside gpytorch's quickest variant and beside our SVGP step."""
    stored = json.loads(STEPS.read_text(encoding="utf-8"))
    found = [row for row in stored["rows"] if row["what"].endswith("step") and row["dtype"] == "float32"]
    lines = []
    for method in dict.fromkeys(row["what"] for row in found):
        cells = [method.removesuffix(" step")]
        for size in SIZES:
            rows = [row for row in found if row["what"] == method and row["M"] == size]
            peers = [row["peer_ms"] for row in rows if row["peer"].startswith("gpytorch")]
            own = [row["ratio"] for row in rows if row["peer"] == OURS]
            parts = [f"{rows[0]['ms']:.2f}"]
            parts += [f"gpytorch takes {min(peers) / rows[0]['ms']:.1f} ×"] if peers else []
            parts += [f"{own[0]:.2f} svgp steps"] if own else []
            cells.append(", ".join(parts))
        lines.append(cells)
    table = markdown(["step, ms", *(f"M = {size}" for size in SIZES)], lines)
    return f"{table}\n\n{stored['device_name']}, float32, batch 1,024, commit {stored['commit']}."


def predictions() -> str:
    """How many times as long gpytorch takes for the same predictions, by device, precision and form."""
    rows = [json.loads(line) for line in PREDICTIONS.read_text(encoding="utf-8").splitlines()]
    lines = []
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device and "gpytorch_over_ours" in row]
        for precision in ("float64", "float32"):
            for form, words in {"whole": "total variance", "parts": "variance in parts"}.items():
                some = [row for row in own if row["precision"] == precision and row["what"] == form]
                lines.append([f"{device}, {precision}, {words}", *(_cell(some, size) for size in SIZES)])
    return markdown(["ms (gpytorch's time / ours)", *(f"M = {size}" for size in SIZES)], lines)


def _cell(rows: list[dict[str, Any]], size: int) -> str:
    found = [row for row in rows if row["M"] == size]
    return f"{found[-1]['ms']:.1f} ({found[-1]['gpytorch_over_ours']:.2f} ×)" if found else "–"
