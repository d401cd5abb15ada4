"""Trainings that were ended go on: the same bits on a CPU, sound files, clear errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import duogp
from duogp.errors import CheckpointError, CheckpointWarning
from duogp.training import backends, checkpoint, cycles
from duogp.training.checkpoint import CheckpointOptions, Slot, Snapshot, opened

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (90, 2))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=90)
LABELS = np.where(Y > 0, "up", "down")
NEW = RNG.uniform(-2, 2, (7, 2))
SMALL: dict[str, Any] = {"num_inducing": 8, "random_state": 3, "device": "cpu", "backend": "eager"}

FITS: dict[str, dict[str, Any]] = {
    "closed form, L-BFGS": {"method": "svgp", "solver": "closed-form", "epochs": 14},
    "closed form, Adam": {"method": "svgp", "solver": "closed-form", "optimizer": "adam", "epochs": 14},
    "exact": {"method": "exact", "epochs": 14},
    "closed form, DC": {"method": "dcsvgp", "solver": "closed-form", "epochs": 12, "warm_start": 5},
    "stochastic, early stopping": {
        "method": "svgp",
        "solver": "stochastic",
        "steps": 14,
        "batch_size": 20,
        "validation_fraction": 0.2,
        "early_stopping": True,
        "patience": 1,
    },
    "stochastic, cycles": {"method": "ppgpr", "steps": 14, "batch_size": 20, "schedule": "cycles"},
    "stochastic, grid of beta2": {
        "method": "dcsvgp",
        "solver": "stochastic",
        "steps": 14,
        "batch_size": 20,
        "beta2": [1e-3, 1e-1],
        "warm_start": 3,
    },
    "natural": {"method": "svgp", "solver": "natural", "steps": 14, "batch_size": 20},
    "hybrid columns": {
        "method": "hybrid",
        "solver": "stochastic",
        "steps": 14,
        "batch_size": 20,
        "num_extra": 12,
        "mean_columns": 5,
    },
    "deep kernel": {"method": "svgp-dkl", "steps": 14, "batch_size": 20, "widths": [6, 2]},
    "deep GP": {"method": "dgp", "steps": 10, "batch_size": 20},
    "classes": {
        "method": "svgp",
        "likelihood": "softmax",
        "steps": 14,
        "batch_size": 20,
        "labels": True,
    },
}


TRAINED = [name for name, m in duogp.METHODS.items() if not (m.is_baseline or m.learns_online)]


@pytest.fixture(autouse=True)
def short_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several cycles of rates in a dozen steps."""
    monkeypatch.setattr(cycles, "FIRST_CYCLE", 2)


class KilledError(Exception):
    """Stands for the end of the process."""


