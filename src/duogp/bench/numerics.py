"""The numerics version: a hash of the source code that decides what a fit computes.

It is the sha256 over the syntax trees of the modules in `PARTS`, without comments, docstrings and line
numbers, so that a sentence or a blank line changes nothing and an operator does. The walk over a tree is our
own: `ast.dump` and `ast.unparse` differ between versions of Python. What one fit depends on is finer: see
`duogp.bench.rooms`.

A changed hash does not say that a number changed. ``benchmarks/numerics.toml`` lists hashes that were shown
to give the same numbers, each with its evidence (``benchmarks/ledger.py``); see `Ledger`.
"""

from __future__ import annotations

import ast
import hashlib
import io
import subprocess
import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

#: Packages and modules of duogp that decide the numbers of a fit, from the data to the metrics.
PARTS = (
    "numerics", "kernels", "likelihoods", "variational", "means", "bases", "objectives.py", "fused", "models",
    "inference", "training", "methods", "fitting", "posterior", "online", "baselines", "metrics.py", "api.py",
    "data/benchmark.py", "data/scaling.py", "data/splits.py", "data/targets.py",
)  # fmt: skip
#: Modules that fits run through as well, which the one hash of everything does not hold; rooms do.
ON_THE_WAY = (
    "data/arriving.py", "data/arrow_source.py", "data/columns.py", "data/labels.py", "data/rows.py",
    "data/sources.py", "data/validation.py",
)  # fmt: skip
SOURCE = Path(__file__).resolve().parents[1]
REPOSITORY = SOURCE.parents[1]
LEDGER = REPOSITORY / "benchmarks" / "numerics.toml"
#: Hexadecimal digits of a version.
DIGITS = 16
#: Fields of a syntax tree that do not decide what is computed.
IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@lru_cache(maxsize=1)
def numerics_version() -> str:
    """The numerics version of the source that runs."""
    return _version(module_hashes())


@lru_cache(maxsize=1)
def module_hashes() -> dict[str, str]:
    """The hash of every module that fits run through, by its path below ``src/duogp``."""
    texts = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    return {name: _module_hash(path.read_text("utf-8")) for name, path in texts.items() if _is_run(name)}


def numerics_at(commit: str, repository: Path = REPOSITORY) -> str | None:
    """The numerics version of a commit; None where git or the commit is not at hand."""
    hashes = module_hashes_at(commit, repository)
    return None if hashes is None else _version(hashes)


@lru_cache(maxsize=64)
def module_hashes_at(commit: str, repository: Path = REPOSITORY) -> dict[str, str] | None:
    """`module_hashes` of a commit; None where git or the commit is not at hand."""
    command = ["git", "archive", "--format=tar", commit, "--", "src/duogp"]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    hashes = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            name = member.name.removeprefix("src/duogp/")
            if member.isfile() and _is_run(name) and (file := archive.extractfile(member)) is not None:
                hashes[name] = _module_hash(file.read().decode("utf-8"))
    return hashes


def version_of(texts: Mapping[str, str]) -> str:
    """The hash of modules, given by path below ``src/duogp``; the order of the mapping does not matter."""
    return digest_of({name: _module_hash(text) for name, text in texts.items()})


def digest_of(hashes: Mapping[str, str], digits: int = DIGITS) -> str:
    """One hash of the hashes of modules."""
    lines = [f"{name} {hashes[name]}\n" for name in sorted(hashes)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:digits]


def _version(hashes: Mapping[str, str]) -> str:
    return digest_of({name: value for name, value in hashes.items() if _belongs(name)})


@lru_cache(maxsize=4096)  # commits share most of their files
def _module_hash(text: str) -> str:
    return hashlib.sha256("".join(_tokens(ast.parse(text))).encode()).hexdigest()


def _belongs(name: str) -> bool:
    """Whether a path below ``src/duogp`` is one of the `PARTS`."""
    return name.endswith(".py") and any(name == part or name.startswith(f"{part}/") for part in PARTS)


def _is_run(name: str) -> bool:
    """Whether fits run through a path below ``src/duogp``."""
    return _belongs(name) or name in ON_THE_WAY


def _tokens(node: object) -> Iterable[str]:
    """A tree as text: names of nodes, and the values of their fields that decide something."""
    if isinstance(node, ast.JoinedStr):
        yield "(JoinedStr"
        for part in _joined(node.values):
            yield from _tokens(part)
        yield ")"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name not in IGNORED_FIELDS and value is not None and value != []:
                yield f" {name}="
                yield from _tokens(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            if not _is_text_alone(item):
                yield from _tokens(item)
        yield "]"
    else:
        yield repr(node)


def _joined(parts: Iterable[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string, neighbouring texts as one: Python 3.12 leaves some of them apart."""
    found: list[ast.expr] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, ast.Constant) and isinstance(last, ast.Constant):
            found[-1] = ast.Constant(str(last.value) + str(part.value))
        elif not (isinstance(part, ast.Constant) and part.value == ""):
            found.append(part)
    return found


def _is_text_alone(node: object) -> bool:
    """A docstring, or another string that is a statement of its own."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class Ledger:
    """Groups of versions, of everything or of a room, that were shown to give the same numbers.

    The file has tables ``[[same]]`` with ``versions`` (a list of hashes) and ``evidence`` (what was run), and
    a table ``[commits]``: versions of everything, and a commit that has them, for rows made at a commit that
    is not in the history.
    """

    groups: tuple[frozenset[str], ...] = ()
    commits: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = LEDGER) -> Ledger:
        """The ledger of a file; an empty one where there is no file."""
        try:
            raw = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        groups: list[frozenset[str]] = []
        for table in raw.get("same", []):
            if not table.get("evidence"):
                raise ValueError(f"{path.name}: every [[same]] table needs its evidence, got {table!r}")
            group = frozenset(map(str, table["versions"]))
            joined = [other for other in groups if other & group]
            groups = [other for other in groups if not other & group]
            groups.append(group.union(*joined))
        return cls(tuple(groups), {str(k): str(v) for k, v in raw.get("commits", {}).items()})

    def same(self, one: str, other: str) -> bool:
        """Whether two versions are known to give the same numbers."""
        return one == other or any({one, other} <= group for group in self.groups)
