"""The network baselines: what a mixture says, who is in it, and that no table breaks it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

from duogp.baselines import KINDS, DeepEnsemble, MCDropout, NeuralPredictor, NeuralSettings, fit_neural
from duogp.baselines.descent import clip_gradients, member_losses
from duogp.baselines.fit import fit_members, member_seeds, split
from duogp.baselines.heads import GaussianHead, SoftmaxHead
from duogp.baselines.networks import drop
from duogp.baselines.noise import FACTORS, calibrate_noise
from duogp.errors import DataWarning
from duogp.fitting.builder import make_scaler
from duogp.fitting.dataset import Dataset
from duogp.posterior.prediction import ClassPrediction
from duogp.training.feed import Table

QUICK = {"widths": (32, 32), "epochs": 50, "batch_size": 64, "learning_rate": 1e-2, "device": "cpu"}
SHORT = QUICK | {"epochs": 3}


def wave(n: int = 120, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    return X, np.sin(2 * X[:, 0]) + noise * rng.standard_normal(n)


def blobs(n: int = 150, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    angle = 2 * np.pi * y / classes
    return 2 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.4 * rng.standard_normal((n, 2)), y


def moments_of(p: NeuralPredictor, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and noise variance of every pass in the user's units, [S, n, outputs]."""
    with torch.no_grad():
        mean, noise = p.network.head.moments(p.network.passes(p._inputs(X)).double())
    scale = p.y_scaler.scale
    return mean.mT.numpy() * scale + p.y_scaler.shift, noise.mT.numpy() * scale**2


# -- learning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_learns_a_function(kind, dtype):
    X, y = wave()
    X_test, y_test = wave(seed=1)
    p = fit_neural(X, y, kind, settings=QUICK | {"dtype": dtype})
    found = p.predict(X_test)
    metrics = found.metrics(y_test)
    assert metrics["nmse"] < 0.15
    assert metrics["nll"] < norm(y.mean(), y.std()).logpdf(y_test).mean() * -1 - 0.3
    assert 0.8 < metrics["coverage"] <= 1
    assert found.mean.shape == (len(X_test),) and found.mean.dtype == np.float64
    assert (found.residual == 0).all() and (found.explained > 0).all() and (found.noise > 0).all()
    assert next(p.network.parameters()).dtype == getattr(torch, dtype)
    assert p.settings.random_state == 0 and p.kind in repr(p) and p.method is None
    assert len(p.history) and p.history.solver == "stochastic" and p.history.best_epoch > 0


def test_noise_that_depends_on_the_input_is_recovered():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 1))
    sd = np.where(X[:, 0] < 0, 0.1, 0.5)
    y = X[:, 0] + sd * rng.standard_normal(800)
    p = fit_neural(X, y, "deep-ensemble", settings=QUICK | {"members": 2, "batch_size": 128})
    noise = np.sqrt(p.predict(np.array([[-0.6], [0.6]])).noise)
    np.testing.assert_allclose(noise, [0.1, 0.5], rtol=0.35)


def test_members_disagree_where_there_are_no_data():
    X, y = wave()
    X = np.where(X < 0, X - 1, X + 1)  # −3 to −1 and 1 to 3
    p = fit_neural(X, y, "deep-ensemble", settings=QUICK)
    within = p.predict(np.linspace(1.2, 2.8, 20)[:, None]).explained.mean()
    away = p.predict(np.array([[-8.0], [8.0]])).explained.mean()
    assert away > 5 * within


# -- who is in the mixture -----------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", ["none", "spectral", "batch"])
def test_an_ensemble_is_its_members_trained_alone(normalisation):
    X, y = wave(60)
    settings = NeuralSettings(**SHORT | {"dtype": "float64", "members": 3, "normalisation": normalisation})
    data = Dataset.of_table(X, y, settings.shared)
    seeds = member_seeds(0, 3)
    whole = fit_members(data, "deep-ensemble", settings, seeds).predict(X)
    alone = [fit_members(data, "deep-ensemble", settings, [seed]).predict(X) for seed in seeds]
    means = np.stack([p.mean for p in alone])
    assert np.ptp(means, axis=0).min() > 0  # no two alike
    np.testing.assert_allclose(whole.mean, means.mean(0), atol=1e-9)
    np.testing.assert_allclose(whole.explained, means.var(0), atol=1e-9)
    np.testing.assert_allclose(whole.noise, np.mean([p.noise for p in alone], 0), rtol=1e-8)
    again = fit_neural(X, y, "deep-ensemble", settings=settings.to_dict())
    np.testing.assert_array_equal(whole.mean, again.predict(X).mean)


