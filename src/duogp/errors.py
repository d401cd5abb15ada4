"""Warnings and errors with a name, to filter or to catch; other errors are plain ValueError and TypeError."""

from __future__ import annotations


class DuoGPWarning(UserWarning):
    """Base of every warning of this library."""


class DataWarning(DuoGPWarning):
    """An adjustment to the data: dropped columns, fewer inducing points than asked for."""


class NumericalWarning(DuoGPWarning):
    """A numerical difficulty in training, and the recovery: more jitter, a rollback, a smaller step."""


class ConvergenceWarning(DuoGPWarning):
    """Training that the clock ended before it converged, on a table that should have needed less time."""


class CheckpointWarning(DuoGPWarning):
    """A checkpoint that could not be written, or was damaged and passed over."""


class NumericalError(ArithmeticError):
    """A fit that ended in numbers that are not finite."""


class CheckpointError(ValueError):
    """A checkpoint of another fit, a damaged one, or a folder that checkpoints cannot be written to."""


class SavedModelError(ValueError):
    """A folder that is no saved model, is damaged, was changed, or needs classes that were not given."""
