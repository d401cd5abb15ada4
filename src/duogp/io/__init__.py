"""Saved models: a folder with a readable manifest and safetensors; no pickle, no code."""

from duogp.io.errors import SavedModelError
from duogp.io.folder import is_saved_model, read_folder, write_folder
from duogp.io.kinds import Loader, gp_from_state, gp_state, load, register_kind, save

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
