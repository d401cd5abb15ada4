"""A peer in a Python of its own: one JSON object a line in, one out.

    python benchmarks/racing/serve.py gpflow

    {"command": "start", "problem": {...}}  →  {"version": "..."}
    {"command": "block"}                    →  {"seconds": 0.012}
    {"command": "stop"}                     →  the end

Whatever the peer itself prints goes to stderr.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    library = sys.argv[1]
    contestant = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["command"] == "stop":
                return
            if request["command"] == "start":
                problem = importlib.import_module("racing.problem").Problem(**request["problem"])
                contestant = importlib.import_module(f"racing.peers_{library}").Training(problem)
                answer = {"version": importlib.metadata.version(library)}
            else:
                assert contestant is not None
                answer = {"seconds": contestant.block()}
        except Exception as error:  # the race goes on without this peer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
