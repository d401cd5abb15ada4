"""The other end of `serve`: a peer in another process as a contestant."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from racing.clock import Contestant
from racing.problem import Problem

SERVER = Path(__file__).with_name("serve.py")


class PeerError(RuntimeError):
    """A peer that could not do what it was asked."""


class Remote(Contestant):
    def __init__(self, library: str, python: str, problem: Problem) -> None:
        threads = str(problem.threads)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads)
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [python, str(SERVER), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.version = str(self._ask(command="start", problem=problem.to_dict())["version"])

    def block(self) -> float:
        return float(self._ask(command="block")["seconds"])

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()  # the server's loop ends with its input
            self.process.wait(timeout=30)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise PeerError("the peer's process has ended") from error
        line = self.process.stdout.readline()
        if not line:
            raise PeerError("the peer's process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.close()
            raise PeerError(answer["error"])
        return answer


def pythons(given: list[str]) -> dict[str, str]:
    """The Python of each remote peer: as given (`gpflow=/path/to/python`), or ours where it is installed."""
    found = {name: sys.executable for name in ("gpflow", "gpjax") if importlib.util.find_spec(name)}
    return found | dict(entry.split("=", 1) for entry in given)
