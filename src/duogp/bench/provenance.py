"""The provenance of a row: commit, state of the tree, versions, device, resolved settings, numerics version.

`stamp` gives these fields to every row, of the runner and of the scripts in ``benchmarks/``; `staleness` says
why a row may no longer be what the library computes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from duogp.bench import measure
from duogp.bench.numerics import REPOSITORY, Ledger, module_hashes_at, numerics_at, numerics_version
from duogp.bench.rooms import FitTraits, changed_rooms, room_hashes, rooms_now, versions_of
from duogp.bench.suite import RUNNER_SETTINGS, Cell, canonical_json

#: Settings that belong to the run, not to the result: no part of what is resolved.
OF_THE_RUN = frozenset({"device", "verbose", "random_state"})
#: Reasons of `staleness`.
NO_PROVENANCE = "no provenance"
CHANGED_NUMERICS = "numerics changed"


def stamp(
    device: str | None = None,
    *,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int | None = None,
    classifies: bool = False,
) -> dict[str, Any]:
    """The provenance fields of a row that ends now; without what is not given.

    ``device``: a torch device. ``method`` and ``settings``: the keywords of `duogp.fit`, stored as
    ``resolved`` with every default filled in; ``rooms`` are then the versions of the code that fit runs.
    ``classifies``: whether its targets are labels.
    """
    commit, dirty = tree_state()
    row: dict[str, Any] = {"commit": commit, "dirty": dirty, "numerics": numerics_version()}
    row["versions"] = measure.versions()
    if device is not None:
        row |= {"device": device, "device_name": measure.device_name(device)}
    if seed is not None:
        row["seed"] = seed
    if method is not None:
        row["resolved"] = resolved(method, settings or {})
        row["rooms"] = versions_of(FitTraits(method, row["resolved"], device or "cpu", classifies))
    row["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    return row


@lru_cache(maxsize=1)
def tree_state() -> tuple[str | None, bool | None]:
    """The commit of the source, and whether code differs from it; None where it is not known.

    Results are no code: a run that appends to ``benchmarks/results`` does not make the tree dirty. On
    machines that hold a copy without history, ``DUOGP_COMMIT`` names the commit, with "+" where code differs.
    """
    if given := os.environ.get("DUOGP_COMMIT"):
        return given.removesuffix("+"), given.endswith("+")
    try:
        commit = _git("rev-parse", "--short=9", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit or None, bool(changed.strip())


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def resolved(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a fit with every default filled in: of the method, then of the library.

    What the data decide (None here) is decided by code that the numerics version covers.
    """
    from duogp.baselines.options import NeuralSettings
    from duogp.methods import METHODS
    from duogp.methods.settings import Settings

    own = METHODS[method] if method in METHODS else None  # noqa: SIM401 `get` refuses unknown names
    given = {k: v for k, v in settings.items() if k not in RUNNER_SETTINGS}
    kind = NeuralSettings if own is not None and own.is_baseline else Settings
    known = kind.__dataclass_fields__
    full = kind(**{k: v for k, v in given.items() if k in known}).to_dict()
    of_method = {k: v for k, v in (own.defaults if own else {}).items() if k not in given}
    out = {**full, **of_method, **{k: v for k, v in given.items() if k not in known}}
    return {k: out[k] for k in sorted(out) if k not in OF_THE_RUN}


def configuration(cell: Cell) -> str:
    """sha256 of all that decides the result of a cell, the defaults of today included."""
    deciding = [
        cell.data,
        cell.protocol,
        cell.split,
        cell.seed,
        cell.method,
        resolved(cell.method, cell.settings),
    ]
    return hashlib.sha256(canonical_json(deciding).encode()).hexdigest()


def changed_defaults(row: Mapping[str, Any]) -> list[str]:
    """``name: then → now`` of every resolved setting of a row whose value is another one today.

    A setting that came or went since is a change of the source, which the numerics version notices.
    """
    if not isinstance(then := row.get("resolved"), dict):
        return []
    now = resolved(str(row["method"]), row.get("settings", {}))
    pairs = {name: (canonical_json(then[name]), canonical_json(now[name])) for name in then if name in now}
    return [f"{name}: {before} → {after}" for name, (before, after) in pairs.items() if before != after]


def staleness(row: Mapping[str, Any], ledger: Ledger) -> list[str]:
    """The reasons why a row may not be what the library computes now; none for a fresh row.

    A row is fresh where all code is what it was (by its numerics version), or where the rooms are that its
    fit runs through; the ledger says which versions are as good as equal. A row with a clean commit that
    holds neither has those of its commit, or of one that the ledger knows to have the same version.
    """
    version = row.get("numerics")
    commit = _clean_commit(row)
    if version is None and commit is not None:
        version = numerics_at(commit)
    if version is None:
        return [NO_PROVENANCE]
    reasons = [f"default changed: {change}" for change in changed_defaults(row)]
    if ledger.same(str(version), numerics_version()):
        return reasons
    if commit is None or module_hashes_at(commit) is None:
        commit = ledger.commits.get(str(version))
    changed = _changed_rooms(row, commit, ledger)
    if changed is None:
        return [CHANGED_NUMERICS, *reasons]
    return ([f"{CHANGED_NUMERICS}: {', '.join(changed)}"] if changed else []) + reasons


def _changed_rooms(row: Mapping[str, Any], commit: str | None, ledger: Ledger) -> list[str] | None:
    """The rooms of a row's fit that changed since; None where it is not known what they were.

    A row without a method or without its resolved settings (of a script that fits several) depends on all.
    """
    if "method" not in row or "resolved" not in row:
        every = _rooms_at(commit)
        return None if every is None else changed_rooms(every, rooms_now(), ledger)
    classifies = str(row.get("data")).startswith("classification/")
    fit = FitTraits(str(row["method"]), row["resolved"], str(row.get("device", "cpu")), classifies)
    then = row.get("rooms")
    if then is None and (every := _rooms_at(commit)) is not None:
        then = versions_of(fit, every)
    return None if then is None else changed_rooms(then, versions_of(fit), ledger)


def _rooms_at(commit: str | None) -> dict[str, str] | None:
    """The hash of every room at a commit; None where git does not know it."""
    modules = None if commit is None else module_hashes_at(commit)
    return None if modules is None else room_hashes(modules)


def _clean_commit(row: Mapping[str, Any]) -> str | None:
    """The commit of a row without uncommitted changes."""
    versions = row.get("versions")
    commit = row.get("commit") or (versions.get("commit") if isinstance(versions, dict) else None)
    return None if not commit or row.get("dirty") or str(commit).endswith("+") else str(commit)
