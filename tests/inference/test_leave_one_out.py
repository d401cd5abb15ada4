"""Leaving a row out by the formula is leaving it out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import duogp
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.plan import make_plan
from duogp.inference.leave_one_out import leave_one_out
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.training import ClosedForm, settle

RNG = np.random.default_rng(0)
X = RNG.normal(size=(25, 2))
Y = np.sin(X[:, 0]) + 0.3 * RNG.normal(size=25)


def solved(method: str, rows: np.ndarray, weights: np.ndarray | None = None):
    """A model at its first hyperparameters with q(u) solved on some rows of the same scaled table."""
    given = {} if method == "exact" else {"num_inducing": 6}
    settings = Settings(standardize=False, device="cpu", mean="zero", initial_lengthscale=1.0, **given)
    data = Dataset.of_table(X, Y, settings, sample_weight=weights)
    plan = make_plan(data, METHODS[method], settings, split=False)
    builder = Builder(data, plan)
    chosen = torch.as_tensor(rows)[None]
    if method == "exact":
        part = Dataset.of_table(X[rows], Y[rows], settings)
        builder = Builder(part, make_plan(part, METHODS[method], settings, split=False))
        chosen = torch.arange(len(rows))[None]
    model = builder.model()
    exact = method == "exact"
    settle(model, builder.closed_form(model) if exact else ClosedForm(model, builder.table, chosen, 100))
    return model.eval(), builder


@pytest.mark.parametrize("method", ["svgp", "exact"])
def test_against_models_without_the_row(method):
    every = np.arange(25)
    model, builder = solved(method, every)
    left = leave_one_out(model, builder.table.gather(builder.rows))
    for i in (0, 7, 24):
        other, _ = solved(method, np.delete(every, i))
        x = torch.as_tensor(X[i : i + 1])[None]
        with torch.no_grad():
            f = other.marginals(x)
        noise = other.likelihood.noise().item()
        assert left.mean[0, 0, i].item() == pytest.approx(f.mean.item(), abs=1e-5)
        assert left.variance[0, 0, i].item() == pytest.approx(f.variance.item() + noise, rel=1e-4)


def test_a_row_of_weight_two_is_left_out_whole():
    weights = np.ones(25)
    weights[3] = 2.0
    model, builder = solved("svgp", np.arange(25), weights)
    other, _ = solved("svgp", np.delete(np.arange(25), 3), weights)
    left = leave_one_out(model, builder.table.gather(builder.rows))
    with torch.no_grad():
        f = other.marginals(torch.as_tensor(X[3:4])[None])
    assert left.mean[0, 0, 3].item() == pytest.approx(f.mean.item(), abs=1e-6)


def test_fits_are_as_good_on_new_rows_as_the_formula_says():
    rng = np.random.default_rng(1)
    x = rng.uniform(-3, 3, (1500, 1))
    y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=1500)
    gp = duogp.fit(x[:500], y[:500], "auto", device="cpu", mean="constant")
    told = gp.history.validation_nll_y
    assert told == pytest.approx(-gp.log_density(x[500:], y[500:]).mean(), abs=0.08)
