"""Streams that continue a fit or a snapshot, and steps that fail."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

import duogp
from duogp.online import OnlineGP
from duogp.online.stepper import Stepper
from helpers.streams import SMALL, Stream

# -- continuing a fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["svgp", "sgpr", "fitc", "odsvgp", "dcsvgp", "decoupled", "ppgpr-mf"])
def test_a_fitted_model_goes_on(method):
    stream = Stream()
    X, y = stream(80)
    X = np.column_stack([X, np.ones(80)])  # a column that the fit drops
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        gp = duogp.fit(X, y, method, num_inducing=8, epochs=3)
    learner = OnlineGP.from_gp(gp)
    expected = gp.predict(X)
    np.testing.assert_allclose(learner.predict(X).mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(learner.predict(X).variance, expected.variance, atol=1e-10)
    for _ in range(5):
        X_new, y_new = stream(50)
        learner.partial_fit(np.column_stack([X_new, np.ones(50)]), y_new)
    assert learner.model.num_data == gp.model.num_data + 250
    np.testing.assert_array_equal(gp.predict(X).mean, expected.mean)  # the fit is left alone
    assert not np.allclose(learner.predict(X).mean, expected.mean)


def test_a_stream_goes_on_from_its_snapshot():
    stream = Stream()
    learner = OnlineGP("svdgp", num_extra=20, **SMALL)
    for _ in range(2):
        learner.partial_fit(*stream(40))
    copied = OnlineGP.from_gp(learner.gp, growth=4, num_data=1000)
    X = stream(20)[0]
    np.testing.assert_allclose(copied.predict(X).mean, learner.predict(X).mean, atol=1e-12)
    for _ in range(8):
        copied.partial_fit(*stream(40))
    assert copied.num_points == (20, 12)
    assert float(copied.model.num_data) == 1000
    exact = duogp.fit(*stream(30), "exact", epochs=2)
    with pytest.raises(ValueError, match="keeps all rows"):
        OnlineGP.from_gp(exact)


def test_snapshots_stay_and_copies_part():
    stream = Stream()
    learner = OnlineGP("ivsgpr", **SMALL).partial_fit(*stream(50))
    X = stream(20)[0]
    gp, before = learner.gp, learner.predict(X).mean
    twin = pickle.loads(pickle.dumps(copy.deepcopy(learner)))
    rows = stream(50)
    learner.partial_fit(*rows)
    twin.partial_fit(*rows)
    np.testing.assert_array_equal(gp.predict(X).mean, before)
    assert not np.allclose(learner.predict(X).mean, before)
    np.testing.assert_allclose(learner.predict(X).mean, twin.predict(X).mean, rtol=1e-10)


# -- when things go wrong ------------------------------------------------------------------------------------


def test_a_bad_step_is_refused_and_answered():
    X, y = Stream()(64)
    learner = OnlineGP("svi", num_inducing=8).partial_fit(X, y)
    stepper, model = learner._stepper, learner.model
    batch = learner._scales.batch(X, y[:, None], None)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.warns(duogp.NumericalWarning, match="was undone"):
        stepper.step(batch._replace(y=batch.y * torch.inf), 0.01, 0.1)
    assert stepper.rollbacks == 1 and stepper.rate_factor == 0.5
    assert all(torch.isfinite(p).all() for p in model.parameters())
    for p, value in zip(model.parameters(), before, strict=True):
        assert p.shape == value.shape
    for _ in range(200):
        stepper.step(batch, 0.0, 0.0)
    assert stepper.rate_factor > 0.9  # a stream recovers


def test_a_failed_factorisation_raises_the_jitter():
    X, y = Stream()(64)
    learner = OnlineGP("svgp", num_inducing=8, jitter=1e-20).partial_fit(X, y)
    model = learner.model
    with torch.no_grad():
        model.basis.inducing[..., 1:, :] = model.basis.inducing[..., :1, :]
    learner._stepper = Stepper(model, natural=False)
    with pytest.warns(duogp.NumericalWarning, match="jitter"):
        learner.partial_fit(X, y)
    for _ in range(10):
        learner.partial_fit(X, y)
    assert float(model.numerics.jitter) > 1e-20
    assert np.isfinite(learner.predict(X).std).all()


def test_float32_and_one_seed_one_result():
    results = []
    for _ in range(2):
        stream = Stream()
        learner = OnlineGP("svdgp", num_extra=20, dtype="float32", random_state=3, **SMALL)
        for _ in range(8):
            learner.partial_fit(*stream(50))
        results.append(learner.predict(stream(20)[0]).mean)
    np.testing.assert_array_equal(*results)
    assert learner.model.basis.inducing.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", ["svdgp", "ivsgpr", "svi"])
def test_both_devices_learn_the_same(method):
    means = []
    for device in ("cpu", "cuda"):
        stream = Stream()
        learner = OnlineGP(method, device=device, **SMALL)
        for _ in range(25):
            learner.partial_fit(*stream(50))
        means.append(learner.predict(stream(20)[0]).mean)
    np.testing.assert_allclose(*means, atol=1e-4)


def test_rows_without_weight_and_rare_labels_in_a_table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 1))
    y = np.sin(X[:, 0])
    weight = np.r_[np.ones(100), np.zeros(100)]
    settings = {"num_inducing": 10, "batch_size": 50, "epochs": 2}
    weighed = duogp.fit(X, y, "ivsgpr", sample_weight=weight, learning_rate=None, **settings)
    alone = duogp.fit(X[:100], y[:100], "ivsgpr", **settings)
    np.testing.assert_allclose(weighed.predict(X).variance, alone.predict(X).variance, rtol=1e-6)
    labels = np.zeros(200, dtype=int)
    labels[100:], labels[3] = 1, 2
    assert len(duogp.fit(X, labels, "ivsgpr", likelihood="classes", **settings).classes) == 3
