"""TuRBO: its rules, its proposals, and that a killed run goes on as if nothing had happened."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

import duogp
from duogp.bo import GPSurrogate, Proposal, TrustRegion, Turbo, make_strategy, optimise, result_of, surrogates
from duogp.bo.candidates import (
    distinct_maximisers,
    latin_hypercube,
    normalised_weights,
    perturbations,
    trust_box,
)
from duogp.bo.journal import EVALUATIONS, FIGURE, MODELS, Journal, read_options
from duogp.bo.plots import comparison_plot, incumbent_plot, mean_and_error, regret_plot
from duogp.bo.regions import PAPER_SUCCESSES, SHORTEST, SUCCESS_TOLERANCE, failure_tolerance
from duogp.bo.surrogates import LENGTHSCALES, NOISES, OUTPUT_SCALES, SPREAD, standard_units
from duogp.bo.tasks import make
from helpers.bowl import QUICK, RUN, Bowl
from helpers.devices import environment_without_gpu

# -- the rules -----------------------------------------------------------------------------------------------


def test_failures_in_a_row():
    assert failure_tolerance(dims=60, batch_size=50, regions=1) == 2
    assert failure_tolerance(dims=2, batch_size=1, regions=1) == 4
    assert failure_tolerance(dims=2, batch_size=10, regions=1) == 1
    assert failure_tolerance(dims=60, batch_size=50, regions=5) == 60
    assert failure_tolerance(dims=2, batch_size=1, regions=5) == 5


@pytest.mark.parametrize("tolerance", [SUCCESS_TOLERANCE, PAPER_SUCCESSES])
def test_a_region_grows_with_success(tolerance):
    region = TrustRegion(failure_tolerance=2, success_tolerance=tolerance)
    for best in range(tolerance - 1):
        region.observe(best, np.array([best - 1, best + 1.0]))
    assert (region.length, region.successes) == (0.8, tolerance - 1)
    region.observe(tolerance, np.array([tolerance + 1.0]))
    assert (region.length, region.successes) == (1.6, 0)
    for best in range(tolerance):
        region.observe(best, np.array([best + 1.0]))
    assert region.length == 1.6  # and no further


def test_a_region_that_improves_with_most_batches_keeps_its_size():
    """Three successes in a row happen in a region of the right size: no reason to double it."""
    turbo = make_strategy("svgp", 20, batch_size=4, initial=40)
    asked = make_strategy("svgp", 20, batch_size=4, initial=40, successes=PAPER_SUCCESSES)
    assert isinstance(turbo, Turbo) and isinstance(asked, Turbo)
    for strategy in (turbo, asked):
        strategy.tell(strategy.ask(40), np.zeros(40))
    for i in range(24):
        batch = Proposal(np.random.default_rng(i).random((4, 20)), np.zeros(4, dtype=int))
        y = np.full(4, i + 1.0 if i % 4 < 3 else 0.0)
        turbo.tell(batch, y)
        asked.tell(batch, y)
    assert turbo.regions[0].length == 0.8
    assert asked.regions[0].length == 1.6


def test_a_region_shrinks_with_failure_and_starts_again():
    region = TrustRegion(failure_tolerance=2)
    region.observe(10.0, np.array([10.005]))  # better, but not by 1e-3 |best|
    assert (region.failures, region.length) == (1, 0.8)
    region.observe(10.0, np.array([10.011]))
    assert (region.failures, region.successes) == (0, 1)
    for _ in range(2):
        region.observe(10.0, np.array([0.0]))
    assert (region.length, region.failures) == (0.4, 0)
    lengths = []
    while region.generation == 0:
        region.observe(10.0, np.array([0.0]))
        lengths.append(region.length)
    assert region.length == 0.8 and min(lengths) >= SHORTEST
    assert len(lengths) == 2 * 6  # 0.4 → 0.0125 → below


def test_several_regions_count_evaluations():
    region = TrustRegion(failure_tolerance=5, counts_evaluations=True)
    region.observe(0.0, -np.ones(3))
    assert (region.failures, region.length) == (3, 0.8)
    region.observe(0.0, -np.ones(2))
    assert (region.failures, region.length) == (0, 0.4)


def test_the_latin_hypercube_has_one_point_in_each_slice():
    X = latin_hypercube(20, 3, np.random.default_rng(0))
    for column in X.T:
        assert sorted(np.floor(20 * column).astype(int)) == list(range(20))


def test_candidates_move_few_coordinates():
    rng = np.random.default_rng(0)
    centre = np.full(60, 0.5)
    low, high = trust_box(centre, 0.8, np.ones(60))
    X = perturbations(centre, low, high, 2000, rng)
    moved = (centre != X).sum(1)
    assert moved.min() >= 1
    assert moved.mean() == pytest.approx(20, rel=0.05)
    assert (low <= X).all() and (high >= X).all()
    everywhere = perturbations(np.full(2, 0.5), np.zeros(2), np.ones(2), 100, rng)
    assert (everywhere != 0.5).all()  # few dimensions move together


def test_boxes_follow_lengthscales():
    weights = normalised_weights(np.array([0.1, 0.4]), 2)
    np.testing.assert_allclose(weights, [0.5, 2.0])
    low, high = trust_box(np.array([0.9, 0.5]), 0.4, weights)
    np.testing.assert_allclose(low, [0.8, 0.1])
    np.testing.assert_allclose(high, [1.0, 0.9])
    np.testing.assert_array_equal(normalised_weights(None, 3), np.ones(3))


def test_no_candidate_is_taken_twice():
    values = np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [0.0, 5.0, 1.0]])
    assert distinct_maximisers(values) == [1, 2, 0]
    with pytest.raises(ValueError, match="3 candidates for 4 places"):
        distinct_maximisers(np.zeros((4, 3)))


# -- models inside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["svgp", "dcsvgp", "ppgpr", "exact", "solvegp", "ppgpr-dkl", "svgp-dcdkl", "dgp"]
)
def test_any_model_of_the_registry(method):
    settings = {k: v for k, v in QUICK.items() if method != "exact" or k == "steps" or k == "first_steps"}
    if method == "dgp":
        settings = {"num_inducing": 10, "steps": 3, "first_steps": 3}
    found = optimise(Bowl(3), method, evaluations=21, batch_size=5, initial=8, candidates=100, **settings)
    assert len(found) == 21 and (found.X >= 0).all() and (found.X <= 1).all()
    assert list(found.batch) == [0] * 8 + [1] * 5 + [2] * 5 + [3] * 3
    low, high = -1.0, 3.0
    np.testing.assert_allclose(found.best_x, low + (high - low) * found.X[found.y.argmax()])


def test_botorch_inside():
    pytest.importorskip("botorch")
    found = optimise(Bowl(), "botorch", evaluations=16, batch_size=4, initial=8, candidates=100)
    assert found.best_y > found.y[:8].max()


def test_hyperparameters_stay_within_their_intervals():
    rng = np.random.default_rng(0)
    X = rng.random((40, 3))
    fitted = GPSurrogate.of("dcsvgp", num_inducing=15, first_steps=80).fit(X, 1e3 * X[:, 0] - 7, seed=0)
    assert fitted.gp is not None
    learned = fitted.gp.hyperparameters()
    for name in ("lengthscale_mean", "lengthscale_covariance"):
        values = np.array(learned[name]) / SPREAD
        assert (values >= LENGTHSCALES[0] * 0.999).all() and (values <= LENGTHSCALES[1] * 1.001).all()
    assert NOISES[0] * 0.999 <= learned["noise"] <= NOISES[1] * 1.001
    assert OUTPUT_SCALES[0] <= learned["kernel"]["variance"] <= OUTPUT_SCALES[1] * 1.001
    np.testing.assert_allclose(fitted.lengthscales() * SPREAD, learned["lengthscale_covariance"])
    draws = fitted.draw(X, 200, seed=1)
    assert np.abs(draws.mean(0) - (1e3 * X[:, 0] - 7)).max() < 300  # in the units of y


def test_the_exact_model_follows_a_function_without_noise_and_learns_noise_that_is_there():
    """TuRBO's least noise, 2 % of the standard deviation, hid differences between points near an optimum."""
    rng = np.random.default_rng(0)
    X, new = rng.random((60, 2)), rng.random((40, 2))

    def values(X: np.ndarray) -> np.ndarray:
        return np.sin(4 * X[:, 0]) + X[:, 1] ** 2

    def fitted(y: np.ndarray, method: str = "auto", **settings) -> GPSurrogate:
        found = GPSurrogate.of(method, first_steps=200, **settings).fit(X[:50], y[:50], seed=0)
        return found.fit(X, y, seed=1)

    def noise(found: GPSurrogate) -> float:
        assert found.gp is not None
        return found.gp.hyperparameters()["noise"]

    few = GPSurrogate.of(first_steps=200).fit(X[:15], values(X[:15]), seed=0)
    assert noise(few) >= NOISES[0]  # so few rows cannot tell
    clear = few.fit(X, values(X), seed=1)
    assert noise(clear) < 0.2 * NOISES[0]
    assert np.sqrt(np.mean((clear.draw(new, 8, seed=0) - values(new)) ** 2)) < 0.01
    assert noise(fitted(values(X), noise_floor=1e-3)) >= 1e-3
    assert noise(fitted(values(X), "svgp", num_inducing=30)) >= NOISES[0]
    noisy = values(X) + 0.3 * rng.standard_normal(60)
    assert 0.3 < noise(fitted(noisy)) * noisy.var() / 0.3**2 < 2.0


