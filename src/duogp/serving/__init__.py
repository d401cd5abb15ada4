"""A fitted model as an HTTP service: JSON or Arrow in and out, waiting requests predicted together."""

from duogp.serving.app import build_app
from duogp.serving.limits import Limits
from duogp.serving.model import ServedModel
from duogp.serving.server import serve

__all__ = ["Limits", "ServedModel", "build_app", "serve"]
