"""Worker processes: each is given the next job when it is free; one that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING

from duogp.bench.results import Row, append
from duogp.bench.rows import begin_row, failure

if TYPE_CHECKING:
    from duogp.bench.runner import Execute, Job

JOIN_SECONDS = 5.0


class WorkerDied(RuntimeError):
    """A process ended during a job: killed, out of memory, a fault in native code."""


class Worker:
    """A spawned process at the other end of a pipe: a job goes in, its rows come out."""

    job: Job

    def __init__(self, path: Path, device: str, execute: Execute, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=serve, args=(theirs, path, device, execute, threads), daemon=True
        )
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, job: Job) -> None:
        """Send a job; that the process has ended is found when its rows are read."""
        self.job = job
        with suppress(OSError):
            self.channel.send(job)

    def rows(self) -> list[Row]:
        """The rows of the job it was given."""
        try:
            rows: list[Row] = self.channel.recv()
        except (EOFError, OSError):
            self.process.join(JOIN_SECONDS)
            raise WorkerDied(f"the worker ended with exit code {self.process.exitcode}") from None
        return rows

    def stop(self) -> None:
        """Close the pipe, on which the process ends; terminate it if it does not."""
        self.channel.close()
        self.process.join(JOIN_SECONDS)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(JOIN_SECONDS)


def run_in_processes(
    queue: Iterator[Job],
    workers: int,
    path: Path,
    device: str,
    execute: Execute,
    finished: Callable[[Job, list[Row]], None],
) -> None:
    """Run the jobs of a queue, in its order, in so many processes at once on one device."""
    threads = max(1, (os.cpu_count() or 1) // workers) if device == "cpu" else 0
    busy: dict[Connection, Worker] = {}

    def next_job(worker: Worker | None) -> None:
        job = next(queue, None)
        if job is None:
            if worker is not None:
                worker.stop()
            return
        worker = worker or Worker(path, device, execute, threads)
        busy[worker.channel] = worker
        worker.give(job)

    try:
        for _ in range(workers):
            next_job(None)
        while busy:
            for channel in wait(list(busy)):
                worker = busy[channel]  # type: ignore[index]
                alive = True
                try:
                    rows = worker.rows()
                except WorkerDied as error:
                    alive = False
                    rows = [begin_row(cell, device) | failure(error) for cell in worker.job]
                    for row in rows:
                        append(path, row)
                    worker.stop()
                del busy[worker.channel]
                finished(worker.job, rows)
                next_job(worker if alive else None)
    finally:
        for worker in busy.values():
            worker.process.terminate()
            worker.stop()


def serve(channel: Connection, path: Path, device: str, execute: Execute, threads: int) -> None:
    """The loop of a worker process: receive a job, append its rows, send them back."""
    if threads:
        import torch

        torch.set_num_threads(threads)
    try:
        while True:
            rows = execute(channel.recv(), device)
            for row in rows:
                append(path, row)
            channel.send(rows)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