def test_ensembles_of_neighbouring_seeds_have_no_member_in_common():
    assert len({seed for state in range(20) for seed in member_seeds(state, 5)}) == 100
    assert member_seeds(3, 2) == member_seeds(3, 5)[:2]


def test_members_start_and_shuffle_differently():
    net = DeepEnsemble(2, (8,), GaussianHead(1, heteroscedastic=True, floor=1e-6), member_seeds(0, 4))
    for p in net.net.parameters():
        assert p.shape[0] == 4
        assert all(not torch.equal(p[i], p[j]) for i in range(4) for j in range(i))


@pytest.mark.parametrize("kind", KINDS)
def test_results_depend_on_the_seed_alone(kind):
    X, y = wave(60)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = fit_neural(X, y, kind, settings=SHORT)
    assert torch.equal(before, torch.random.get_rng_state())  # nobody else's random numbers are touched
    torch.manual_seed(2)
    second = fit_neural(X, y, kind, settings=SHORT)
    other = fit_neural(X, y, kind, settings=SHORT | {"random_state": 1})
    np.testing.assert_array_equal(first.predict(X).mean, second.predict(X).mean)
    np.testing.assert_array_equal(first.predict(X).std, first.predict(X).std)
    assert not np.allclose(first.predict(X).mean, other.predict(X).mean)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_told_the_same_whoever_stands_beside_it(kind, monkeypatch):
    X, y = wave(100)
    p = fit_neural(X, y, kind, settings=SHORT | {"dtype": "float64"})
    whole = p.predict(X)
    density = p.log_density(X, y)
    np.testing.assert_allclose(p.predict(X[7:9]).std, whole.std[7:9], rtol=1e-12)
    monkeypatch.setattr("duogp.baselines.predictor.CHUNK_BYTES", 1)  # pieces of 64 rows
    np.testing.assert_allclose(p.predict(X).std, whole.std, rtol=1e-12)
    np.testing.assert_allclose(p.log_density(X, y), density, rtol=1e-10)


def test_dropout_keeps_the_mean_and_leaves_out_its_share(generator):
    h = drop(torch.ones(200, 200), 0.3, generator)
    assert h.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert (h == 0).double().mean() == pytest.approx(0.3, abs=0.01)
    assert h.mean() == pytest.approx(1, abs=0.02)


def test_every_hidden_layer_is_thinned_and_no_input_is(generator):
    head = GaussianHead(1, heteroscedastic=False, floor=1e-6)
    net = MCDropout(3, (6, 5), head, 0, dropout=0.5, passes=7).double()
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    W1, W2, W3 = (layer.weight[0] for layer in net.net.layers)
    b1, b2, b3 = (layer.bias[0] for layer in net.net.layers)
    for s, raw in enumerate(net.passes(x)):
        h = torch.nn.functional.silu(x @ W1 + b1) * net.mask0[s]
        h = torch.nn.functional.silu(h @ W2 + b2) * net.mask1[s]
        torch.testing.assert_close(raw, h @ W3 + b3)
    still = MCDropout(3, (6, 5), head, 0, dropout=0.0, passes=2).double()
    torch.testing.assert_close(still.passes(x)[0], still.net(x)[0])
    torch.testing.assert_close(still(x[None], [generator]), still.net(x[None]))


