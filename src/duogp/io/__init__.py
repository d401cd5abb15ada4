"""Saved models: a folder with a readable manifest and safetensors; no pickle, no code."""

from duogp.errors import SavedModelError
from duogp.io.folder import is_saved_model, read_folder, write_folder
from duogp.io.kinds import Loader, load, register_kind, save
from duogp.io.models import gp_from_state, gp_state

__all__ = [
    "Loader",
    "SavedModelError",
    "gp_from_state",
    "gp_state",
    "is_saved_model",
    "load",
    "read_folder",
    "register_kind",
    "save",
    "write_folder",
]
