"""What is stored of every table and figure of the five papers, by benchmarks/papers.toml.

    python benchmarks/paper_coverage.py              one line for each table or figure
    python benchmarks/paper_coverage.py --missing    and the cells that it lacks
    python benchmarks/paper_coverage.py --json

A cell is a data set, a split and a method. What the data cannot give (`[absent]` of a suite) is listed below.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duogp.bench.suite import Cell, load_suite
from priorities import ROBOT, Step, Store

HERE = Path(__file__).resolve().parent
PARTS = HERE / "papers.toml"
DEFAULT_SPLITS = 3


def coverage(parts: Sequence[dict[str, Any]], store: Store) -> list[dict[str, Any]]:
    """Each part with its counts (suites), whether its file is there (scripts), or its reason."""
    return [part | state_of(part, store) for part in parts]


def state_of(part: dict[str, Any], store: Store) -> dict[str, Any]:
    if "suite" in part:
        cells = cells_of(part)
        missing = [cell for cell in cells if not store.done(cell)]
        return {"cells": len(cells), "done": len(cells) - len(missing), "missing": list(map(str, missing))}
    if "script" in part:
        return {"done": is_stored(HERE / "results" / part["stored"], part.get("key"))}
    return {}


def cells_of(part: dict[str, Any]) -> list[Cell]:
    splits = part.get("splits", DEFAULT_SPLITS)
    return Step(0, part["suite"], part.get("data"), part.get("methods"), splits).cells()


def is_stored(path: Path, key: str | None) -> bool:
    """Whether a results file is there, and in it a part."""
    if not path.exists():
        return False
    return key is None or key in json.loads(path.read_text(encoding="utf-8"))


def line_of(part: dict[str, Any]) -> str:
    if "suite" in part:
        state = f"{part['done']} of {part['cells']} cells ({part['suite']})"
    elif "script" in part:
        state = f"{'stored' if part['done'] else 'NOT RUN'} ({part['script']})"
    else:
        state = f"not run: {part['absent']}"
    return f"{part['paper']:22s} {part['part']:42s} {state}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--missing", action="store_true", help="list the cells that have no row")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--results-dir", type=Path, metavar="FOLDER", help="rows of `priorities.py run` too")
    options = parser.parse_args(arguments)
    parts = coverage(tomllib.loads(PARTS.read_text(encoding="utf-8"))["part"], Store(options.results_dir))
    if options.json:
        print(json.dumps(parts, indent=1, ensure_ascii=False))
        return 0
    for part in parts:
        print(line_of(part))
        if options.missing:
            for cell in part.get("missing", []):
                print(f"    {cell}")
    suites = (part.get("suite") for part in parts)
    for name in dict.fromkeys(name for name in suites if name not in (None, ROBOT)):
        for what, why in load_suite(name).absent.items():
            print(f"not available: {name}: {what}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
