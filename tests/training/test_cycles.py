"""Learning rates in cycles: how long they are, when they end, and what is left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import duogp
from duogp.training import cycles as room
from duogp.training.cycles import ANNEALED, FIRST_CYCLE, SLOWER, Cycles, first_cycle
from duogp.training.guard import Guard
from duogp.training.validation import BestState


def table(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def cycles_of(tolerance: float, steps: int, parameters: Sequence[torch.Tensor] = ()) -> Cycles:
    replicates = len(parameters[0]) if parameters else 1
    return Cycles(tolerance, steps, BestState(replicates, list(parameters) or [torch.zeros(1)], None))


@pytest.mark.parametrize("steps", [14, FIRST_CYCLE, 6000, 5382])
def test_cycles_fill_the_steps_and_double(steps):
    """Every cycle begins at the whole rate, ends near none, and is twice as long as the one before."""
    cycles, factors, lengths = cycles_of(0.0, steps), [], []
    for step in range(steps):
        factors.append(cycles.factor(step / steps))
        cycles.take((step + 1) / steps, torch.zeros(1), 1, lambda: True)
        if len(cycles.ends) > len(lengths):
            lengths.append(len(factors))
            assert factors[0] > 0.99 and (factors[-1] < 0.04 or len(factors) < 20)
            factors.clear()
    assert not factors and len(lengths) == cycles.count
    for short, long in itertools.pairwise(lengths):
        assert long == pytest.approx(2 * short, abs=1)
    assert len(lengths) == 1 or lengths[0] >= FIRST_CYCLE


def test_a_cycle_leads_to_the_mean_loss_of_its_last_steps():
    cycles, losses = cycles_of(0.0, FIRST_CYCLE), np.random.default_rng(0).normal(size=FIRST_CYCLE)
    for step, loss in enumerate(losses, 1):
        cycles.take(step / FIRST_CYCLE, torch.tensor([loss]), 1, lambda: True)
    (found,) = cycles.ends
    assert found == pytest.approx([losses[-round(ANNEALED * FIRST_CYCLE) :].mean()])


def test_the_cycle_that_gains_too_little_is_the_last():
    cycles = cycles_of(0.01, 6000)
    for loss, ended in ((1.0, False), (0.9, False), (0.895, True)):
        cycles.end([loss])
        assert cycles.ended is ended


def test_a_replicate_that_still_gains_goes_on_with_all():
    cycles = cycles_of(0.01, 50_000)
    for k in range(4):
        cycles.end([1.0, -0.1 * k])
    assert not cycles.ended
    cycles.end([1.0, -0.3])
    assert cycles.ended


def test_no_number_is_no_rest_and_no_tolerance_takes_all_steps():
    for tolerance, losses in ((0.01, [1.0, float("nan"), 0.5]), (0.0, [1.0, 1.0, 2.0])):
        cycles = cycles_of(tolerance, 6000)
        for loss in losses:
            cycles.end([loss])
        assert not cycles.ended


def test_every_replicate_keeps_the_best_sound_end():
    parameter = torch.zeros(2, 1)
    cycles = cycles_of(0.0, 15 * FIRST_CYCLE, [parameter])
    losses = [[1.0, 1.0], [0.5, 2.0], [float("nan"), 0.4], [0.1, 0.1]]
    for k, (loss, sound) in enumerate(zip(losses, [True, True, True, False], strict=True)):
        parameter.fill_(k)
        while len(cycles.ends) <= k:
            cycles.take((2 ** (k + 1) - 1) / 15, torch.tensor(loss), 1, lambda sound=sound: sound)
    cycles.best.restore()
    assert parameter.flatten().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("solver", ["stochastic", "natural"])
def test_minibatches_end_with_the_cycle_that_gains_nothing(solver, monkeypatch):
    monkeypatch.setattr(room, "FIRST_CYCLE", 20)
    X, y = table(120)
    gp = duogp.fit(X, y, "svgp", num_inducing=10, solver=solver, batch_size=60, tolerance=0.05)
    assert gp.history.converged is True
    assert any("the loss no longer improved" in note for note in gp.history.notes)
    assert any("closed-form steps of the coupled basis" in note for note in gp.history.notes)
    rates = gp.history.series("learning_rate")
    # Two batches are all rows; beside natural gradients Adam's rate stays low.
    assert rates[0] == pytest.approx(0.1 if solver == "stochastic" else 0.03, rel=0.05)
    assert min(rates) < 0.1 * max(rates)


def test_what_is_left_is_the_best_end_of_a_cycle(monkeypatch):
    """A last cycle that leads somewhere worse is not what a fit leaves with."""
    monkeypatch.setattr(room, "FIRST_CYCLE", 20)
    kept: list[torch.Tensor] = []
    update, take = BestState.update, Cycles.take

    def seen(self, nll, epoch):
        kept.append(self.parameters[0].detach().clone())
        return update(self, nll, epoch)

    def worse_and_worse(self, done, loss, epoch, is_sound):
        return take(self, done, loss + len(self.ends), epoch, is_sound)

    monkeypatch.setattr(BestState, "update", seen)
    monkeypatch.setattr(Cycles, "take", worse_and_worse)
    X, y = table(120)
    gp = duogp.fit(X, y, "svgp", num_inducing=10, solver="stochastic", batch_size=60, tolerance=1e-9)
    assert len(kept) > 1
    torch.testing.assert_close(next(gp.model.parameters()).detach(), kept[0])


def test_a_cycle_that_leads_up_is_undone_and_lowers_the_rates():
    """Its rate was too high: that is no rest."""
    parameter = torch.zeros(2, 1)
    cycles = cycles_of(0.01, 15 * FIRST_CYCLE, [parameter])
    losses = [[1.0, 1.0], [0.5, 1.2], [0.6, 1.1], [0.4, 0.9]]
    for k, loss in enumerate(losses):
        parameter.fill_(k)
        while len(cycles.ends) <= k:
            undone = cycles.take((2 ** (k + 1) - 1) / 15, torch.tensor(loss), 1, lambda: True)
        assert undone == cycles.led_up == (k == 2)
        assert cycles.slower == (1.0 if k < 2 else SLOWER)  # while a replicate gains, the rates stay
        if k == 2:
            assert parameter.flatten().tolist() == [1.0, 0.0]
            assert cycles.factor(7.0 / 15.0) == pytest.approx(SLOWER, rel=0.01)
    assert not cycles.ended


def test_a_fit_whose_last_cycle_led_up_says_so_and_fails_back_to_where_it_went(monkeypatch):
    """Not to the state that was undone."""
    monkeypatch.setattr(room, "FIRST_CYCLE", 20)
    best: list[torch.Tensor] = []
    good: list[torch.Tensor] = []
    take, accept, update = Cycles.take, Guard.accept, BestState.update

    def up(self, done, loss, epoch, is_sound):
        return take(self, done, loss + len(self.ends), epoch, is_sound)

    def seen(self):
        accept(self)
        good.append(self.good[0])

    def updated(self, nll, epoch):
        if not best:  # the end of the first cycle
            best.append(self.parameters[0].detach().clone())
        return update(self, nll, epoch)

    monkeypatch.setattr(Cycles, "take", up)
    monkeypatch.setattr(Guard, "accept", seen)
    monkeypatch.setattr(BestState, "update", updated)
    X, y = table(120)
    gp = duogp.fit(X, y, "svgp", num_inducing=10, solver="stochastic", batch_size=60, tolerance=1e-9)
    assert gp.history.converged is False
    assert any("the last cycle of rates led up and was undone" in note for note in gp.history.notes)
    assert len(good) > 1
    for state in good:
        torch.testing.assert_close(state, best[0])


def test_an_unsound_state_is_not_where_to_go_back_to():
    """Parameters go back to the best end, what the optimiser remembers does not."""
    cycles = cycles_of(0.01, 3 * FIRST_CYCLE)
    cycles.end([1.0])
    assert cycles.take(1.0, torch.tensor([2.0]), 1, lambda: False) is False
    assert cycles.led_up


def test_what_is_no_number_is_no_best_end():
    cycles = cycles_of(0.01, 15 * FIRST_CYCLE)
    for loss in (float("nan"), 1.0, 1.001):
        cycles.end([loss])
    assert cycles.ended and cycles.slower == 1.0


@pytest.mark.parametrize(
    ("epoch", "batch", "steps"),
    [(2000.0, 1024, 400), (2000.0, None, 400), (20_000.0, 64, 6250), (30.0, 64, 400), (100.0, 64, 1000)],
)
def test_the_first_cycle_of_small_batches_is_longer(epoch, batch, steps):
    """400,000 rows, or ten epochs if fewer: the mean loss of its last tenth is to say something."""
    assert first_cycle(epoch, batch) == steps


def test_of_two_ends_within_the_tolerance_the_later_is_kept():
    parameter = torch.zeros(1, 1)
    cycles = cycles_of(0.01, 3 * FIRST_CYCLE, [parameter])
    for k, loss in enumerate([1.0, 1.005]):
        parameter.fill_(k)
        while len(cycles.ends) <= k:
            cycles.take((2 ** (k + 1) - 1) / 3, torch.tensor([loss]), 1, lambda: True)
    assert cycles.ended
    cycles.best.restore()
    assert parameter.item() == 1.0


def test_losses_of_undone_steps_are_forgotten():
    cycles = cycles_of(0.0, FIRST_CYCLE)
    for step in range(1, FIRST_CYCLE + 1):
        undone = step == FIRST_CYCLE - 10
        loss = None if undone else torch.full((1,), float("inf") if step < FIRST_CYCLE - 10 else 2.0)
        cycles.take(step / FIRST_CYCLE, loss, 1, lambda: True)
    assert cycles.ends == [[2.0]]


def test_a_cycle_whose_last_step_was_undone_led_nowhere():
    parameter = torch.zeros(1, 1)
    cycles = cycles_of(0.0, FIRST_CYCLE, [parameter])
    cycles.take(1.0, None, 1, lambda: True)
    assert np.isnan(cycles.ends).all() and torch.isinf(cycles.best.nll).all()


def test_steps_after_the_last_cycle_are_not_of_it():
    """By the clock, the share that is over may reach one before the last step."""
    parameter = torch.zeros(1, 1)
    cycles = cycles_of(0.0, FIRST_CYCLE, [parameter])
    cycles.take(1.0, torch.ones(1), 1, lambda: True)
    parameter.fill_(1.0)
    cycles.take(1.0, torch.zeros(1), 2, lambda: True)
    cycles.best.restore()
    assert len(cycles.ends) == 1 and parameter.item() == 0.0


def test_who_stops_a_training_keeps_the_state_seen(monkeypatch):
    monkeypatch.setattr(room, "FIRST_CYCLE", 20)
    seen: list[torch.Tensor] = []

    def stop(progress):
        seen.append(next(progress.model.parameters()).detach().clone())
        return len(seen) == 4

    X, y = table(120)
    gp = duogp.fit(
        X, y, "svgp", num_inducing=10, solver="stochastic", batch_size=60, evaluate_every=11, callbacks=[stop]
    )
    assert len(seen) == 4
    torch.testing.assert_close(next(gp.model.parameters()).detach(), seen[-1])


def test_one_cycle_says_nothing_of_rest():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=10, solver="stochastic", schedule="cycles", epochs=3)
    assert gp.history.converged is None
    assert any("too few to say whether the loss still improved" in note for note in gp.history.notes)


def test_lbfgs_has_no_cycles():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=10, optimizer="lbfgs", schedule="cycles", epochs=30)
    assert np.isfinite(gp.history.series("loss")).all()


def test_betas_are_those_of_a_protocol_where_steps_are_given():
    X, y = table()
    own = duogp.plan(X, y, "ppgpr").training.adam_betas
    protocol = duogp.plan(X, y, "ppgpr", steps=10).training.adam_betas
    asked = duogp.plan(X, y, "ppgpr", steps=10, adam_betas=[0.8, 0.9]).training.adam_betas
    assert (own, protocol, asked) == ((0.95, 0.95), (0.9, 0.999), (0.8, 0.9))


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), 0.9, "ab", (0.9, None)])
def test_betas_are_two_shares(betas):
    X, y = table()
    with pytest.raises(ValueError, match=r"adam_betas must be two numbers in \[0, 1\)"):
        duogp.fit(X, y, "ppgpr", adam_betas=betas)
