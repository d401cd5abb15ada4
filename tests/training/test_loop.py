"""The loop and its parts: schedules, rows, callbacks, early stopping, rollbacks, history."""

from __future__ import annotations

import io
import itertools
import math
import sys
import warnings

import numpy as np
import pytest
import torch

import duogp
from duogp.errors import NumericalWarning
from duogp.models.model import Batch
from duogp.training import Minibatches, Scaling, Stochastic, Table, chunks, loop, make_schedule
from duogp.training.adam import Adam
from duogp.training.guard import Guard
from duogp.training.history import History, Record
from duogp.training.progress import Progress
from duogp.training.validation import BestState


def table(n: int = 40, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + r) for r in range(count)]


def assert_sound(gp: duogp.GP, X: np.ndarray) -> None:
    prediction = gp.predict(X)
    assert np.isfinite(prediction.mean).all()
    assert np.isfinite(prediction.variance).all() and (prediction.variance > 0).all()


# -- schedules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [3, 30, 100, 300])
def test_multistep_is_a_fifth_after_each_third(epochs):
    rate = make_schedule("multistep")
    values = [rate(i / epochs) for i in range(epochs)]
    first, second = math.ceil(epochs / 3), math.ceil(2 * epochs / 3)
    expected = [1.0] * first + [0.2] * (second - first) + [0.04] * (epochs - second)
    assert values == pytest.approx(expected)


def test_cosine_falls_from_one_to_a_hundredth():
    rate = make_schedule("cosine")
    values = [rate(i / 100) for i in range(101)]
    assert values[0] == 1.0
    assert values[50] == pytest.approx(0.505)
    assert values[-1] == pytest.approx(0.01)
    assert all(a > b for a, b in itertools.pairwise(values))


def test_schedules_by_name_and_by_function():
    assert make_schedule("constant")(0.7) == 1.0
    halves = make_schedule(lambda progress: 0.5)
    assert halves(0.0) == 0.5
    with pytest.raises(ValueError, match=r"must be one of constant, cosine, cycles, multistep.*'foo'"):
        make_schedule("foo")


def test_the_schedule_reaches_the_optimiser():
    X, y = table()
    gp = duogp.fit(
        X, y, "svgp", solver="stochastic", num_inducing=5, epochs=3, learning_rate=0.1, schedule="multistep"
    )
    assert gp.history.series("learning_rate") == pytest.approx([0.1, 0.02, 0.004])


# -- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "batch"), [(10, 3), (12, 4), (7, 100), (5, 1)])
def test_an_epoch_visits_every_row_in_batches_of_one_shape(n, batch):
    rows = torch.stack([torch.arange(n), torch.arange(100, 100 + n)])
    batches = Minibatches(rows, batch, generators(2))
    epochs = [batches.epoch() for _ in range(3)]
    for epoch in epochs:
        assert epoch.shape == (batches.steps, 2, min(batch, n))
        for r in range(2):
            assert set(epoch[:, r].flatten().tolist()) == set(rows[r].tolist())
    if n > 5:
        assert not torch.equal(epochs[0], epochs[1])


def test_no_row_is_twice_in_one_batch():
    batches = Minibatches(torch.arange(10)[None], 4, generators(1))
    for _ in range(20):
        for part in batches.epoch()[:, 0]:
            assert len(set(part.tolist())) == 4


@pytest.mark.parametrize(("n", "batch"), [(12, 4), (11, 4), (10, 3), (6, 100)])
def test_blocks_are_a_fixed_disjoint_partition(n, batch):
    rows = torch.arange(n).expand(2, n)
    batches = Minibatches(rows, batch, generators(2), blocks=True)
    first, second = batches.epoch(), batches.epoch()
    for r in range(2):
        blocks = {frozenset(block.tolist()) for block in first[:, r]}
        assert blocks == {frozenset(block.tolist()) for block in second[:, r]}
        members = [row for block in blocks for row in block]
        assert len(members) == len(set(members)) == batches.steps * batches.batch_size
        assert n - len(members) < batches.steps  # fewer rows sit out than there are blocks


def test_chunks_are_all_rows_in_order():
    x = torch.arange(10.0, dtype=torch.float64)[:, None]
    data = Table(x, x.clone())
    rows = torch.arange(10).expand(2, 10)
    parts = [part() for part in chunks(data, rows, 4)]
    assert [part.x.shape[1] for part in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([part.x for part in parts], 1)[1, :, 0], x[:, 0])


