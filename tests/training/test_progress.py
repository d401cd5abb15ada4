"""Progress: one line for all trainings of a fit, in terminals, notebooks and pipes; times in the budget."""

from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest

from duogp import GPRegressor, fit
from duogp.training import progress
from duogp.training.progress import Line, Progress, overall


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes when it is told to."""
    now = types.SimpleNamespace(time=0.0)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now.time)
    return now


def test_a_pipe_gets_a_line_now_and_then_and_the_last_one(clock, capsys):
    with Progress("training", 50, True) as bar:
        for epoch in range(50):
            clock.time += 0.25
            bar.advance(f"loss {epoch}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # at 5 s, at 10 s, at the end
    assert lines[0] == "training 20/50  loss 19  5 s, 8 s left"
    assert lines[-1] == "training 50/50  loss 49  12 s, 0 s left"


def test_nobody_is_told_who_does_not_ask(capsys):
    with overall("fitting", 10, False), Progress("training", 3, False) as bar:
        bar.advance("loss 1")
    assert capsys.readouterr().err == ""


def test_a_notebook_gets_one_line_that_is_rewritten(clock, capsys, monkeypatch):
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    with Progress("training", 4, True) as bar:
        for _ in range(4):
            clock.time += 1
            bar.advance("loss 1")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.count("\r") == 5
    assert "training 4/4" in shown


def test_trainings_of_one_fit_share_a_line_and_its_budget(clock, capsys):
    with overall("fitting", None, True), overall("auto", 100, True):  # the budget that only it knows
        for _ in range(3):
            with Progress("training", 1000, True) as bar:
                for _ in range(10):
                    clock.time += 1
                    bar.advance("loss 1")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("5 s, 95 s left")  # not the 995 s of its epochs
    assert lines[-1] == "fitting 3 10/1000  loss 1  30 s, 70 s left"


def test_the_estimate_respects_epochs_and_budget(clock):
    line = Line("training", 50)
    line.begin(10)
    clock.time = 10
    line.advance("", 5)
    assert (line.share(), line.left()) == (0.5, 10)
    line.total = 1000
    assert (line.share(), line.left()) == (0.2, 40)
    alone = Line("training")
    alone.begin(10)
    assert (alone.share(), alone.left()) == (0, None)


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("training", 3, True) as bar:
        bar.advance("loss 1")
        assert type(bar._line.screen) is progress.Bar
    capsys.readouterr()


def test_the_time_left_of_auto_is_that_of_its_budget(capsys, monkeypatch):
    """Also of a budget that nobody has given."""
    monkeypatch.setattr("duogp.training.progress.PIPE_SECONDS", 0.0)
    X = np.random.default_rng(0).normal(size=(40, 2))
    GPRegressor(random_state=0, verbose=True).fit(X, X[:, 0])
    left = [float(text) for text in re.findall(r"([\d.]+) s left", capsys.readouterr().err)]
    assert left and max(left) <= 60


def test_fits_are_verbose_in_a_pipe(capsys):
    X = np.linspace(0, 1, 30)[:, None]
    fit(X, X[:, 0], "svgp", epochs=3, num_inducing=5, verbose=True)
    assert "training 3/3" in capsys.readouterr().err
    GPRegressor(epochs=3, num_inducing=5, random_state=0, verbose=True).fit(X, X[:, 0])
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.startswith("fitting")
