"""Building the application and printing help imports no torch: `duogp --help` answers in under a second."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from duogp.cli import build
try:
    build()(sys.argv[1:], prog_name="duogp")
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "scipy", "sklearn", "pyarrow", "matplotlib")
print("imported:", *(name for name in heavy if name in sys.modules))
"""


@pytest.mark.parametrize("command", [[], ["fit"], ["predict"], ["plot"], ["bo"], ["bench"]], ids=" ".join)
def test_help_imports_nothing_heavy(command):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *command, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "imported:"