def test_the_sparse_model_after_an_exact_one_has_the_least_noise_of_its_own(monkeypatch):
    monkeypatch.setattr(surrogates, "exact_is_affordable", lambda rows, device, refits: rows <= 40)
    X = np.random.default_rng(0).random((50, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1] ** 2
    exact = GPSurrogate.of(first_steps=100, steps=20).fit(X[:40], y[:40], seed=0)
    sparse = exact.fit(X, y, seed=0)
    assert exact.gp.method.name == "exact" and exact.gp.hyperparameters()["noise"] < NOISES[0]
    assert sparse.gp.method.name == "svgp" and sparse.gp.hyperparameters()["noise"] >= NOISES[0]


def test_from_many_rows_on_refits_go_by_minibatches(monkeypatch):
    monkeypatch.setattr(surrogates, "MANY_ROWS", 40)
    X = np.random.default_rng(0).random((60, 3))
    y = X.sum(1)

    def solvers(method: str, **settings) -> list[str]:
        fitted, out = GPSurrogate.of(method, **settings), []
        for rows in (30, 45, 60):
            fitted = fitted.fit(X[:rows], y[:rows], seed=rows)
            out.append(fitted.gp.history.solver)
        assert (
            np.abs(fitted.gp.predict(SPREAD * (X - 0.5)).mean - (y - fitted.centre) / fitted.scale).max() < 1
        )
        return out

    for method in ("svgp", "dcsvgp"):
        assert solvers(method, **QUICK) == ["closed-form", "stochastic", "stochastic"]
    assert solvers("svgp", solver="closed-form", **QUICK) == 3 * ["closed-form"]
    assert solvers("exact", steps=3, first_steps=5) == 3 * ["closed-form"]


def test_networks_see_the_rows_a_few_times():
    start = GPSurrogate.of("ppgpr-dkl", num_inducing=20)
    assert start.settings["epochs"] == 20 and [start._steps(n) for n in (100, 129, 1000)] == [2, 4, 16]
    assert GPSurrogate.of("ppgpr-dkl", minibatch=50)._steps(100) == 4
    assert GPSurrogate.of("ppgpr-dkl", steps=7)._steps(1000) == 7
    assert GPSurrogate.of("svgp")._steps(1000) == 50


def test_the_rows_of_a_step_are_not_the_points_of_a_proposal():
    strategy = make_strategy("svgp", 2, batch_size=4, minibatch=100, solver="stochastic")
    assert strategy.batch_size == 4 and strategy.template.settings["batch_size"] == 100


def test_weights_of_models_without_lengthscales_for_each_coordinate():
    X = np.random.default_rng(0).random((30, 3))
    for method, settings in (("svgp", {"ard": False}), ("svgp-dkl", {})):
        fitted = GPSurrogate.of(method, **QUICK, **settings).fit(X, X.sum(1), seed=0)
        assert fitted.lengthscales() is None


def test_standard_units():
    centre, scale = standard_units(np.array([0.0, 1.0, 100.0]))
    assert centre == 1.0 and scale == pytest.approx(np.std([0, 1, 100]))
    assert standard_units(np.full(3, 5.0)) == (5.0, 1.0)


def test_a_converged_region_starts_again_elsewhere():
    turbo = make_strategy("svgp", 2, batch_size=5, seed=0, initial=6, **QUICK)
    assert isinstance(turbo, Turbo)
    first = turbo.ask(100)
    assert len(first) == 6
    turbo.tell(first, np.zeros(6))
    while turbo.regions[0].generation == 0:  # whatever it asks for, it is told that it is worse
        turbo.tell(Proposal(np.random.default_rng(0).random((5, 2)), np.zeros(5, dtype=int)), -np.ones(5))
    second = turbo.ask(100)
    assert len(second) == 6 and not np.isin(second.X, first.X).any()
    assert turbo.surrogates[0].rows == 0


@pytest.mark.parametrize(("method", "regions"), [("svgp", 1), ("svgp", 2), ("random", 1)])
def test_starting_from_given_points(tmp_path, method, regions):
    start = np.random.default_rng(0).random((7, 3))
    settings = QUICK if method == "svgp" else {}
    options = {"batch_size": 4, "regions": regions, "candidates": 50, "plot": False} | settings
    options["folder"] = tmp_path / "run"
    optimise(Bowl(3), method, evaluations=5, initial=start, **options)
    found = optimise(Bowl(3), method, evaluations=15, initial=start.tolist(), **options)
    dealt = np.concatenate([start[i::regions] for i in range(regions)])
    np.testing.assert_array_equal(found.X[:7], dealt)
    assert list(found.batch) == [0] * 5 + [1] * 2 + [2] * 4 + [3] * 4  # what was cut short comes first
    with pytest.raises(ValueError, match="initial was 'array"):
        optimise(Bowl(3), method, evaluations=15, initial=start[::-1], **options)


def test_starting_points_are_checked():
    with pytest.raises(ValueError, match=r"initial must be a number or points \[n, 3\], got shape \(4, 2\)"):
        optimise(Bowl(3), "svgp", initial=np.zeros((4, 2)))
    for wrong in (1.5, np.nan):
        with pytest.raises(ValueError, match="lie in the cube"):
            optimise(Bowl(3), "random", initial=np.full((4, 3), wrong))
    with pytest.raises(ValueError, match="two points for each region, got 3"):
        optimise(Bowl(3), "svgp", regions=2, initial=np.zeros((3, 3)))


def test_a_design_that_was_cut_short_goes_on(tmp_path):
    options = {"batch_size": 4, "initial": 8, "candidates": 50, "seed": 2, "plot": False} | QUICK
    optimise(Bowl(3), "svgp", evaluations=1, folder=tmp_path, **options)
    found = optimise(Bowl(3), "svgp", evaluations=12, folder=tmp_path, **options)
    whole = optimise(Bowl(3), "svgp", evaluations=8, **options)
    np.testing.assert_array_equal(found.X[:8], whole.X)
    assert list(found.batch) == [0] + [1] * 7 + [2] * 4


def test_several_regions():
    found = optimise(
        Bowl(3), "svgp", evaluations=60, batch_size=6, regions=3, initial=6, candidates=60, seed=1, **QUICK
    )
    assert (found.batch == 0).sum() == 18
    assert found.best_y > found.y[:18].max()


def test_other_options_of_regions_are_checked():
    for name in ("regions", "initial", "candidates", "successes"):
        with pytest.raises(ValueError, match=f"{name} must be a positive"):
            make_strategy("svgp", 2, **{name: 0})
    for method in ("random", "botorch"):
        with pytest.raises(ValueError, match=f"'{method}' has no settings, got num_inducing"):
            make_strategy(method, 2, num_inducing=3)
    with pytest.raises(ValueError, match=r"did you mean 'svgp'.*'random'"):
        make_strategy("svpg", 2)
    with pytest.raises(TypeError, match="did you mean 'num_inducing'"):
        optimise(Bowl(), "svgp", evaluations=20, num_inducin=3)


def test_turbo_beats_random_search():
    settings = {"evaluations": 70, "batch_size": 10, "initial": 20}
    model = {"num_inducing": 40, "steps": 15, "first_steps": 40, "warm_start": 0, "candidates": 500}
    ours = [optimise(make("hartmann6"), "svgp", seed=seed, **settings, **model).best_y for seed in range(2)]
    random = [optimise(make("hartmann6"), "random", seed=seed, **settings).best_y for seed in range(10)]
    assert min(ours) > max(random)


# -- runs on disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "regions"), [("dcsvgp", 1), ("ppgpr", 2), ("exact", 1), ("random", 1)])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, method, regions):
    options = RUN | {"regions": regions}
    if method in ("exact", "random"):
        options = {k: v for k, v in options.items() if k not in QUICK}
    if method == "exact":
        options |= {"steps": 5, "first_steps": 10}
    whole = optimise(Bowl(3), method, **options)
    with pytest.raises(KeyboardInterrupt):
        optimise(Bowl(3, stop_after=3), method, folder=tmp_path / "run", **options)
    after = result_of(tmp_path / "run")
    assert 0 < len(after) < 28
    resumed = optimise(Bowl(3), method, folder=tmp_path / "run", **options)
    np.testing.assert_array_equal(resumed.X, whole.X)
    np.testing.assert_array_equal(resumed.y, whole.y)
    task = Bowl(3)
    again = optimise(task, method, folder=tmp_path / "run", **options)  # there is nothing left to do
    assert task.calls == 0 and len(again) == 28


def test_a_full_disk_loses_the_batch_that_met_it_and_no_other(tmp_path, monkeypatch):
    options = {"evaluations": 12, "batch_size": 4, "initial": 4, "plot": False}
    whole = optimise(Bowl(3), "random", **options)

    def no_space(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_the_disk(proposal: Proposal, values: np.ndarray) -> None:
        monkeypatch.setattr(os, "fsync", no_space)

    task = Bowl(3)
    with pytest.raises(OSError, match=r"No space left.*batches before are safe.*goes on with the run"):
        optimise(task, "random", folder=tmp_path / "run", callback=fill_the_disk, **options)
    monkeypatch.undo()
    lines = (tmp_path / "run" / EVALUATIONS).read_bytes()
    assert task.calls == 2
    assert lines.count(b"\n") == 5 and lines.endswith(b"\n")  # the header and the first batch
    task = Bowl(3)
    resumed = optimise(task, "random", folder=tmp_path / "run", **options)
    assert task.calls == 2  # the first batch is not evaluated again
    np.testing.assert_array_equal(resumed.X, whole.X)


@pytest.mark.slow
def test_a_killed_process_goes_on(tmp_path):
    """SIGKILL in the middle of an evaluation, and the next proposal is the one that would have come.

    To 1e-7: the first batch was proposed by another process, whose last bits may differ from those here.
    Of all bits ask `test_a_batch_that_was_cut_off_is_evaluated_again` and `benchmarks/kill_fits.py`.
    """
    script = tmp_path / "victim.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path.insert(0, {str(Path(__file__).parents[1])!r})
            import torch
            torch.set_num_threads(1)
            from helpers.bowl import RUN, Bowl
            from duogp.bo import optimise
            task = Bowl(3)
            call = Bowl.__call__
            def killed(self, X):
                if self.calls == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(self, X)
            Bowl.__call__ = killed
            optimise(task, "dcsvgp", folder=sys.argv[1], **RUN)
            """
        )
    )
    call = [sys.executable, str(script), str(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, timeout=120, env=environment_without_gpu())
    assert done.returncode == -9, done.stderr.decode()
    assert len(result_of(tmp_path / "run")) == 13
    seen: list[np.ndarray] = []
    options = RUN | {"evaluations": 18}
    optimise(Bowl(3), "dcsvgp", folder=tmp_path / "run", callback=lambda p, y: seen.append(p.X), **options)
    whole = optimise(Bowl(3), "dcsvgp", **options)
    np.testing.assert_allclose(seen[0], whole.X[13:], rtol=0, atol=1e-7)


def test_a_batch_that_was_cut_off_is_evaluated_again(tmp_path):
    options = {k: v for k, v in RUN.items() if k not in QUICK} | {"evaluations": 20}
    whole = optimise(Bowl(3), "random", folder=tmp_path, **options)
    text = (tmp_path / EVALUATIONS).read_text()
    for cut in (len(text) - 1, len(text) - 100, text.rindex("\n", 0, len(text) - 1) + 1):
        (tmp_path / EVALUATIONS).write_text(text[:cut])
        assert len(result_of(tmp_path)) == 15
        assert (tmp_path / EVALUATIONS).read_text() == text[:cut]  # reading leaves a run alone
        resumed = optimise(Bowl(3), "random", folder=tmp_path, **options)
        np.testing.assert_array_equal(resumed.X, whole.X)
        assert (tmp_path / EVALUATIONS).read_text() == text


def test_what_a_run_leaves(tmp_path):
    folder = tmp_path / "run"
    found = optimise(Bowl(3), "svgp", folder=folder, **RUN | {"plot": True})
    assert (folder / FIGURE).stat().st_size > 1000
    lines = (folder / EVALUATIONS).read_text().splitlines()
    assert lines[0] == "batch,size,region,y,best,x0,x1,x2" and len(lines) == 29
    assert [p.name for p in (folder / MODELS).iterdir()] == ["000004"]
    gp = duogp.load(folder / MODELS / "000004" / "0" / "model")
    assert gp.method.name == "svgp"
    read = result_of(folder)
    np.testing.assert_array_equal(read.X, found.X)
    assert read.optimum == 0.0 and read.best_y == found.best_y
    assert not list(folder.rglob("*.new"))


def test_another_run_in_the_same_folder(tmp_path):
    optimise(Bowl(), "random", folder=tmp_path / "run", evaluations=10)
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        optimise(Bowl(), "random", folder=tmp_path / "run", evaluations=10, seed=1)
    longer = optimise(Bowl(), "random", folder=tmp_path / "run", evaluations=30)
    np.testing.assert_array_equal(longer.X, optimise(Bowl(), "random", evaluations=30).X)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other things"):
        optimise(Bowl(), "random", folder=tmp_path / "other", evaluations=10)
    with pytest.raises(FileNotFoundError, match="not the folder of a run"):
        result_of(tmp_path / "other")


def test_two_processes_do_not_share_a_run(tmp_path):
    """One folder, one writer; the lock goes with its holder."""
    pytest.importorskip("fcntl")
    first = Journal(tmp_path / "run", {"seed": 0}, 2)
    with pytest.raises(RuntimeError, match="another process"):
        Journal(tmp_path / "run", {"seed": 0}, 2)
    first.close()
    Journal(tmp_path / "run", {"seed": 0}, 2).close()


def test_noise_of_a_resumed_run_is_that_of_a_whole_one(tmp_path):
    class Noisy(Bowl):
        evaluated = 0

        def __call__(self, X: np.ndarray) -> np.ndarray:
            noise = [np.random.default_rng(self.evaluated + i).normal() for i in range(len(X))]
            y = super().__call__(X) + 0.1 * np.array(noise)
            self.evaluated += len(X)
            return y

    with pytest.raises(KeyboardInterrupt):
        optimise(Noisy(stop_after=2), "random", folder=tmp_path, evaluations=40)
    resumed = optimise(Noisy(), "random", folder=tmp_path, evaluations=40)
    np.testing.assert_array_equal(resumed.y, optimise(Noisy(), "random", evaluations=40).y)


class Broken(Bowl):
    """A bowl whose evaluations fail for large x, by NaN or by an error."""

    def __init__(self, raises: bool, limit: float = 0.8) -> None:
        super().__init__()
        self.raises, self.limit = raises, limit

    def __call__(self, X: np.ndarray) -> np.ndarray:
        wrong = X[:, 0] > self.limit
        if wrong.any() and self.raises:
            raise ZeroDivisionError("a bad point")
        return np.where(wrong, np.nan, super().__call__(X))


@pytest.mark.parametrize("method", ["svgp", "random"])
@pytest.mark.parametrize("raises", [True, False])
def test_failed_evaluations_do_not_end_a_run(tmp_path, method, raises):
    """They are on disk, are not evaluated again, and the run goes on with other points."""
    options = RUN | {"batch_size": 1 if raises else 5, "initial": np.linspace(0, 1, 12).reshape(6, 2)}
    options |= {"evaluations": 16, "folder": tmp_path / "run"}
    if raises:
        options["initial"] = 0.7 * options["initial"]
    if method == "random":
        options = {k: v for k, v in options.items() if k not in QUICK}
    limit = 0.65 if raises else 0.8
    if raises:  # the design is one batch, which fails as a whole
        optimise(Bowl(), method, **options | {"evaluations": 6})
    first = Broken(raises, 0.3 if raises else limit)
    with pytest.warns(duogp.errors.DuoGPWarning, match="task 'bowl' failed at"):
        optimise(first, method, **options | {"evaluations": 12})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.errors.DuoGPWarning)
        task = Broken(raises, limit)
        found = optimise(task, method, **options)
    assert len(found) == 16 and np.isnan(found.y).any() and np.isfinite(found.best_y)
    read = result_of(tmp_path / "run")
    np.testing.assert_array_equal(read.y, found.y)
    assert len(np.unique(found.X, axis=0)) == 16  # no point twice
    assert task.calls <= 4


def test_a_task_that_never_succeeds_is_an_error():
    with pytest.raises(RuntimeError, match=r"a bad point; no evaluation has succeeded") as caught:
        optimise(Broken(raises=True, limit=-1.0), "random", evaluations=50)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="not finite; no evaluation has succeeded"):
        optimise(Broken(raises=False, limit=-1.0), "random", evaluations=50)


def test_a_region_whose_first_points_all_failed_gets_others():
    turbo = make_strategy("svgp", 2, batch_size=5, seed=0, regions=2, initial=3, **QUICK)
    first = turbo.ask(100)
    turbo.tell(first, np.where(first.regions == 0, np.nan, 1.0))
    more = turbo.ask(100)
    assert (more.regions == 0).all() and len(more) == 2 and not np.isin(more.X, first.X).any()
    turbo.tell(more, np.array([1.0, 2.0]))
    assert len(turbo.ask(4)) == 4


# -- figures -------------------------------------------------------------------------------------------------


def test_figures():
    runs = [optimise(Bowl(), "random", evaluations=n, seed=n) for n in (20, 25)]
    mean, error = mean_and_error([run.y for run in runs])
    assert mean.shape == error.shape == (20,)
    assert (np.diff(mean) >= 0).all()
    assert incumbent_plot(runs[0]).get_xlabel() == "evaluations"
    assert regret_plot(runs[0]).get_yscale() == "log"
    ax = comparison_plot({"random": runs, "as vectors": [run.y for run in runs]}, title="Bowl")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["random", "as vectors"]


def test_a_candidate_moves_as_many_coordinates_as_it_is_told():
    low, high, centre = np.zeros(100), np.ones(100), np.full(100, 0.5)
    moved = [
        (perturbations(centre, low, high, 500, np.random.default_rng(0), count) != centre).sum(1).mean()
        for count in (1, 20, 100)
    ]
    assert 1.0 <= moved[0] < 1.6 and abs(moved[1] - 20) < 1 and moved[2] > 99


def test_a_task_says_how_many_coordinates_to_move(tmp_path):
    """Options on disk have the number only where it is not TuRBO's own, so that older runs can be resumed."""

    class Together(Bowl):
        perturbed = 5

    folder = tmp_path / "run"
    optimise(Together(), "random", evaluations=4, batch_size=2, initial=2, folder=folder, plot=False)
    assert read_options(folder)["perturbed"] == 5
    optimise(Bowl(), "random", evaluations=4, batch_size=2, initial=2, folder=tmp_path / "other", plot=False)
    assert "perturbed" not in read_options(tmp_path / "other")


def test_a_run_on_disk_knows_how_many_successes_double_a_region(tmp_path):
    """Regions are recomputed from evaluations: by another rule they would be others. No number is 3."""
    options = {"evaluations": 4, "batch_size": 2, "initial": 2, "plot": False}
    optimise(Bowl(), "random", folder=tmp_path / "run", **options)
    assert read_options(tmp_path / "run")["successes"] == SUCCESS_TOLERANCE
    older = tmp_path / "older"
    optimise(Bowl(), "random", folder=older, successes=PAPER_SUCCESSES, **options)
    assert "successes" not in read_options(older)
    with pytest.raises(ValueError, match="successes was None and is 10"):
        optimise(Bowl(), "random", folder=older, **options)
    with pytest.raises(ValueError, match="successes: only for tasks"):
        optimise(lambda x: x.sum(), bounds=[(0, 1)], successes=3)


def test_decoupled_surrogates_keep_to_the_bound_unless_told_otherwise():
    assert GPSurrogate.of("dcsvgp").settings["beta2"] == 1.0
    assert GPSurrogate.of("dcsvgp", beta2=0.0).settings["beta2"] == 0.0
    assert "beta2" not in GPSurrogate.of("svgp").settings
