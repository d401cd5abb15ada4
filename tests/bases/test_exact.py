"""The exact GP, kernel ridge regression, and DTC, against scikit-learn and dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SkRBF
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge

import duogp
from duogp.bases.exact import replicate_variance
from duogp.kernels import RBF, Scale
from duogp.models.model import Batch
from duogp.numerics.evidence import log_normal


def table(n: int = 60, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] + 0.1 * rng.standard_normal(n)


def kernel(lengthscale: float = 0.8, variance: float = 1.4) -> Scale:
    k = Scale(RBF(2, ard=False, lengthscale=lengthscale), variance=variance)
    for p in k.parameters():
        p.requires_grad_(False)
    return k


FIXED = {"mean": "zero", "standardize": False, "learn_noise": False, "initial_noise": 0.05}


def test_the_posterior_and_evidence_are_scikit_learns():
    X, y = table()
    gp = duogp.fit(X, y, "exact", kernel=kernel(), **FIXED)
    sk = GaussianProcessRegressor(
        ConstantKernel(1.4) * SkRBF(0.8) + WhiteKernel(0.05), optimizer=None, alpha=0.0
    ).fit(X, y)
    X_new = table(seed=1)[0]
    prediction = gp.predict(X_new)
    mean, std = sk.predict(X_new, return_std=True)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(prediction.std, std, rtol=1e-8)
    assert (prediction.explained == 0).all()
    basis = gp.model.basis
    target = torch.as_tensor(y).view(1, 1, -1)
    evidence = float(basis.log_evidence(target, gp.model.factors()))
    assert evidence == pytest.approx(sk.log_marginal_likelihood_value_, rel=1e-10)


def test_training_maximises_the_evidence():
    X, y = table(80)
    gp = duogp.fit(X, y, "exact", kernel="rbf", ard=False, mean="zero", epochs=200)
    scaled = (y - y.mean()) / y.std(ddof=1)
    Xs = (X - X.mean(0)) / X.std(0, ddof=1)
    sk = GaussianProcessRegressor(
        ConstantKernel() * SkRBF() + WhiteKernel(0.1), n_restarts_optimizer=2, alpha=0.0, random_state=0
    ).fit(Xs, scaled)
    assert -gp.history[-1].loss * len(y) > sk.log_marginal_likelihood_value_ - 0.3
    X_new, y_new = table(200, seed=2)
    assert gp.predict(X_new).metrics(y_new)["rmse"] < 0.15


def test_sparse_bounds_stay_below_and_approach_the_evidence():
    X, y = table(60)
    exact = duogp.fit(X, y, "exact", kernel=kernel(), **FIXED)
    evidence = float(exact.model.basis.log_evidence(torch.as_tensor(y).view(1, 1, -1), exact.model.factors()))
    bounds = []
    for m in (5, 15, 60):
        gp = duogp.fit(
            X, y, "sgpr", kernel=kernel(), num_inducing=m, learn_inducing=False, jitter=1e-9, **FIXED
        )
        batch = Batch(torch.as_tensor(X)[None], torch.as_tensor(y).view(1, 1, -1))
        bounds.append(-float(gp.model.loss(batch).detach()) * len(y))
    assert bounds == sorted(bounds)
    assert evidence - 1e-2 < bounds[-1] <= evidence + 1e-6


def test_ridge_regression_is_the_exact_gp():
    """Its mean is scikit-learn's kernel ridge at λ = noise / scale, its variance eq. 15 plus σ²."""
    X, y = table()
    gp = duogp.fit(X, y, "bkrr", kernel=kernel(), **FIXED)
    lam = gp.hyperparameters()["ridge_penalty"]
    assert lam == pytest.approx(0.05 / 1.4)
    X_new = table(seed=1)[0]
    ridge = KernelRidge(alpha=lam, kernel="rbf", gamma=0.5 / 0.8**2).fit(X, y)
    prediction = gp.predict(X_new)
    np.testing.assert_allclose(prediction.mean, ridge.predict(X_new), rtol=1e-8, atol=1e-8)

    def k(a, b):
        return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / 0.8**2)

    K, k_x = k(X, X), k(X, X_new)
    A = np.linalg.inv(K + lam * np.eye(len(X)))
    eq15 = 0.05 / lam * (1 - np.einsum("ij,ij->j", k_x, A @ k_x))
    np.testing.assert_allclose(prediction.residual, eq15, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(prediction.variance, eq15 + 0.05, rtol=1e-8)
    S = 0.05 * (K @ A + np.eye(len(X)))  # eq. 16, kernelised
    eq16 = np.einsum("ij,ij->j", A @ k_x, S @ A @ k_x)
    found = replicate_variance(
        torch.as_tensor(k_x), torch.as_tensor(K), *torch.tensor([0.05, lam], dtype=torch.float64)
    )
    np.testing.assert_allclose(found.numpy(), eq16, rtol=1e-8)


def test_weights_and_known_noise():
    X, y = table(30)
    weight = np.ones(30)
    weight[:5] = 2.0
    doubled = duogp.fit(np.r_[X, X[:5]], np.r_[y, y[:5]], "exact", kernel=kernel(), **FIXED)
    weighed = duogp.fit(X, y, "exact", sample_weight=weight, kernel=kernel(), **FIXED)
    np.testing.assert_allclose(doubled.predict(X).mean, weighed.predict(X).mean, rtol=1e-7)
    np.testing.assert_allclose(doubled.predict(X).residual, weighed.predict(X).residual, rtol=1e-6)
    settings = {"kernel": kernel(), "mean": "zero", "standardize": False}
    noise = np.full(30, 0.05)
    known = duogp.fit(X, y, "exact", noise=noise, **settings)
    np.testing.assert_allclose(
        known.predict(X).mean, duogp.fit(X, y, "exact", kernel=kernel(), **FIXED).predict(X).mean, rtol=1e-6
    )


def test_samples_have_the_posterior_covariance():
    X, y = table(30)
    gp = duogp.fit(X, y, "exact", kernel=kernel(), **FIXED)
    X_new = table(6, seed=3)[0]
    prediction = gp.predict(X_new)
    for kind in ("joint", "pathwise"):
        draws = gp.sample(X_new, 4000, seed=0, kind=kind)
        np.testing.assert_allclose(draws.mean(0), prediction.mean, atol=0.05)
        np.testing.assert_allclose(draws.var(0), prediction.function_variance, atol=0.06)


def test_several_outputs_and_replicates():
    X, y = table(40)
    Y = np.stack([y, np.cos(X[:, 0])], 1)
    both = duogp.fit(X, Y, "exact", epochs=30)
    assert both.predict(X).mean.shape == (40, 2)
    rows = [np.arange(30), np.arange(10, 40)]
    gps = duogp.fit_replicates(X, y, rows, "exact", epochs=20)
    alone = duogp.fit(X[:30], y[:30], "exact", epochs=20)
    np.testing.assert_allclose(gps[0].predict(X).mean, alone.predict(X).mean, rtol=1e-5, atol=1e-6)


def test_large_tables_are_refused_with_a_way_out():
    X, y = np.zeros((5001, 1)), np.zeros(5001)
    X[:, 0] = np.arange(5001)
    with pytest.raises(ValueError, match=r"up to 5000 rows.*'sgpr'"):
        duogp.fit(X, y, "exact", device="cpu")
    with pytest.raises(ValueError, match="closed form"):
        duogp.fit(X[:50], y[:50], "exact", solver="stochastic")
    with pytest.raises(ValueError, match="not Gaussian"):
        duogp.fit(X[:50], y[:50], "exact", likelihood="poisson")


def test_duplicate_rows_are_no_obstacle():
    X, y = table(20)
    gp = duogp.fit(np.r_[X, X], np.r_[y, y + 0.1], "exact", epochs=20)
    assert np.isfinite(gp.predict(X).mean).all()


def test_dtc_is_the_evidence_of_the_nystrom_prior():
    X, y = table(40)
    gp = duogp.fit(X, y, "dtc", kernel=kernel(), num_inducing=8, learn_inducing=False, jitter=1e-10, **FIXED)
    Z = gp.inducing_points

    def k(a, b):
        return 1.4 * np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / 0.8**2)

    C = k(X, Z) @ np.linalg.solve(k(Z, Z), k(Z, X)) + 0.05 * np.eye(40)
    expected = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + 40 * np.log(2 * np.pi))
    batch = Batch(torch.as_tensor(X)[None], torch.as_tensor(y).view(1, 1, -1))
    assert -float(gp.model.loss(batch).detach()) * 40 == pytest.approx(expected, rel=1e-7)


