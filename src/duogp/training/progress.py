"""A progress bar where someone is looking, silence where not."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """``with Progress(...) as bar: bar.advance("loss 0.31")``; quiet unless stderr is a terminal."""

    def __init__(self, description: str, total: int, verbose: bool) -> None:
        self._bar: Any = None
        if verbose and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as RichProgress
            except ImportError:
                return
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(description, total=total, status="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def advance(self, status: str, steps: int = 1) -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, status=status)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
