"""`python -m duogp.demo`: a tour of the command line, then two methods compared; under two minutes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOUR = "tour"


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of the comparison, printed and drawn."""
    import torch

    from duogp.demo import comparison, tour

    parser = argparse.ArgumentParser(prog="python -m duogp.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default="demo", help="folder for tables, models, figures (default: demo)")
    parts = [TOUR, *comparison.EXAMPLES]
    parser.add_argument("--only", choices=parts, action="append", help="only this part (repeatable)")
    seeds = f"{comparison.STUDY_SEEDS} seeds, with and without warm start; minutes"
    parser.add_argument("--study", action="store_true", help=seeds)
    options = parser.parse_args(arguments)
    # Matrices this small gain little from a second thread and lose much where the machine is busy.
    torch.set_num_threads(1)
    names = [name for name in comparison.EXAMPLES if options.only is None or name in options.only]
    if options.study:
        rows = comparison.study(names)
        comparison.print_table(rows)
        return rows
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    if options.only is None or TOUR in options.only:
        tour.tour(folder)
    rows = []
    if names:
        print("\nSVGP and DCSVGP with few inducing points, on test rows:\n", flush=True)
        rows = comparison.compare(names, folder)
    print(f"figures in {folder}: {', '.join(sorted(p.name for p in folder.glob('*.png')))}")
    return rows
