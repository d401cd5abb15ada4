"""`duogp.fit`: methods and solvers, inputs, seeds, validation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import duogp
from duogp.errors import DataWarning
from duogp.fitting import builder as assembly
from duogp.methods import METHODS
from helpers.fit_tables import predictions, table

ONLINE = [name for name in METHODS if METHODS[name].defaults.get("online")]
BASELINES = [name for name in METHODS if METHODS[name].is_baseline]
TABLE = [name for name in METHODS if name not in (*ONLINE, *BASELINES)]
CLOSED = [
    name
    for name in TABLE
    if METHODS[name].objective in ("elbo", "vfitc", "dtc")
    and METHODS[name].q in ("full", "diagonal", "point")
    and not (METHODS[name].has_network or METHODS[name].is_deep)
]
OPEN = [name for name in TABLE if name not in CLOSED]
SOLVERS = [
    *((name, "auto") for name in TABLE),
    *((name, "stochastic") for name in TABLE if METHODS[name].basis != "exact"),
    *((name, "closed-form") for name in CLOSED),
]


QUICK = {"num_inducing": 8, "epochs": 3, "batch_size": 16}

# -- methods and solvers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("method", "solver"), SOLVERS)
def test_every_method_fits_with_every_solver(method, solver, dtype):
    X, y = table()
    y = 1000 + 50 * y
    settings = {"epochs": 3} if METHODS[method].basis == "exact" else QUICK
    gp = duogp.fit(X, y, method, solver=solver, dtype=dtype, **settings)
    p = gp.predict(X[:9])
    assert p.mean.shape == p.std.shape == (9,)
    assert p.mean.dtype == np.float64
    assert np.isfinite(p.mean).all() and np.isfinite(p.std).all()
    assert (p.residual >= 0).all() and (p.explained >= 0).all() and (p.noise > 0).all()
    assert 900 < p.mean.mean() < 1100  # the user's units
    assert 1 < p.std.mean() < 200
    expected = "closed-form" if solver != "stochastic" and method in CLOSED else "stochastic"
    if solver == "auto":
        expected = METHODS[method].defaults.get("solver", expected)
    assert gp.history.solver == gp.settings.solver == expected
    assert gp.method is METHODS[method]
    assert next(gp.model.parameters()).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ONLINE)
def test_methods_that_grow_online_fit_a_table_too(method, dtype):
    X, y = table()
    gp = duogp.fit(X, 1000 + 50 * y, method, dtype=dtype, sample_weight=np.ones(len(y)), **QUICK)
    assert gp.history.solver == "online" and gp.method is METHODS[method]
    assert 900 < gp.predict(X).mean.mean() < 1100
    assert len(gp.inducing_points) == 8
    with pytest.raises(ValueError, match="takes no validation"):
        duogp.fit(X, y, method, validation=(X, y))
    with pytest.raises(ValueError, match="one model at a time"):
        duogp.fit_replicates(X, y, [range(10), range(10, 20)], method)
    with pytest.raises(ValueError, match="needs all rows at once"):
        duogp.fit(X, y, method, solver="closed-form")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", BASELINES)
def test_baselines_come_through_the_same_door(method, dtype):
    X, y = table()
    settings = {"epochs": 3, "widths": [8], "solver": "auto"}
    net = duogp.fit(X, 1000 + 50 * y, method, dtype=dtype, sample_weight=np.ones(len(y)), **settings)
    assert net.method is METHODS[method] and net.history.solver == "stochastic"
    p = net.predict(X)
    assert 900 < p.mean.mean() < 1100 and np.isfinite(p.std).all() and not p.residual.any()
    for refused in ({"noise": np.ones(len(y))}, {"callbacks": [lambda _: None]}):
        with pytest.raises(
            ValueError, match=f"'{method}' trains networks: it takes no {next(iter(refused))}"
        ):
            duogp.fit(X, y, method, **settings, **refused)
    with pytest.raises(ValueError, match="is no GP"):
        duogp.fit_replicates(X, y, [range(10), range(10, 20)], method)


@pytest.mark.parametrize("method", [*OPEN, *BASELINES])
def test_a_closed_form_that_does_not_exist_is_refused(method):
    with pytest.raises(ValueError, match=f"solver='closed-form'.*'{method}'.*use solver='stochastic'"):
        duogp.fit(*table(), method, solver="closed-form")


def test_ppgpr_is_an_alias_and_names_ignore_case():
    X, y = table()
    assert np.array_equal(predictions(X, y, "ppgpr"), predictions(X, y, "PPGPR-chol"))


def test_the_default_method_is_dcsvgp():
    gp = duogp.fit(*table(), num_inducing=5, epochs=1)
    assert gp.method.name == "dcsvgp"


def test_the_weight_of_omega_is_the_papers_where_omega_is_the_papers():
    """β₂ = 1e-3 weighs a minibatch Ω; in closed form held-out rows do its work."""
    assert duogp.fit(*table(), solver="stochastic", num_inducing=5, epochs=1).settings.beta2 == 1e-3
    assert duogp.fit(*table(), solver="closed-form", num_inducing=5, epochs=1).settings.beta2 == 0.0
    assert duogp.fit(*table(), "svgp", num_inducing=5, epochs=1).settings.beta2 == 0.0


def test_decoupled_conditionals_start_where_the_coupled_basis_ended():
    X, y = table()
    settings = {"num_inducing": 8, "early_stopping": False, "solver": "closed-form", "optimizer": "adam"}
    coupled = duogp.fit(X, y, "svgp", epochs=30, learning_rate=0.05, **settings)
    conditional = duogp.fit(X, y, "dcsvgp", warm_start=30, epochs=1, learning_rate=1e-12, **settings)
    np.testing.assert_allclose(conditional.predict(X).mean, coupled.predict(X).mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(conditional.predict(X).variance, coupled.predict(X).variance, rtol=1e-6)
    assert "started from 30 closed-form steps" in conditional.history.notes[0]


@pytest.mark.parametrize(
    "method", ["ppgpr-chol", "ppgpr-mf", "ppgpr-delta", "ppgpr-mfd", "dcppgpr", "odppgpr"]
)
def test_any_method_can_start_warm(method):
    X, y = table()
    settings = {"num_inducing": 8, "epochs": 1, "learning_rate": 1e-4}
    cold, warm = (duogp.fit(X, y, method, warm_start=steps, **settings) for steps in (0, 60))
    assert warm.predict(X).metrics(y)["rmse"] < 0.5 * cold.predict(X).metrics(y)["rmse"]


def test_rows_held_out_here_come_back_for_the_last_solve():
    X, y = table()
    settings = {"num_inducing": 8, "epochs": 3, "validation_fraction": 0.3}
    with_all = duogp.fit(X, y, "dcsvgp", **settings)
    without = duogp.fit(X, y, "dcsvgp", refit=False, **settings)
    assert "all rows" in with_all.history.notes[-1]
    assert with_all.hyperparameters() == without.hyperparameters()
    assert not np.allclose(with_all.predict(X).mean, without.predict(X).mean)


def test_omega_of_all_rows_is_refused_for_many():
    X, y = np.random.default_rng(0).normal(size=(5001, 1)), np.zeros(5001)
    with pytest.raises(ValueError, match=r"omega='full'.*5000"):
        duogp.fit(X, y, "dcsvgp", omega="full", beta2=1.0, early_stopping=False, num_inducing=4)


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "odsvgp", "solvegp", "dsgpc-eps", "dsgpc-free"])
def test_the_closed_form_is_where_stochastic_training_is_going(method):
    """With everything but q(u) fixed, many stochastic steps reach the optimum of the closed form."""
    X, y = table(30)
    settings = {"num_inducing": 6, "learn_inducing": False, "early_stopping": False, "warm_start": 0}
    if METHODS[method].basis == "conditional":
        settings |= {"omega": "full", "beta2": 1e-3}
    exact = predictions(X, y, method, solver="closed-form", epochs=1, learning_rate=1e-9, **settings)

    def freeze(progression):
        own = {id(p) for p in progression.model.basis.q.parameters()}
        for p in progression.model.parameters():
            if id(p) not in own:
                p.requires_grad_(False)
                p.grad = None

    # the first step moves the hyperparameters too, by no more than the learning rate
    settings |= {"learning_rate": 0.05, "schedule": "cosine", "epochs": 150, "batch_size": 100}
    reached = predictions(X, y, method, solver="stochastic", callbacks=[freeze], **settings)
    np.testing.assert_allclose(reached, exact, atol=0.15)


@pytest.mark.parametrize(
    "method", ["svgp", "dcsvgp", "vfitc", "map", "odsvgp", "solvegp", "dsgpc-eps", "dsgpc-free"]
)
def test_the_closed_form_does_not_depend_on_its_chunks(method, monkeypatch):
    X, y = table(600)
    settings = {"solver": "closed-form", "epochs": 2, "beta2": 0.0, "early_stopping": False}
    settings["optimizer"] = "adam"
    whole = predictions(X, y, method, **settings)
    monkeypatch.setattr(assembly, "CPU_CHUNK_ROWS", 256)
    np.testing.assert_allclose(predictions(X, y, method, **settings), whole, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("omega", ["rows", "batch", "blocks", "full"])
@pytest.mark.parametrize("whitening", ["Q", "K"])
@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_every_kind_of_omega_trains(omega, whitening, solver):
    X, y = table()
    rows = 64 if omega == "full" else 8
    found = predictions(
        X, y, "dcsvgp", omega=omega, whitening=whitening, solver=solver, batch_size=rows, omega_block=8,
        beta2=1.0, early_stopping=False,
    )  # fmt: skip
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "solver",
    [
        "stochastic",
        "closed-form",
    ],
)
def test_the_unwhitened_prior_of_map_is_another_objective(solver):
    found = [
        predictions(*table(), "map", solver=solver, log_prior=prior, epochs=20)
        for prior in ("whitened", "unwhitened")
    ]
    assert not np.allclose(*found, rtol=1e-6)


def test_a_full_omega_needs_every_row_at_once():
    with pytest.raises(ValueError, match=r"omega='full' needs every row.*batch_size"):
        duogp.fit(*table(), "dcsvgp", omega="full", solver="stochastic", batch_size=8)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "Matern-3/2", "rq", "periodic", "linear", "constant"])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp"])
def test_kernels_by_name(kernel, method):
    assert np.isfinite(predictions(*table(), method, kernel=kernel)).all()


def test_kernels_and_means_as_objects_are_copied():
    X, y = table()
    kernel = duogp.kernels.RBF(2) * 2.0 + duogp.kernels.Linear(2)
    mean = torch.nn.Linear(2, 1)
    before = [p.detach().clone() for p in (*kernel.parameters(), *mean.parameters())]
    assert np.isfinite(predictions(X, y, "dcsvgp", kernel=kernel, mean=mean)).all()
    after = [*kernel.parameters(), *mean.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_gpytorch_kernels_work():
    gpytorch = pytest.importorskip("gpytorch")
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
    assert np.isfinite(predictions(*table(), "svgp", kernel=kernel)).all()


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_means_by_name(mean):
    assert np.isfinite(predictions(*table(), "ppgpr", mean=mean)).all()


def test_a_linear_mean_extrapolates():
    X = np.linspace(-1, 1, 40)[:, None]
    gp = duogp.fit(X, 3 * X[:, 0] + 7, "svgp", mean="linear", num_inducing=8, epochs=150)
    assert gp.predict([[50.0]]).mean[0] == pytest.approx(157, rel=0.1)


@pytest.mark.parametrize("standardize", [True, False, "minmax", "cube"])
def test_ways_of_scaling(standardize):
    X, y = table()
    gp = duogp.fit(X, y, "svgp", standardize=standardize, num_inducing=8, epochs=5)
    assert np.isfinite(gp.predict(X).mean).all()
    scaled = gp.x_scaler.transform(X)
    if standardize is True:
        np.testing.assert_allclose(scaled.std(0, ddof=1), 1.0)
    elif standardize in ("minmax", "cube"):  # no column of this table is inside the unit interval
        assert scaled.min() == pytest.approx(-1) and scaled.max() == pytest.approx(1)
    else:
        assert np.array_equal(scaled, X)


# -- inputs ----------------------------------------------------------------------------------------------


def test_any_table_will_do():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, size=(30, 3)).astype(np.float64)
    X[:, 2] = X[:, 2] > 2
    y = X.sum(1)
    expected = predictions(X, y)
    frame = pandas.DataFrame({"a": X[:, 0].astype(int), "b": X[:, 1], "c": X[:, 2].astype(bool)})
    for same, target in (
        (X.tolist(), y.tolist()),
        (X.astype(np.int64), y.astype(np.int32)),
        (X.astype(np.float32), y.astype(np.float32)),
        (torch.as_tensor(X), torch.as_tensor(y)),
        (torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y).to(torch.bfloat16)),
        (frame, pandas.Series(y)),
        (np.asfortranarray(X), y[::-1][::-1]),
    ):
        found = predictions(same, target, at=same)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)  # other strides, other sums


def test_boolean_inputs_and_targets():
    rng = np.random.default_rng(0)
    X = rng.random((40, 3)) > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert np.isfinite(predictions(X, X[:, 0])).all()


def test_the_users_arrays_are_left_alone():
    X, y = table()
    before = X.copy(), y.copy()
    predictions(X, y, "dcsvgp", standardize=False)
    assert np.array_equal(X, before[0]) and np.array_equal(y, before[1])


BAD_TABLES = {
    "nan in X": (np.array([[1.0], [np.nan], [2.0]]), [1, 2, 3], r"X contains 1 value.*row 1, column 0"),
    "inf in X": (np.array([[1.0], [2.0], [np.inf]]), [1, 2, 3], r"X contains 1 value.*row 2"),
    "nan in y": (np.eye(3), [1, np.nan, 3], r"y contains 1 value.*row 1"),
    "inf in y": (np.eye(3), [-np.inf, 2, 3], r"y contains 1 value.*row 0"),
    "no rows": (np.zeros((0, 2)), [], r"X.*empty"),
    "one row": (np.zeros((1, 2)), [1.0], r"X: found 1 sample.*at least 2"),
    "no columns": (np.zeros((3, 0)), [1, 2, 3], r"X: found 0 feature"),
    "X a vector": (np.zeros(3), [1, 2, 3], r"X: expected a 2D array.*Reshape"),
    "X a cube": (np.zeros((3, 2, 2)), [1, 2, 3], r"X: expected a 2D array"),
    "y a cube": (np.eye(3), np.zeros((3, 1, 1)), r"y: expected shape"),
    "y short": (np.eye(3), [1, 2], r"y has 2 rows but X has 3"),
    "y a scalar": (np.eye(3), 1.0, r"y: expected shape"),
    "y missing": (np.eye(3), None, r"y"),
    "text": (np.array([["a"], ["b"]]), [1, 2], r"X.*'a'"),
    "complex": (np.eye(3) * 1j, [1, 2, 3], r"X: Complex data not supported"),
    "ragged": ([[1.0], [1.0, 2.0]], [1, 2], r"X: rows of unequal length"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_explained(name):
    X, y, message = BAD_TABLES[name]
    with pytest.raises((ValueError, TypeError), match=message):
        duogp.fit(X, y, "svgp", epochs=1)


# -- seeds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["stochastic", "auto"])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-mfd"])
def test_seeds_reproduce_bit_for_bit(method, solver):
    X, y = table()
    settings = {"solver": solver, "batch_size": 7, "validation_fraction": 0.2}
    first, again, other = (predictions(X, y, method, random_state=s, **settings) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_global_random_state_is_left_alone():
    X, y = table()
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for method, solver in (("dcsvgp", "auto"), ("ppgpr", "stochastic"), ("ppgpr-mfd", "auto")):
        for init in ("kmeans", "random", "greedy"):
            gp = duogp.fit(X, y, method, solver=solver, inducing_init=init, num_inducing=6, epochs=2)
        gp.sample(X, 2, seed=0, kind="pathwise")
        gp.sample(X, 2, kind="joint")
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_global_random_state_does_not_matter():
    X, y = table()
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        found.append(predictions(X, y, "dcsvgp", solver="stochastic", batch_size=16))
    assert np.array_equal(*found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr-mfd"])
def test_torchs_default_dtype_does_not_matter(method, dtype):
    X, y = table()
    given = {} if method == "ppgpr-mfd" else {"optimizer": "adam"}  # steps of L-BFGS magnify rounding
    expected = predictions(X, y, method, dtype=dtype, **given)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = predictions(X, y, method, dtype=dtype, **given)
    finally:
        torch.set_default_dtype(previous)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# -- validation ------------------------------------------------------------------------------------------


def test_a_validation_pair_is_never_trained_on():
    X, y = table()
    settings = {"early_stopping": False, "evaluate_every": 1}
    plain = predictions(X[:30], y[:30], at=X, validation_fraction=0.0)
    held = predictions(X[:30], y[:30], at=X, validation=(X[30:], y[30:]), **settings)
    np.testing.assert_allclose(held, plain, rtol=1e-12, atol=1e-12)


def test_a_fraction_is_held_out():
    X, y = table(40)
    seen = []
    gp = duogp.fit(
        X, y, "svgp", num_inducing=5, epochs=2, validation_fraction=0.25, callbacks=[lambda p: seen.append(p)]
    )
    assert float(seen[0].model.num_data) == 30
    assert gp.history[-1].validation_nll is not None
    assert gp.settings.validation_fraction == 0.25


def test_nothing_is_held_out_unless_needed():
    X, y = table(40)
    rows = {}
    for name, method, settings in (
        ("svgp", "svgp", {}),
        ("dcsvgp", "dcsvgp", {}),  # its closed form overfits: it looks at held-out rows by itself
        ("dcsvgp stochastic", "dcsvgp", {"solver": "stochastic"}),
        ("dcsvgp without", "dcsvgp", {"early_stopping": False}),
        ("svgp stopping", "svgp", {"early_stopping": True}),
    ):
        gp = duogp.fit(X, y, method, num_inducing=5, epochs=1, **settings)
        rows[name] = float(gp.model.num_data)
    assert rows == {
        "svgp": 40, "dcsvgp": 36, "dcsvgp stochastic": 40, "dcsvgp without": 40, "svgp stopping": 36
    }  # fmt: skip


def test_early_stopping_finds_the_end_of_learning():
    """Pure noise: nothing can be learned, so validation gets worse and training ends early."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    gp = duogp.fit(
        X, y, "dcsvgp", num_inducing=30, beta2=0.0, epochs=300, evaluate_every=1, patience=3,
        validation_fraction=0.3, learning_rate=0.1,
    )  # fmt: skip
    nll = [record.validation_nll for record in gp.history if record.validation_nll is not None]
    assert gp.history.stopped_early
    assert len(nll) < 300
    assert gp.history.best_epoch == 1 + int(np.argmin(nll))
    assert len(nll) == gp.history.best_epoch + 3


