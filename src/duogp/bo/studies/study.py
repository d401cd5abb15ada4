"""`Study`: ask for points, tell what came of them, in any order."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np

from duogp.bo.candidates import Floats
from duogp.bo.spaces import Point, Space
from duogp.bo.studies.goals import Goals
from duogp.bo.studies.log import Log
from duogp.bo.studies.proposers import MODEL, make_proposer, non_dominated
from duogp.bo.studies.trials import DONE, FAILED, PENDING, History, Trial

#: Points of the initial design: two for each parameter, between these.
FEWEST, MOST = 4, 40


class Study:
    """A search for the best points of a space, by questions (`ask`) and answers (`tell`).

    ``space``: a `Space`, or a mapping of names to parameters.
    ``direction``: "maximise" or "minimise"; for several objectives a mapping of their names to these words.
    ``constraints``: outcomes that must keep a limit, by name: ``{"memory": "<= 8"}``.
    ``strategy``: "model" (a GP with a BoTorch acquisition function; without BoTorch Thompson sampling),
    "turbo", "thompson" or "random". ``method`` and ``settings`` choose another GP of the registry.
    ``initial``: the number of points of the initial design, or points to start with.
    ``folder``: where every question and answer is written before it is acknowledged; a folder that holds
    the study already is gone on with. ``patience``: seconds after which a pending trial counts as failed.
    """

    def __init__(
        self,
        space: Space | Mapping[str, Any],
        *,
        direction: str | Mapping[str, str] = "maximise",
        constraints: Mapping[str, Any] | None = None,
        strategy: str = MODEL,
        method: str | None = None,
        seed: int = 0,
        initial: int | Sequence[Mapping[str, Any]] | None = None,
        folder: str | os.PathLike[str] | None = None,
        patience: float | None = None,
        **settings: Any,
    ) -> None:
        self.space = Space.of(space)
        self.goals = Goals.of(direction, constraints)
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if patience is not None and not patience > 0:
            raise ValueError(f"patience must be a positive number of seconds, got {patience!r}")
        self.patience = patience
        first, self._queue = self._start(initial)
        self.strategy = strategy
        objectives = len(self.goals.directions)
        options = {"seed": seed, "initial": first, "objectives": objectives, "method": method, **settings}
        self.proposer = make_proposer(strategy, self.space, **options)
        self.trials: list[Trial] = []
        #: Numbers of trials in the order in which their results were told.
        self.order: list[int] = []
        self._asked = 0
        self._guard = threading.RLock()
        self._log: Log | None = None
        if folder is not None:
            self._log = Log(folder, {"space": self.space.spec(), **self.goals.spec()})
            self._replay(self._log)
            self._queue = self._queue[self._asked :]

    def _start(self, initial: int | Sequence[Mapping[str, Any]] | None) -> tuple[int, list[Point]]:
        """The size of the initial design and the points that it starts with."""
        usual = min(max(FEWEST, 2 * len(self.space.names)), MOST)
        if initial is None:
            return usual, []
        if isinstance(initial, (int, np.integer)):
            if initial < 1:
                raise ValueError(f"initial must be a positive integer or points, got {initial}")
            return int(initial), []
        points = [self.space.checked(point) for point in initial]
        return max(usual, len(points)), points

    @classmethod
    def open(cls, folder: str | os.PathLike[str], **options: Any) -> Study:
        """The study in a folder, with its own space and goals; ``options``: the others of `Study`."""
        log = Log(folder, None)
        log.close()
        try:
            goals = {name: log.header[name] for name in ("direction", "constraints")}
            space = Space.of(log.header["space"])
            Goals.of(**goals)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{log.path}: its header is not that of a study: {error}") from error
        return cls(space, **goals, folder=folder, **options)

    # -- asking ----------------------------------------------------------------------------------------------

    @overload
    def ask(self, q: None = None) -> Trial: ...

    @overload
    def ask(self, q: int) -> list[Trial]: ...

    def ask(self, q: int | None = None) -> Trial | list[Trial]:
        """The next trial or, with a number, that many; none is pending already."""
        number = 1 if q is None else q
        if number < 1:
            raise ValueError(f"q must be a positive integer, got {q!r}")
        with self._guard:
            self._lose_patience()
            points = self._next(number)
            now = time.time()
            first = len(self.trials)
            self._write([{"ask": first + i, "point": p, "time": now} for i, p in enumerate(points)])
            self._queue = self._queue[number:]
            found = self.trials[first:]
        return found[0] if q is None else found

    def _next(self, q: int) -> list[Point]:
        given = self._queue[:q]
        if len(given) == q:
            return given
        history = self.history()
        if given:
            pending = np.concatenate([history.pending, self.space.encode(given)])
            history = replace(history, pending=pending, asked=history.asked + len(given))
        cube = self.proposer.propose(history, q - len(given))
        return given + self.space.decode(cube)

    def _lose_patience(self) -> None:
        if self.patience is None:
            return
        limit = time.time() - self.patience
        for trial in self.pending:
            if trial.started < limit:
                self.fail(trial, f"no result after {self.patience:g} s")

    # -- telling ---------------------------------------------------------------------------------------------

    def tell(self, what: Trial | int | Mapping[str, Any], values: Any) -> Trial:
        """Record the values of a trial, of its number, or of a point that was not asked for.

        ``values``: a number, or several by name or in the order of objectives and constraints. Values that
        are not finite, or None, are recorded as a failure. A failed trial may be told its values late; a
        trial that is done may not be told others.
        """
        if values is None:
            return self.fail(what, "no value")
        told = self.goals.values(values)
        wrong = {name: value for name, value in told.items() if not math.isfinite(value)}
        if wrong:
            return self.fail(what, "not finite: " + ", ".join(f"{n} = {v}" for n, v in wrong.items()))
        with self._guard:
            events, number = self._named(what)
            if not events and (known := self.trials[number]).state == DONE:
                if known.values == told:
                    return known
                raise ValueError(f"trial {number} has been told {known.values} already, and now {told}")
            self._write([*events, {"tell": number, "values": told, "time": time.time()}])
            return self.trials[number]

    def fail(self, what: Trial | int | Mapping[str, Any], reason: str = "failed") -> Trial:
        """Record that the evaluation of a trial or point gave no value."""
        with self._guard:
            events, number = self._named(what)
            if not events and self.trials[number].state == DONE:
                raise ValueError(f"trial {number} has been told {self.trials[number].values} already")
            self._write([*events, {"fail": number, "reason": reason, "time": time.time()}])
            return self.trials[number]

    def _named(self, what: Trial | int | Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
        """The number of a trial; for a point that is no pending trial, with the event that adds it."""
        if isinstance(what, Trial):
            what = what.number
        if isinstance(what, (int, np.integer)):
            if not 0 <= what < len(self.trials):
                raise ValueError(f"there is no trial {what}: the study has {len(self.trials)}")
            return [], int(what)
        point = self.space.checked(what)
        for trial in self.pending:
            if trial.point == point:
                return [], trial.number
        number = len(self.trials)
        return [{"add": number, "point": point, "time": time.time()}], number

    # -- events ----------------------------------------------------------------------------------------------

    def _write(self, events: list[dict[str, Any]]) -> None:
        """Put events on disk, then into effect."""
        if self._log is not None:
            self._log.append(events)
        for event in events:
            self._apply(event)

    def _replay(self, log: Log) -> None:
        """Put the events of a file into effect; one that is none is an error that names its line."""
        for line, event in enumerate(log.events, 2):
            try:
                self._check_event(event)
                self._apply(event)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                log.close()
                raise ValueError(f"{log.path}: line {line} is no event of this study: {error}") from error

    def _check_event(self, event: Mapping[str, Any]) -> None:
        """An error for an event that this study cannot have written."""
        (kind,) = [name for name in ("ask", "add", "tell", "fail") if name in event]
        number, moment = event[kind], event.get("time", 0.0)
        if type(number) is not int or not 0 <= number <= len(self.trials):
            raise ValueError(f"there is no trial {number!r}")
        if not isinstance(moment, (int, float)) or not math.isfinite(moment):
            raise ValueError(f"its time is {moment!r}")
        if kind in ("ask", "add"):
            self.space.checked(event["point"])
            return
        if number == len(self.trials):
            raise ValueError(f"there is no trial {number}")
        if kind == "fail" and not isinstance(event["reason"], str):
            raise ValueError(f"its reason is {event['reason']!r}")
        if kind == "tell":
            told = self.goals.values(event["values"])
            if told != event["values"] or not all(map(math.isfinite, told.values())):
                raise ValueError(f"its values are {event['values']!r}")

    def _apply(self, event: Mapping[str, Any]) -> None:
        moment = event.get("time", 0.0)
        if "ask" in event or "add" in event:
            number = event["ask"] if "ask" in event else event["add"]
            if number != len(self.trials):
                raise ValueError(f"trial {number} follows {len(self.trials) - 1}: the log was changed")
            self._asked += "ask" in event
            self.trials.append(Trial(number, dict(event["point"]), started=moment))
            return
        number = event["tell"] if "tell" in event else event["fail"]
        trial = self.trials[number]
        if trial.state != PENDING:  # a late result takes its place at the end
            self.order.remove(number)
        self.order.append(number)
        trial.ended = moment
        if "tell" in event:
            trial.state, trial.values, trial.reason = DONE, dict(event["values"]), None
        else:
            trial.state, trial.reason = FAILED, event["reason"]

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[Trial]:
        """Trials without a result. After a stop they are to be evaluated again."""
        return [trial for trial in self.trials if trial.state == PENDING]

    @property
    def done(self) -> list[Trial]:
        """Trials with values, in the order in which they were told."""
        return [self.trials[i] for i in self.order if self.trials[i].state == DONE]

    def history(self) -> History:
        """All evaluations as the model sees them."""
        told = [self.trials[i] for i in self.order]
        nothing = dict.fromkeys(self.goals.names, math.nan)
        values = [trial.values or nothing for trial in told]
        Y = np.array([self.goals.objectives(v) for v in values], dtype=np.float64)
        C = np.array([self.goals.excesses(v) for v in values], dtype=np.float64)
        return History(
            X=self._cube(told),
            Y=Y.reshape(len(told), len(self.goals.directions)),
            C=C.reshape(len(told), len(self.goals.limits)),
            pending=self._cube(self.pending),
            asked=self._asked,
        )

    def _cube(self, trials: list[Trial]) -> Floats:
        if not trials:
            return np.empty((0, self.space.width))
        return self.space.encode([trial.point for trial in trials])

    @property
    def best(self) -> Trial | None:
        """The best feasible trial of a study with one objective; None where there is none yet."""
        front = self.front
        if len(self.goals.directions) > 1:
            raise ValueError("a study of several objectives has no best trial: see front")
        return front[0] if front else None

    @property
    def front(self) -> list[Trial]:
        """Feasible trials that no other one is better than in every objective."""
        good = [t for t in self.done if t.values is not None and self.goals.is_feasible(t.values)]
        if not good:
            return []
        Y = np.array([self.goals.objectives(t.values or {}) for t in good])
        if Y.shape[1] == 1:
            return [good[int(Y[:, 0].argmax())]]
        return [trial for trial, keep in zip(good, non_dominated(Y), strict=True) if keep]

    @property
    def folder(self) -> Path | None:
        """The folder that the study is written to; None for one in memory."""
        return None if self._log is None else self._log.folder

    def close(self) -> None:
        """Release the folder for another process."""
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.trials)

    def __repr__(self) -> str:
        goals = ", ".join(f"{word} {name}" for name, word in self.goals.directions.items())
        states = [sum(t.state == s for t in self.trials) for s in (DONE, FAILED, PENDING)]
        return f"Study({goals}; {states[0]} done, {states[1]} failed, {states[2]} pending)"
