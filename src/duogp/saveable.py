"""`Saveable`: the `save` method of every fitted model, without the code that writes files.

Models (storeys 5 to 7) stand below `duogp.io`, which knows all of them. The function that writes a model is
therefore handed to this class from above, once, by `duogp/__init__.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


class Saveable:
    """A fitted model that `duogp.load` can bring back."""

    _write: ClassVar[Callable[[Any, str | os.PathLike[str]], Path]]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """The folder written, which `duogp.load` reads; a saved model that stands there is replaced."""
        return Saveable._write(self, folder)