@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_a_list_of_betas_is_chosen_from_on_validation(solver):
    # β₂ = 0 among others would keep the nugget of their Ω, which it has not when it is alone; and hundreds of
    # steps of L-BFGS would make more of the rounding in which they differ.
    X, y = table(60)
    settings = {
        "solver": solver,
        "num_inducing": 8,
        "epochs": 5,
        "validation_fraction": 0.3,
        "warm_start": 20,
    }
    gp = duogp.fit(X, y, "dcsvgp", beta1=[0.1, 1.0], beta2=(0.1, 1.0), **settings)
    assert gp.settings.beta1 in (0.1, 1.0)
    assert gp.settings.beta2 in (0.1, 1.0)
    alone = {
        (b1, b2): duogp.fit(X, y, "dcsvgp", beta1=b1, beta2=b2, **settings)
        for b1 in (0.1, 1.0)
        for b2 in (0.1, 1.0)
    }

    def best(fitted):
        return min(v for v in fitted.history.series("validation_nll") if v is not None)

    # whichever wins, its score is that of the candidates trained alone
    assert best(gp) == pytest.approx(min(map(best, alone.values())), rel=1e-6)
    np.testing.assert_allclose(
        gp.predict(X).mean,
        alone[gp.settings.beta1, gp.settings.beta2].predict(X).mean,
        rtol=1e-6,
        atol=1e-8,
    )
    assert gp.model.replicates == 1
    assert float(gp.model.beta1) == gp.settings.beta1


