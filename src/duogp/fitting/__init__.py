"""From a table to a trained model."""

from typing import Any

from duogp._moved import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