def test_a_warm_start_leaves_the_rows_alone():
    X, y = table(30)
    gp = duogp.fit(X, y, "exact", warm_start=5, epochs=5)
    np.testing.assert_allclose(gp.inducing_points, X, atol=1e-9)
    with pytest.raises(ValueError, match="weights above 0"):
        duogp.fit_replicates(X, y, [np.arange(30)], "exact", sample_weight=np.r_[0.0, np.ones(29)])


def test_all_columns_count_in_closed_form():
    X, y = table(60)
    some = duogp.fit(X, y, "hybrid", num_inducing=8, num_extra=20, mean_columns=5, epochs=30)
    every = duogp.fit(X, y, "hybrid", num_inducing=8, num_extra=20, epochs=30)
    assert some.history[-1].loss == pytest.approx(every.history[-1].loss, rel=1e-6)


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_the_quick_evidence_is_the_evidence_and_has_its_gradient(weighed: bool, raised: bool):
    X, y = table(40)
    Y = np.stack([y, np.cos(y)], 1)
    weight = np.random.default_rng(3).uniform(0.5, 2.0, len(y)) if weighed else None
    gp = duogp.fit(X, Y, "exact", steps=3, sample_weight=weight, random_state=0)
    model, basis = gp.model, gp.model.basis
    if raised:
        model.numerics.raise_jitter(torch.tensor([True]))
    target = torch.as_tensor((Y - Y.mean(0)) / Y.std(0)).mT[None]
    parameters = [p for p in model.parameters() if p.requires_grad]
    x = basis.inducing
    values, gradients = [], []
    for value in (
        lambda own: basis.log_evidence(own, model.factors()),
        lambda own: basis.quick_log_evidence(own, model.numerics),
    ):
        found = value(target - model.mean(x))
        values.append(float(found.detach()))
        grads = torch.autograd.grad(found.sum(), parameters, allow_unused=True)
        gradients.append([g for g in grads if g is not None])
    assert values[1] == pytest.approx(values[0], rel=1e-12)
    assert len(gradients[0]) == len(gradients[1]) >= 3
    for plain, quick in zip(*gradients, strict=True):
        torch.testing.assert_close(quick, plain, rtol=1e-9, atol=1e-9)


