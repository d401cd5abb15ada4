"""Expected seconds of benchmark jobs, from what rows of the same kind of device say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence

from duogp.bench.results import Row
from duogp.bench.runner import Job
from duogp.bench.suite import Cell

#: Seconds of a cell of which nothing is known, by device.
UNKNOWN_SECONDS = {"cuda": 20.0, "cpu": 60.0}
#: Seconds that starting a process and loading a table may take.
MARGIN = 10.0


class Clock:
    """Expected seconds of jobs, from rows of the same kind of device, and the time left.

    ``pace``: what a job is expected to take, in units of what its rows took, until jobs of this run say.
    """

    def __init__(self, limit: float, device: str, rows: Iterable[Row], pace: float = 1.0) -> None:
        self.limit, self.device, self.start = limit, device.split(":")[0], time.monotonic()
        self.pace = pace
        self._seconds: dict[tuple[str, ...], float] = {}
        self._slowness: list[float] = []
        for row in rows:
            self._note(row, 1.0)

    @property
    def slowness(self) -> float:
        """How many times as long as in the rows cells take in this run: other workers share the device."""
        return max(self.pace, statistics.median(self._slowness)) if self._slowness else self.pace

    def _note(self, row: Row, slowness: float) -> None:
        if row["status"] != "ok" or str(row["device"]).split(":")[0] != self.device:
            return
        seconds = sum(row["seconds"].values()) / slowness
        suite, data, label = row["suite"], row["data"], row["label"]
        self._seconds[suite, data, label] = seconds
        for key in ((suite, "data", data), (suite, "label", label), ("any suite", data, row["method"])):
            self._seconds[key] = max(seconds, self._seconds.get(key, 0.0))

    def learn(self, job: Job, rows: Sequence[Row]) -> None:
        """Note what a job took, and how that compares with what was expected."""
        known = self._seconds.get((job[0].suite, job[0].data, job[0].label))
        took = [sum(row["seconds"].values()) for row in rows if row["status"] == "ok"]
        if known and took:
            self._slowness.append(statistics.fmean(took) / known)
        else:
            for row in rows:
                self._note(row, self.slowness)

    def expected(self, job: Job) -> float:
        """Seconds of a job, on a device as busy as it has been in this run."""
        cell = job[0]
        exact = self._seconds.get((cell.suite, cell.data, cell.label))
        alike = [("any suite", cell.data, cell.method)]
        alike += [(cell.suite, "data", cell.data), (cell.suite, "label", cell.label)]
        guesses = [self._seconds[key] for key in alike if key in self._seconds]
        each = exact or (max(guesses) if guesses else UNKNOWN_SECONDS[self.device])
        return len(job) * each * self.slowness

    def left(self) -> float:
        return self.limit - (time.monotonic() - self.start)

    def affordable(self, queue: Iterable[Job], passed: list[Cell]) -> Iterator[Job]:
        """The jobs that fit the time left, in order; the cells of the others are noted in ``passed``."""
        for job in queue:
            if self.left() > self.expected(job) + MARGIN:
                yield job
            else:
                passed.extend(job)
