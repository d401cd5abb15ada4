"""The benchmark runner: a suite of data × splits × methods becomes one file of results, one row per cell.

Runs as ``duogp bench`` or, with the core dependencies alone, as ``python -m duogp.bench``.
"""

from __future__ import annotations

from duogp.bench.report import compare, learned, render
from duogp.bench.results import Results
from duogp.bench.runner import Summary, load_table, run, run_cell
from duogp.bench.suite import Cell, Suite, load_suite

__all__ = [
    "Cell",
    "Results",
    "Suite",
    "Summary",
    "compare",
    "learned",
    "load_suite",
    "load_table",
    "render",
    "run",
    "run_cell",
]
