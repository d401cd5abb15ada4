"""Fitted models that tests ask and do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duogp.bo import DuoGPModel


@pytest.fixture(scope="session")
def model() -> DuoGPModel:
    """A sparse GP of two inputs and one output."""
    from helpers.botorch_models import fitted

    return fitted()


@pytest.fixture(scope="session")
def double() -> DuoGPModel:
    """The same with two independent outputs."""
    from helpers.botorch_models import fitted

    return fitted("svgp", outputs=2)
