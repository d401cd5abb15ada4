"""Reports of a fitted model on a table: metrics, effects, drift, and one HTML page of all of them.

`report` makes the page, `evaluate` the metrics alone. The modules below it are what the commands `evaluate`,
`explain` and `plot` compute from: `scores`, `effects` and `drift` are functions of a fitted model and encoded
rows, `html` and `figures` write the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duogp.reports.evaluation import evaluate
    from duogp.reports.page import Report, report
    from duogp.reports.subject import Subject, subject_of

__all__ = ["Report", "Subject", "evaluate", "report", "subject_of"]

_HOMES = {
    "evaluate": "evaluation",
    "Report": "page",
    "report": "page",
    "Subject": "subject",
    "subject_of": "subject",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"duogp.reports.{_HOMES[name]}"), name)
