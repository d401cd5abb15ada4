"""Fits that the tests of saving share."""

from __future__ import annotations

import pytest

import duogp
from helpers.saving import quick


@pytest.fixture(scope="module")
def fitted() -> dict:
    """Every method of the registry."""
    return {method: quick(method) for method in duogp.METHODS}
