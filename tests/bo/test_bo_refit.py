"""Refits of `DuoGPModel`, and the check one batch ahead that decides between one and a new fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("botorch")

from duogp.bo import DuoGPModel, botorch_model, choice
from duogp.bo.refit import first_fit, refit, too_large
from helpers.botorch_models import QUICK, data


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr", "solvegp", "exact", "ppgpr-dkl", "orthnat"])
def test_a_refit_goes_on_from_where_the_model_is(method):
    X, Y = data(60)
    quick = {k: v for k, v in QUICK.items() if not (method == "exact" and k == "num_inducing")}
    model = DuoGPModel.fit(X[:50], Y[:50], method, **quick | {"steps": 60})
    again = model.refit(X, Y, steps=1, learning_rate=1e-9)
    for name, value in model.gp.model.named_parameters():
        same = dict(again.gp.model.named_parameters())[name]
        if ".q." not in name and not (method == "exact" and name.endswith("inducing")):
            torch.testing.assert_close(same, value, rtol=1e-5, atol=1e-5, msg=name)
    assert int(again.gp.model.num_data) == 60
    error = (again.posterior(X).mean - Y).square().mean().sqrt()
    before = (model.posterior(X).mean - Y).square().mean().sqrt()
    assert error < before + 0.05
    assert again.refit(X, Y, steps=5).posterior(X[:3]).mean.shape == (3, 1)


def test_a_cross_fitted_mean_is_not_refitted():
    X, Y = (t.numpy() for t in data(40))
    gp = first_fit(X, Y[:, 0], "svgp", mean="trees", num_inducing=8, steps=2)
    with pytest.raises(ValueError, match="cross-fitted mean belongs to the rows of its fit"):
        refit(gp, X, Y[:, 0])


@pytest.mark.parametrize("method", ["svgp", "ppgpr", "dcppgpr"])
def test_inducing_points_come_with_the_rows(method):
    X, Y = data(60)
    model = DuoGPModel.fit(X[:15], Y[:15], method, **QUICK | {"num_inducing": 40, "steps": 80})
    again = model.refit(X, Y, steps=1, learning_rate=1e-9)
    assert len(model.gp.inducing_points) == 15 and len(again.gp.inducing_points) == 40
    # What the model knew is not forgotten: q(u) is carried to the new points, or solved for.
    known = (again.posterior(X[:15]).mean - model.posterior(X[:15]).mean).abs().max()
    assert known < 0.3 * Y[:15].std()


# -- a check one batch ahead ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count", "expected"), [(1.0, 50, False), (3.0, 1, False), (3.5, 1, True), (2.5, 4, True)]
)
def test_errors_that_are_too_large(size, count, expected):
    assert too_large(np.full(count, size)) is expected


def test_a_model_that_is_surprised_is_fitted_anew(monkeypatch):
    fits: list[int] = []
    first = botorch_model.first_fit

    def counted(X, *arguments, **settings):
        fits.append(len(X))
        return first(X, *arguments, **settings)

    monkeypatch.setattr(botorch_model, "first_fit", counted)
    monkeypatch.setattr(botorch_model, "ANEW_ROWS", 10)
    X, Y = data(30)
    model = DuoGPModel.fit(X[:20], Y[:20], kernel="matern52")
    again = model.refit(X, Y)
    assert fits == [20] and again.gp.model.num_data == 30
    elsewhere = torch.cat([Y[:20], Y[20:] + 30.0])
    anew = again.refit(X, elsewhere)  # no new rows, no surprise
    assert fits == [20]
    model.refit(X, elsewhere)
    assert fits == [20, 30]
    model.refit(X, elsewhere, steps=0)  # hyperparameters were asked to stay
    assert fits == [20, 30] and anew.gp.model.num_data == 30
    monkeypatch.setattr(botorch_model, "ANEW_ROWS", 100)  # few rows are fitted anew in any case
    model.refit(X[:25], Y[:25])
    assert fits == [20, 30, 25]
    model.refit(X[:25], Y[:25], steps=3)  # unless so many steps are asked for
    assert fits == [20, 30, 25]


def test_rows_held_out_say_when_decoupled_kernels_stop():
    X, Y = data(40)
    model = DuoGPModel.fit(X[:30], Y[:30], "dcsvgp", num_inducing=12, steps=20, warm_start=10)
    again = model.refit(X, Y, steps=10)
    assert again.gp.history.validation_nll is not None
    assert again.gp.history.records[-1].validation_nll is not None or again.gp.history.stopped_early
    without = DuoGPModel.fit(X[:30], Y[:30], "dcsvgp", **QUICK).refit(X, Y, steps=3)
    assert without.gp.history.validation_nll is None  # as its first fit was asked


def test_repeated_refits_stay_honest():
    """After seven refits the next points are predicted to within what the model says (they were 9 σ off)."""
    X, Y = data(64, seed=3)
    model = DuoGPModel.fit(X[:8], Y[:8])
    errors = []
    for n in range(16, 65, 8):
        posterior = model.posterior(X[n - 8 : n], observation_noise=True)
        errors.append(((Y[n - 8 : n] - posterior.mean) / posterior.variance.sqrt()).square().mean())
        model = model.refit(X[:n], Y[:n])
    assert torch.stack(errors[2:]).mean().sqrt() < 2.0


def test_another_method_starts_from_the_kernel_of_the_first():
    X, Y = data(40)
    exact = DuoGPModel.fit(X, Y, "exact", steps=30).gp
    sparse = refit(
        exact, X.numpy(), Y[:, 0].numpy(), method="svgp", num_inducing=20, steps=1, learning_rate=1e-9
    )
    assert sparse.method.name == "svgp" and len(sparse.inducing_points) == 20
    one, other = (dict(gp.model.basis.kernel.named_parameters()) for gp in (exact, sparse))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sparse.predict(X.numpy()).mean, exact.predict(X.numpy()).mean, atol=0.2)


def test_the_default_leaves_the_exact_gp_when_it_has_outgrown_it(monkeypatch):
    X, Y = data(30)
    model = DuoGPModel.fit(X[:20], Y[:20], steps=5)
    monkeypatch.setattr(choice, "EXACT_ROWS", {"cpu": 25, "cuda": 25})
    monkeypatch.setattr(choice, "decoupling_helps", lambda *_, **__: False)
    assert model.refit(X[:24], Y[:24]).gp.method.name == "exact"
    assert model.refit(X, Y).gp.method.name == "svgp"
