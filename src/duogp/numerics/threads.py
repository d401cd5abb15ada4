"""How many threads a computation may use, for as long as it takes.

Threads of torch, and those of the BLAS and OpenMP libraries that numpy and scikit-learn bring along. Work on
small matrices is as quick by one thread as by several; several that share a core with another process wait
for each other at the end of every operation, and there are thousands of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """At most so many threads within, for all of the process; as many as before after it. None: no limit.

    Where torch has no more than so many, nothing is changed: who set it has chosen for the others too.
    """
    before = torch.get_num_threads()
    if threads is None or before <= threads:
        yield
        return
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
