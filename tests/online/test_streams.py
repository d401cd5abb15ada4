"""Learning from a stream: bounds that hold, streams of every kind, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from torch.testing import assert_close

import duogp
from duogp.inference.closed_form import CollapsedObjective
from duogp.kernels import RBF, GeneralisedRBF, Scale
from duogp.online import OnlineGP
from helpers.streams import SMALL, Stream


def rmse(learner: OnlineGP, X: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((learner.predict(X).mean - y) ** 2)))


def fixed_kernel(dims: int = 2) -> Scale:
    kernel = Scale(RBF(dims))
    for p in kernel.parameters():
        p.requires_grad_(False)
    return kernel


def test_svdgp_is_tied_then_freed_and_keeps_to_its_limits():
    stream = Stream()
    learner = OnlineGP("svdgp", num_extra=20, **SMALL)
    sizes, tied = [], []
    for _ in range(9):
        learner.partial_fit(*stream(40))
        sizes.append(learner.num_points)
        tied.append(learner.model.basis.shared)
    assert sizes == [(5, 5), (9, 9), (12, 12), (16, 12), (20, 12), *[(20, 12)] * 4]
    assert tied == [True] * 3 + [False] * 6
    assert isinstance(learner.model.basis.kernel.kernel, GeneralisedRBF)
    count = sum(p.numel() for p in learner.model.parameters())
    tensors = sum(t.numel() for t in learner._stepper._tracked())
    for _ in range(5):
        learner.partial_fit(*stream(40))
    assert sum(p.numel() for p in learner.model.parameters()) == count
    assert sum(t.numel() for t in learner._stepper._tracked()) == tensors
    assert not learner._waiting


@pytest.mark.parametrize("method", ["svdgp", "ivsgpr"])
def test_growth_within_a_stream_moves_no_prediction(method):
    stream = Stream()
    learner = OnlineGP(method, **(SMALL | ({"num_extra": 20} if method == "svdgp" else {})))
    for _ in range(4):
        learner.partial_fit(*stream(30))
        X = stream(25)[0]
        before = learner.predict(X)
        batch = learner._scales.batch(*stream(30)[:1], np.zeros((30, 1)), None)
        learner._grower.feed(batch)
        learner._gp = None
        after = learner.predict(X)
        np.testing.assert_allclose(after.mean, before.mean, atol=1e-6)
        np.testing.assert_allclose(after.variance, before.variance, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        "svdgp",
        "ivsgpr",
        "svi",
        "svgp",
        "decoupled",
        "orthnat",
        "solvegp-nat",
        "dcsvgp-nat",
        "ppgpr-chol",
        "orth-a",
    ],
)
def test_a_stream_beats_the_prior_and_more_of_it_is_better(method):
    stream = Stream()
    X, y = stream(300)
    extra = {} if method in ("ivsgpr", "svi", "svgp", "ppgpr-chol", "dcsvgp-nat") else {"num_extra": 20}
    learner = OnlineGP(method, learning_rate=0.03, **(SMALL | extra))
    learner.partial_fit(*stream(64))
    early = rmse(learner, X, y)
    for _ in range(60):
        learner.partial_fit(*stream(64))
    late = rmse(learner, X, y)
    assert late < early
    assert late < 0.6 * y.std()
    assert np.isfinite(learner.log_density(X, y)).all()
    assert learner.num_seen == 61 * 64
    assert learner.num_steps == 61


def test_one_natural_step_on_everything_is_the_collapsed_optimum():
    """Fixed hyperparameters, a full batch: ρ is one, and N the number of rows."""
    X, y = Stream()(60)
    learner = OnlineGP(
        "svi", num_inducing=10, kernel=fixed_kernel(), mean="zero", learn_noise=False, learn_inducing=False
    )
    learner.partial_fit(X, y)
    model, batch = learner.model, learner._scales.batch(X, y[:, None], None)
    best = CollapsedObjective(model, [lambda: batch]).solve()
    assert_close(model.basis.q.mean.detach(), best.mean, rtol=1e-8, atol=1e-8)
    assert_close(model.basis.q.covariance().detach(), best.root @ best.root.mT, rtol=1e-8, atol=1e-8)
    assert float(model.num_data) == 60
    assert learner.num_steps == 1


def test_the_first_natural_step_leaves_adam_out():
    X, y = Stream()(60)
    learner = OnlineGP("svi", num_inducing=10).partial_fit(X, y)
    assert not any(t.any() for t in learner._stepper.adam.state())
    learner.partial_fit(X, y)
    assert learner._stepper.adam.moments[learner.model.basis.inducing].first.any()


def test_a_stream_of_known_length_averages_its_batches():
    """ρ = B/n_t and N given: after the last row the posterior is that of all rows (fixed hyperparameters)."""
    X, y = Stream()(96)
    options = {
        "num_inducing": 10, "mean": "zero", "learn_noise": False, "learn_inducing": False,
        "kernel": fixed_kernel(), "natural_rate": 1e-3, "start_rows": 32,
    }  # fmt: skip
    learner = OnlineGP("svi", num_data=96, **options)
    for i in range(0, 96, 32):
        learner.partial_fit(X[i : i + 32], y[i : i + 32])
    model, batch = learner.model, learner._scales.batch(X, y[:, None], None)
    best = CollapsedObjective(model, [lambda: batch]).solve()
    assert_close(model.basis.q.mean.detach(), best.mean, rtol=1e-7, atol=1e-7)
    assert_close(model.basis.q.covariance().detach(), best.root @ best.root.mT, rtol=1e-7, atol=1e-7)


def test_single_rows():
    stream = Stream()
    learner = OnlineGP("ivsgpr", num_inducing=8, start_rows=10)
    X, y = stream(60)
    for i in range(60):
        learner.partial_fit(X[i : i + 1], y[i : i + 1])
        assert learner.started == (i >= 9)
    assert learner.num_seen == 60
    assert learner.num_points == 8
    assert rmse(learner, X, y) < 0.8 * y.std()


def test_one_row_waits_for_a_second():
    X, y = Stream()(4)
    learner = OnlineGP("svdgp", **SMALL)
    learner.partial_fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="1 more are needed"):
        learner.predict(X)
    with pytest.warns(duogp.DataWarning, match="first 2 rows"):
        learner.partial_fit(X[1:2], y[1:2])
    assert np.isfinite(learner.predict(X).std).all()


def test_a_fixed_basis_waits_for_as_many_rows_as_it_has_points():
    X, y = Stream()(30)
    learner = OnlineGP("svi", num_inducing=20)
    learner.partial_fit(X[:12], y[:12])
    assert not learner.started
    learner.partial_fit(X[12:], y[12:])
    assert learner.started and learner.num_points == 20 and learner.num_seen == 30


def test_large_calls_are_cut():
    stream = Stream()
    learner = OnlineGP("svi", num_inducing=8, batch_size=50)
    learner.partial_fit(*stream(230))
    assert learner.num_steps == 5 and learner.num_seen == 230
    assert float(learner.model.num_data) == 230


def test_constant_columns_and_columns_that_wake_up():
    stream = Stream(dims=3)
    X, y = stream(64)
    X[:, 2] = 5.0
    learner = OnlineGP("svdgp", **SMALL).partial_fit(X, y)
    for _ in range(3):
        learner.partial_fit(*stream(64))  # now it varies
    assert np.isfinite(learner.predict(stream(10)[0]).std).all()


def test_constant_targets():
    X, _ = Stream()(64)
    learner = OnlineGP("svi", num_inducing=8)
    for _ in range(5):
        learner.partial_fit(X, np.full(64, 3.0))
    np.testing.assert_allclose(learner.predict(X).mean, 3.0, atol=0.1)


def test_repeated_rows_add_no_points():
    X, y = Stream()(3)
    learner = OnlineGP("ivsgpr", num_inducing=12, growth=4, learn_inducing=False)
    for _ in range(10):
        learner.partial_fit(np.tile(X, (10, 1)), np.tile(y, 10))
    assert learner.num_points == 3
    assert float(learner.model.numerics.jitter) == 1e-6


def test_labels():
    stream = Stream()

    def labelled(n: int) -> tuple[np.ndarray, np.ndarray]:
        X, y = stream(n)
        return X, np.where(y > 0.3, "high", np.where(y < -0.3, "low", "middle"))

    learner = OnlineGP("svi", num_inducing=10, likelihood="classes", classes=["low", "middle", "high"])
    X, y = labelled(200)
    first = X[y != "middle"], y[y != "middle"]
    learner.partial_fit(*first)
    for _ in range(15):
        learner.partial_fit(*labelled(64))
    p = learner.predict(X)
    assert p.probabilities.shape == (200, 3)
    assert (p.labels == y).mean() > 0.6
    with pytest.raises(ValueError, match="not announced"):
        learner.partial_fit(X[:2], ["low", "enormous"])
    with pytest.raises(ValueError, match="classes="):
        OnlineGP("svi", likelihood="bernoulli").partial_fit(X[:5], np.zeros(5))


def test_labels_of_the_first_call_are_all_there_are():
    X, y = Stream()(60)
    learner = OnlineGP("svdgp", likelihood="bernoulli", **SMALL).partial_fit(X, y > 0)
    assert learner.classes.tolist() == [False, True]
    assert learner.predict_proba(X).shape == (60, 2)
    with pytest.raises(ValueError, match="numbers"):
        OnlineGP("svi", num_inducing=8).partial_fit(X, y).predict_proba(X)


def test_counts_with_a_growing_basis():
    rng = np.random.default_rng(0)
    learner = OnlineGP("ivsgpr", likelihood="poisson", **SMALL)
    X = rng.normal(size=(200, 1))
    y = rng.poisson(np.exp(1 + np.sin(2 * X[:, 0])))
    for _ in range(15):
        rows = rng.choice(200, 60)
        learner.partial_fit(X[rows], y[rows])
    assert np.corrcoef(learner.predict(X).mean, np.exp(1 + np.sin(2 * X[:, 0])))[0, 1] > 0.9
    with pytest.raises(ValueError, match="whole numbers"):
        learner.partial_fit(X[:2], [0.5, 1.0])


def test_two_outputs_and_weights():
    stream = Stream()
    learner = OnlineGP("svdgp", num_extra=16, learning_rate=0.03, **SMALL)
    for _ in range(20):
        X, y = stream(64)
        weight = np.ones(64)
        weight[:8] = 0.0
        Y = np.stack([y, 10 * X[:, 1]], 1)
        Y[:8] = 1e6  # of no weight
        learner.partial_fit(X, Y, sample_weight=weight)
    p = learner.predict(X[8:])
    assert p.mean.shape == (56, 2)
    assert np.abs(p.mean[:, 1] - 10 * X[8:, 1]).mean() < 5
    assert learner.num_seen == 20 * 56
    with pytest.raises(ValueError, match="1 outputs"):
        learner.partial_fit(X, Y[:, 0])


def test_what_is_refused():
    X, y = Stream()(40)
    for method in ("exact", "sgpr", "fitc", "dtc"):
        with pytest.raises(ValueError, match="cannot learn from a stream"):
            OnlineGP(method)
    with pytest.raises(ValueError, match="closed-form"):
        OnlineGP("svgp", solver="closed-form")
    with pytest.raises(ValueError, match="validation rows"):
        OnlineGP("svgp", beta1=[0.5, 1.0])
    with pytest.raises(ValueError, match="at least num_inducing"):
        OnlineGP("svdgp", num_inducing=64, num_extra=32)
    with pytest.raises(ValueError, match="full covariance"):
        OnlineGP("ppgpr-mf", solver="natural")
    with pytest.raises(TypeError, match="did you mean 'kernel'"):
        OnlineGP("svi", kernl="rbf")
    with pytest.warns(duogp.DataWarning, match="no use for epochs"):
        OnlineGP("svi", epochs=3)
    learner = OnlineGP("svi", num_inducing=8).partial_fit(X, y)
    before = learner.predict(X).mean
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        learner.partial_fit(broken, y)
    with pytest.raises(ValueError, match="NaN"):
        learner.partial_fit(X, np.where(np.arange(40) == 2, np.nan, y))
    with pytest.raises(ValueError, match="3 columns"):
        learner.partial_fit(np.ones((4, 3)), np.ones(4))
    np.testing.assert_array_equal(learner.predict(X).mean, before)  # nothing of it was learned
    assert learner.num_seen == 40
