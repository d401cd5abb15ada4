"""The registry of named methods, and the settings of a fit."""

from duogp.methods.guide import CHOOSER, USE_WHEN
from duogp.methods.registry import CITATIONS, METHODS, Method, Registry

__all__ = ["CHOOSER", "CITATIONS", "METHODS", "USE_WHEN", "Method", "Registry"]
