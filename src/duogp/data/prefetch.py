"""Items made ahead of time, or taken in behind, by a thread: reading, arithmetic and writing at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def behind(take: Callable[[T], None], depth: int = 1) -> Iterator[Callable[[T], None]]:
    """``take`` in a thread: a function that hands items to it in their order, and waits for the last.

    At most ``depth`` items wait beside the one that is taken in. An error of ``take`` is raised by the next
    call, or at the end; where the caller fails, what waits is dropped.
    """
    given: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    errors: list[BaseException] = []

    def work() -> None:
        while (entry := given.get())[0] == "item":
            try:
                if not errors:
                    take(entry[1])
            except BaseException as error:  # raised again by the caller's thread
                errors.append(error)
            del entry

    def give(item: T) -> None:
        if errors:
            raise errors[0]
        given.put(("item", item))

    thread = threading.Thread(target=work, name="duogp writer", daemon=True)
    thread.start()
    try:
        yield give
    except BaseException:
        with suppress(queue.Empty):
            while True:
                given.get_nowait()
        raise
    finally:
        given.put(("end", None))
        thread.join()
    if errors:
        raise errors[0]