def test_a_hopeless_beta_is_not_chosen():
    X, y = table(60)
    gp = duogp.fit(X, y, "svgp", beta1=[1e4, 1.0], num_inducing=10, epochs=5, validation_fraction=0.3)
    assert gp.settings.beta1 == 1.0


def test_choosing_needs_validation_rows():
    with pytest.raises(ValueError, match=r"beta1 and beta2.*validation_fraction"):
        duogp.fit(*table(), "svgp", beta1=[0.1, 1.0], validation_fraction=0.0)
    with pytest.raises(ValueError, match=r"early_stopping needs validation rows"):
        duogp.fit(*table(), "svgp", early_stopping=True, validation_fraction=0.0)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (np.zeros((3, 2)), r"validation must be a pair \(X, y\), got ndarray"),
        ((np.zeros((3, 1)), np.zeros(3)), "validation X has 1 columns, X has 2"),
        ((np.zeros((3, 2)), np.zeros(4)), "validation y has 4 rows"),
        ((np.zeros((3, 2)), np.zeros((3, 2))), r"validation y has shape \(3, 2\)"),
        ((np.full((3, 2), np.nan), np.zeros(3)), "validation X contains"),
        ((np.zeros((0, 2)), np.zeros(0)), "validation X.*empty"),
    ],
)
def test_bad_validation_pairs_are_explained(validation, message):
    with pytest.raises((ValueError, TypeError), match=message):
        duogp.fit(*table(), "svgp", validation=validation)
