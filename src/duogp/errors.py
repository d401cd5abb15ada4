"""Warnings that a user may want to filter by kind. Errors are plain ValueError and TypeError."""

from __future__ import annotations


class DuoGPWarning(UserWarning):
    """Base of every warning this library emits."""


class DataWarning(DuoGPWarning):
    """Something about the data was adjusted: dropped columns, fewer inducing points than asked for."""


class NumericalWarning(DuoGPWarning):
    """Training met a numerical difficulty and recovered: more jitter, a rollback, a smaller step."""
