"""Limits of a service, and the errors that it answers with."""

from __future__ import annotations

from dataclasses import dataclass


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status, and a sentence that says what to change."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Limits:
    """What one request may be, and how much may wait.

    ``rows`` and ``bytes`` of one request; ``waiting``: rows of all requests that are not yet answered;
    ``batch``: rows that are predicted together; ``seconds``: within which the body of a request must arrive.
    """

    rows: int = 10_000
    bytes: int = 16 * 2**20
    waiting: int = 100_000
    batch: int = 4096
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("rows", "bytes", "waiting", "batch", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"the limit {name} must be positive, got {getattr(self, name)}")

    def require_rows(self, count: int) -> None:
        """An error for a request without rows, or with too many."""
        if count == 0:
            raise RequestError(422, "the request has no rows")
        if count > self.rows:
            raise RequestError(
                413, f"the request has {count:,} rows, at most {self.rows:,} are answered at once"
            )
