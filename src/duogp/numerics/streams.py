"""Two independent chains of work on one GPU, side by side.

A factorisation of a few hundred rows keeps a small part of a GPU busy. What does not depend on it can run at
the same time on a second stream; in a captured step the two become parallel branches of the graph. Elsewhere
than on CUDA the body simply runs where it stands.

Memory: what the body makes may be used after `join`, what it reads must be alive until then. Nothing more is
needed, because every fork waits for all that the first stream was given before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch


class Beside:
    """``with Beside(device) as side:`` runs the body on the second stream; ``side.join()`` waits for it.

    ``with side:`` goes on there, after all that the first stream has been given by then. What is already on
    the second stream may have something beside it too, on a stream with another ``number``.
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
        if self._streams is not None:
            first, second = self._streams
            first.wait_stream(second)


@lru_cache
def another_stream(device: torch.device, number: int) -> Any:
    return torch.cuda.Stream(device)
