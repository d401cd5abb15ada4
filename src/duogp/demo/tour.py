"""A tour of the command line: fit, evaluate, predict, explain, plot.

The table is scikit-learn's: 442 patients with diabetes, ten measurements, and the progression of the disease
after a year. It is written as CSV first, so that every printed command can be typed again in that folder.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

#: The measurements, as the table's source describes them.
NAMES = {
    "age": "age_years",
    "sex": "sex",
    "bmi": "body mass index",
    "bp": "blood pressure",
    "s1": "total cholesterol",
    "s2": "LDL",
    "s3": "HDL",
    "s4": "cholesterol / HDL",
    "s5": "log triglycerides",
    "s6": "blood sugar",
}
TARGET = "progression"
#: Patients that the model is not fitted to.
LATER = 92

COMMANDS = (
    "duogp fit patients.csv --target progression --output model --category sex --test-fraction 0.1"
    " --device cpu --force",
    "duogp evaluate model later.csv",
    "duogp predict model later.csv --interval 0.9 --keep age_years,sex --output predictions.csv",
    "duogp explain model later.csv",
    "duogp plot model later.csv --output patients.png",
    "duogp info model",
)


def tour(folder: Path, options: Sequence[str] = ()) -> None:
    """Write the tables and run the commands in that folder; ``options`` are added to the first."""
    write_tables(folder)
    with contextlib.chdir(folder):
        for command in COMMANDS:
            run(shlex.split(command) + (list(options) if command is COMMANDS[0] else []))
        show_head(Path("predictions.csv"))


def write_tables(folder: Path) -> None:
    """Write ``patients.csv`` to fit and ``later.csv`` to predict, in the original units."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    head = [NAMES[name] for name in data.feature_names] + [TARGET]
    pairs = zip(data.data.tolist(), data.target.tolist(), strict=True)
    rows = [[f"{value:.10g}" for value in (*measured, y)] for measured, y in pairs]
    for name, part in (("patients.csv", rows[:-LATER]), ("later.csv", rows[-LATER:])):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *part])


def run(command: Sequence[str]) -> None:
    """Run a command of the console script in this process, so that torch is imported once."""
    from duogp.cli import build

    print(f"\n$ {shlex.join(command)}", flush=True)
    try:
        build()(list(command[1:]), prog_name=command[0])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{shlex.join(command)} ended with status {end.code}") from None
    sys.stdout.flush()


def show_head(path: Path, lines: int = 4) -> None:
    """Print the first lines of a file."""
    print(f"\n$ head -{lines} {path}")
    with path.open(encoding="utf-8") as file:
        print(*itertools.islice(file, lines), sep="", end="")
