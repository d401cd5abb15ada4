"""Moments at which a process can be killed: before and after every operation on files of one function."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: Calls of the interpreter that change or read files.
OPERATIONS = {"open", "write", "flush", "fsync", "close", "link", "unlink", "rename", "replace"}
OPERATIONS |= {"mkdir", "rmdir", "scandir", "listdir"}


class Moments:
    """Counts operations on files inside calls of a function; kills the process at one of them.

    Calls of the modules' inner functions count too: what they do through `ctypes` is seen by nobody else.
    """

    def __init__(self, function: str, modules: tuple[str, ...], kill_at: int | None = None) -> None:
        self.function, self.files = function, tuple(m.replace(".", os.sep) + ".py" for m in modules)
        self.kill_at, self.count, self.depth = kill_at, 0, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        own = code.co_filename.endswith(self.files)
        if own and code.co_name == self.function and event in ("call", "return"):
            self.depth += 1 if event == "call" else -1
        if not self.depth:
            return
        if event.startswith("c_"):
            counts = getattr(argument, "__name__", "") in OPERATIONS
        else:
            counts = own and code.co_name.startswith("_")  # no comprehensions, nothing that others call
        if counts:
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def watched(function: str, modules: tuple[str, ...], kill_at: int | None = None) -> Iterator[Moments]:
    """The moments of what runs inside, on this thread."""
    moments = Moments(function, modules, kill_at)
    sys.setprofile(moments)
    try:
        yield moments
    finally:
        sys.setprofile(None)
