"""Processes that are killed while they save a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="folders change places in one operation on Linux only")
def test_a_kill_between_any_two_operations_leaves_one_whole_model(tmp_path):
    """SIGKILL before and after every operation of a save: the old model or the new, and files beside it."""
    script = Path(__file__).parents[1] / "helpers" / "killed_saves.py"
    own = os.environ | {"PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path])}
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    states = json.loads(done.stdout)
    assert set(states) == {"old", "new"} and states == sorted(states, reverse=True)
