"""Trees that grow in rounds are the trees of one fit, and of scikit-learn's own warm starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from duogp.means import rounds
from duogp.means.columns import OnColumns
from duogp.means.crossfit import Goal, Trees, _loss
from duogp.means.rounds import Growing, Rows

GOALS = {"real": Goal("real"), "positive": Goal("positive"), "classes": Goal("classes", 3)}


def rows(kind: str, n: int, seed: int, weighed: bool) -> Rows:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)
    y = {"real": f, "positive": np.exp(f), "classes": (f > 0).astype(int) + (f > 1)}[kind]
    X[::9, 3] = np.nan
    return Rows(X, y, rng.uniform(0.5, 2.0, n) if weighed else None)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("kind", GOALS)
@pytest.mark.parametrize("some", [False, True])
def test_rounds_change_no_digit(kind: str, weighed: bool, some: bool):
    goal, columns = GOALS[kind], np.array([0, 1, 2, 4])
    train, held_out = rows(kind, 150, 0, weighed), rows(kind, 40, 1, weighed)

    def unfitted() -> Any:
        if not some:
            return Trees().model(goal, 150, 6, seed=3)
        return OnColumns(Trees().model(goal, 150, 4, seed=3), columns, 6)

    growing, plain = Growing(unfitted(), train, held_out), unfitted()
    for trees in (10, 25, 40):
        growing.grow(trees)
        plain.set_params(max_iter=trees)
        plain.fit(train.X, train.y, sample_weight=train.weights)
        own = growing.loss(_loss(goal))
        np.testing.assert_array_equal(own, _loss(goal)(plain, held_out.X, held_out.y))
        np.testing.assert_array_equal(own, growing.loss(_loss(goal)))  # asked again
    assert "_raw_predict" not in vars(growing._inner) and "_bin_data" not in vars(growing._inner)
    answer = "predict_proba" if kind == "classes" else "predict"
    new = rows(kind, 30, 2, False).X
    np.testing.assert_array_equal(getattr(growing.model, answer)(new), getattr(plain, answer)(new))


def test_another_version_of_scikit_learn_has_plain_warm_starts(monkeypatch: pytest.MonkeyPatch):
    goal, train, held_out = GOALS["real"], rows("real", 80, 0, False), rows("real", 20, 1, False)
    quick = Growing(Trees().model(goal, 80, 6, seed=3), train, held_out)
    monkeypatch.setattr(rounds, "NEEDED", (*rounds.NEEDED, "_not_there"))
    plain = Growing(Trees().model(goal, 80, 6, seed=3), train, held_out)
    for growing in (quick, plain):
        growing.grow(10)
        growing.grow(20)
    np.testing.assert_array_equal(quick.loss(_loss(goal)), plain.loss(_loss(goal)))
    assert quick._binned is not None and plain._binned is None
