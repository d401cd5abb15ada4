"""`checkpoint_dir` of the estimators: training goes on where it was ended, then the model takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import duogp
from duogp import GPClassifier, GPRegressor
from duogp.errors import CheckpointError
from duogp.training import backends
from duogp.training.checkpoint import FOLDER

RNG = np.random.default_rng(1)
X = RNG.uniform(-2, 2, (80, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=80)
QUICK: dict[str, Any] = {"num_inducing": 8, "epochs": 12, "device": "cpu", "checkpoint_every": 0.0}


class KilledError(Exception):
    """Stands for the end of the process."""


def die_after(monkeypatch: pytest.MonkeyPatch, steps: int, kind: Any = backends.StepBackend) -> None:
    run, left = kind.run, [steps]

    def dying(self: Any) -> Any:
        if left[0] == 0:
            raise KilledError
        left[0] -= 1
        return run(self)

    monkeypatch.setattr(kind, "run", dying)


@pytest.mark.parametrize("seed", [0, None])
def test_an_estimator_goes_on_and_saves(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    given = {**QUICK, "method": "svgp", "solver": "stochastic", "batch_size": 20, "random_state": seed}
    with monkeypatch.context() as patch:
        die_after(patch, 9)
        with pytest.raises(KilledError):
            GPRegressor(**given, checkpoint_dir=folder).fit(X, Y)
    assert list((folder / FOLDER).glob("*.checkpoint"))
    model = GPRegressor(**given, checkpoint_dir=folder).fit(X, Y)
    if seed is not None:
        whole = GPRegressor(**given).fit(X, Y)
        np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert not (folder / FOLDER).exists()
    np.testing.assert_allclose(duogp.load(folder).predict(X), model.predict(X), rtol=1e-6)
    GPRegressor(**{**given, "num_inducing": 6}, checkpoint_dir=folder).fit(X, Y)  # begins anew
    assert len(duogp.load(folder).gp_.inducing_points) == 6


def test_another_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**QUICK, "method": "svgp", "random_state": 0, "checkpoint_dir": tmp_path / "model"}
    with monkeypatch.context() as patch:
        die_after(patch, 5, backends.QuasiNewton)
        with pytest.raises(KilledError):
            GPRegressor(**given).fit(X, Y)
    with pytest.raises(CheckpointError, match="y was"):
        GPRegressor(**given).fit(X, 2 * Y)


def test_methods_without_checkpoints_are_saved_as_before(tmp_path: Path) -> None:
    given = {"epochs": 2, "random_state": 0, "device": "cpu", "checkpoint_dir": tmp_path / "model"}
    model = GPRegressor("mc-dropout", **given).fit(X, Y)
    np.testing.assert_allclose(duogp.load(tmp_path / "model").predict(X), model.predict(X), rtol=1e-5)


@pytest.mark.parametrize("mean", ["constant", None])
@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("after", [7, 13])
def test_auto_goes_on_from_the_candidates_it_had(
    mean: str | None, classes: bool, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = GPClassifier if classes else GPRegressor
    target = (Y > 0).astype(int) if classes else Y
    given = {"epochs": 9, "random_state": 0, "device": "cpu", "checkpoint_every": 0.0, "mean": mean}
    given |= {"batch_size": 10} if classes else {}
    whole = kind(**given).fit(X, target)
    own = backends.StepBackend if classes else backends.QuasiNewton
    with monkeypatch.context() as patch:
        die_after(patch, after, own)
        try:
            kind(**given, checkpoint_dir=tmp_path / "model").fit(X, target)
        except KilledError:
            assert list((tmp_path / "model" / FOLDER).glob("*.checkpoint"))
    again = kind(**given, checkpoint_dir=tmp_path / "model").fit(X, target)
    answers = [m.predict_proba(X) if classes else m.predict(X, return_std=True) for m in (again, whole)]
    np.testing.assert_array_equal(*map(np.asarray, answers))
