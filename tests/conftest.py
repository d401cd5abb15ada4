"""One thread, so that small problems are quick and every run adds up in the same order.

Property tests draw the same examples in every run, so that a red build always means the change at hand;
`make search` draws new ones (what it finds belongs into the test as an `@example`).
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
