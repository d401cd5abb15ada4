"""When training ends: L-BFGS at a point of rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

import duogp
from duogp.numerics.parameters import inverse_softplus as softplus_inverse
from duogp.training import problems
from duogp.training.convergence import FEWEST_STEPS, Rest
from duogp.training.lbfgs import LBFGS, Curvature


def table(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


# -- L-BFGS ----------------------------------------------------------------------------------------------


def rosenbrock(x: torch.Tensor) -> torch.Tensor:
    """Of every row, [R, d] → [R]: a curved valley with its floor at 1."""
    return ((1 - x[:, :-1]) ** 2 + 100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2).sum(-1)


def minimised(start: torch.Tensor, steps: int, loss=rosenbrock, *, fail_at=()) -> torch.Tensor:
    p = start.clone().requires_grad_()
    optimiser = LBFGS([p], len(start))
    for step in range(steps):
        optimiser.place()
        p.grad = None
        value = loss(p)
        value.sum().backward()
        failed = torch.full((len(start),), step in fail_at)
        optimiser.advance(value.detach(), failed)
    return p.detach()


def test_lbfgs_finds_the_floor_of_a_curved_valley():
    start = torch.tensor([[-1.2, 1.0, 0.3]], dtype=torch.float64)
    torch.testing.assert_close(minimised(start, 120), torch.ones_like(start), atol=1e-5, rtol=0)


def test_the_curvature_of_a_part_of_the_loss_leads_down_the_whole_of_it():
    """A quadratic of many scales; a tenth of it is descended first, then all of it from elsewhere."""
    scales = torch.logspace(-2, 3, 30, dtype=torch.float64)
    start = torch.ones(1, 30, dtype=torch.float64)

    def descended(curvature: Curvature | None, weight: float, steps: int) -> tuple[LBFGS, float]:
        p = start.clone().requires_grad_()
        optimiser = LBFGS([p], 1)
        if curvature is not None:
            optimiser.inherit(curvature)
        for _ in range(steps):
            optimiser.place()
            p.grad = None
            value = weight * (scales * p.square()).sum(-1)
            value.sum().backward()
            optimiser.advance(value.detach(), torch.tensor([False]))
        return optimiser, float(optimiser.loss)

    first, _ = descended(None, 0.1, 60)
    curvature = Curvature()
    first.keep(curvature)
    curvature.scale(10.0)
    _, alone = descended(None, 1.0, 10)
    _, handed = descended(curvature, 1.0, 10)
    assert handed < 0.3 * alone
    other = LBFGS([torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)], 1)
    other.inherit(curvature)  # of other parameters: of no use
    assert not other.known.any()


def test_a_step_that_still_leads_steeply_down_is_made_longer():
    """Down a slope without end: a step is doubled along its direction before another direction is taken."""
    p = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    optimiser = LBFGS([p], 1)
    lengths = []
    for _ in range(6):
        optimiser.place()
        p.grad = None
        (-p.sum(-1)).sum().backward()
        optimiser.advance(-p.detach().sum(-1), torch.tensor([False]))
        lengths.append(float(optimiser.length))
    assert lengths[1:] == [lengths[0] * 2.0**k for k in range(1, 6)]


def test_a_direction_that_leads_up_gives_way_to_the_gradient():
    p = torch.tensor([[0.5, -0.2]], dtype=torch.float64, requires_grad=True)
    optimiser = LBFGS([p], 1)
    optimiser.place()
    p.square().sum().backward()
    optimiser._direction = lambda: optimiser.gradient.clone()  # what a memory full of rounding may say
    optimiser.advance(p.detach().square().sum(-1), torch.tensor([False]))
    torch.testing.assert_close(optimiser.direction, -2 * p.detach(), rtol=1e-12, atol=0)
    assert float(optimiser.slope) < 0


def test_a_memory_is_kept_until_others_move_the_parameters():
    p = torch.tensor([[-1.2, 1.0]], dtype=torch.float64, requires_grad=True)
    optimiser = LBFGS([p], 1)
    for _ in range(10):
        optimiser.place()
        p.grad = None
        rosenbrock(p).sum().backward()
        optimiser.advance(rosenbrock(p).detach(), torch.tensor([False]))
    optimiser.refresh()
    assert bool(optimiser.known.any())
    with torch.no_grad():
        p += 0.1
    optimiser.refresh()
    assert not bool(optimiser.known.any()) and torch.equal(optimiser.x, p.detach())


def test_replicates_do_not_see_each_other():
    starts = torch.tensor([[-1.2, 1.0], [0.5, -0.5], [3.0, 3.0]], dtype=torch.float64)
    together = minimised(starts, 25)
    for r in range(3):
        torch.testing.assert_close(together[r], minimised(starts[r : r + 1], 25)[0], rtol=1e-8, atol=1e-8)


def test_a_failed_evaluation_is_a_step_too_far():
    start = torch.tensor([[-1.2, 1.0]], dtype=torch.float64)
    found = minimised(start, 140, fail_at=(3, 4, 9))
    torch.testing.assert_close(found, torch.ones_like(start), atol=1e-4, rtol=0)


def test_parameters_are_left_at_the_best_point():
    p = torch.tensor([[2.0]], dtype=torch.float64, requires_grad=True)
    optimiser = LBFGS([p], 1)
    seen = []
    for _ in range(30):
        optimiser.place()
        p.grad = None
        loss = (p**4).sum(-1)
        loss.sum().backward()
        seen.append(float(optimiser.advance(loss.detach(), torch.tensor([False]))))
        assert float((p**4).sum()) == pytest.approx(seen[-1])
    assert seen == sorted(seen, reverse=True)


def test_curvatures_of_single_numbers_are_learned():
    """A bowl whose axes differ by 10⁴, more of them than pairs are remembered: 0.1 is left with γI."""
    curvature = torch.logspace(-2, 2, 300, dtype=torch.float64)
    start = curvature.rsqrt()[None]  # every axis weighs the same
    found = minimised(start, 200, lambda x: 0.5 * (curvature * x.square()).sum(-1))
    assert float((curvature * found.square()).sum()) < 1e-4


def test_a_softplus_is_walked_in_units_of_its_logarithm():
    """A lengthscale of 400 shall become 40 and a noise of 1e-2 another one, in about as many steps."""

    def steps_of(bent: bool) -> int:
        p = softplus_inverse(torch.tensor([[400.0, 0.01]], dtype=torch.float64)).requires_grad_()
        optimiser = LBFGS([p], 1, [p] if bent else [])
        for step in range(200):
            optimiser.place()
            p.grad = None
            loss = (softplus(p).log() - torch.tensor([40.0, 0.1]).log()).square().sum(-1)
            loss.sum().backward()
            if float(optimiser.advance(loss.detach(), torch.tensor([False]))) < 1e-6:
                return step
        return 200

    assert steps_of(True) <= 25
    assert steps_of(True) <= steps_of(False)


def test_with_the_curvature_of_a_large_sample_single_moves_are_cut():
    """A number that is told to go far does not shorten the way of the others."""
    centre = torch.tensor([[0.6, 0.2, -0.2]], dtype=torch.float64)

    def first_step(*, of_large_sample: bool) -> torch.Tensor:
        p = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        curvature = Curvature()
        optimiser = LBFGS([p], 1)
        for name, value in optimiser.memory().items():
            if name in ("steps", "changes", "known"):
                curvature.pairs[name] = value.clone()
        for i in range(3):  # three pairs that know the parabola
            for name in ("steps", "changes"):
                curvature.pairs[name][0, -1 - i, i] = 1.0
            curvature.pairs["known"][0, -1 - i] = True
        curvature.of_large_sample = of_large_sample
        optimiser.inherit(curvature)
        for _ in range(2):
            optimiser.place()
            p.grad = None
            loss = 0.5 * (p - centre).square().sum(-1)
            loss.sum().backward()
            optimiser.advance(loss.detach(), torch.tensor([False]))
        return p.detach()[0]

    assert first_step(of_large_sample=True).tolist() == pytest.approx([0.25, 0.2, -0.2])
    assert first_step(of_large_sample=False).tolist() == pytest.approx([0.25, 0.25 / 3, -0.25 / 3])


def test_a_frozen_replicate_stays():
    p = torch.tensor([[-1.2, 1.0], [0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    optimiser = LBFGS([p], 2)
    for step in range(20):
        if step == 10:
            optimiser.frozen = torch.tensor([True, False])
            before = p.detach().clone()
        optimiser.place()
        p.grad = None
        loss = rosenbrock(p)
        loss.sum().backward()
        optimiser.advance(loss.detach(), torch.tensor([False, False]))
    assert torch.equal(p[0], before[0]) and not torch.equal(p[1], before[1])


# -- rest ------------------------------------------------------------------------------------------------


def test_a_loss_rests_when_its_last_half_gained_too_little():
    rest = Rest(0.01, 2)
    for step in range(1, 401):
        rest.update(step, [1.0 / step, 0.0 if step > 5 else 1.0])
    assert rest.reached == [True, True]
    assert rest.at[1] == FEWEST_STEPS
    # 1 / k: what the last half gained is what is left
    assert rest.at[0] is not None and 1.0 / rest.at[0] == pytest.approx(0.01, rel=0.05)


def test_an_early_rest_needs_a_gain_and_little_promise():
    """A few trials that led nowhere are no rest, nor a small step where a large one is promised."""
    falling = [1.0, 0.9, 0.899, 0.898]
    losses = {"nowhere": [1.0] * 8, "promising": [*falling, 0.897, 0.896], "resting": falling}
    promises = {"nowhere": 0.0, "promising": 0.1, "resting": 0.001}
    for name, every in losses.items():
        rest = Rest(0.01, 1, fewest=4)
        for step, loss in enumerate(every, 1):
            rest.update(step, [loss], [promises[name]])
        assert rest.at == [4 if name == "resting" else None], name


def test_what_a_step_promises():
    """Of a parabola whose curvature is known, all there is to gain."""
    p = torch.tensor([[3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    optimiser = LBFGS([p], 1)
    for _ in range(12):
        optimiser.place()
        p.grad = None
        loss = 0.5 * (p.square() * torch.tensor([1.0, 4.0])).sum(-1)
        loss.sum().backward()
        left = optimiser.advance(loss.detach(), torch.tensor([False]))
        if float(left) < 0.5:
            break
    assert float(optimiser.decrement()) == pytest.approx(float(left), rel=0.5)


def test_nan_is_not_rest():
    rest = Rest(0.01, 1)
    for step in range(1, 100):
        rest.update(step, [float("nan")])
    assert rest.reached == [False]


# -- fits ------------------------------------------------------------------------------------------------


def test_the_closed_form_stops_by_itself_and_says_so():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=30)
    assert gp.history.converged is True
    assert any("the bound no longer improved" in note for note in gp.history.notes)
    longer = duogp.fit(X, y, "svgp", num_inducing=30, tolerance=0, steps=10 * gp.history[-1].epoch)
    assert gp.history[-1].loss - longer.history[-1].loss < 0.02
    assert longer.history.converged is None


def test_quick_products_end_at_the_same_bound(monkeypatch):
    X, y = table(200)
    slow = duogp.fit(X, y, "svgp", num_inducing=20)
    monkeypatch.setattr(problems, "QUICK_WORK", 1)
    quick = duogp.fit(X, y, "svgp", num_inducing=20)
    assert quick.history.converged is True
    assert quick.history[0].loss != slow.history[0].loss
    assert quick.history[-1].loss == pytest.approx(slow.history[-1].loss, abs=0.005)
    np.testing.assert_allclose(quick.predict(X).mean, slow.predict(X).mean, atol=0.02)


def test_who_wants_more_digits_gets_float64(monkeypatch):
    X, y = table()
    losses = []
    for work in (10**9, 1):
        monkeypatch.setattr(problems, "QUICK_WORK", work)
        gp = duogp.fit(X, y, "svgp", num_inducing=10, steps=3, tolerance=1e-4)
        losses.append(gp.history.series("loss"))
    assert losses[0] == losses[1]


def test_too_few_steps_are_no_convergence():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=30, steps=5)
    assert gp.history.converged is False and gp.history[-1].epoch == 5
    assert any(note.startswith("not converged") for note in gp.history.notes)


def test_out_of_time_is_no_convergence():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=30, time_budget=1e-6)
    assert gp.history.converged is False
    assert any("the time was up" in note for note in gp.history.notes)


def test_a_rate_asks_for_adam():
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=10, learning_rate=0.1, steps=12)
    assert gp.history.converged is None
    assert gp.history.series("learning_rate")[0] == pytest.approx(0.1)


def test_the_exact_gp_converges_to_a_stationary_point():
    X, y = table()
    gp = duogp.fit(X, y, "exact", tolerance=1e-6)
    assert gp.history.converged is True
    again = duogp.fit(X, y, "exact", tolerance=0, steps=200)
    assert gp.history[-1].loss == pytest.approx(again.history[-1].loss, abs=1e-4)


def test_replicates_end_where_they_would_end_alone():
    X, y = table(80)
    rows = [np.arange(50), np.arange(30, 80)]
    pair = duogp.fit_replicates(X, y, rows, "sgpr", num_inducing=15, random_states=[0, 0])
    for gp, own in zip(pair, rows, strict=True):
        alone = duogp.fit(X[own], y[own], "sgpr", num_inducing=15)
        assert gp.history.converged == alone.history.converged
        assert gp.history[-1].epoch == alone.history[-1].epoch
        np.testing.assert_allclose(gp.predict(X).mean, alone.predict(X).mean, atol=1e-3)


def test_convergence_is_saved(tmp_path):
    X, y = table()
    gp = duogp.fit(X, y, "svgp", num_inducing=5, steps=3)
    gp.save(tmp_path / "gp")
    assert duogp.load(tmp_path / "gp").history.converged is False
