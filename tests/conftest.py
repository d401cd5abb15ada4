"""Settings of every test: one thread, the same examples in every run, fits on the CPU.

One thread, so that small problems are quick. Property tests draw the same examples in every run, so that a
red build always means the change at hand; `make search` draws new ones (what it finds belongs into the test
as an `@example`).

Devices: a fit without a `device` goes to CUDA where there is a GPU. Most tests compare with numbers on the
CPU, so here it goes to the CPU everywhere (`fits_on_the_cpu`). Tests of numerics take the fixture `device`
and run once on every device there is; tests of the default itself take `product_default_device`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from duogp.fitting import learned, rules
from duogp.means import Trees
from duogp.methods.settings import Settings
from helpers import devices

torch.set_num_threads(1)

# Compiled steps of one instruction set only: torch's cache does not ask for which one its kernels were made.
CAPABILITY = os.environ.get("ATEN_CPU_CAPABILITY", "native")
CACHE = Path(tempfile.gettempdir()) / f"duogp-tests-inductor-{CAPABILITY}"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE))

settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

PRODUCT_DEFAULT = Settings.torch_device


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=devices.DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Every device of this machine in turn; `helpers.devices.placed` puts tensors and modules on it."""
    with devices.use(torch.device(request.param)):
        yield torch.device(request.param)


@pytest.fixture(scope="session", autouse=True)
def fits_on_the_cpu() -> Iterator[None]:
    """``device=None`` means the CPU, also where there is a GPU."""

    def torch_device(given: Settings) -> torch.device:
        return torch.device("cpu") if given.device is None else PRODUCT_DEFAULT.__get__(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "torch_device", property(torch_device))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_races() -> Iterator[None]:
    """``method="auto"`` takes its whole course in fewer steps and with fewer trees."""
    trees = {"max_trees": 20, "trees_per_round": 10}
    short = replace(
        rules.RULES,
        closed_steps=rules.ByDevice(cpu=40, cuda=40),
        natural_steps=rules.BySize(small=25, large=40),
        round_steps=8,
        finish_steps=rules.ByDevice(cpu=30, cuda=30),
        excess_trees=Trees(max_leaves=8, min_leaf=40, **trees),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "RULES", short)
        patch.setattr(learned, "Trees", lambda: Trees(**trees))
        yield


@pytest.fixture
def product_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """``device=None`` means what it means to users: CUDA where there is a GPU."""
    monkeypatch.setattr(Settings, "torch_device", PRODUCT_DEFAULT)
