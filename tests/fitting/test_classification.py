"""Labels through the door: any type of label, any basis, probabilities that are probabilities."""

from __future__ import annotations

import numpy as np
import pytest

import duogp
from duogp.data.labels import as_labels, codes_of, encode
from duogp.posterior.prediction import ClassPrediction

QUICK = {"num_inducing": 15, "epochs": 15, "batch_size": 100, "natural_rate": 0.5}


def blobs(classes: int = 2, n: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(classes) / classes
    centres = 2.0 * np.stack([np.cos(angle), np.sin(angle)], 1)
    y = np.arange(n) % classes
    return centres[y] + 0.5 * rng.standard_normal((n, 2)), y


def check(prediction: ClassPrediction, y: np.ndarray, accuracy: float = 0.9) -> None:
    p = prediction.probabilities
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-9)
    assert (p > 0).all() and (p < 1).all()
    assert prediction.metrics(y)["accuracy"] >= accuracy
    assert (prediction.residual > 0).all() and (prediction.explained >= 0).all()


CLASS_METHODS = [
    "svgp", "coupled-nat", "odsvgp", "orthnat", "solvegp", "solvegp-nat", "dsgpc", "dsgpc-eps", "dsgpc-free",
    "hybrid", "hybrid-nat", "orth-a", "decoupled", "decoupled-s", "dcsvgp", "dcsvgp-nat", "dcppgpr", "vfitc",
    "map", "ppgpr-delta", "ppgpr-mf", "ppgpr-chol", "ppgpr-mfd", "odppgpr",
]  # fmt: skip


@pytest.mark.parametrize("method", CLASS_METHODS)
def test_two_classes_with_every_basis(method):
    X, y = blobs()
    gp = duogp.fit(X, y, method, likelihood="classes", **QUICK, learning_rate=0.05)
    check(gp.predict(X), y)


@pytest.mark.parametrize("likelihood", ["robust-max", "softmax"])
@pytest.mark.parametrize("method", ["svgp", "orthnat", "dcsvgp", "solvegp", "decoupled"])
def test_four_classes(method, likelihood):
    X, y = blobs(4)
    gp = duogp.fit(X, y, method, likelihood=likelihood, **QUICK, learning_rate=0.05)
    check(gp.predict(X), y)
    assert gp.model.basis.kernel.batch_shape == (1, 1)  # one factorisation for all classes
    assert gp.model.basis.q.mean.shape[1] == 4


@pytest.mark.parametrize(
    "names",
    [
        np.array(["no", "yes"]),
        np.array([False, True]),
        np.array([-1, 1]),
        np.array([3.0, 7.0]),
        np.array([b"a", b"b"]),
    ],
    ids=["text", "bool", "signs", "floats", "bytes"],
)
def test_labels_come_back_as_they_were(names):
    X, y = blobs()
    gp = duogp.fit(X, names[y], "svgp", likelihood="bernoulli", **QUICK)
    prediction = gp.predict(X)
    assert prediction.labels.dtype == names.dtype and (prediction.labels == names[y]).mean() > 0.9
    np.testing.assert_array_equal(gp.classes, np.unique(names))
    assert gp.predict_proba(X).shape == (150, 2)
    assert "classes=2" in repr(gp)
    density = gp.log_density(X, names[y])
    np.testing.assert_allclose(
        density, np.log(prediction.probabilities[np.arange(150), y]), atol=1e-6, rtol=1e-6
    )


def test_frames_of_labels():
    pandas = pytest.importorskip("pandas")
    X, y = blobs()
    series = pandas.Series(np.array(["cat", "dog"])[y]).astype("category")
    gp = duogp.fit(
        pandas.DataFrame(X, columns=["a", "b"]), series, likelihood="classes", method="svgp", **QUICK
    )
    assert set(gp.classes) == {"cat", "dog"}


def test_validation_rows_and_weights():
    X, y = blobs()
    X_val, y_val = blobs(seed=1)
    gp = duogp.fit(
        X, y, "svgp", likelihood="classes", validation=(X_val, y_val), sample_weight=np.ones(150), **QUICK
    )
    assert gp.history.validation_nll is not None
    check(gp.predict(X_val), y_val)


def test_replicates_share_one_training():
    X, y = blobs(3, 180)
    rows = [np.arange(120), np.arange(60, 180)]
    gps = duogp.fit_replicates(X, y, rows, "orthnat", likelihood="robust-max", **QUICK)
    for gp in gps:
        check(gp.predict(X), y)


def test_samples_of_labels_and_latents():
    X, y = blobs(3)
    gp = duogp.fit(X, np.array(["r", "g", "b"])[y], "svgp", likelihood="softmax", **QUICK)
    assert gp.sample(X[:5], 4, seed=0).shape == (4, 5, 3)
    labels = gp.sample(X[:5], 200, seed=0, observation_noise=True)
    assert labels.shape == (200, 5) and set(np.unique(labels)) <= {"r", "g", "b"}
    share = (labels == gp.classes[0]).mean(0)
    np.testing.assert_allclose(share, gp.predict_proba(X[:5])[:, 0], atol=0.15)


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (np.zeros(150), "only one class"),
        (np.linspace(0, 1, 150), "Unknown label type"),
        (np.array(["a", None] * 75, dtype=object), "no label"),
        (np.array(["a", 1] * 75, dtype=object), "mixes text"),
        (np.array([0.0, np.nan] * 75), "NaN"),
        (np.zeros((150, 2)), "one class label per row"),
        (np.zeros(10), "lengths must agree"),
    ],
)
def test_what_are_no_labels(y, match):
    with pytest.raises(ValueError, match=match):
        duogp.fit(blobs()[0], y, "svgp", likelihood="classes")