def test_gather_scales_each_replicate_by_its_own_units():
    x = torch.tensor([[0.0], [2.0], [4.0]], dtype=torch.float64)
    scaling = Scaling(
        x_shift=torch.tensor([[[1.0]], [[2.0]]]),
        x_scale=torch.tensor([[[1.0]], [[4.0]]]),
        y_shift=torch.tensor([[[0.0]], [[2.0]]]),
        y_scale=torch.tensor([[[2.0]], [[4.0]]]),
    )
    data = Table(
        x, x.clone(), torch.full((3, 1), 16.0), torch.tensor([1.0, 2.0, 3.0]), scaling, torch.float32
    )
    batch = data.gather(torch.tensor([[0, 1], [1, 2]]))
    assert batch.x.dtype == batch.y.dtype == torch.float32
    assert batch.x[..., 0].tolist() == [[-1.0, 1.0], [0.0, 0.5]]
    assert batch.y[:, 0].tolist() == [[0.0, 1.0], [0.0, 0.5]]
    assert batch.noise is not None and batch.noise.tolist() == [[[4.0, 4.0]], [[1.0, 1.0]]]
    assert batch.weight is not None and batch.weight.tolist() == [[1.0, 2.0], [2.0, 3.0]]


# -- callbacks and history -------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_callbacks_see_every_epoch(solver):
    X, y = table()
    seen = []
    gp = duogp.fit(
        X, y, "svgp", solver=solver, num_inducing=5, epochs=7, callbacks=[lambda p: seen.append(p.epoch)]
    )
    assert seen == list(range(1, 8))
    assert gp.history.series("epoch") == seen
    assert all(math.isfinite(loss) for loss in gp.history.series("loss"))


def test_a_callback_may_stop_training():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=5, epochs=50, callbacks=[lambda p: p.epoch == 4])
    assert gp.history[-1].epoch == 4
    assert (
        gp.history.converged is None and gp.history.notes[-1] == "stopped after 4 of 50 steps by a callback"
    )
    assert_sound(gp, X)


def test_a_callback_sees_the_model_and_one_record_per_replicate():
    X, y = table()
    seen = []
    rows = [np.arange(20), np.arange(20, 40)]
    duogp.fit_replicates(X, y, rows, "svgp", num_inducing=5, epochs=1, callbacks=[seen.append])
    (progression,) = seen
    assert progression.model.replicates == 2
    assert len(progression.records) == 2
    assert progression.records[0].loss != progression.records[1].loss


def test_an_error_in_a_callback_reaches_the_user():
    X, y = table()

    def broken(progression):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        duogp.fit(X, y, "svgp", num_inducing=5, epochs=2, callbacks=[broken])


def test_training_lowers_the_loss():
    X, y = table(80)
    for method, solver in (("svgp", "closed-form"), ("svgp", "stochastic"), ("ppgpr", "stochastic")):
        gp = duogp.fit(X, y, method, solver=solver, num_inducing=15, epochs=25, learning_rate=0.05)
        loss = gp.history.series("loss")
        assert loss[-1] < loss[0] - 0.1


def test_history_is_a_sequence_of_records_with_columns():
    history = History([Record(1, 2.0, 0.1, 3.0), Record(2, 1.0, 0.2)], solver="stochastic", best_epoch=1)
    assert len(history) == 2
    assert [record.loss for record in history] == history.series("loss") == [2.0, 1.0]
    assert history.series("validation_nll") == [3.0, None]
    plain = history.to_dict()
    assert plain["epoch"] == [1, 2] and plain["best_epoch"] == 1 and plain["solver"] == "stochastic"


def test_history_plots():
    pytest.importorskip("duogp.plots")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=5, epochs=4, validation_fraction=0.2)
    ax = gp.history.plot()
    assert ax.lines
    assert gp.history.plot(ax=ax) is ax
    matplotlib.pyplot.close("all")


