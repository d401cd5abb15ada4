"""One line of progress: a bar in a terminal, a line rewritten in a notebook, a line now and then in a pipe.

A fit may hold several trainings, such as the candidates of ``method="auto"``. Within `overall` they all
report to one line, whose time left is that of the budget; a training alone has a line of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

#: Seconds between two lines in a pipe, and between two rewritings in a notebook.
PIPE_SECONDS, NOTEBOOK_SECONDS = 5.0, 0.2


class Line:
    """The state of what is reported: the present training, and the clock of all of them."""

    def __init__(self, description: str, seconds: float | None = None) -> None:
        self.description, self.seconds = description, seconds
        self.start = self.stage_start = time.perf_counter()
        self.stages = 0
        self.total = self.done = 0
        self.status = ""
        self.screen = _screen()

    def begin(self, total: int, seconds: float | None = None) -> None:
        """The next training, of so many epochs and, where it is the only one, of at most so many seconds."""
        self.stages += 1
        self.total, self.done, self.status = total, 0, ""
        self.stage_start = time.perf_counter()
        if self.seconds is None and seconds is not None and self.stages == 1:
            self.seconds = seconds
        self.show()

    def advance(self, status: str, steps: int) -> None:
        self.done += steps
        self.status = status or self.status
        self.show()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def share(self) -> float:
        """The part that is over: of the budget where there is one, otherwise of the present training."""
        epochs = min(1.0, self.done / max(1, self.total))
        if self.seconds is None:
            return epochs
        clock = min(1.0, self.elapsed / self.seconds)
        return max(epochs, clock) if self.stages == 1 else clock

    def left(self) -> float | None:
        """Seconds left, never more than the budget has; None where nothing can be said."""
        budget = None if self.seconds is None else max(0.0, self.seconds - self.elapsed)
        if not self.done or (self.stages > 1 and budget is not None):
            return budget
        spent = time.perf_counter() - self.stage_start
        guess = spent / self.done * max(0, self.total - self.done)
        return guess if budget is None else min(guess, budget)

    def text(self) -> str:
        """The line in words."""
        left = self.left()
        number = f" {self.stages}" if self.stages > 1 else ""
        parts = [f"{self.description}{number} {self.done}/{self.total}", self.status, f"{self.elapsed:.0f} s"]
        return "  ".join(part for part in parts if part) + ("" if left is None else f", {left:.0f} s left")

    def show(self) -> None:
        self.screen.show(self)

    def close(self) -> None:
        self.screen.close(self)


_overall: ContextVar[Line | None] = ContextVar("duogp_progress", default=None)


@contextmanager
def overall(description: str, seconds: float | None, verbose: bool) -> Iterator[None]:
    """Trainings within report to one line. ``seconds``: their budget, which an outer line takes over."""
    outer = _overall.get()
    if outer is not None or not verbose:
        if outer is not None and outer.seconds is None and seconds is not None:
            outer.seconds = outer.elapsed + seconds
        yield
        return
    line = Line(description, seconds)
    token = _overall.set(line)
    try:
        yield
    finally:
        _overall.reset(token)
        line.close()


class Progress:
    """``with Progress(...) as bar: bar.advance("loss 0.31")``: a training of so many epochs.

    ``seconds``: its budget. Quiet unless ``verbose``; within `overall` it reports to the line of all.
    """

    def __init__(self, description: str, total: int, verbose: bool, seconds: float | None = None) -> None:
        self._line: Line | None = None
        self._own = False
        if verbose:
            outer = _overall.get()
            self._own = outer is None
            self._line = Line(description) if outer is None else outer
            self._total, self._seconds = total, seconds

    def __enter__(self) -> Progress:
        if self._line is not None:
            self._line.begin(self._total, self._seconds)
        return self

    def advance(self, status: str, steps: int = 1) -> None:
        if self._line is not None:
            self._line.advance(status, steps)

    def __exit__(self, *error: object) -> None:
        if self._line is not None and self._own:
            self._line.close()


# -- where lines are shown ---------------------------------------------------------------------------------


class Screen(Protocol):
    """Where a line of progress is shown: a terminal, a notebook, or a pipe."""

    def show(self, line: Line) -> None:
        """Show the present state of a line."""
        ...

    def close(self, line: Line) -> None: ...


def _screen() -> Screen:
    if in_notebook():
        return Written("\r", NOTEBOOK_SECONDS)
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            return Written("\r", NOTEBOOK_SECONDS)
    return Written("\n", PIPE_SECONDS)


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, whose standard error is no terminal but is looked at."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


class Written:
    """Lines as text on standard error, at most one in so many seconds, and the last one."""

    def __init__(self, end: str, every: float) -> None:
        self.end, self.every = end, every
        self.last = time.perf_counter()
        self.width = 0

    def show(self, line: Line) -> None:
        now = time.perf_counter()
        if now - self.last >= self.every:
            self.last = now
            self._write(line, self.end)

    def close(self, line: Line) -> None:
        if line.done:
            self._write(line, "\n")

    def _write(self, line: Line, end: str) -> None:
        text = line.text()
        start = "\r" if self.end == "\r" else ""
        print(start + text.ljust(self.width), end="" if end == "\r" else end, file=sys.stderr, flush=True)
        self.width = len(text) if self.end == "\r" else 0


class Bar:
    """A bar of rich, which disappears when it is done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
        self.bar: Any = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=1.0, text="")
        self.bar.start()

    def show(self, line: Line) -> None:
        name, _, text = line.text().partition("  ")
        self.bar.update(self.task, description=name, completed=line.share(), text=text)

    def close(self, line: Line) -> None:
        self.bar.stop()
