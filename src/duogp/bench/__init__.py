"""The benchmark runner: a suite of data × splits × methods becomes one file of results, one row a cell.

Runs as ``duogp bench`` or, with nothing but the core installed, as ``python -m duogp.bench``.
"""

from __future__ import annotations

from duogp.bench.results import Results
from duogp.bench.runner import Summary, load_table, run, run_cell
from duogp.bench.suite import Cell, Suite, load_suite
from duogp.bench.tables import compare, learned, render

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