def test_the_density_of_many_vectors_under_few_covariances_and_of_none():
    rng = torch.Generator().manual_seed(0)
    A = torch.randn(2, 1, 6, 6, dtype=torch.float64, generator=rng)
    K = (A @ A.mT).requires_grad_()
    noise = torch.rand(2, 1, 6, dtype=torch.float64, generator=rng).requires_grad_()
    y = torch.randn(2, 3, 6, dtype=torch.float64, generator=rng).requires_grad_()
    value, info = log_normal(K, noise, y)
    normal = torch.distributions.MultivariateNormal(torch.zeros(6).double(), K + torch.diag_embed(noise))
    torch.testing.assert_close(value, normal.log_prob(y))
    assert not info.any()
    factors = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    for quick, plain in zip(
        torch.autograd.grad((factors * value).sum(), (K, noise, y)),
        torch.autograd.grad((factors * normal.log_prob(y)).sum(), (K, noise, y)),
        strict=True,
    ):
        torch.testing.assert_close(quick, 0.5 * (plain + plain.mT) if plain.dim() == 4 else plain)
    broken = torch.zeros(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    value, info = log_normal(broken - torch.eye(6), torch.zeros(2, 1, 6, dtype=torch.float64), y)
    assert (info != 0).all() and torch.isnan(value).all()
    value.sum().backward()  # means nothing, and is no error
