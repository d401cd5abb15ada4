"""Tables of steps, predictions and times to quality from the stored races and `prediction_speed.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite_tables import markdown

RESULTS = Path(__file__).with_name("results")
STEPS = RESULTS / "race_cuda_within.json"
PREDICTIONS = RESULTS / "prediction_speed.jsonl"
#: One thread by the time of the process; two threads by the wall, on a machine with nothing else to do.
CPU_STEPS = (RESULTS / "steps_cpu.json", RESULTS / "steps_cpu_two_threads.json")
QUALITY = {device: RESULTS / f"quality_{device}.json" for device in ("cpu", "cuda")}
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


def cpu_steps() -> str:
    """Milliseconds of a step on a CPU beside gpytorch's quickest variant, with quartiles of both."""
    lines, notes = [], []
    for path in CPU_STEPS:
        if not path.exists():
            continue
        stored = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for row in stored["rows"] if row["part"] == "steps"]
        for key in sorted({(row["M"], row["dtype"]) for row in rows}):
            own = [row for row in rows if (row["M"], row["dtype"]) == key and "gpytorch" in row["peer"]]
            if own:
                lines.append(_step_line(min(own, key=lambda row: row["peer_ms"])))
        clocks = {row["clock"] for row in rows}
        clock = "seconds of the process" if clocks == {"process"} else "wall time"
        threads = "/".join(sorted({str(row["threads"]) for row in rows}))
        load = max(row["load"] for row in rows)
        notes.append(
            f"{threads} thread(s), {clock}, load of the machine up to {load:.1f}: {stored['device_name']}, "
            f"commit {stored['commit']}."
        )
    if not lines:
        return "Not run yet."
    head = [
        "SVGP step",
        "threads",
        "precision",
        "duogp, ms (quartiles)",
        "gpytorch's quickest",
        "its ms",
        "ratio",
    ]
    return markdown(head, lines) + "\n\n" + " ".join(notes)


def _step_line(row: dict[str, Any]) -> list[str]:
    low, high = row["ms_quartiles"]
    peer_low, peer_high = row["peer_ms_quartiles"]
    return [
        f"M = {row['M']}",
        str(row["threads"]),
        row["dtype"],
        f"{row['ms']:.2f} ({low:.2f} to {high:.2f})",
        row["peer"].removeprefix("gpytorch "),
        f"{row['peer_ms']:.2f} ({peer_low:.2f} to {peer_high:.2f})",
        f"{row['ratio']:.2f} ×",
    ]


def quality(device: str) -> Callable[[], str]:
    """The table of the times to the validation NLL of a peer's full run, by set and contestant."""

    def table() -> str:
        if not QUALITY[device].exists():
            return "Not run yet."
        stored = json.loads(QUALITY[device].read_text(encoding="utf-8"))
        rows = [row for row in stored["rows"] if row["part"] == "quality"]
        threads = "/".join(sorted({str(row["threads"]) for row in rows}))
        epochs = "/".join(sorted({str(row["peer_epochs"]) for row in rows}))
        where = f"{stored['device_name']}, {threads} thread(s), {epochs} epochs, commit {stored['commit']}."
        return f"{markdown(QUALITY_HEAD, [_quality_line(row) for row in rows])}\n\n{where}"

    return table


QUALITY_HEAD = (
    "set", "rows", "M", "our model", "duogp", "to its own end", "peer", "its time", "its full run", "ratio",
    "validation NLL, ours", "the peer's",
)  # fmt: skip


def _quality_line(row: dict[str, Any]) -> list[str]:
    peer, family = row["peer"].rsplit(" / ", 1)
    tries = "" if len(row["tried"]) == 1 else f" ({len(row['tried'])} fits)"
    return [
        row["data"],
        str(row["rows"]),
        str(row["M"]),
        family,
        _seconds(row["ms"]),
        _seconds(row["full_ms"]) + tries,
        peer,
        _seconds(row["peer_ms"]),
        _seconds(row["peer_full_ms"]),
        "" if row["ratio"] is None else f"{row['ratio']:.{1 if row['ratio'] >= 2 else 2}f} ×",
        f"{row['validation_nll']:.3f}",
        f"{row['peer_validation_nll']:.3f}",
    ]


PEERS = ("gpytorch svgp", "gpytorch svgp natural", "gpytorch sgpr", "gpflow sgpr", "gpflow svgp natural")


def quality_in_brief() -> str:
    """Seconds of each peer and ours to the same validation NLL, our own kernel, by set and device."""
    lines = []
    for device in ("cuda", "cpu"):
        stored = json.loads(QUALITY[device].read_text(encoding="utf-8"))
        own = [row for row in stored["rows"] if row["peer"].endswith("/ own kernel")]
        threads = own[0]["threads"]
        where = f"{threads} cores" if device == "cpu" else stored["device_name"].removeprefix("NVIDIA ")
        for name in dict.fromkeys(row["data"] for row in own):
            of = {row["peer"].split(",")[0]: row for row in own if row["data"] == name}
            first = next(iter(of.values()))
            what = f"{name}, {first['rows']:,} rows, {first['M']} points, {where}"
            lines.append([what, *(_both(of.get(peer)) for peer in PEERS)])
    return markdown(["seconds, theirs / ours", *PEERS], lines)


def _both(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    ours = "not reached" if row["ms"] is None else f"{row['ms'] / 1e3:.1f}"
    return f"{row['peer_ms'] / 1e3:.1f} / {ours}"


def _seconds(ms: float | None) -> str:
    return "not reached" if ms is None else f"{ms / 1e3:.2f} s"
