"""Worker processes: each is given the next job when it is free; one that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from duogp.bench.results import Row, begin_row, failure

if TYPE_CHECKING:
    from duogp.bench.runner import Execute, Job

JOIN_SECONDS = 5.0


class WorkerDied(RuntimeError):
    """A process ended during a job: killed, out of memory, a fault in native code."""


class Worker:
    """A spawned process at the other end of a pipe: a job goes in, its rows come out."""

    job: Job

    def __init__(self, device: str, execute: Execute, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.device = device
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, device, execute, threads), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, job: Job) -> None:
        """Send a job; that the process has ended is found when its rows are read."""
        self.job = job
        with suppress(OSError):
            self.channel.send(job)

    def rows(self) -> tuple[list[Row], bool]:
        """The rows of its job, and whether the process still runs; where it does not, those of a failure."""
        try:
            return self.channel.recv(), True
        except (EOFError, OSError):
            self.process.join(JOIN_SECONDS)
            died = failure(WorkerDied(f"the worker ended with exit code {self.process.exitcode}"))
            return [begin_row(cell, self.device) | died for cell in self.job], False

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
    device: str,
    execute: Execute,
    finished: Callable[[Job, list[Row]], None],
) -> None:
    """Run the jobs of a queue, in its order, in so many processes at once on one device."""
    threads = max(1, (os.cpu_count() or 1) // workers) if device == "cpu" else 0
    busy: dict[object, Worker] = {}

    def next_job(worker: Worker | None) -> None:
        if (job := next(queue, None)) is not None:
            worker = worker or Worker(device, execute, threads)
            busy[worker.channel] = worker
            worker.give(job)
        elif worker is not None:
            worker.stop()

    try:
        for _ in range(workers):
            next_job(None)
        while busy:
            for channel in wait([worker.channel for worker in busy.values()]):
                worker = busy.pop(channel)
                rows, alive = worker.rows()
                if not alive:
                    worker.stop()
                finished(worker.job, rows)
                next_job(worker if alive else None)
    finally:
        for worker in busy.values():
            worker.process.terminate()
            worker.stop()


def run_by_joblib(queue: Iterator[Job], device: str, execute: Execute) -> Iterator[tuple[Job, list[Row]]]:
    """The rows of every job as they are done, by whatever `joblib.parallel_config` names."""
    import joblib

    def work(job: Job) -> tuple[Job, list[Row]]:
        return job, execute(job, device)

    found = joblib.Parallel(return_as="generator_unordered")(joblib.delayed(work)(job) for job in queue)
    yield from found


def serve(channel: Connection, device: str, execute: Execute, threads: int) -> None:
    """The loop of a worker process: receive a job, send back its rows."""
    if threads:
        import torch

        torch.set_num_threads(threads)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        while True:
            channel.send(execute(channel.recv(), device))