# -- what a mixture says -------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_prediction_and_density_by_brute_force(kind, outputs):
    X, y = wave(60)
    Y = np.stack([1e3 * y, 5 - y], 1)[:, :outputs]
    p = fit_neural(X, Y, kind, settings=SHORT)
    found = p.predict(X)
    mean, noise = moments_of(p, X)
    np.testing.assert_allclose(found.mean, mean.mean(0))
    np.testing.assert_allclose(found.explained, mean.var(0), rtol=1e-6)
    np.testing.assert_allclose(found.noise, noise.mean(0))
    density = norm(mean, np.sqrt(noise)).logpdf(Y).sum(-1)  # outputs of one network are independent
    np.testing.assert_allclose(p.log_density(X, Y), logsumexp(density, 0) - np.log(len(density)), rtol=1e-6)
    vector = fit_neural(X, Y[:, 0], kind, settings=SHORT)
    assert vector.predict(X).mean.shape == (60,) and found.mean.shape == (60, outputs)


def test_noise_under_dropout_is_chosen_on_validation_rows():
    X, y = wave(300)
    settings = QUICK | {"dropout": 0.3, "validation_fraction": 0.2, "batch_size": 128}
    p = fit_neural(X, y, "mc-dropout", settings=settings)
    raw = fit_neural(X, y, "mc-dropout", settings=settings | {"calibrate_noise": False})
    factor = p.hyperparameters()["noise_factor"][0]
    assert factor < 0.5  # what was learned holds the masks' scatter too
    assert p.history.validation_nll < raw.history.validation_nll
    np.testing.assert_allclose(p.predict(X).noise, factor * raw.predict(X).noise, rtol=1e-5)
    learned = raw.hyperparameters()["noise"][0]
    assert p.hyperparameters()["noise"] == pytest.approx([factor * learned], rel=1e-6)


def test_the_chosen_noise_is_the_best_of_its_grid(generator):
    head = GaussianHead(2, heteroscedastic=False, floor=1e-6)
    net = MCDropout(1, (4,), head, 0, passes=6).double()
    x, y = torch.randn(40, 1, generator=generator), torch.randn(40, 2, generator=generator)
    table = Table(x.double(), torch.stack([0.05 * y[:, 0], 2 * y[:, 1]], 1).double())
    rows = torch.arange(40)
    chosen = calibrate_noise(net, table, rows).clone()
    raw = net.passes(table.x).detach()

    def nll(factor: float, output: int) -> float:
        net.head.factor.fill_(factor)
        mean, noise = (part[:, output].detach() for part in net.head.moments(raw))
        density = norm(mean.numpy(), noise.sqrt().numpy()).logpdf(table.y[:, output].numpy())
        return -(logsumexp(density, 0) - np.log(6)).mean()

    for output in range(2):
        assert float(chosen[output]) == pytest.approx(min(FACTORS, key=lambda f: nll(f, output)))
    assert chosen[0] < 1 < chosen[1]
    assert calibrate_noise(net, table, rows[:5]) is None


# -- classes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [np.array(["a", "b", "c"]), np.array([7, 8, 12]), np.array([True, False])])
@pytest.mark.parametrize("kind", KINDS)
def test_labels(kind, names):
    X, codes = blobs(classes=len(names))
    y = names[codes]
    p = fit_neural(X, y, kind, settings=QUICK | {"epochs": 30, "likelihood": "classes"})
    found = p.predict(X)
    assert isinstance(found, ClassPrediction)
    assert found.metrics(y)["accuracy"] > 0.95 and set(found.labels.tolist()) == set(names.tolist())
    with torch.no_grad():
        each = p.network.passes(p._inputs(X)).double().softmax(-1).numpy()
    np.testing.assert_allclose(p.predict_proba(X), each.mean(0), atol=1e-9)
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    assert (found.probabilities > 0).all() and np.isfinite(found.entropy).all()
    column = {name: i for i, name in enumerate(p.classes.tolist())}
    expected = np.log([q[column[label]] for q, label in zip(found.probabilities, y.tolist(), strict=True)])
    np.testing.assert_allclose(p.log_density(X, y), expected)
    np.testing.assert_allclose(found.latent_mean.sum(1), 0, atol=1e-9)
    assert (found.residual == 0).all() and (found.explained >= 0).all()


