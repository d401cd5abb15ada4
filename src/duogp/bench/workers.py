"""Cells in several processes: each takes the next cell when it is free; one that dies is replaced."""

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
from duogp.bench.suite import Cell

if TYPE_CHECKING:
    from duogp.bench.runner import Execute

JOIN_SECONDS = 5.0


class WorkerDied(RuntimeError):
    """A process ended in the middle of a cell: killed, out of memory, a fault in native code."""


class Worker:
    """A spawned process at the other end of a pipe: a cell goes in, its row comes out."""

    cell: Cell

    def __init__(self, path: Path, device: str, execute: Execute, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=serve, args=(theirs, path, device, execute, threads), daemon=True
        )
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, cell: Cell) -> None:
        """Hand over a cell; a process that is already gone shows when its row is read."""
        self.cell = cell
        with suppress(OSError):
            self.channel.send(cell)

    def row(self) -> Row:
        """The row of the cell it was given."""
        try:
            row: Row = self.channel.recv()
        except (EOFError, OSError):
            self.process.join(JOIN_SECONDS)
            raise WorkerDied(f"the worker ended with exit code {self.process.exitcode}") from None
        return row

    def stop(self) -> None:
        """End the process, which leaves by itself when its pipe closes."""
        self.channel.close()
        self.process.join(JOIN_SECONDS)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(JOIN_SECONDS)


def run_in_processes(
    queue: Iterator[Cell],
    workers: int,
    path: Path,
    device: str,
    execute: Execute,
    finished: Callable[[Cell, Row], None],
) -> None:
    """Run the cells of a queue, in its order, in so many processes at once on one device."""
    from duogp.bench.runner import begin_row, failure

    threads = max(1, (os.cpu_count() or 1) // workers) if device == "cpu" else 0
    busy: dict[Connection, Worker] = {}

    def next_cell(worker: Worker | None) -> None:
        cell = next(queue, None)
        if cell is None:
            if worker is not None:
                worker.stop()
            return
        worker = worker or Worker(path, device, execute, threads)
        busy[worker.channel] = worker
        worker.give(cell)

    try:
        for _ in range(workers):
            next_cell(None)
        while busy:
            for channel in wait(list(busy)):
                worker = busy[channel]  # type: ignore[index]
                alive: Worker | None = worker
                try:
                    row = worker.row()
                except WorkerDied as error:
                    row = begin_row(worker.cell, device) | failure(error)
                    append(path, row)
                    worker.stop()
                    alive = None
                del busy[worker.channel]
                finished(worker.cell, row)
                next_cell(alive)
    finally:
        for worker in busy.values():
            worker.process.terminate()
            worker.stop()


def serve(channel: Connection, path: Path, device: str, execute: Execute, threads: int) -> None:
    """The life of a worker: run what comes, write its row, pass it on."""
    if threads:
        import torch

        torch.set_num_threads(threads)
    try:
        while True:
            row = execute(channel.recv(), device)
            append(path, row)
            channel.send(row)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
