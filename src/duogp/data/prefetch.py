"""Items made ahead of time, by a thread: reading and arithmetic at once instead of in turns."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(items: Iterable[T], depth: int = 1) -> Iterator[T]:
    """The items in their order, while ``depth`` more are being made or wait.

    An error of the maker is raised where its item would have been. A caller that stops early, or closes the
    iterator, ends the thread. At most ``depth`` items are alive beside the one that the caller holds.
    """
    made: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    places = threading.Semaphore(depth)
    stopped = threading.Event()

    def make() -> None:
        source = iter(items)
        try:
            while True:
                places.acquire()
                if stopped.is_set():
                    return
                made.put(("item", next(source)))
        except StopIteration:
            made.put(("end", None))
        except BaseException as error:  # raised again where it is waited for
            made.put(("error", error))
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=make, name="duogp reader", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = made.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            places.release()
            yield value
            del value
    finally:
        stopped.set()
        places.release()
        thread.join()
