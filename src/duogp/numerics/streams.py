"""Two independent sequences of operations on one GPU, on two CUDA streams.

A factorisation of a few hundred rows uses a small part of a GPU. Operations that do not depend on it run at
the same time on a second stream; in a captured step the two become parallel branches of the graph. On other
devices the body runs in order.

Memory: tensors made in the body may be used after `join`; tensors read in it must be alive until then. This
suffices, because every fork waits for all operations that the first stream was given before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch


class Beside:
    """``with Beside(device) as side:`` runs the body on the second stream; ``side.join()`` waits for it.

    ``with side:`` continues there, after all operations that the first stream has been given by then. Inside
    the body, another `Beside` forks to a third stream with another ``number``.
    """

    def __init__(self, device: torch.device, number: int = 2) -> None:
        self._streams: tuple[Any, Any] | None = None
        self._inside: AbstractContextManager[Any] = nullcontext()
        if device.type == "cuda":
            self._streams = torch.cuda.current_stream(device), another_stream(device, number)

    def __enter__(self) -> Beside:
        if self._streams is not None:
            first, second = self._streams
            second.wait_stream(first)
            self._inside = torch.cuda.stream(second)
        self._inside.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)

    def join(self) -> None:
        """Let the first stream wait for the second."""
        if self._streams is not None:
            first, second = self._streams
            first.wait_stream(second)


@lru_cache
def another_stream(device: torch.device, number: int) -> Any:
    """The CUDA stream of that number, the same on every call."""
    return torch.cuda.Stream(device)
