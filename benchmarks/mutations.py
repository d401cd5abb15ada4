"""Mutations of the library's formulas, one at a time: do the tests nearest to them notice?

    python benchmarks/mutations.py                 300 mutations, or as many as 40 minutes allow
    python benchmarks/mutations.py -n 50 --seed 1  others

A mutation is one changed operator, comparison, constant or sign in a copy of src; the tests nearest to it run
against the copy, in a fork of a process that has imported torch and pytest. Some mutations change nothing
that can be seen (a tolerance, a speed); those that survive are listed in benchmarks/results/mutations.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HYPOTHESIS_MAX_EXAMPLES", "20")

import hypothesis  # noqa: F401  # imported once, for every fork
import numpy  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutations.json"
BASES = "tests/bases/test_conformance"
#: Files that are mutated, and the tests that should notice.
TESTS: dict[str, list[str]] = {
    "numerics/factorisation.py": ["tests/numerics", "tests/bases/test_conformance.py"],
    "numerics/triangles.py": ["tests/numerics", "tests/bases/test_conformance_natural_steps.py"],
    "numerics/mixtures.py": ["tests/numerics"],
    "numerics/products.py": ["tests/numerics"],
    "objectives.py": ["tests/bases/test_conformance_objectives.py", "tests/likelihoods/test_integrals.py"],
    "inference/closed_form.py": [
        "tests/bases/test_conformance_closed_form.py",
        "tests/fused/test_collapsed.py",
    ],
    "inference/natural.py": [
        "tests/inference/test_natural.py",
        "tests/bases/test_conformance_natural_steps.py",
    ],
    "inference/leave_one_out.py": ["tests/inference/test_leave_one_out.py"],
    "inference/mean_rules.py": ["tests/inference/test_mean_rules.py"],
    "inference/sufficient.py": ["tests/inference/test_sufficient.py"],
    "training/validation.py": ["tests/training/test_parts_of_rows.py", "tests/training/test_loop.py"],
    "training/convergence.py": ["tests/training/test_convergence.py"],
    "training/lbfgs.py": ["tests/training/test_convergence.py"],
    "models/model.py": ["tests/training/test_parts_of_rows.py", "tests/bases/test_conformance.py"],
    "data/scaling.py": ["tests/data/test_benchmark.py"],
    "data/targets.py": ["tests/data", "tests/sklearn/test_clear_errors.py"],
}
SWAPPED: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
}


class Mutation(NamedTuple):
    file: str
    line: int
    before: str
    after: str
    source: str  # the whole mutated file


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are computed: no annotations, no texts."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.JoinedStr):
                continue
            if isinstance(part, ast.expr):
                yield part
            if isinstance(part, ast.AST):
                yield from expressions(part)


def changed(node: ast.expr, rng: random.Random) -> ast.expr | None:
    """Another expression in its place; None where there is nothing to change."""
    new: Any = copy.deepcopy(node)
    if isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in SWAPPED:
        new.op = rng.choice(SWAPPED[type(new.op)])()
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in SWAPPED:
        new.ops[0] = rng.choice(SWAPPED[type(new.ops[0])])()
    elif isinstance(new, ast.Constant) and type(new.value) is bool:
        new.value = not new.value
    elif isinstance(new, ast.Constant) and type(new.value) is int:
        new.value += rng.choice([-1, 1])
    elif isinstance(new, ast.Constant) and type(new.value) is float:
        new.value *= rng.choice([0.5, 2.0])
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.USub | ast.Not | ast.Invert):
        new = new.operand
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
    else:
        return None
    return new


def mutations_of(file: str, rng: random.Random) -> list[Mutation]:
    """Every mutation of a file, one for each place."""
    text = (ROOT / "src" / "duogp" / file).read_text()
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    out = []
    for node in expressions(ast.parse(text)):
        new = changed(node, rng)
        if new is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        data = text.encode()
        source = (data[:begin] + b"(" + ast.unparse(new).encode() + b")" + data[end:]).decode()
        out.append(Mutation(file, node.lineno, ast.unparse(node), ast.unparse(new), source))
    return out


def passes(source: Path, tests: list[str], limit: float) -> str:
    """Whether the tests "passed", "failed" or took "too long" against the library in a folder, in a fork."""
    pid = os.fork()
    if not pid:
        status = 2
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            os.chdir(ROOT)
            sys.path.insert(0, str(source))
            torch.set_num_threads(1)
            own = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow"]
            status = int(pytest.main([*own, *tests]))
        finally:
            os._exit(status)
    begun = time.perf_counter()
    while time.perf_counter() - begun < limit:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return "passed" if status == 0 else "failed"
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "too long"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=300, help="mutations")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--minutes", type=float, default=40.0, help="end after so many")
    parser.add_argument("--files", help="only these, with commas between")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    sys.dont_write_bytecode = True  # a copy that changed within a second has no new date
    begun, rng = time.perf_counter(), random.Random(options.seed)
    files = options.files.split(",") if options.files else list(TESTS)
    drawn = [mutation for name in files for mutation in mutations_of(name, rng)]
    rng.shuffle(drawn)
    with tempfile.TemporaryDirectory() as home:
        source = Path(home) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        limits: dict[str, float] = {}
        rows: list[dict[str, Any]] = []
        for mutation in drawn[: options.n]:
            if time.perf_counter() - begun > 60 * options.minutes:
                break
            tests, file = TESTS[mutation.file], source / "duogp" / mutation.file
            if mutation.file not in limits:
                start = time.perf_counter()
                if (state := passes(source, tests, 900.0)) != "passed":
                    print(f"{mutation.file}: its tests {state} without a mutation", flush=True)
                    limits[mutation.file] = 0.0
                else:
                    limits[mutation.file] = 60 + 5 * (time.perf_counter() - start)
            if not limits[mutation.file]:
                continue
            with restored(file):
                file.write_text(mutation.source)
                state = passes(source, tests, limits[mutation.file])
            rows.append({**mutation._asdict(), "noticed": state != "passed", "state": state})
            del rows[-1]["source"]
            mark = "noticed" if state != "passed" else "SURVIVED"
            print(f"{mark} {mutation.file}:{mutation.line} {mutation.before} → {mutation.after}", flush=True)
            write(options.results, rows, len(drawn), options.seed)
    return 0


@contextlib.contextmanager
def restored(file: Path) -> Iterator[None]:
    before = file.read_text()
    try:
        yield
    finally:
        file.write_text(before)


@functools.cache
def provenance() -> dict[str, Any]:
    """The stamp of the source, by a process of its own: forks must import the library that they test."""
    command = "import json; from duogp.bench.provenance import stamp; print(json.dumps(stamp()))"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(path: Path, rows: list[dict[str, Any]], places: int, seed: int) -> None:
    files = sorted({row["file"] for row in rows})
    each = {f: [row["noticed"] for row in rows if row["file"] == f] for f in files}
    found = {
        "places": places,
        "seed": seed,
        "mutations": len(rows),
        "noticed": sum(row["noticed"] for row in rows),
        "files": {name: f"{sum(marks)} of {len(marks)}" for name, marks in each.items()},
        "survived": [
            {name: row[name] for name in ("file", "line", "before", "after")}
            for row in rows
            if not row["noticed"]
        ],
        **provenance(),
    }
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
