"""Learning from a stream: growth that changes nothing, bounds that hold, streams of every kind."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import duogp
from duogp.bases import Coupled, Subspace
from duogp.inference.closed_form import CollapsedObjective
from duogp.kernels import RBF, GeneralisedRBF, Scale, generalised_points
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.online import (
    GrowingAdam,
    OnlineGP,
    append_coupled,
    append_mean,
    append_tied,
    free_mean,
    novel_rows,
    tie,
)
from duogp.online.growth import distinct_rows, lead_with
from duogp.online.start import median_distances
from duogp.online.stepper import Stepper
from duogp.variational import CholeskyQ

SMALL = {"num_inducing": 12, "growth": 4, "batch_size": 64}


def function(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


class Stream:
    """Rows of a smooth function with noise 0.1, as many as one asks for."""

    def __init__(self, seed: int = 0, dims: int = 2) -> None:
        self.rng, self.dims = np.random.default_rng(seed), dims

    def __call__(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        X = self.rng.normal(size=(n, self.dims))
        return X, function(X) + 0.1 * self.rng.normal(size=n)


def rmse(learner: OnlineGP, X: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((learner.predict(X).mean - y) ** 2)))


def fixed_kernel(dims: int = 2) -> Scale:
    kernel = Scale(RBF(dims))
    for p in kernel.parameters():
        p.requires_grad_(False)
    return kernel


# -- growth --------------------------------------------------------------------------------------------------


def coupled_basis(generator: torch.Generator) -> Coupled:
    q = CholeskyQ(5, (1, 2)).double()
    with torch.no_grad():
        q.mean.copy_(torch.randn(q.mean.shape, generator=generator, dtype=torch.float64))
        q.raw_root.add_(0.3 * torch.randn(q.raw_root.shape, generator=generator, dtype=torch.float64))
    z = torch.randn(1, 1, 5, 2, generator=generator, dtype=torch.float64)
    return Coupled(batched(Scale(RBF(2)), (1, 2)).double(), z, q)


def tied_basis(generator: torch.Generator, preconditioner: str = "jacobi") -> Subspace:
    z = generalised_points(torch.randn(1, 1, 5, 2, generator=generator, dtype=torch.float64))
    kernel = batched(Scale(GeneralisedRBF(2)), (1, 2)).double()
    basis = tie(Subspace(kernel, z, z.clone(), (1, 2), preconditioner=preconditioner).double())
    with torch.no_grad():
        for p in (basis.q.a0, basis.q.raw_root):
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        basis.inducing.add_(0.1 * torch.randn(basis.inducing.shape, generator=generator, dtype=torch.float64))
    return basis


def marginals(basis, generator: torch.Generator, numerics: Numerics) -> torch.Tensor:
    x = torch.randn(1, 1, 40, 2, generator=generator, dtype=torch.float64)
    f = basis.marginals(x, basis.factors(numerics))
    kl = basis.kl(basis.factors(numerics), basis.q_of(basis.factors(numerics)))
    parts = [t.expand(1, 2, 40) for t in (f.mean, f.variance)]
    return torch.cat([*parts, kl.unsqueeze(-1)], -1).detach()


def test_a_coupled_basis_grows_without_moving(generator):
    basis, numerics = coupled_basis(generator), Numerics()
    new = torch.randn(1, 1, 4, 2, generator=generator, dtype=torch.float64)
    grown = append_coupled(basis, new)
    assert grown.basis.q.size == 9
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert_close(
        marginals(grown.basis, seeds[0], numerics), marginals(basis, seeds[1], numerics), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("preconditioner", ["none", "jacobi", "nystrom"])
def test_a_subspace_basis_grows_without_moving(preconditioner, generator):
    """Tied points, the moment of freedom, and points of the mean alone."""
    numerics = Numerics()
    basis = tied_basis(generator, preconditioner)
    before = marginals(basis, torch.Generator().manual_seed(1), numerics)
    for step in ("tied", "free", "mean"):
        new = generalised_points(torch.randn(1, 1, 4, 2, generator=generator, dtype=torch.float64))
        if step == "tied":
            grown = append_tied(basis, new, numerics)
        else:
            grown = free_mean(basis) if step == "free" else append_mean(basis, new, numerics)
        basis = grown.basis
        assert_close(
            marginals(basis, torch.Generator().manual_seed(1), numerics), before, atol=1e-6, rtol=1e-6
        )
    assert basis.q.size == 9
    assert basis.mean_points.shape[-2] == 13


def test_the_mean_grows_only_when_it_is_free(generator):
    basis = tied_basis(generator)
    new = generalised_points(torch.randn(1, 1, 2, 2, generator=generator, dtype=torch.float64))
    with pytest.raises(ValueError, match="free it first"):
        append_mean(basis, new)
    free = free_mean(basis).basis
    with pytest.raises(ValueError, match="no longer tied"):
        append_tied(free, new)


def test_new_points_get_gradients(generator):
    """The new columns of L₀ start just off zero: at zero their gradient vanishes."""
    basis = append_tied(
        tied_basis(generator),
        generalised_points(torch.randn(1, 1, 3, 2, generator=generator, dtype=torch.float64)),
    ).basis
    x = torch.randn(1, 1, 20, 2, generator=generator, dtype=torch.float64)
    f = basis.marginals(x, basis.factors(Numerics()))
    (f.mean.sum() + f.variance.sum()).backward()
    assert (basis.q.raw_root.grad[..., 5:, 5:].diagonal(dim1=-2, dim2=-1) != 0).all()
    assert (basis.q.a0.grad[..., 5:] != 0).all()


def test_adam_is_torch_adam_until_something_grows():
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64)) for _ in range(2))
    adam, reference = GrowingAdam([ours]), torch.optim.Adam([theirs], lr=0.05)
    for _ in range(20):
        for p in (ours, theirs):
            p.grad = None
            (p**4 + (p - 0.3) ** 2).sum().backward()
        adam.step(0.05, torch.tensor(True))
        reference.step()
    assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    before = ours.detach().clone()
    ours.grad.fill_(torch.nan)
    adam.step(0.05, torch.tensor(False))  # a refused step
    assert_close(ours.detach(), before)
    assert_close(adam.moments[ours].first, reference.state[theirs]["exp_avg"])


def test_moments_grow_with_zeros_and_new_entries_are_young():
    old = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    adam = GrowingAdam([old])
    for _ in range(50):
        old.grad = torch.full_like(old, 2.0)
        adam.step(0.01, torch.tensor(True))
    first = adam.moments[old].first.clone()
    new = nn.Parameter(lead_with(old.detach(), torch.ones(3, 3, dtype=torch.float64)))
    adam.inherit([(old, new)])
    assert adam.parameters == [new]
    moments = adam.moments[new]
    assert_close(moments.first[:2, :2], first)
    assert not moments.first[2].any() and not moments.second[:, 2].any()
    new.grad = torch.full_like(new, 2.0)
    adam.step(0.01, torch.tensor(True))
    expected = torch.full((3, 3), 0.99, dtype=torch.float64)
    expected[:2, :2] = 0.49  # 50 steps before
    assert_close(new.detach(), expected, atol=1e-6, rtol=0)  # old and new entries step alike


def test_only_rows_that_add_something_are_chosen():
    kernel = Scale(RBF(2)).double()
    x = torch.tensor([[0.0, 0.0], [5.0, 0.0], [5.0, 1e-5], [0.0, 1e-5], [0.0, 5.0]], dtype=torch.float64)
    points = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    assert novel_rows(kernel, points, x, 5).tolist() == [1, 4]
    assert distinct_rows(kernel, points, x, 5).tolist() == [1, 4]
    assert novel_rows(kernel, points, x, 1).tolist() == [1]


def test_the_median_trick_guards_columns_that_do_not_move():
    X = np.random.default_rng(0).normal(size=(300, 4))
    X[:, 1] = 7.0  # constant
    X[:, 2] = 0.0
    X[:3, 2] = 1.0  # nearly so
    X[:, 3] *= 1e-3
    found = median_distances(X, np.random.default_rng(0))
    pairs = np.abs(X[:, None, 0] - X[None, :, 0])[np.triu_indices(300, 1)]
    assert found[0] == pytest.approx(np.median(pairs))
    assert found[1] == 1.0 and found[2] == pytest.approx(X[:, 2].std()) and found[3] < 2e-3


# -- streams -------------------------------------------------------------------------------------------------


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
