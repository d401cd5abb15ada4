"""Saved models: every option comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from duogp.io import load
from duogp.kernels import (
    RBF,
    ActiveDims,
    Constant,
    Deep,
    Hamming,
    Linear,
    Matern52,
    Periodic,
    RationalQuadratic,
    Scale,
)
from duogp.likelihoods import GammaLikelihood, GaussianLikelihood
from duogp.means import ConstantMean
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import GammaPrior, LogNormalPrior, Positive
from helpers.saving import COUNTS, LABELS, NEW, RNG, THREE, X, Y, answers, assert_equal, quick, round_trip

Given = dict
OPTIONS: dict[str, Given] = {
    "float32": Given(dtype="float32"),
    "float32 conditional": Given(method="dcppgpr", dtype="float32"),
    "float32 deep": Given(method="dgp-solve", dtype="float32"),
    "float32 network": Given(method="mc-dropout", dtype="float32"),
    "several outputs": Given(y=THREE),
    "several outputs, exact": Given(method="exact", y=THREE),
    "several outputs, deep": Given(method="ddgpc", y=THREE),
    "several outputs, ensemble": Given(method="deep-ensemble", y=THREE),
    "one output in a column": Given(y=Y[:, None]),
    "mixed latents": Given(y=THREE, num_latents=2),
    "mixed latents, ridge": Given(method="dsgpc", y=THREE, num_latents=2, ridge="contracting"),
    "mixed latents, deep": Given(method="dgp", y=THREE, num_latents=2),
    "shared kernel": Given(y=THREE, shared_kernel=True),
    "heteroscedastic": Given(likelihood="heteroscedastic"),
    "student-t": Given(likelihood="student-t"),
    "poisson": Given(likelihood="poisson", y=COUNTS),
    "gamma": Given(likelihood="gamma", y=COUNTS + 0.5),
    "beta": Given(likelihood="beta", y=1 / (1 + np.exp(-Y))),
    "likelihood object": Given(likelihood=GammaLikelihood(shape=2.0, nodes=12), y=COUNTS + 0.5),
    "gaussian object": Given(likelihood=GaussianLikelihood(floor=1e-5, prior=LogNormalPrior(-2.0, 1.0))),
    "noise that stays": Given(learn_noise=False, initial_noise=0.2),
    "K-whitening": Given(method="dcsvgp", whitening="K", mean_jitter=1e-5, solver="stochastic"),
    "omega of rows": Given(method="dcsvgp", omega="rows", beta2=0.5),
    "blocks of omega": Given(method="dcppgpr", omega="blocks", beta2=0.5),
    "a list of betas": Given(method="ppgpr", beta1=[0.5, 1.0], validation_fraction=0.2),
    "unwhitened point": Given(method="map", log_prior="unwhitened"),
    "robust": Given(method="gamma-robust", gamma=1.1),
    "shrunk": Given(method="dsgpc-eps", epsilon=0.3),
    "more mean points": Given(method="hybrid", num_extra=9, mean_columns=3),
    "nystrom": Given(method="decoupled", preconditioner="nystrom", num_extra=8),
    "generalised points": Given(method="decoupled", kernel="generalised-rbf"),
    "points that stay": Given(learn_inducing=False),
    "a sum by name": Given(kernel="rbf + linear", initial_lengthscale=[0.5, 1.0]),
    "no ard, no scale": Given(ard=False, output_scale=False),
    "linear mean": Given(mean="linear"),
    "mean object": Given(mean=ConstantMean(0.3)),
    "minmax": Given(standardize="minmax"),
    "cube": Given(standardize="cube"),
    "not scaled": Given(standardize=False),
    "other jitter": Given(jitter=1e-5),
    "feature space": Given(method="svgp-dkl", inducing_space="feature"),
    "feature space, two sets": Given(method="ppgpr-mfd-dkl", inducing_space="feature"),
    "default widths": Given(method="svgp-dcdkl", widths=None),
    "mean widths": Given(method="svgp-dcdkl", mean_widths=[4, 3]),
    "batch normalisation": Given(method="svgp-dkl", normalisation="batch", epochs=2),
    "spectral normalisation": Given(method="nnsvgp", normalisation="spectral"),
    "layer normalisation": Given(method="ppgpr-meandkl", normalisation="layer", activation="tanh"),
    "extractor of ours": Given(method="svgp-dkl", extractor=MLP(2, [5, 2], activation="tanh")),
    "narrow layers": Given(method="dgp", hidden_width=1, num_layers=3),
    "wide layers": Given(method="dgp-dc", hidden_width=3, num_samples=2),
    "few residual points": Given(method="ddgpc-ridge", num_residual=2, ridge="kernel"),
    "one layer": Given(method="dgp", num_layers=1),
    "dropout with its noise": Given(method="mc-dropout", passes=7, dropout=0.3, normalisation="batch"),
    "ensemble of two": Given(method="deep-ensemble", members=2, heteroscedastic=False),
    "a schedule": Given(schedule=lambda fraction: 1.0 - fraction),
    # kernel objects
    "scaled kernel": Given(kernel=Scale(RBF(2, lengthscale=[0.5, 2.0]), 2.0)),
    "sum of kernels": Given(kernel=Scale(RBF(2)) + Scale(Linear(2)) + 0.5),
    "product of kernels": Given(kernel=Scale(Matern52(2, ard=False) * Periodic(2, period=2.0))),
    "columns of kernels": Given(kernel=ActiveDims(RBF(1), 0) + ActiveDims(RationalQuadratic(1), [1])),
    "constant kernel": Given(kernel=Scale(RBF(2)) * Constant() + Constant()),
    "kernel with a prior": Given(kernel=RBF(2, prior=GammaPrior(2.0, 3.0))),
    "scale with a prior": Given(kernel=Scale(RBF(2), prior=LogNormalPrior(0.0, 1.0))),
    "deep kernel object": Given(kernel=Scale(Deep(MLP(2, [4, 3]), RBF(3), 2, 3))),
    "kernel object, conditional": Given(method="dcsvgp", kernel=Scale(RBF(2)), solver="stochastic"),
    "kernel object, deep": Given(method="dgp", kernel=Scale(RBF(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OPTIONS))
def test_options_come_back(name, tmp_path):
    given = dict(OPTIONS[name])
    y = given.get("y", Y)
    model = quick(**given)
    round_trip(model, tmp_path / "model", y=y[:6])


def test_categories(tmp_path):
    codes = np.column_stack([X[:, 0], RNG.integers(0, 3, 40)])
    kernel = Scale(ActiveDims(RBF(1), 0) * ActiveDims(Hamming(1), 1))
    model = quick(x=codes, kernel=kernel)
    back = round_trip(model, tmp_path / "model", new=codes[:5], y=Y[:5])
    assert back.settings.kernel.categorical_columns(2) == {1}
    assert back.x_scaler.scale[1] == 1.0


def test_a_default_likelihood_of_draws_keeps_its_draws(tmp_path, monkeypatch):
    """Predictions do not change if a later version draws other numbers."""
    model = quick(y=LABELS, likelihood="softmax")
    model.save(tmp_path / "model")
    before = model.predict_proba(NEW)
    real = torch.quasirandom.SobolEngine

    def other(dims, scramble, seed):
        return real(dims, scramble=scramble, seed=seed + 7)

    monkeypatch.setattr(torch.quasirandom, "SobolEngine", other)
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(NEW), before)


def test_floors_stay_what_they_were(tmp_path, monkeypatch):
    model = quick(likelihood="gamma", y=COUNTS + 0.5)
    model.save(tmp_path / "model")
    made = Positive.__init__

    def later(self, *args, floor=0.0, **kwargs):
        made(self, *args, floor=floor + 0.25, **kwargs)

    monkeypatch.setattr(Positive, "__init__", later)
    back = load(tmp_path / "model")
    assert_equal(answers(back), answers(model))