def fitted(fit: dict[str, Any], **more: Any) -> Any:
    given = {**SMALL, **fit, **more}
    labels = given.pop("labels", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        return duogp.fit(X, LABELS if labels else Y, **given)


def killed_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let the process "die" in the step after so many steps, counted over all trainings of a fit."""
    left = [steps]
    for kind in (backends.StepBackend, backends.QuasiNewton):
        run = kind.run

        def dying(self: Any, run: Any = run, kind: Any = kind) -> Any:
            if type(self) is kind:
                if left[0] == 0:
                    raise KilledError
                left[0] -= 1
            return run(self)

        monkeypatch.setattr(kind, "run", dying)


def assert_same(gp: Any, other: Any) -> None:
    """The same bits: parameters, losses, notes and predictions."""
    mine, theirs = gp.model.state_dict(), other.model.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
    assert [(r.epoch, r.loss, r.validation_nll) for r in gp.history] == [
        (r.epoch, r.loss, r.validation_nll) for r in other.history
    ]
    assert gp.history.notes == other.history.notes
    assert gp.history.best_epoch == other.history.best_epoch
    first, second = gp.predict(NEW), other.predict(NEW)
    for name in ("mean", "probabilities"):
        if hasattr(first, name):
            assert np.array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("after", [1, 6, 11])
def test_a_killed_fit_ends_with_the_same_bits(
    name: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = FITS[name]
    whole = fitted(fit)
    with monkeypatch.context() as patch:
        killed_after(patch, after)
        try:
            fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1)
        except KilledError:
            pass
        else:
            assert after > 6, "the fit was over before it could be killed"
    assert_same(fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1), whole)


@pytest.mark.slow
@pytest.mark.parametrize("method", TRAINED)
def test_every_method_goes_on(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit: dict[str, Any] = {"method": method, "num_inducing": 6, "steps": 6, "batch_size": 30}
    whole = fitted(fit)
    with monkeypatch.context() as patch:
        killed_after(patch, 4)
        with pytest.raises(KilledError):
            fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1)
    assert_same(fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1), whole)


def test_checkpoints_that_are_some_steps_old_are_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = FITS["stochastic, early stopping"]
    whole = fitted(fit)
    for after in (9, 2):  # killed twice
        with monkeypatch.context() as patch:
            killed_after(patch, after)
            with pytest.raises(KilledError):
                fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=4)
    assert_same(fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=4), whole)


def test_a_callback_that_raises_loses_nothing(tmp_path: Path) -> None:
    fit = FITS["natural"]
    whole = fitted(fit)

    def raising(progression: Any) -> None:
        if progression.epoch == 2:
            raise KilledError

    with pytest.raises(KilledError):
        fitted(fit, callbacks=[raising], checkpoint_dir=tmp_path, checkpoint_steps=1)
    seen: list[int] = []
    callbacks = [lambda progression: seen.append(progression.epoch)]
    again = fitted(fit, callbacks=callbacks, checkpoint_dir=tmp_path, checkpoint_steps=1)
    assert seen[0] == 2  # the epoch in which it raised is told again
    assert torch.equal(again.model.basis.q.mean, whole.model.basis.q.mean)


def test_a_fit_that_is_over_is_read_and_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = FITS["closed form, L-BFGS"]
    whole = fitted(fit, checkpoint_dir=tmp_path)
    killed_after(monkeypatch, 0)
    assert_same(fitted(fit, checkpoint_dir=tmp_path), whole)


def test_replicates_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [np.arange(0, 60), np.arange(30, 90)]
    fit = {**SMALL, "method": "svgp", "solver": "stochastic", "steps": 9, "batch_size": 20}
    whole = duogp.fit_replicates(X, Y, rows, **fit)
    with monkeypatch.context() as patch:
        killed_after(patch, 5)
        with pytest.raises(KilledError):
            duogp.fit_replicates(X, Y, rows, **fit, checkpoint_dir=tmp_path, checkpoint_steps=2)
    for a, b in zip(
        whole,
        duogp.fit_replicates(X, Y, rows, **fit, checkpoint_dir=tmp_path, checkpoint_steps=2),
        strict=True,
    ):
        assert_same(a, b)


CHILD = """
    import os, runpy, signal, sys
    slow_fit = runpy.run_path(sys.argv[3])["slow_fit"]
    def dying(progression):
        if progression.epoch == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    slow_fit(sys.argv[1], callbacks=[dying], checkpoint_dir=sys.argv[2], checkpoint_steps=1)
"""


def slow_fit(solver: str, **more: Any) -> Any:
    fit = {**SMALL, "method": "svgp", "solver": solver, "epochs": 8, "batch_size": 30, "tolerance": 0.0}
    return duogp.fit(X, Y, **fit, **more)


@pytest.mark.parametrize("solver", ["closed-form", "natural"])
def test_a_process_that_is_killed(solver: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), solver, str(tmp_path), __file__]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert list(tmp_path.glob("*.checkpoint"))
    watched: dict[str, Any] = {"callbacks": [lambda progression: None]}  # a record for every epoch
    assert_same(slow_fit(solver, checkpoint_dir=tmp_path, **watched), slow_fit(solver, **watched))


# -- other fits, damaged files, full disks -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_inducing": 9}, "num_inducing was 8, now 9"),
        ({"method": "sgpr"}, "method was"),
        ({"kernel": duogp.kernels.RBF()}, "kernel was"),
        ({"random_state": 4}, "random_state was 3, now 4"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    fitted(FITS["closed form, L-BFGS"], checkpoint_dir=tmp_path)
    with pytest.raises(CheckpointError, match="another fit") as found:
        fitted(FITS["closed form, L-BFGS"], checkpoint_dir=tmp_path, **change)
    assert named in str(found.value)


def test_other_data_are_another_fit(tmp_path: Path) -> None:
    fit = {**SMALL, **FITS["closed form, L-BFGS"], "checkpoint_dir": tmp_path}
    duogp.fit(X, Y, **fit)
    with pytest.raises(CheckpointError, match="y was"):
        duogp.fit(X, Y + 1e-9, **fit)
    with pytest.raises(CheckpointError, match="sample_weight was None"):
        duogp.fit(X, Y, sample_weight=np.full(90, 2.0), **fit)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(FITS["closed form, L-BFGS"], checkpoint_dir=tmp_path)
    monkeypatch.setattr("duogp.fitting.identity.__version__", "99.0")
    with pytest.raises(CheckpointError, match=r"duogp was .*, now 99\.0"):
        fitted(FITS["closed form, L-BFGS"], checkpoint_dir=tmp_path)


def test_a_seed_that_was_not_given_is_kept(tmp_path: Path) -> None:
    fit = {**FITS["closed form, L-BFGS"], "random_state": None, "inducing_init": "random"}
    first = fitted(fit, checkpoint_dir=tmp_path)
    assert_same(fitted(fit, checkpoint_dir=tmp_path), first)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = FITS["stochastic, cycles"]
    whole = fitted(fit)
    with monkeypatch.context() as patch:
        killed_after(patch, 7)
        with pytest.raises(KilledError):
            fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1)
    files = sorted(tmp_path.glob("*.checkpoint"))
    assert len(files) == checkpoint.KEPT
    files[-1].write_bytes(files[-1].read_bytes()[:-100])
    with pytest.warns(CheckpointWarning, match="passed over"):
        again = fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1)
    assert_same(again, whole)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "format"])
def test_damage_everywhere_is_a_clear_error(damage: str, tmp_path: Path) -> None:
    fit = FITS["closed form, L-BFGS"]
    fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1)
    for path in tmp_path.glob("*.checkpoint"):
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 1
        elif damage == "format":
            data[:19] = b"duogp checkpoint 7\n"
        path.write_bytes({"cut": data[: len(data) // 2], "empty": b""}.get(damage, bytes(data)))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read"):
        fitted(fit, checkpoint_dir=tmp_path)


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = FITS["stochastic, cycles"]
    whole = fitted(fit)
    with monkeypatch.context() as patch:
        killed_after(patch, 4)
        with pytest.raises(KilledError):
            fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1)
    before = {p.name: p.read_bytes() for p in tmp_path.glob("*.checkpoint")}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        with pytest.warns(CheckpointWarning, match="No space left on device") as caught:
            assert_same(fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1), whole)
    assert len([w for w in caught if w.category is CheckpointWarning]) == 1
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.checkpoint")} == before
    assert not list(tmp_path.glob(checkpoint.TEMPORARY + "*"))
    assert_same(fitted(fit, checkpoint_dir=tmp_path, checkpoint_steps=1), whole)


def test_a_folder_that_cannot_be_written_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        fitted(FITS["exact"], checkpoint_dir=tmp_path / "file" / "run")


def test_two_fits_on_one_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        opened(CheckpointOptions(tmp_path), {}),
        pytest.raises(CheckpointError, match="another fit is writing"),
    ):
        fitted(FITS["exact"], checkpoint_dir=tmp_path)


def test_leftovers_of_a_write_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / f"{checkpoint.TEMPORARY}0123"
    leftover.write_bytes(b"half")
    with opened(CheckpointOptions(tmp_path), {}):
        assert not leftover.exists()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"checkpoint_every": -1}, ValueError),
        ({"checkpoint_every": "often"}, ValueError),
        ({"checkpoint_steps": 0}, ValueError),
        ({"checkpoint_steps": 2.5}, ValueError),
        ({"checkpoint_dir": 7}, TypeError),
    ],
)
def test_options_are_checked(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        duogp.fit(X, Y, "svgp", **wrong)


@pytest.mark.parametrize("method", ["deep-ensemble", "ivsgpr"])
def test_other_kinds_of_training_say_that_they_have_none(method: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it takes no checkpoint_dir"):
        duogp.fit(X, Y, method, checkpoint_dir=tmp_path)


def test_checkpoints_by_the_clock(tmp_path: Path) -> None:
    with opened(CheckpointOptions(tmp_path, every=1e9), {}) as kept:
        slot = kept.slot("a")
        assert not slot.due(1000)
        slot.at -= 2e9
        assert slot.due(1)
        slot.save(1, Snapshot({}, {"step": 1, "finished": False}))
        assert not slot.due(2)
        assert Slot(kept, "a").load() == Snapshot({}, {"step": 1, "finished": False})
