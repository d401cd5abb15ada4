"""Small tables and fits, and the comparison of a model with its saved copy."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import duogp
from duogp.io import load

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=40)
THREE = np.stack([Y, Y**2, -Y], 1)
COUNTS = RNG.poisson(np.exp(Y)).astype(float)
LABELS = np.digitize(Y, [-0.5, 0.5])
NEW = RNG.normal(size=(6, 2))
ROW_NOISE = RNG.uniform(0.05, 0.2, size=40)


def small(method: str) -> dict:
    """Settings of a quick fit."""
    recipe = duogp.METHODS[method]
    if recipe.is_baseline:
        return {"epochs": 1, "widths": [6, 4], "dtype": "float64"}
    points = {} if recipe.basis == "exact" else {"num_inducing": 5}
    networks = {"widths": [6, 3]} if recipe.has_network else {}
    return {"epochs": 1, **points, **networks}


def quick(method: str = "svgp", y=Y, x=X, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        return duogp.fit(x, y, method, **{**small(method), **settings})


def answers(model, new=NEW, y=None, noise=None) -> dict[str, np.ndarray]:
    """All that a fitted model says about new rows."""
    known = {} if noise is None else {"noise": noise}
    prediction = model.predict(new, **known)
    out = {name: value for name, value in vars(prediction).items() if isinstance(value, np.ndarray)}
    if isinstance(prediction, duogp.ClassPrediction):
        out["proba"] = model.predict_proba(new)
    if y is not None:
        out["log_density"] = model.log_density(new, y, **known)
    if isinstance(model, duogp.GP):
        out["sample"] = model.sample(new, 2, seed=1)
        out["observations"] = model.sample(new, 2, seed=1, observation_noise=True, **known)
        try:
            out["inducing"] = model.inducing_points
        except ValueError as error:
            out["inducing"] = np.array([str(error)])
        out["size"] = np.array(model.num_variational_parameters())
    return out


def assert_equal(found: dict, expected: dict, tolerance: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind in "fiu":
            np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def round_trip(model, folder: Path, *, new=NEW, y=None, noise=None, objects=None):
    """Save, load, compare everything, and hand the loaded model on."""
    model.save(folder)
    back = load(folder, objects=objects)
    assert type(back) is type(model)
    assert_equal(answers(back, new, y, noise), answers(model, new, y, noise))
    assert back.hyperparameters() == model.hyperparameters()
    if getattr(model.settings, "inducing_space", "input") == "input":
        assert repr(back) == repr(model)
    assert back.history == model.history
    assert back.method is model.method
    own, other = (m.model if isinstance(m, duogp.GP) else m.network for m in (back, model))
    flags = [{name: p.requires_grad for name, p in m.named_parameters()} for m in (own, other)]
    assert flags[0] == flags[1]
    assert not any(m.training for m in own.modules())
    for wrong in (np.zeros((2, 5)), [["a", "b"]], np.full((2, 2), np.nan)):
        with pytest.raises((ValueError, TypeError)) as ours:
            model.predict(wrong)
        with pytest.raises(type(ours.value)) as theirs:
            back.predict(wrong)
        assert str(theirs.value) == str(ours.value)
    return back
