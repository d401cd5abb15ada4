"""GPs with the Tanimoto kernel: of counts, exact and sparse; draws; saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import duogp


def counts(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Counts of twelve substructures, and a smooth function of the shares of two of them."""
    X = np.random.default_rng(seed).poisson(1.0, (rows, 12)).astype(np.float64)
    return X, (X[:, 0] - X[:, 1]) / (1.0 + X.sum(1))


@pytest.mark.parametrize("method", ["exact", "svgp"])
def test_a_gp_of_counts(method: str, tmp_path: Path) -> None:
    X, y = counts(150)
    sparse = {"num_inducing": 60} if method == "svgp" else {}
    settings = {"kernel": "tanimoto", "standardize": False, "steps": 30, "random_state": 0} | sparse
    gp = duogp.fit(X, y, method, **settings)
    new, truth = counts(100, seed=1)
    mean = gp.predict_mean(new)
    assert np.square(mean - truth).mean() < 0.5 * truth.var()
    draws = gp.sample(new, 200, seed=0)
    np.testing.assert_allclose(draws.mean(0), mean, atol=6 * gp.predict(new).std.max() / np.sqrt(200))
    gp.save(tmp_path / "model")
    np.testing.assert_allclose(duogp.load(tmp_path / "model").predict_mean(new), mean, rtol=1e-10, atol=1e-12)
