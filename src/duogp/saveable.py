"""`Saveable` and `Plottable`: methods `save` and `plot` without the code that writes files and draws figures.

Models and histories (storeys 4 to 7) stand below `duogp.io` and `duogp.plots`, which know them. The functions
behind the methods are therefore handed to these classes from above, once, by `duogp/__init__.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes


class Saveable:
    """A fitted model that `duogp.load` can bring back."""

    _write: ClassVar[Callable[[Any, str | os.PathLike[str]], Path]]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """The folder written, which `duogp.load` reads; a saved model that stands there is replaced."""
        return Saveable._write(self, folder)


class Plottable:
    """A training history that has a figure."""

    _draw: ClassVar[Callable[[Any, Axes | None], Axes]]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Loss and validation NLL against epochs, on the given or on new axes."""
        return Plottable._draw(self, ax)