def test_wrong_likelihoods_are_answered():
    X, y = blobs()
    with pytest.raises(ValueError, match="did you mean 'poisson'"):
        duogp.fit(X, y, likelihood="poison")
    with pytest.raises(ValueError, match="whole numbers"):
        duogp.fit(X, X[:, 0], likelihood="poisson")
    with pytest.raises(ValueError, match="above 0"):
        duogp.fit(X, y, likelihood="gamma")
    with pytest.raises(ValueError, match="between 0 and 1"):
        duogp.fit(X, y, likelihood="beta")
    with pytest.raises(ValueError, match="Gaussian"):
        duogp.fit(X, y, "gamma-robust", likelihood="classes")
    with pytest.raises(ValueError, match="not Gaussian"):
        duogp.fit(X, y, "svgp", likelihood="classes", solver="closed-form")
    with pytest.raises(ValueError, match="for class labels"):
        duogp.fit(X, X[:, 0], "svgp", num_inducing=10, epochs=2).predict_proba(X)


def test_codes():
    labels = as_labels(["b", "a", "b"], 3)
    codes, classes = encode(labels)
    assert codes.tolist() == [1, 0, 1] and classes.tolist() == ["a", "b"]
    assert codes_of(np.array(["a", "z"]), classes).tolist() == [0, -1]
    assert codes_of(np.array([2.0, 5.0]), np.array([2, 3])).tolist() == [0, -1]


TARGETS = {
    "poisson": lambda f, rng: rng.poisson(np.exp(0.5 + f)),
    "student-t": lambda f, rng: f + 0.1 * rng.standard_t(4, len(f)),
    "gamma": lambda f, rng: rng.gamma(5.0, np.exp(f) / 5.0) + 1e-9,
    "beta": lambda f, rng: np.clip(rng.beta(20 / (1 + np.exp(-f)), 20 / (1 + np.exp(f))), 1e-6, 1 - 1e-6),
    "heteroscedastic": lambda f, rng: f + np.exp(-1.5 + 0.8 * f) * rng.standard_normal(len(f)),
}


@pytest.mark.parametrize(
    "method", ["svgp", pytest.param("vfitc", marks=pytest.mark.slow), "ppgpr-chol", "dcsvgp", "orthnat"]
)
@pytest.mark.parametrize("likelihood", TARGETS)
def test_other_kinds_of_targets(likelihood, method):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 1))
    f = np.sin(2 * X[:, 0])
    y = TARGETS[likelihood](f, rng).astype(float)
    gp = duogp.fit(X, y, method, likelihood=likelihood, num_inducing=12, epochs=40, batch_size=100,
                   learning_rate=0.03, natural_rate=0.3)  # fmt: skip
    prediction = gp.predict(X)
    assert (prediction.variance > 0).all()
    assert np.corrcoef(prediction.mean, f)[0, 1] > 0.85
    assert np.isfinite(gp.log_density(X, y)).all()
    # Better than the best constant: the marginal distribution's own fit.
    assert ((prediction.mean - y) ** 2).mean() < 0.95 * y.var()


@pytest.mark.parametrize(("likelihood", "scale"), [("poisson", 100), ("poisson", 1e4), ("gamma", 1e6)])
def test_large_counts_and_numbers_are_no_obstacle(likelihood, scale):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 1))
    rate = scale * np.exp(np.sin(2 * X[:, 0]))
    y = (rng.poisson(rate) if likelihood == "poisson" else rng.gamma(5.0, rate / 5.0)).astype(float)
    gp = duogp.fit(X, y, "svgp", likelihood=likelihood, num_inducing=15, epochs=100)
    assert np.corrcoef(gp.predict(X).mean, rate)[0, 1] > 0.9
    assert 0.5 < gp.predict(X).mean.mean() / y.mean() < 2


def test_functions_of_a_heteroscedastic_model_come_in_the_units_of_y():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (100, 1))
    y = 5000 + 1000 * np.sin(X[:, 0]) + 10 * rng.standard_normal(100)
    gp = duogp.fit(X, y, "svgp", likelihood="heteroscedastic", num_inducing=10, epochs=20)
    draws = gp.sample(X, 50, seed=0)
    assert draws.shape == (50, 100) and abs(draws.mean() - 5000) < 1000


def test_names_of_likelihoods_ignore_case_and_missing_labels_are_found():
    pandas = pytest.importorskip("pandas")
    X, y = blobs()
    assert (
        duogp.fit(X, X[:, 0], "svgp", likelihood="Gaussian", num_inducing=5, epochs=1).history.solver
        == "closed-form"
    )
    labels = pandas.Series(np.array(["a", "b"])[y], dtype="string")
    labels[3] = pandas.NA
    with pytest.raises(ValueError, match="row 3 has no label"):
        duogp.fit(X, labels, "svgp", likelihood="classes")
