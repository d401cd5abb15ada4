"""The ``duogp`` command, one module for each of its commands."""

from duogp.cli.app import build, main

__all__ = ["build", "main"]
