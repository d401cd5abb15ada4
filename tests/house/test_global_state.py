"""Fits and predictions leave the process as they found it, also when they fail."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import threadpoolctl
import torch

import duogp
from duogp import GPClassifier, GPRegressor
from duogp.training.threads import full_precision

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)
QUICK: dict[str, Any] = {"num_inducing": 6, "device": "cpu", "random_state": 0}
STEPS: dict[str, Any] = {**QUICK, "steps": 4, "batch_size": 20}


def process_state() -> dict[str, Any]:
    """What a library could leave behind."""
    loggers = [logging.getLogger(), logging.getLogger("duogp")]
    return {
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "pools": [pool["num_threads"] for pool in threadpoolctl.threadpool_info()],
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "torch generator": torch.get_rng_state().numpy().tobytes(),
        "numpy generator": np.random.get_state()[1].tobytes(),  # type: ignore[index,union-attr]  # noqa: NPY002
        "python generator": random.getstate(),
        "numpy errors": np.geterr(),
        "print options": repr(np.get_printoptions()),
        "warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "handlers": [list(each.handlers) for each in loggers],
        "levels": [each.level for each in loggers],
        "excepthook": sys.excepthook,
        "streams": (sys.stdout, sys.stderr),
        "signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }


def fit(method: str, **given: Any) -> Callable[[], None]:
    def run() -> None:
        gp = duogp.fit(X, Y, method, **given)
        gp.predict(X)
        if hasattr(gp, "sample"):
            gp.sample(X[:5], 2, seed=1)
        gp.log_density(X, Y)

    return run


def classifier() -> None:
    model = GPClassifier(epochs=2, batch_size=20, random_state=0, device="cpu")
    model.fit(X, np.where(Y > 0, "a", "b")).predict_proba(X)


def stream() -> None:
    model = GPRegressor(num_inducing=6, random_state=0, device="cpu")
    model.partial_fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:]).predict(X)


def saved(folder: Any) -> None:
    duogp.fit(X, Y, "svgp", epochs=2, **QUICK).save(folder)
    duogp.load(folder).predict(X)


RUNS: dict[str, Callable[[], None]] = {
    "closed form": fit("svgp", epochs=4, **QUICK),
    "exact": fit("exact", epochs=4, device="cpu"),
    "stochastic": fit("dcsvgp", solver="stochastic", **STEPS),
    "float32": fit("ppgpr-chol", dtype="float32", **STEPS),
    "natural": fit("svgp", solver="natural", **STEPS),
    "network": fit("svgp-dkl", widths=[4, 2], **STEPS),
    "deep": fit("dgp", **STEPS),
    "trees": fit("svgp", mean="trees", epochs=3, **QUICK),
    "mc-dropout": fit("mc-dropout", epochs=2, device="cpu"),
    "auto": lambda: GPRegressor(epochs=3, random_state=0, device="cpu").fit(X, Y).predict(X),
    "auto, classes": classifier,
    "stream": stream,
}


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_left_behind(name: str) -> None:
    run = RUNS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        run()  # what is imported for the first time may well add a filter
        random.seed(7)
        before = process_state()
        run()
        after = process_state()
    assert after == before


def test_saving_and_loading_leave_nothing_behind(tmp_path: Any) -> None:
    saved(tmp_path / "first")
    before = process_state()
    saved(tmp_path / "second")
    assert process_state() == before


def raising(_: Any) -> None:
    raise RuntimeError("a callback that fails")


FAILING: dict[str, dict[str, Any]] = {
    "callback": {"method": "svgp", "callbacks": [raising]},
    "callback of minibatches": {"method": "dcsvgp", "solver": "stochastic", "callbacks": [raising]},
    "callback of auto": {"method": "auto", "callbacks": [raising]},
    "unknown setting": {"method": "svgp", "nonsense": 1},
    "backend": {"method": "svgp", "solver": "natural", "backend": "compile"},
}


@pytest.mark.parametrize("name", FAILING)
def test_nothing_is_left_behind_by_a_fit_that_raises(name: str) -> None:
    given = {"device": "cpu", "random_state": 0, "epochs": 2, **FAILING[name]}

    def run() -> None:
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            duogp.fit(X, Y, **given)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        run()
        before = process_state()
        run()
        assert process_state() == before


def test_trainings_at_the_same_time_put_the_precision_back() -> None:
    """The one that ends last puts back what the first one found, in whatever order they end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        first, second = full_precision(), full_precision()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"
        second.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
