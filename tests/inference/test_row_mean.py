"""The exact posterior mean in the hybrid basis, against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.plan import make_plan
from duogp.inference.row_mean import mean_of_rows, posterior_weights
from duogp.methods import METHODS
from duogp.methods.settings import Settings
from duogp.training import settle

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.stack([np.sin(2 * X[:, 0]), X[:, 1]], 1) + 0.3 * RNG.normal(size=(40, 2))
NEW = torch.as_tensor(RNG.normal(size=(1, 7, 2)))


def made(outputs: int = 1, weights: np.ndarray | None = None, noise: np.ndarray | None = None):
    settings = Settings(device="cpu", num_inducing=5, standardize=False, mean="constant")
    data = Dataset.of_table(X, Y[:, :outputs], settings, sample_weight=weights, noise=noise)
    builder = Builder(data, make_plan(data, METHODS["svgp"], settings, split=False))
    batch = builder.table.gather(builder.rows)
    return builder.model(METHODS["hybrid"], extra=batch.x.unsqueeze(1)), builder, batch


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("given", ["plain", "weights", "noise"])
def test_the_mean_is_that_of_the_exact_gp(outputs, given):
    weights = np.linspace(0.5, 2.0, 40) if given == "weights" else None
    noise = np.linspace(0.1, 0.2, 40) if given == "noise" else None
    model, _, batch = made(outputs, weights, noise)
    mean_of_rows(model, batch)
    with torch.no_grad():
        found = model.marginals(NEW).mean[0]
        x, new = batch.x.unsqueeze(1), NEW.unsqueeze(1)
        prior = model.mean(x)[0]
        for p in range(outputs):
            K = model.basis.kernel(x, x)[0, 0]
            own = model.likelihood.noise()[0, p] + (0 if noise is None else torch.as_tensor(noise))
            own = own / (1 if weights is None else torch.as_tensor(weights))
            a = torch.linalg.solve(K + own * torch.eye(40), batch.y[0, p] - prior[p])
            dense = model.mean(new)[0, p] + model.basis.kernel(new, x)[0, 0] @ a
            torch.testing.assert_close(found[p], dense, rtol=1e-6, atol=1e-6)


def test_it_is_the_optimum_of_the_basis_in_all_coefficients():
    """With the S of the coupled basis and m = 0 the gradient of the ordinary loss vanishes."""
    model, builder, batch = made()
    coupled = builder.model()
    settle(coupled, builder.closed_form(coupled))
    mean_of_rows(model, batch)
    model.basis.q.set_(torch.zeros_like(coupled.basis.q.mean), coupled.basis.q.root())
    model.loss(batch).sum().backward()
    assert float(model.basis.a.grad.abs().max()) < 1e-6
    for name, p in model.basis.q.named_parameters():
        assert float(p.grad.abs().max()) < 1e-6, name


def test_two_rows_alike_without_noise_are_no_obstacle():
    model, _, batch = made()
    model.likelihood.noise.set_(2e-6)
    twice = batch._replace(x=batch.x.repeat(1, 2, 1), y=batch.y.repeat(1, 1, 2))
    assert bool(torch.isfinite(posterior_weights(model, twice)).all())
