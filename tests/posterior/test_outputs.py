"""Several outputs: independent, with one kernel for all, and as mixtures of fewer latent functions (LMC)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import duogp
from duogp.bases import Marginals
from duogp.errors import DataWarning
from duogp.models.mixing import LinearMixing


def table(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four outputs that are mixtures of two functions."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    g = np.stack([np.sin(3 * X[:, 0]), np.cos(2 * X[:, 0])], 1)
    W = np.array([[1.0, 0.2], [0.5, -1.0], [-1.0, 0.7], [0.3, 1.0]])
    return X, g @ W.T + 0.05 * rng.standard_normal((n, 4))


def test_mixing_is_the_algebra_of_independent_gaussians():
    mixing = LinearMixing(3, 2, [torch.Generator().manual_seed(0)])
    g = torch.Generator().manual_seed(1)
    f = Marginals(*(torch.rand(1, 2, 5, generator=g, dtype=torch.float64) for _ in range(3)))
    out = mixing(f)
    W = mixing.weight[0]
    for i in range(5):
        for name in ("residual", "explained"):
            covariance = W @ torch.diag(getattr(f, name)[0, :, i]) @ W.T
            assert_close(getattr(out, name)[0, :, i], covariance.diagonal())
        assert_close(out.mean[0, :, i], W @ f.mean[0, :, i])


def test_fewer_latent_functions_explain_mixed_outputs():
    X, Y = table()
    X_new, Y_new = table(200, seed=1)
    gp = duogp.fit(X, Y, "svgp", num_latents=2, num_inducing=20, solver="natural", epochs=250, batch_size=120)
    assert gp.model.basis.q.mean.shape[1] == 2
    prediction = gp.predict(X_new)
    assert prediction.mean.shape == (200, 4)
    error = np.sqrt(((prediction.mean - Y_new) ** 2).mean(0)) / Y_new.std(0)
    assert (error < 0.25).all(), error
    draws = gp.sample(X_new[:7], 2000, seed=0)
    assert draws.shape == (2000, 7, 4)
    np.testing.assert_allclose(draws.mean(0), prediction.mean[:7], atol=0.1)
    np.testing.assert_allclose(draws.var(0), prediction.function_variance[:7], rtol=0.3, atol=1e-3)
    paths = gp.sample_paths(5, seed=0)(X_new)
    assert paths.shape == (5, 200, 4)
    assert gp.log_density(X_new, Y_new).shape == (200,)


@pytest.mark.parametrize(
    "method", ["svgp", "dcsvgp", "solvegp", "odsvgp", "hybrid", "ppgpr-mfd", "decoupled-s"]
)
def test_one_kernel_may_serve_all_outputs(method):
    X, Y = table(60)
    settings = {"num_inducing": 12, "epochs": 5, "batch_size": 60}
    if method == "dcsvgp":
        settings |= {"beta2": 0.1, "early_stopping": False}
    gp = duogp.fit(X, Y, method, shared_kernel=True, **settings)
    assert gp.model.basis.kernel.batch_shape == (1, 1)
    prediction = gp.predict(X)
    assert prediction.mean.shape == (60, 4) and (prediction.variance > 0).all()
    assert gp.sample(X[:4], 3, seed=0).shape == (3, 4, 4)
    f = gp.model.marginals(torch.as_tensor(gp.x_scaler.transform(X))[None])
    np.testing.assert_allclose(
        f.mean[0].detach().numpy().T * gp.y_scaler.scale + gp.y_scaler.shift, prediction.mean, atol=1e-7
    )


def test_a_shared_kernel_is_the_model_with_equal_kernels():
    """The loss of shared kernels equals that of separate kernels with the same values."""
    X, Y = table(40)
    common = {
        "num_inducing": 8,
        "solver": "stochastic",
        "epochs": 1,
        "learning_rate": 1e-12,
        "batch_size": 40,
    }
    one = duogp.fit(X, Y, "svgp", shared_kernel=True, **common)
    many = duogp.fit(X, Y, "svgp", shared_kernel=False, **common)
    assert one.history[-1].loss == pytest.approx(many.history[-1].loss, rel=1e-9)
    np.testing.assert_allclose(one.predict(X).variance, many.predict(X).variance, rtol=1e-8)


def test_mixed_outputs_have_no_closed_form():
    X, Y = table(40)
    with pytest.raises(ValueError, match="num_latents"):
        duogp.fit(X, Y, "svgp", num_latents=2, solver="closed-form")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mixed_outputs_in_either_precision(dtype):
    X, Y = table(40)
    gp = duogp.fit(X, Y, "svgp", num_latents=2, num_inducing=8, epochs=2, dtype=dtype)
    assert np.isfinite(gp.predict(X).mean).all() and gp.sample(X, 2, seed=0).shape == (2, 40, 4)


@pytest.mark.parametrize("likelihood", ["robust-max", "softmax", "heteroscedastic"])
def test_what_a_likelihood_sees_together_cannot_be_mixed(likelihood):
    X, Y = table(40)
    y = Y[:, 0] if likelihood == "heteroscedastic" else np.arange(40) % 3
    with pytest.raises(ValueError, match="num_latents"):
        duogp.fit(X, y, "svgp", likelihood=likelihood, num_latents=1, epochs=1)


def test_fewer_latent_functions_than_outputs_are_warned_of():
    X, Y = table(40)
    with pytest.warns(DataWarning, match="4 outputs are mixed from 2"):
        duogp.fit(X, Y, "svgp", num_latents=2, num_inducing=8, epochs=1)