def test_verbose_speaks_on_standard_error_alone(capsys):
    X, y = table()
    duogp.fit(X, y, "svgp", num_inducing=5, epochs=3, verbose=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "training 3/3" in captured.err


def test_progress_is_drawn_on_a_terminal(monkeypatch):
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("training", 2, True) as bar:
        bar.advance("loss 0.1234")
        bar.advance("loss 0.0999")
    assert "training" in terminal.getvalue()


# -- validation and early stopping -----------------------------------------------------------------------


def fake_validation(monkeypatch, values: list[float]) -> None:
    """The validation NLL of the k-th evaluation is values[k], whatever the model."""
    series = iter(values)

    def mean_nll(model, batch):
        return torch.full((model.replicates,), next(series), dtype=torch.float64)

    monkeypatch.setattr(loop, "mean_nll", mean_nll)


@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_the_best_state_is_restored_and_patience_ends_training(monkeypatch, solver):
    fake_validation(monkeypatch, [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 9.0])
    X, y = table()
    states = {}

    def remember(progression):
        kernel = progression.model.basis.kernel
        states[progression.epoch] = [p.detach().clone() for p in kernel.parameters()]

    gp = duogp.fit(
        X, y, "svgp", solver=solver, num_inducing=5, epochs=50, evaluate_every=1, patience=3,
        early_stopping=True, callbacks=[remember],
    )  # fmt: skip
    assert gp.history.best_epoch == 3
    assert gp.history.stopped_early
    assert gp.history[-1].epoch == 6
    kept = list(gp.model.basis.kernel.parameters())
    assert all(torch.equal(a, b) for a, b in zip(kept, states[3], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept, states[6], strict=True))


def test_without_early_stopping_the_last_state_stays(monkeypatch):
    fake_validation(monkeypatch, [1.0, 2.0, 3.0, 4.0])
    X, y = table()
    states = {}

    def remember(progression):
        states[progression.epoch] = progression.model.basis.inducing.detach().clone()

    gp = duogp.fit(
        X, y, "svgp", solver="stochastic", num_inducing=5, epochs=4, patience=1, early_stopping=False,
        validation_fraction=0.2, callbacks=[remember],
    )  # fmt: skip
    assert not gp.history.stopped_early
    assert len(gp.history) == 4
    assert torch.equal(gp.model.basis.inducing, states[4])


def test_validation_is_looked_at_as_often_as_asked():
    X, y = table()
    gp = duogp.fit(
        X, y, "svgp", solver="stochastic", num_inducing=5, epochs=7, evaluate_every=3,
        validation_fraction=0.2, callbacks=[lambda p: None],
    )  # fmt: skip
    evaluated = [record.epoch for record in gp.history if record.validation_nll is not None]
    assert evaluated == [3, 6, 7]


def test_each_replicate_keeps_its_own_best_state_and_patience():
    p = torch.zeros(2, 3)
    best = BestState(2, [p], patience=2)
    scores = [(1.0, 5.0), (2.0, 4.0), (3.0, 3.0), (0.0, 2.0), (0.0, 2.5), (0.0, 2.5)]
    done = []
    for epoch, nll in enumerate(scores, 1):
        p.fill_(float(epoch))
        done.append(best.update(torch.tensor(nll, dtype=torch.float64), epoch))
    assert best.epoch == [1, 4]  # the first had stopped when its 0.0 came
    assert done == [False] * 5 + [True]
    best.restore()
    assert p[:, 0].tolist() == [1.0, 4.0]


def test_an_infinite_score_is_never_the_best():
    p = torch.zeros(2, 1)
    best = BestState(2, [p], patience=None)
    p.fill_(1.0)
    best.update(torch.tensor([math.inf, 2.0], dtype=torch.float64), 1)
    best.restore()
    assert p[:, 0].tolist() == [0.0, 1.0]
    assert best.epoch == [0, 1]


def test_validation_nll_is_that_of_the_predictions():
    X, y = table(60)
    gp = duogp.fit(X[:40], y[:40], "svgp", num_inducing=10, epochs=5, validation=(X[40:], y[40:]))
    # in scaled units; log densities differ by log of the scale
    in_units = -gp.log_density(X[40:], y[40:]).mean()
    expected = in_units - np.log(gp.y_scaler.scale[0])
    assert gp.history[-1].validation_nll == pytest.approx(expected, rel=1e-6)
    assert gp.history.validation_nll == pytest.approx(expected, rel=1e-6)
    assert gp.history.validation_nll_y == pytest.approx(in_units, rel=1e-6)


# -- rollbacks -------------------------------------------------------------------------------------------


def test_one_bad_loss_is_one_rollback(monkeypatch):
    """A bad step early in a long epoch must not be found bad again at every later look."""
    original, calls = Stochastic.backward, []

    def backward(self):
        calls.append(None)
        loss = original(self)
        return loss * torch.nan if len(calls) == 7 else loss

    monkeypatch.setattr(Stochastic, "backward", backward)
    X, y = table()
    with pytest.warns(NumericalWarning, match="1 numerical difficulties") as caught:
        gp = duogp.fit(X, y, "svgp", solver="stochastic", num_inducing=5, epochs=5, batch_size=2)
    assert len([w for w in caught if w.category is NumericalWarning]) == 1
    assert gp.history.rollbacks == 1
    assert gp.history.jitter == pytest.approx(1e-5)
    assert math.isnan(gp.history[0].loss)  # part of it was undone, and the history says so
    assert all(math.isfinite(record.loss) for record in gp.history[1:])
    assert gp.history.notes
    assert_sound(gp, X)


@pytest.mark.parametrize("method", ["svgp", "dcsvgp", "ppgpr", "ppgpr-mfd", "map"])
def test_a_broken_parameter_is_put_right(method):
    X, y = table()

    def sabotage(progression):
        if progression.epoch == 5:
            with torch.no_grad():
                next(progression.model.basis.kernel.parameters()).fill_(torch.nan)

    with pytest.warns(NumericalWarning):
        gp = duogp.fit(X, y, method, num_inducing=8, epochs=40, callbacks=[sabotage])
    assert gp.history.rollbacks >= 1
    assert_sound(gp, X)
    mean = gp.predict(X).mean
    assert np.corrcoef(mean, y)[0, 1] > 0.3  # training went on to a useful end


def test_trouble_in_one_replicate_raises_only_its_jitter():
    X, y = table()

    def sabotage(progression):
        if progression.epoch == 3:
            with torch.no_grad():
                progression.model.likelihood.noise.raw[1] = torch.nan

    rows = [np.arange(20), np.arange(20, 40)]
    with pytest.warns(NumericalWarning):
        one, two = duogp.fit_replicates(X, y, rows, "svgp", num_inducing=5, epochs=20, callbacks=[sabotage])
    assert one.history.jitter == pytest.approx(1e-6)
    assert two.history.jitter == pytest.approx(1e-5)
    assert_sound(one, X)
    assert_sound(two, X)


def test_sabotage_after_the_last_look_is_undone():
    X, y = table()

    def sabotage(progression):
        if progression.epoch == 10:
            with torch.no_grad():
                progression.model.basis.inducing.fill_(torch.inf)

    with pytest.warns(NumericalWarning):
        gp = duogp.fit(X, y, "svgp", num_inducing=5, epochs=10, callbacks=[sabotage])
    assert_sound(gp, X)


@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_permanent_trouble_ends_training_but_not_the_fit(monkeypatch, solver):
    monkeypatch.setattr(Guard, "MAX_ROLLBACKS", 4)
    X, y = table()

    def sabotage(progression):
        with torch.no_grad():
            progression.model.likelihood.noise.raw.fill_(torch.nan)

    with pytest.warns(NumericalWarning):
        gp = duogp.fit(X, y, "svgp", solver=solver, num_inducing=5, epochs=60, callbacks=[sabotage])
    assert gp.history.rollbacks >= 4
    assert gp.history[-1].epoch < 60
    assert_sound(gp, X)


@pytest.mark.parametrize("solver", ["stochastic", "closed-form"])
def test_an_absurd_learning_rate_leaves_finite_predictions(solver):
    X, y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        gp = duogp.fit(X, y, "svgp", solver=solver, num_inducing=8, epochs=30, learning_rate=1e3)
    assert_sound(gp, X)


def test_a_failed_validation_counts_as_infinite_even_after_other_failures():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=5, epochs=1)
    model = gp.model
    batch = Batch(torch.zeros(1, 3, 2, dtype=torch.float64), torch.zeros(1, 1, 3, dtype=torch.float64))
    assert torch.isfinite(loop.mean_nll(model, batch)).all()
    with torch.no_grad():  # identical points and a jitter that rounds away: K_Z cannot be factorised
        model.basis.inducing.fill_(0.0)
        model.numerics.jitter.fill_(-1e-3)
    for before in (False, True):
        model.numerics.failed.fill_(before)
        assert torch.isinf(loop.mean_nll(model, batch)).all()
        assert bool(model.numerics.failed) is before  # a look, not a verdict on training


