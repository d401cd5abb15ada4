"""Fitted models in long services: many threads at once, and nothing that grows."""

from __future__ import annotations

import copy
import gc
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import duogp
from duogp import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)
QUICK: dict[str, Any] = {"num_inducing": 6, "device": "cpu", "random_state": 0}
STEPS: dict[str, Any] = {**QUICK, "steps": 4, "batch_size": 20}
THREADS = 8

MODELS: dict[str, Callable[[], Any]] = {
    "closed form": lambda: duogp.fit(X, Y, "svgp", epochs=4, **QUICK),
    "float32": lambda: duogp.fit(X, Y, "dcsvgp", solver="stochastic", dtype="float32", **STEPS),
    "trees": lambda: duogp.fit(X, Y, "svgp", mean="trees", epochs=3, validation_fraction=0.3, **QUICK),
    "deep": lambda: duogp.fit(X, Y, "dgp", **STEPS),
    "classes": lambda: duogp.fit(X, np.where(Y > 0, 1, 0), "svgp", likelihood="classes", **STEPS),
    "mc-dropout": lambda: duogp.fit(X, Y, "mc-dropout", epochs=2, device="cpu"),
    "auto": lambda: GPRegressor(epochs=3, random_state=0, device="cpu").fit(X, Y),
    "auto, classes": lambda: GPClassifier(epochs=2, random_state=0, device="cpu").fit(X, Y > 0),
}


@cache
def model_of(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        return MODELS[name]()


def questions(model: Any) -> list[Callable[[], Any]]:
    """What threads ask, each about rows of its own."""
    rows = [np.random.default_rng(k).uniform(-3, 3, (40 + k, 2)) for k in range(THREADS)]
    asked: list[Callable[[], Any]] = []
    for k, own in enumerate(rows):
        if isinstance(model, GPRegressor):
            asked += [lambda own=own: np.stack(model.predict(own, return_std=True))]
        elif isinstance(model, GPClassifier):
            asked += [lambda own=own: model.predict_proba(own)]
        else:
            labels = model.classes is not None
            target = np.arange(len(own)) % 2 if labels else np.sin(own[:, 0])
            what = "probabilities" if labels else "variance"
            asked += [lambda own=own, what=what: getattr(model.predict(own), what)]
            asked += [lambda own=own, target=target: model.log_density(own, target)]
            if hasattr(model, "sample"):
                asked += [lambda own=own, k=k: model.sample(own, 2, seed=k)]
                asked += [lambda own=own, k=k: model.sample(own, 2, seed=k, kind="pathwise")]
    return asked


@pytest.mark.parametrize("name", MODELS)
def test_threads_are_answered_as_one_is(name: str) -> None:
    model = model_of(name)
    alone = [ask() for ask in questions(copy.deepcopy(model))]
    for _ in range(3):
        fresh = copy.deepcopy(model)  # nothing is frozen yet: the first questions come all at once
        together = threading.Barrier(THREADS)
        asked = questions(fresh)

        def work(k: int, asked: Any = asked, together: Any = together) -> list[tuple[int, Any]]:
            together.wait()
            return [(i, asked[i]()) for i in range(k, len(asked), THREADS)]

        with ThreadPoolExecutor(THREADS) as pool:
            for answers in pool.map(work, range(THREADS)):
                for i, answer in answers:
                    np.testing.assert_array_equal(answer, alone[i])


def test_a_posterior_is_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freezing changes the working precision of the model for a while: two threads must not do it at once."""
    gp = copy.deepcopy(model_of("float32"))
    frozen, calls, inside = gp.model.frozen, [], []

    def slow(dtype: torch.dtype) -> Any:
        calls.append(dtype)
        inside.append(1)
        assert len(inside) == 1
        time.sleep(0.05)
        found = frozen(dtype)
        inside.pop()
        return found

    monkeypatch.setattr(gp.model, "frozen", slow)
    with ThreadPoolExecutor(THREADS) as pool:
        forms = list(pool.map(lambda _: gp.posterior, range(THREADS)))
    assert len(calls) == 1
    assert all(form is forms[0] for form in forms)


def test_a_likelihood_is_seen_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    gp = copy.deepcopy(model_of("trees"))
    gp.learned = replace(gp.learned, unseen=np.full(1, 0.01))  # noise that averaging the folds removes
    take_off = gp._take_off_noise

    def slow(likelihood: Any) -> None:
        time.sleep(0.05)
        take_off(likelihood)

    monkeypatch.setattr(gp, "_take_off_noise", slow)

    def noise(k: int) -> float:
        time.sleep(0.01 * k)
        return float(gp._likelihood.noise().detach().sum())

    with ThreadPoolExecutor(THREADS) as pool:
        assert len(set(pool.map(noise, range(THREADS)))) == 1


def test_noise_at_its_floor_loses_none_to_the_folds() -> None:
    """A target without noise, trained for long: softplus(raw) is nothing beside the floor."""
    gp = copy.deepcopy(model_of("trees"))
    gp.learned = replace(gp.learned, unseen=np.full(1, 0.01))
    noise = gp.model.likelihood.noise
    with torch.no_grad():
        noise.raw.fill_(-80.0)
    assert float(noise().detach().sum()) == noise.floor
    assert float(gp._likelihood.noise().detach().sum()) == pytest.approx(noise.floor, rel=2e-3)
    assert np.isfinite(gp.predict(np.zeros((1, len(gp.columns)))).std).all()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@pytest.mark.parametrize("name", MODELS)
def test_predictions_release_what_they_took(name: str) -> None:
    model = model_of(name)
    rows = RNG.uniform(-3, 3, (300, 2))

    def ask() -> None:
        model.predict(rows)
        if hasattr(model, "log_density") and getattr(model, "classes", None) is None:
            model.log_density(rows, rows[:, 0])

    for _ in range(3):
        ask()
    before = live_tensors()
    tracemalloc.start()
    try:
        for _ in range(100):  # lists of freed objects fill up first
            ask()
        gc.collect()
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            ask()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    assert live_tensors() <= before
    assert grown < 50_000  # bytes; what 200 predictions of 300 rows took is millions
