"""Requests that wait while the model is busy are predicted together when it is free.

No request waits for others to come: one that finds the model free is predicted at once. One thread predicts,
so that requests do not compete for the cores.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from duogp.serving.limits import Limits, RequestError
from duogp.serving.metrics import Metrics
from duogp.serving.model import Columns, EncodedRows, ServedModel


class Batcher:
    """A queue of encoded rows in front of a model. `start` it in the loop that serves, `stop` drains it."""

    def __init__(self, model: ServedModel, limits: Limits, metrics: Metrics) -> None:
        self.model, self.limits, self.metrics = model, limits, metrics
        self.waiting_rows = 0
        self._queue: deque[tuple[EncodedRows, asyncio.Future[Columns]]] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._worker = ThreadPoolExecutor(1, "duogp-predict")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Answer what waits, and end."""
        self._stopping = True
        self._arrived.set()
        if self._task is not None:
            await self._task
        self._worker.shutdown()

    async def predict(self, rows: EncodedRows) -> Columns:
        """The predicted columns of one request."""
        if self.waiting_rows and self.waiting_rows + len(rows) > self.limits.waiting:
            raise RequestError(503, f"{self.waiting_rows:,} rows are waiting: try again later")
        self.waiting_rows += len(rows)
        try:
            answer: asyncio.Future[Columns] = asyncio.get_running_loop().create_future()
            self._queue.append((rows, answer))
            self._arrived.set()
            return await answer
        finally:
            self.waiting_rows -= len(rows)

    async def _run(self) -> None:
        while True:
            if not self._queue:
                if self._stopping:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            batch = self._next_batch()
            await self._answer(batch)

    def _next_batch(self) -> list[tuple[EncodedRows, asyncio.Future[Columns]]]:
        """The requests that have waited longest, up to `Limits.batch` rows, and at least one."""
        batch: list[tuple[EncodedRows, asyncio.Future[Columns]]] = []
        count = 0
        while self._queue and (not batch or count + len(self._queue[0][0]) <= self.limits.batch):
            rows, answer = self._queue.popleft()
            if not answer.cancelled():  # the client has gone
                batch.append((rows, answer))
                count += len(rows)
        return batch

    async def _answer(self, batch: Sequence[tuple[EncodedRows, asyncio.Future[Columns]]]) -> None:
        if not batch:
            return
        loop = asyncio.get_running_loop()
        found: Sequence[Any]
        try:
            found = await loop.run_in_executor(self._worker, self.model.predict, [rows for rows, _ in batch])
            self.metrics.predicted(len(batch), sum(len(rows) for rows, _ in batch))
        except Exception as error:
            if len(batch) > 1:  # one of them is to blame: each by itself
                for each in batch:
                    await self._answer([each])
                return
            found = [error]
        for (_, answer), value in zip(batch, found, strict=True):
            if answer.done():
                continue
            if isinstance(value, Exception):
                answer.set_exception(value)
            else:
                answer.set_result(value)
