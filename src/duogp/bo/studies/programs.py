"""Studies of programs: every evaluation is a process, several at a time.

    command = Command("./train.sh --lr {lr} --layers {layers}", space)
    run_program(study, command, evaluations=100, parallel=4, timeout=3600)

The command is split into arguments once, by the rules of a POSIX shell, and values are put into the arguments
after that: no shell runs, and no value can become another argument. Output goes to files of the folder:

    trials/000012.stdout, .stderr    what the program printed
    trials/000012.pid                while it runs; a process left over by a run that was killed is ended
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from duogp.bo.spaces import Point, Space
from duogp.bo.studies.goals import Goals
from duogp.bo.studies.study import Study
from duogp.bo.studies.trials import Trial

TRIALS = "trials"
#: Environment of the program: its point as JSON, its number, the folder of the run.
POINT, NUMBER, RUN = "DUOGP_POINT", "DUOGP_TRIAL", "DUOGP_RUN"
#: Seconds between looks at the processes, and between asking a process to end and ending it.
POLL, GRACE = 0.05, 5.0
#: Bytes at the end of a program's output that are read.
TAIL = 1 << 16
#: Failures, without a success before, after which a run ends.
HOPELESS = 10

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)(?![\w.]*\w)", re.IGNORECASE
)


class Command:
    """The arguments of a program, with the names of parameters in braces; ``{{`` is a brace."""

    def __init__(self, text: str, space: Space) -> None:
        self.text, self.space = text, space
        try:
            self.words = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"command {text!r}: {error}") from None
        if not self.words:
            raise ValueError("command is empty")
        self.used = {name for word in self.words for name in _PLACE.findall(word) if name}
        if unknown := sorted(self.used - space.parameters.keys()):
            raise ValueError(
                f"command: {{{unknown[0]}}} is not a parameter; there are {', '.join(space.names)} (a brace "
                "itself is written twice)"
            )
        program = self.words[0]
        if not _PLACE.search(program) and shutil.which(program) is None:
            raise FileNotFoundError(f"command: there is no program {program!r}")

    @property
    def unused(self) -> list[str]:
        """Parameters that the command does not mention; the program finds them in its environment."""
        return [name for name in self.space.names if name not in self.used]

    def arguments(self, point: Mapping[str, Any]) -> list[str]:
        """The command at a point.

        An argument with a parameter that is not active is left out, and if it is nothing but the parameter,
        an option ("-m", "--momentum") before it, too.
        """
        out: list[str] = []
        for i, word in enumerate(self.words):
            names = [name for name in _PLACE.findall(word) if name]
            if all(name in point for name in names):
                out.append(_PLACE.sub(lambda match: _filled(match, point), word))
                continue
            before = self.words[i - 1] if i else ""
            alone = _PLACE.fullmatch(word) is not None
            if alone and out and before.startswith("-") and not _PLACE.search(before):
                out.pop()
        return out


def _filled(match: re.Match[str], point: Mapping[str, Any]) -> str:
    if match.group() in ("{{", "}}"):
        return match.group()[0]
    value = point[match.group(1)]
    return repr(value) if isinstance(value, float) else str(value)


def value_of_output(text: str, goals: Goals) -> Any:
    """The values in what a program printed.

    The last line that is a JSON object with all outcomes; for one outcome also the last number.
    """
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and all(name in found for name in goals.names):
                    return {name: _plain(found[name]) for name in goals.names}
    names = ", ".join(goals.names)
    if len(goals.names) > 1:
        raise ValueError(f"the output has no line with a JSON object of {names}")
    numbers = _NUMBER.findall(text)
    if not numbers:
        raise ValueError("the output has no number")
    return float(numbers[-1])


def _plain(value: Any) -> float:
    return math.nan if value is None else float(value)


@dataclass
class _Running:
    trial: Trial
    process: subprocess.Popen[bytes]
    started: float


def run_program(
    study: Study,
    command: Command,
    *,
    evaluations: int,
    parallel: int = 1,
    timeout: float | None = None,
    after: Callable[[Trial], None] | None = None,
) -> None:
    """Evaluate a study by a program until it has ``evaluations`` trials, ``parallel`` at a time.

    Trials that were pending when an earlier run was stopped come first. A program that ends with an error,
    prints no value or runs longer than ``timeout`` seconds is a failed trial. ``after`` is called with every
    trial that has ended.
    """
    for name, value in (("evaluations", evaluations), ("parallel", parallel)):
        if value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
    if study.folder is None:
        raise ValueError("a study of a program needs a folder")
    folder = study.folder / TRIALS
    folder.mkdir(exist_ok=True)
    end_leftovers(folder)
    waiting, running = study.pending, list[_Running]()
    with _terminable():
        try:
            while True:
                while len(running) < parallel and (waiting or len(study) < evaluations):
                    trial = waiting.pop(0) if waiting else study.ask()
                    if (started := _start(study, trial, command, folder)) is not None:
                        running.append(started)
                    elif after is not None:
                        after(trial)
                    _check_hope(study)
                if not running:
                    return
                for job in list(running):
                    if not _is_over(job, timeout):
                        continue
                    running.remove(job)
                    _finish(study, job, folder, timeout)
                    if after is not None:
                        after(job.trial)
                    _check_hope(study)
                time.sleep(POLL)
        finally:
            for job in running:  # their trials stay pending
                _end(job.process)
                _files(folder, job.trial)[2].unlink(missing_ok=True)


def _files(folder: Path, trial: Trial) -> tuple[Path, Path, Path]:
    return tuple(folder / f"{trial.number:06d}.{ending}" for ending in ("stdout", "stderr", "pid"))  # type: ignore[return-value]


def _start(study: Study, trial: Trial, command: Command, folder: Path) -> _Running | None:
    """The process of a trial; None where it could not be started, which is a failure."""
    out, err, pid = _files(folder, trial)
    environment = os.environ | {
        POINT: json.dumps(trial.point),
        NUMBER: str(trial.number),
        RUN: str(folder.parent),
    }
    try:
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(
                command.arguments(trial.point),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        study.fail(trial, f"the program did not start: {error}")
        return None
    with contextlib.suppress(OSError):
        pid.write_text(f"{process.pid} {_birth(process.pid)}")
    return _Running(trial, process, time.monotonic())


def _is_over(job: _Running, timeout: float | None) -> bool:
    if job.process.poll() is not None:
        return True
    return timeout is not None and time.monotonic() - job.started > timeout


def _finish(study: Study, job: _Running, folder: Path, timeout: float | None) -> None:
    """Tell the study what became of a process."""
    out, err, pid = _files(folder, job.trial)
    status = job.process.poll()
    if status is None:
        _end(job.process)
        study.fail(job.trial, f"timed out after {timeout:g} s")
    elif status != 0:
        last = _tail(err).strip().splitlines()[-1:] or _tail(out).strip().splitlines()[-1:]
        how = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
        study.fail(job.trial, ": ".join([how, *(line[:200] for line in last)]))
    else:
        try:
            values = value_of_output(_tail(out), study.goals)
        except (ValueError, TypeError) as error:
            study.fail(job.trial, str(error))
        else:
            study.tell(job.trial, values)
    pid.unlink(missing_ok=True)


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL))
        return file.read().decode(errors="replace")


def _check_hope(study: Study) -> None:
    failed = [trial for trial in study.trials if trial.reason is not None]
    if not study.done and len(failed) >= HOPELESS:
        raise RuntimeError(f"all {len(failed)} evaluations failed, the last: {failed[-1].reason}")


# -- processes -----------------------------------------------------------------------------------------------


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started: politely, then by force."""
    for what in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        _signal_group(process.pid, what)
        try:
            process.wait(GRACE)
            break
        except subprocess.TimeoutExpired:
            continue
    _signal_group(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # what it left behind


def _signal_group(pid: int, what: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, what)
        else:
            os.kill(pid, what)


def _birth(pid: int) -> str:
    """When a process was started, in the system's clock: a number may be used again, a moment is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def end_leftovers(folder: Path) -> None:
    """End processes that a run which was killed has left behind: their trials are evaluated again."""
    for path in folder.glob("*.pid"):
        pid, _, birth = path.read_text().partition(" ")
        if birth and pid.isdigit() and _birth(int(pid)) == birth:
            _signal_group(int(pid), getattr(signal, "SIGKILL", signal.SIGTERM))
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Inside, a request to terminate is an interrupt, so that processes are ended with this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def point_of_environment() -> Point:
    """The point of the trial that this process evaluates, in a program started by `duogp bo --command`."""
    try:
        point: Point = json.loads(os.environ[POINT])
    except KeyError:
        raise RuntimeError(f"{POINT} is not set: this program was not started by duogp bo") from None
    return point