def test_labels_that_were_never_seen_and_numbers_that_are_no_labels():
    X, y = blobs()
    p = fit_neural(X, y, "deep-ensemble", settings=SHORT | {"likelihood": "classes"})
    with pytest.raises(ValueError, match="does not know"):
        p.log_density(X[:1], [9])
    with pytest.raises(ValueError, match="predict_proba is for class labels"):
        fit_neural(*wave(30), "deep-ensemble", settings=SHORT).predict_proba(X[:, :1])


# -- weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [GaussianHead(2, heteroscedastic=True, floor=1e-6), SoftmaxHead(3)])
def test_whole_weights_count_like_repeated_rows(head, generator):
    net = DeepEnsemble(2, (5,), head, member_seeds(0, 2)).double()
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    outputs = 2 if isinstance(head, GaussianHead) else 1
    y = torch.randint(0, 3, (6, outputs), generator=generator).double()
    weight = torch.tensor([1.0, 3.0, 2.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    times = weight.long()
    weighted = Table(x, y, weight=weight).gather(torch.arange(6).expand(2, -1))
    repeated = Table(x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)).gather(
        torch.arange(12).expand(2, -1)
    )
    torch.testing.assert_close(
        member_losses(net, weighted, weight.mean(), net(weighted.x, [])),
        member_losses(net, repeated, 1.0, net(repeated.x, [])),
    )


def test_weights_scale_like_repeated_rows_and_zero_is_absence():
    X, y = wave(40)
    weight = np.arange(40) % 4
    settings = NeuralSettings(**SHORT | {"validation_fraction": 0.0})
    data = Dataset.of_table(X, y, settings.shared, sample_weight=weight)
    rows, _ = split(data, settings)
    assert set(rows) == set(np.flatnonzero(weight))
    weighted = make_scaler(data.X[rows], True, data.weights[rows])
    plain = np.repeat(X, weight, 0)
    np.testing.assert_allclose(weighted.shift, plain.mean(0))
    np.testing.assert_allclose(weighted.scale, plain.std(0, ddof=1))
    X2, y2 = X.copy(), y.copy()
    X2[weight == 0], y2[weight == 0] = 1e9, -1e9
    for kind in KINDS:
        found = [
            fit_neural(A, b, kind, sample_weight=weight, settings=SHORT).predict(X).mean
            for A, b in ((X, y), (X2, y2))
        ]
        np.testing.assert_array_equal(*found)
        wide = 10.0 ** np.linspace(-30, 30, 40)  # most of them nothing in float32
        assert np.isfinite(fit_neural(X, y, kind, sample_weight=wide, settings=SHORT).predict(X).std).all()
    with pytest.raises(ValueError, match="zero for every row"):
        fit_neural(X, y, "deep-ensemble", sample_weight=np.zeros(40), settings=SHORT)


# -- tables of all kinds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x_unit", "y_unit"), [(1e6, 1e-6), (1e-6, 1e6)])
@pytest.mark.parametrize("kind", KINDS)
def test_units_do_not_matter(kind, x_unit, y_unit):
    X, y = wave(60)
    p = fit_neural(X, y, kind, settings=SHORT)
    q = fit_neural(x_unit * X, y_unit * y, kind, settings=SHORT)
    mine, theirs = p.predict(X), q.predict(x_unit * X)
    np.testing.assert_allclose(theirs.mean / y_unit, mine.mean, atol=1e-4)
    np.testing.assert_allclose(theirs.std / y_unit, mine.std, rtol=1e-3)
    np.testing.assert_allclose(
        q.log_density(x_unit * X, y_unit * y), p.log_density(X, y) - np.log(y_unit), atol=1e-2
    )


@pytest.mark.parametrize("kind", KINDS)
def test_odd_tables(kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    constant = fit_neural(X, np.full(40, 1e6), kind, settings=QUICK).predict(X)
    np.testing.assert_allclose(constant.mean, 1e6, atol=0.5)
    assert (constant.std > 0).all() and np.isfinite(constant.std).all()
    twins = fit_neural(np.repeat(X[:4], 20, 0), np.repeat([0.0, 1.0, 2.0, 3.0], 20), kind, settings=QUICK)
    np.testing.assert_allclose(twins.predict(X[:4]).mean, [0, 1, 2, 3], atol=0.6)
    X[:, 1] = 3.0
    with pytest.warns(DataWarning, match="1 constant columns"):
        p = fit_neural(X, X[:, 0], kind, settings=SHORT)
    far = p.predict(np.array([[1e300, 3.0, -1e300], [1e9, -1e9, 0.0]]))
    assert np.isfinite(far.mean).all() and np.isfinite(far.std).all()
    two = fit_neural(X[:2, :1], [0.0, 1.0], kind, settings=SHORT)
    assert np.isfinite(two.predict(X[:, :1]).std).all() and two.history.validation_nll is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_outlier_of_a_million_standard_deviations(kind):
    X, y = wave(100)
    X[3], y[5] = 1e8, -1e8
    p = fit_neural(X, y, kind, settings=QUICK | {"epochs": 10})
    found = p.predict(X)
    assert np.isfinite(found.mean).all() and np.isfinite(found.std).all()
    assert np.isfinite(p.log_density(X, y)).all()


def test_what_is_refused():
    X, y = wave(30)
    bad = X.copy()
    bad[4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        fit_neural(bad, y, "deep-ensemble")
    with pytest.raises(ValueError, match="NaN"):
        fit_neural(X, bad[:, 0], "mc-dropout")
    with pytest.raises(ValueError, match="kind must be one of deep-ensemble, mc-dropout, got 'bnn'"):
        fit_neural(X, y, "bnn")
    with pytest.raises(TypeError, match="unknown setting 'memebers'; did you mean 'members'"):
        fit_neural(X, y, "deep-ensemble", settings={"memebers": 3})
    with pytest.raises(ValueError, match="likelihood must be 'gaussian' or 'classes', got 'poisson'"):
        fit_neural(X, y, "deep-ensemble", settings={"likelihood": "poisson"})
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got 1"):
        fit_neural(X, y, "mc-dropout", settings={"dropout": 1.0})
    with pytest.raises(ValueError, match="give one of them"):
        fit_neural(X, y, "mc-dropout", settings={"epochs": 3, "steps": 3})
    with pytest.raises(ValueError, match="early_stopping needs validation rows"):
        fit_neural(X, y, "mc-dropout", settings={"validation_fraction": 0.0, "early_stopping": True})
    with pytest.raises(ValueError, match="members must be a positive integer, got 0"):
        NeuralSettings(members=0)
    with pytest.raises(ValueError, match="learning_rate must be a positive number"):
        NeuralSettings(learning_rate=-1)
    p = fit_neural(X, y, "deep-ensemble", settings=SHORT)
    with pytest.raises(ValueError, match="X has 2 columns, but the model was fitted on 1"):
        p.predict(np.ones((3, 2)))
    with pytest.raises(ValueError, match="NaN"):
        p.predict([[np.nan]])
    with pytest.raises(ValueError, match="y has shape"):
        p.log_density(X, np.ones((30, 2)))


def test_settings_without_a_use_are_named():
    X, y = wave(30)
    with pytest.warns(DataWarning, match="'deep-ensemble' has no use for kernel, passes: ignored"):
        fit_neural(X, y, "deep-ensemble", settings=SHORT | {"kernel": "rbf", "passes": 3})


def test_settings_from_numpy():
    settings = NeuralSettings(
        members=np.int64(3), widths=np.array([4, 2]), dtype=np.float64, clip=np.float64(2)
    )
    assert settings == NeuralSettings(members=3, widths=[4, 2], dtype="float64", clip=2.0)
    assert settings.torch_dtype == torch.float64 and type(settings.members) is int


def test_columns_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = wave(30)
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 0] ** 2})
    p = fit_neural(frame, y, "mc-dropout", settings=SHORT)
    assert p.column_names == ["a", "b"]
    with pytest.raises(ValueError, match="another order"):
        p.predict(frame[["b", "a"]])


