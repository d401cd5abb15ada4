"""Tasks: values known by hand, clear errors, noise that can be repeated, tasks of other distributions."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import numpy as np
import pytest

from duogp.bo import tasks
from duogp.bo.tasks import Task, make, names

OWN = ("ackley", "hartmann6", "push")


@pytest.mark.parametrize("name", OWN)
def test_interface(name: str) -> None:
    task = make(name)
    X = np.random.default_rng(0).random((7, task.dims))
    y = task(X)
    assert task.name == name and task.name in names()
    assert task.bounds.shape == (2, task.dims)
    assert y.shape == (7,) and y.dtype == np.float64 and np.isfinite(y).all()
    assert task(X[:0]).shape == (0,)
    if not task.noisy:  # a row's value does not depend on its company
        np.testing.assert_allclose(np.concatenate([task(X[4:]), task(X[:4])]), np.roll(y, 3), rtol=1e-12)
    if task.optimum is not None:
        assert (y <= task.optimum).all()


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="did you mean push"):
        make("pusch")
    with pytest.raises(ValueError, match="no option size; it knows dims, noise, seed"):
        make("ackley", size=3)
    with pytest.raises(ValueError, match="noise: expected at least 0"):
        make("hartmann6", noise=-1.0)
    task = make("hartmann6")
    with pytest.raises(ValueError, match=r"expects \[n, 6\], got shape \(6,\)"):
        task(np.zeros(6))
    with pytest.raises(ValueError, match=r"cube \[0, 1\]\^6, got values from 0 to 1.5"):
        task([[0, 0, 0, 0, 0, 1.5]])
    with pytest.raises(ValueError, match="NaN"):
        task(np.full((1, 6), np.nan))


def test_noise_depends_on_seed_and_count_alone() -> None:
    X = np.full((4, 10), 0.3)
    task = make("ackley", noise=0.5, seed=3)
    y = task(X)
    assert task.noisy and len(set(y)) == 4
    again = make("ackley", noise=0.5, seed=3)
    again.evaluated = 2
    np.testing.assert_array_equal(again(X[:2]), y[2:])
    assert not np.array_equal(make("ackley", noise=0.5, seed=4)(X), y)


# --- tasks of other distributions ---------------------------------------------------------------------------


class Parabola(Task):
    name, dims, bounds = "parabola", 1, np.array([[-1.0], [1.0]])

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def _evaluate(self, points: np.ndarray) -> np.ndarray:
        return -self.scale * points[:, 0] ** 2


def test_a_task_of_another_distribution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("somewhere")
    module.Parabola = Parabola  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somewhere", module)
    point = EntryPoint("parabola", "somewhere:Parabola", "duogp.tasks")
    monkeypatch.setattr(tasks, "entry_points", lambda group: [point] if group == point.group else [])
    assert names() == sorted([*OWN, "parabola"])
    assert make("parabola", scale=2.0)([[0.0], [0.5]]).tolist() == [-2.0, 0.0]
    with pytest.raises(ValueError, match="no option seed; it knows scale"):
        make("parabola", seed=1)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("rover", "duogp-tasks"),
        ("rover-small", "duogp-tasks"),
        ("lunar", r"duogp-tasks\[lunar\]"),
        ("ranolazine", r"duogp-tasks\[molecules\]"),
    ],
)
def test_an_absent_distribution_is_named(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "entry_points", lambda group: [])
    assert names() == list(OWN)
    with pytest.raises(ModuleNotFoundError, match=rf"'{name}' is not installed: pip install '{what}'$"):
        make(name)
    with pytest.raises(ValueError, match="did you mean rover"):
        make("rovr")


# --- textbook functions -------------------------------------------------------------------------------------


def test_textbook_maxima() -> None:
    best = [[0.20168952, 0.15001069, 0.47687398, 0.27533243, 0.31165162, 0.65730053]]
    hartmann = make("hartmann6")
    assert hartmann.optimum is not None
    assert hartmann(best)[0] == pytest.approx(hartmann.optimum, abs=1e-10)
    ackley = make("ackley", dims=4)
    assert ackley(np.full((1, 4), 1 / 3))[0] == pytest.approx(0.0, abs=1e-12)
    # x = (1, …, 1): every cosine is one, the distance is one
    expected = 20 * np.exp(-0.2) + np.e - 20 - np.e
    assert ackley(np.full((1, 4), 6 / 15))[0] == pytest.approx(expected, abs=1e-12)


# --- pushing ------------------------------------------------------------------------------------------------


def push_point(**parameters: float) -> np.ndarray:
    """Hand 1 as said, hand 2 far away and at rest; in the cube."""
    task = make("push")
    own = {"x": 0.0, "y": 0.0, "vx": 0.0, "vy": 0.0, "turn": 0.0, "delay": 0.0, "duration": 1.0} | parameters
    raw = np.array([*own.values(), 5.0, 5.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    return ((raw - task.bounds[0]) / (task.bounds[1] - task.bounds[0]))[None]


def test_push() -> None:
    task = make("push", noise=0.0)
    assert task(push_point(x=-5.0, y=5.0))[0] == 0.0  # touches nothing
    # From the left through the middle of the upper disc, two units far: it ends 1.7 in front of the hand.
    gain = task(push_point(x=-2.0, y=2.0, vx=2.0, duration=2.0))[0]
    end = np.array([2.0 + 1.7, 2.0])
    assert gain == pytest.approx(np.hypot(4, 1.5) - np.linalg.norm(end - [4.0, 3.5]), abs=0.02)
    assert task(push_point(x=-2.0, y=2.0, vx=2.0, duration=2.0, delay=2.0))[0] == pytest.approx(
        gain, abs=1e-9
    )
    assert task(push_point(x=2.0, y=2.0, vx=-2.0, duration=2.0))[0] < 0  # away from its goal