def test_small_steps_take_one_thread_and_give_the_others_back():
    X = np.random.default_rng(0).normal(size=(3000, 2))
    settings = {"batch_size": 3000, "solver": "stochastic", "inducing_init": "random", "epochs": 1}
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        for points in (5, 130):
            look = [lambda _: seen.append(torch.get_num_threads())]
            duogp.fit(X, X[:, 0], "svgp", num_inducing=points, callbacks=look, **settings)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_torchs(dtype: torch.dtype) -> None:
    """Two groups, a rate that changes, a parameter that nobody differentiates."""
    g = torch.Generator().manual_seed(0)
    ours = [torch.randn(n, generator=g, dtype=dtype).requires_grad_() for n in (3, 5, 2)]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    adam = Adam(ours, 0.1, [0.0, 0.3, 0.0])
    groups = [
        {"params": theirs[:1] + theirs[2:], "weight_decay": 0.0},
        {"params": theirs[1:2], "weight_decay": 0.3},
    ]
    reference = torch.optim.AdamW(groups, lr=0.1)
    for i in range(5):
        rate = 0.1 / (1 + i)
        adam.rate = rate
        for group in reference.param_groups:
            group["lr"] = rate
        for p, q in zip(ours[:2], theirs[:2], strict=True):
            p.grad = torch.randn(p.shape, generator=g, dtype=dtype)
            q.grad = p.grad.clone()
        adam.step()
        reference.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)
    adam.zero_grad()
    assert all(p.grad is None for p in ours)