# -- training ------------------------------------------------------------------------------------------------


def test_validation_rows_decide_which_state_is_kept():
    X, y = wave(60)
    settings = QUICK | {"patience": 3, "learning_rate": 0.05, "schedule": "constant"}
    p = fit_neural(X, y, "deep-ensemble", validation=wave(40, seed=2), settings=settings)
    history = p.history
    assert history.stopped_early and len(history) < 60
    data = Dataset.of_table(X, y, p.settings.shared, validation=wave(40))
    assert len(split(data, p.settings)[0]) == 60  # none of the training rows is held out
    assert 0 < history.best_epoch < len(history)
    expected = -p.log_density(*wave(40, seed=2)).mean() - np.log(p.y_scaler.scale[0])
    assert history.validation_nll == pytest.approx(expected, rel=1e-4)
    alone = fit_neural(X, y, "deep-ensemble", settings=settings | {"members": 1}).history
    best = min(alone, key=lambda record: record.validation_nll)
    assert alone.best_epoch == best.epoch
    assert alone.validation_nll == pytest.approx(best.validation_nll, rel=1e-5)
    with pytest.raises(TypeError, match="pair"):
        fit_neural(X, y, "deep-ensemble", validation=X, settings=SHORT)


def test_steps_instead_of_epochs():
    p = fit_neural(*wave(100), "deep-ensemble", settings=SHORT | {"epochs": None, "steps": 5})
    assert len(p.history) == 3  # of two steps each


