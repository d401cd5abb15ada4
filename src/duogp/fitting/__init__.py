"""From a table to a trained model: Dataset → Plan → Builder → Model → GP."""

from typing import Any

from duogp._moved import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
