"""What goes wrong with a saved model, under one name."""

from __future__ import annotations


class SavedModelError(ValueError):
    """A folder that is no saved model, is damaged, was changed, or needs what this process has not."""