def test_a_gradient_that_is_not_finite_is_left_out_for_its_member_alone():
    p = torch.nn.Parameter(torch.zeros(3, 4))
    p.grad = torch.ones(3, 4)
    p.grad[1, 2] = torch.nan
    p.grad[2] *= 0.1
    assert clip_gradients([p], 1.0).tolist() == [True, False, True]
    torch.testing.assert_close(p.grad, torch.tensor([[0.5], [0.0], [0.1]]).expand(3, 4))


def test_a_loss_that_overflows_does_no_harm(monkeypatch):
    X, y = wave(60)
    honest = GaussianHead.log_prob
    calls = []

    def sometimes(self, raw, target):
        calls.append(None)
        return honest(self, raw, target) * (torch.nan if len(calls) == 2 else 1.0)

    monkeypatch.setattr(GaussianHead, "log_prob", sometimes)
    p = fit_neural(X, y, "deep-ensemble", settings=SHORT | {"batch_size": 20})
    assert all(torch.isfinite(q).all() for q in p.network.parameters())
    assert "5 gradients were not finite" in p.history.notes[-1]


@pytest.mark.parametrize("normalisation", ["none", "layer", "spectral", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_networks_of_every_make(kind, normalisation):
    X, y = wave()
    settings = QUICK | {"normalisation": normalisation, "activation": "silu", "epochs": 30}
    metrics = fit_neural(X, y, kind, settings=settings).predict(X).metrics(y)
    assert metrics["nmse"] < (1.0 if normalisation == "spectral" else 0.6)  # it may not be as steep as y


def test_defaults_grow_with_the_table():
    settings = NeuralSettings()
    widths = [settings.hidden_widths(n) for n in (100, 10_000, 100_000)]
    assert widths[-1] == (1000, 500, 50)
    assert widths == sorted(widths)
    courses = [settings.plan(n, True) for n in (20, 1000, 10_000, 1_000_000)]
    assert [c.batch_size for c in courses] == [20, 64, 128, 1024]
    assert [c.epochs for c in courses] == [300, 300, 76, 30]
    assert [c.learning_rate for c in courses] == pytest.approx([1e-2, 1e-2, 4.5e-3, 3.2e-3], rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_and_copies(kind):
    X, y = wave(30)
    p = fit_neural(X, y, kind, settings=SHORT)
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        np.testing.assert_array_equal(p.predict(X).std, q.predict(X).std)
        np.testing.assert_array_equal(p.log_density(X, y), q.log_density(X, y))
        assert q.settings == p.settings and len(q.history) == len(p.history)
