"""The rooms of the numerics: every fit runs through those that its row names, and no others."""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import duogp
from duogp.bench.numerics import Ledger, module_hashes
from duogp.bench.provenance import resolved
from duogp.bench.rooms import (
    CORE,
    ROOMS,
    WORDS,
    FitTraits,
    changed_rooms,
    room_hashes,
    room_of,
    rooms_now,
    rooms_of,
    versions_of,
)
from duogp.bench.status import every_suite
from duogp.bench.suite import RUNNER_SETTINGS
from duogp.bench.tasks import task_of

SOURCE = Path(duogp.__file__).parent
#: Modules that fits enter, in which no number is made.
NO_NUMBERS = {"__init__.py", "_moved.py", "errors.py", "disk.py", "json_files.py"}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
#: Of a suite's settings: too long, or of a table's shape.
LEFT_OUT = {
    "steps",
    "epochs",
    "initial_lengthscale",
    "num_inducing",
    "num_extra",
    "batch_size",
    "evaluate_every",
}
TINY = {"steps": 3, "num_inducing": 8, "random_state": 0}
WIDTHS = {"widths": [4, 2]}

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
Y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=120)
TARGETS = {"regression": Y, "classification": np.digitize(Y, [-0.5, 0.5])}


@contextmanager
def modules_run():
    """The modules of the library whose functions are called, by their paths."""
    seen: set[str] = set()
    prefix = f"{SOURCE}/"

    def note(frame, event, _):
        code = frame.f_code
        # A class body and a module are run by an import, whoever asks first.
        if event == "call" and code.co_flags & 1 and code.co_filename.startswith(prefix):  # CO_OPTIMIZED
            seen.add(code.co_filename[len(prefix) :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def fitted(method: str, settings: dict, device: str, y=Y) -> set[str]:
    backend = {} if duogp.METHODS[method].is_baseline else {"backend": "eager"}
    if duogp.METHODS[method].is_baseline:
        settings = {k: v for k, v in settings.items() if k != "num_inducing"}
    with warnings.catch_warnings(), modules_run() as seen:
        warnings.simplefilter("ignore")
        model = duogp.fit(X, y, method=method, device=device, **settings, **backend)
        model.predict(X[:10])
        model.hyperparameters()
    return seen


def missing(seen: set[str], fit: FitTraits) -> set[str]:
    """Modules that were run and are in no room of the fit."""
    known, own = module_hashes(), set(rooms_of(fit))
    return {name for name in seen - NO_NUMBERS if name not in known or room_of(name) not in own}


def own_settings(method: str) -> dict:
    found = duogp.METHODS[method]
    more = WIDTHS if found.has_network else {}
    if found.learns_online:
        more = {"growth": 4, "start_rows": 30, "batch_size": 40}
    return TINY | more


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Lazy imports are over."""
    for method in ("svgp", "dgp", "deep-ensemble", "svdgp"):
        fitted(method, own_settings(method), "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", duogp.METHODS)
def test_a_method_runs_through_its_rooms_only(method, device):
    settings = own_settings(method)
    seen = fitted(method, settings, device)
    assert missing(seen, FitTraits(method, resolved(method, settings), device)) == set()


def suite_choices():
    """One choice of settings for every method of every suite."""
    found = {}
    for suite in every_suite():
        for cell in suite.cells(splits=1):
            task = cell.task
            key = (suite.name, cell.label, task)
            found.setdefault(key, pytest.param(cell, id=f"{suite.name}-{cell.label}-{task}"))
    return list(found.values())


@pytest.mark.parametrize("cell", suite_choices())
def test_a_cell_of_a_suite_runs_through_its_rooms_only(cell):
    given = {k: v for k, v in cell.settings.items() if k not in LEFT_OUT | RUNNER_SETTINGS}
    y = TARGETS[cell.task]
    settings = task_of(cell.task).settings(given, y) | TINY
    if duogp.METHODS[cell.method].has_network:
        settings |= WIDTHS
    if "num_extra" in cell.settings:
        settings["num_extra"] = 6
    if settings.get("early_stopping"):
        settings["validation_fraction"] = 0.2
    seen = fitted(cell.method, settings, "cpu", y)
    # The row's own: settings as the suite writes them, with the runner's words among them.
    traits = FitTraits(
        cell.method, resolved(cell.method, cell.settings), "cpu", cell.task == "classification"
    )
    assert missing(seen, traits) == set()


def test_every_room_has_modules_and_every_module_one_room():
    modules = module_hashes()
    of = {name: room_of(name) for name in modules}
    assert {room.name for room in ROOMS} | {CORE} == set(filter(None, of.values()))
    assert {name for name, room in of.items() if room is None} == set(WORDS)
    assert len({room.name for room in ROOMS}) == len(ROOMS)
    assert of["kernels/base.py"] == CORE and of["fitting/race_closed.py"] == "auto"


def test_a_new_module_is_core():
    assert room_of("kernels/of_tomorrow.py") == CORE


def test_rooms_follow_method_settings_and_device():
    def rooms(method, device="cpu", **settings):
        return set(rooms_of(FitTraits(method, resolved(method, settings), device)))

    assert rooms("svgp", solver="stochastic") == {CORE, "direct steps"}
    assert rooms("svgp", "cuda", solver="stochastic") == {CORE}
    assert rooms("svgp") == {CORE, "direct steps", "closed form", "natural gradients"}
    assert {"conditional", "networks"} <= rooms("svgp-dcdkl")
    assert "likelihoods" in rooms("svgp", likelihood="auto")
    assert "auto" in rooms("svgp", mean="trees") and "auto" not in rooms("svgp", mean="linear")
    assert rooms("auto") >= {room.name for room in ROOMS} - {"streamed tables"} - {
        "float32 predictions", "other kernels", "likelihoods",
    }  # fmt: skip


def test_a_changed_module_changes_its_room_alone():
    before = room_hashes(module_hashes())
    after = room_hashes(module_hashes() | {"online/adam.py": "other"})
    assert {name for name in before if before[name] != after[name]} == {"online"}
    assert rooms_now() == before
    fit = FitTraits("svgp", resolved("svgp", {}))
    assert changed_rooms(versions_of(fit, before), versions_of(fit, after), Ledger()) == []
    new = {room: value for room, value in before.items() if room != "direct steps"}
    assert changed_rooms(versions_of(fit, new), versions_of(fit, before), Ledger()) == ["direct steps"]
    shown = Ledger((frozenset({"direct steps:none", f"direct steps:{before['direct steps']}"}),))
    assert changed_rooms(versions_of(fit, new), versions_of(fit, before), shown) == []
    words = room_hashes(module_hashes() | dict.fromkeys(WORDS, "other words"))
    assert words == before
