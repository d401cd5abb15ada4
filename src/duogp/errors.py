"""Warnings and errors with a name, to filter or to catch; other errors are plain ValueError and TypeError."""

from __future__ import annotations


class DuoGPWarning(UserWarning):
    """Base of every warning of this library."""


class DataWarning(DuoGPWarning):
    """An adjustment to the data: dropped columns, fewer inducing points than asked for."""


class NumericalWarning(DuoGPWarning):
    """A numerical difficulty in training, and the recovery: more jitter, a rollback, a smaller step."""


class NumericalError(ArithmeticError):
    """A fit that ended in numbers that are not finite."""


class SavedModelError(ValueError):
    """A folder that is no saved model, is damaged, was changed, or needs classes that were not given."""
