"""The registry of named methods, and the settings of a fit."""

from duogp.methods.registry import CITATIONS, METHODS, Method, Registry

__all__ = ["CITATIONS", "METHODS", "Method", "Registry"]
