"""Feature extractors in front of kernels: an identity changes nothing, a network learns."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import duogp
from duogp.kernels import RBF, Deep, Linear, Scale
from duogp.likelihoods import GaussianLikelihood
from duogp.methods import METHODS
from duogp.numerics.networks import MLP, SpectralLinear
from duogp.numerics.parameters import batched
from duogp.training.backends import network_weights

DEEP = [name for name in METHODS if METHODS[name].has_network and not METHODS[name].is_baseline]
SHALLOW = {
    "svgp-dkl": "svgp",
    "svgp-dcdkl": "dcsvgp",
    "svgp-meandkl": "dcsvgp",
    "ppgpr-dkl": "ppgpr-chol",
    "ppgpr-dcdkl": "dcppgpr",
    "ppgpr-meandkl": "dcppgpr",
    "ppgpr-mfd-dkl": "ppgpr-mfd",
}
QUICK = {"num_inducing": 20, "batch_size": 100, "widths": [30, 10, 4]}


def table(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(n)


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("name", SHALLOW)
def test_an_identity_extractor_gives_the_shallow_method(name):
    X, y = table(120)
    common = {
        "solver": "stochastic", "epochs": 3, "num_inducing": 12, "batch_size": 60, "early_stopping": False,
        "validation_fraction": 0, "initial_std": 1.0, "initial_lengthscale": 1.3, "mean": "constant",
    }  # fmt: skip
    # In the decoupled paper both extractors stand below one kernel; the shallow method has two.
    common |= {"epochs": 1, "batch_size": 120, "learning_rate": 1e-12} if "dcdkl" in name else {}
    deep = duogp.fit(X, y, name, extractor=Same(), **common)
    shallow = duogp.fit(X, y, SHALLOW[name], **common)
    np.testing.assert_allclose(deep.predict(X).mean, shallow.predict(X).mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(deep.predict(X).variance, shallow.predict(X).variance, rtol=1e-8)
    assert deep.history[-1].loss == pytest.approx(shallow.history[-1].loss, rel=1e-8)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DEEP)
def test_every_deep_method_learns(name, dtype):
    X, y = table()
    gp = duogp.fit(X[:240], y[:240], name, dtype=dtype, epochs=30, learning_rate=0.02, **QUICK)
    metrics = gp.predict(X[240:]).metrics(y[240:])
    assert metrics["rmse"] < 0.75 * y.std() and np.isfinite(metrics["nll"])
    assert gp.history.best_epoch is not None  # rows were held out unasked
    assert gp.inducing_points.shape == (20, 3)
    again = pickle.loads(pickle.dumps(gp))
    np.testing.assert_array_equal(again.predict(X).mean, gp.predict(X).mean)


@pytest.mark.parametrize(
    ("name", "settings", "std"),
    [
        ("svgp-dkl", {}, 0.1),
        ("ppgpr-dkl", {}, 1.0),
        ("ppgpr-mfd-dkl", {}, 1.0),
        ("ppgpr-dkl", {"likelihood": "student-t"}, 1.0),
        ("ppgpr-dkl", {"likelihood": GaussianLikelihood(noise=0.2)}, 1.0),
        ("ppgpr-dkl", {"initial_noise": 0.7}, 0.1),  # there is variance enough
        ("ppgpr-dkl", {"initial_std": 0.3}, 0.3),
        ("ppgpr-chol", {}, 1.0),
    ],
)
def test_how_wide_q_starts(name, settings, std):
    X, y = table(50)
    still = {"steps": 1, "learning_rate": 1e-12, "solver": "stochastic", "num_inducing": 8}
    gp = duogp.fit(X, y, name, **still, **settings)
    assert_close(gp.model.basis.q.root()[0, 0], std * torch.eye(8, dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppgpr-dkl", "ppgpr-mfd-dkl"])
def test_the_predictive_objective_does_not_push_rows_away_from_the_points(name):
    """With a narrow q(u) and little noise features that explain nothing are the quickest way to variance."""
    X, y = table(800)
    quick = {"steps": 120, "batch_size": 200, "num_inducing": 30, "widths": [64, 64]}

    def error(**settings):
        gp = duogp.fit(X[:600], y[:600], name, **quick, **settings)
        return gp.predict(X[600:]).metrics(y[600:])["rmse"] / y.std()

    assert error() < 0.5
    assert error(initial_std=0.1) > 0.8


@pytest.mark.parametrize("name", ["svgp-dkl", "ppgpr-mfd-dkl"])
def test_points_may_live_among_the_features(name):
    X, y = table()
    gp = duogp.fit(X, y, name, inducing_space="feature", epochs=5, **QUICK)
    assert gp.model.basis.inducing.shape[-1] == 4
    assert np.isfinite(gp.predict(X).mean).all()
    with pytest.raises(ValueError, match="space of the features"):
        _ = gp.inducing_points
    with pytest.raises(ValueError, match="one extractor"):
        duogp.fit(X, y, "svgp-dcdkl", inducing_space="feature", epochs=1, **QUICK)


def test_decoupled_extractors_share_the_kernel_above_them_and_may_differ_in_size():
    X, y = table(100)
    gp = duogp.fit(X, y, "svgp-dcdkl", epochs=1, mean_widths=[16, 7], **QUICK | {"widths": [8, 7]})
    basis = gp.model.basis
    assert basis.kernel.kernel is basis.mean_kernel.kernel
    assert basis.kernel.extractor.layers[0].weight.shape[-1] == 8
    assert basis.mean_kernel.extractor.layers[0].weight.shape[-1] == 16


def test_replicates_are_single_fits():
    X, y = table(200)
    rows = [np.arange(120), np.arange(80, 200)]
    settings = QUICK | {"epochs": 3, "early_stopping": False, "validation_fraction": 0}
    both = duogp.fit_replicates(X, y, rows, "svgp-dkl", random_states=[0, 0], **settings)
    alone = duogp.fit(X[rows[1]], y[rows[1]], "svgp-dkl", random_state=0, **settings)
    np.testing.assert_allclose(both[1].predict(X).mean, alone.predict(X).mean, rtol=1e-6, atol=1e-7)


def test_a_users_module_is_an_extractor():
    X, y = table(100)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    gp = duogp.fit(X, y, "svgp-dkl", extractor=net, epochs=2, num_inducing=10)
    assert gp.model.basis.kernel.features == 2
    with pytest.raises(ValueError, match="an extractor must map"):
        duogp.fit(X, y, "svgp-dkl", extractor=nn.Flatten(0), epochs=1, num_inducing=10)
    with pytest.raises(TypeError, match="torch module"):
        duogp.fit(X, y, "svgp-dkl", extractor="mlp")


def test_classification_on_features():
    X, y = table()
    labels = np.where(y > 0, "up", "down")
    gp = duogp.fit(X, labels, "svgp-dkl", likelihood="classes", epochs=40, learning_rate=0.02, **QUICK)
    assert gp.predict(X).metrics(labels)["accuracy"] > 0.8


def test_a_network_mean_leaves_the_variance_to_u():
    X, y = table()
    gp = duogp.fit(X, y, "nnsvgp", epochs=3, **QUICK)
    assert not gp.model.basis.q.mean.any()
    assert gp.num_variational_parameters() == 20 * 21 // 2


# -- kernels and networks ------------------------------------------------------------------------------------


def test_a_deep_kernel_is_the_kernel_of_the_features():
    net = batched(MLP(3, [6, 2], generator=torch.Generator().manual_seed(0)), (2, 1)).double()
    base = batched(Scale(RBF(2)), (2, 4)).double()
    kernel = Deep(net, base, 3, 2)
    g = torch.Generator().manual_seed(1)
    x, z = (torch.randn(2, 1, n, 3, generator=g, dtype=torch.float64) for n in (5, 4))
    assert kernel.batch_shape == (2, 4)
    assert_close(kernel(z, x), base(net(z), net(x)))
    assert_close(kernel.diag(x), kernel(x, x).diagonal(dim1=-2, dim2=-1))
    assert_close(kernel(net(z), x), kernel(z, x))  # points among the features
    steep = Deep(net, batched(Linear(2), (2, 1)).double(), 3, 2)
    assert_close(steep.diag(x), steep(x, x).diagonal(dim1=-2, dim2=-1))
    with pytest.raises(ValueError, match="was given 5 columns"):
        kernel(x, torch.zeros(2, 1, 4, 5, dtype=torch.float64))


def test_random_features_of_a_deep_kernel():
    net = MLP(2, [5, 3], activation="tanh", generator=torch.Generator().manual_seed(0)).double()
    kernel = Deep(net, RBF(3).double(), 2, 3)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    phi = kernel.prior_features(20000, torch.Generator().manual_seed(2))(x)
    assert_close(phi @ phi.mT, kernel(x, x).detach(), atol=0.05, rtol=0)


@pytest.mark.parametrize("normalisation", ["none", "layer", "spectral", "batch"])
def test_rows_do_not_see_each_other(normalisation):
    net = MLP(3, [8, 8, 2], normalisation=normalisation, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    net.observe(x)
    net.eval()
    assert_close(net(x), torch.cat([net(row[None]) for row in x]))


def test_spectral_layers_do_not_stretch():
    layer = SpectralLinear(6, 9, torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        layer.weight.mul_(20)
        for _ in range(200):
            layer(torch.zeros(1, 6, dtype=torch.float64))
    layer.eval()
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = layer(x)
    for i, j in itertools.combinations(range(10), 2):
        assert (y[i] - y[j]).norm() <= (1 + 1e-6) * (x[i] - x[j]).norm()


def test_running_moments_come_from_data_alone():
    X, y = table()
    gp = duogp.fit(X, y, "svgp-dkl", normalisation="batch", epochs=10, **QUICK)
    norm = gp.model.basis.kernel.extractor.norms[0]
    assert float(norm.observed.max()) == gp.history[-1].epoch * 3  # once a step
    before = norm.mean.clone()
    gp.predict(X)
    assert_close(norm.mean, before)


def test_only_weights_decay():
    X, y = table(60)
    gp = duogp.fit(X, y, "nnsvgp", epochs=1, **QUICK)
    weights = network_weights(gp.model)
    assert len(weights) == 4 and all(w.shape[-1] in (30, 10, 4, 1) for w in weights)
    strong = duogp.fit(X, y, "svgp-dkl", epochs=60, weight_decay=1.0, early_stopping=False, **QUICK)
    weak = duogp.fit(X, y, "svgp-dkl", epochs=60, weight_decay=0.0, early_stopping=False, **QUICK)
    sizes = [sum(float(w.detach().norm()) for w in network_weights(g.model)) for g in (strong, weak)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"widths": []}, "widths"),
        ({"widths": [0]}, "widths"),
        ({"activation": "sine"}, "activation"),
        ({"normalisation": "group"}, "normalisation"),
        ({"inducing_space": "latent"}, "inducing_space"),
        ({"weight_decay": -1}, "weight_decay"),
    ],
)
def test_bad_network_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        duogp.fit(*table(30), "svgp-dkl", **settings)
