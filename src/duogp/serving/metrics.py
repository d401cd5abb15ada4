"""Counters of a service in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

#: Upper ends of the histogram of seconds, and of the histogram of rows predicted together.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class Histogram:
    """Numbers of observations up to each bound, their sum and their count."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * len(self.bounds)
        self.sum, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1
        for i, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[i] += 1

    def lines(self, name: str) -> list[str]:
        pairs = zip(self.bounds, self.counts, strict=True)
        buckets = [f'{name}_bucket{{le="{bound:g}"}} {count}' for bound, count in pairs]
        return [*buckets, f'{name}_bucket{{le="+Inf"}} {self.count}', f"{name}_sum {self.sum:.9g}",
                f"{name}_count {self.count}"]  # fmt: skip


class Metrics:
    """Counters of one service; changed in the loop that serves, hence without locks."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.rows = 0
        self.in_flight = 0
        self.seconds = Histogram(SECONDS)
        self.batch_rows = Histogram(ROWS)
        self.batch_requests = 0

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.requests[path, status] += 1
        if path == "/predict":
            self.seconds.add(seconds)

    def predicted(self, requests: int, rows: int) -> None:
        self.rows += rows
        self.batch_requests += requests
        self.batch_rows.add(rows)

    def text(self, waiting_rows: int) -> str:
        """All counters, as a scrape reads them."""
        out: list[str] = []

        def add(name: str, kind: str, help_text: str, lines: list[str]) -> None:
            out.extend([f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *lines])

        requests = [
            f'duogp_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        add("duogp_requests_total", "counter", "Answered requests.", requests)
        add("duogp_rows_total", "counter", "Predicted rows.", [f"duogp_rows_total {self.rows}"])
        add("duogp_in_flight", "gauge", "Requests being answered.", [f"duogp_in_flight {self.in_flight}"])
        add("duogp_waiting_rows", "gauge", "Rows not yet predicted.", [f"duogp_waiting_rows {waiting_rows}"])
        name = "duogp_batched_requests_total"
        add(name, "counter", "Requests that were predicted.", [f"{name} {self.batch_requests}"])
        name = "duogp_request_seconds"
        add(name, "histogram", "Seconds from the head of a request to its answer.", self.seconds.lines(name))
        name = "duogp_batch_rows"
        add(name, "histogram", "Rows that were predicted together.", self.batch_rows.lines(name))
        return "\n".join(out) + "\n"
