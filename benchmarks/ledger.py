"""What a change of the numerics did to the numbers, room by room, and the ledger entries that follow from it.

    python benchmarks/ledger.py COMMIT                    fit all cases of same_digits with the source of
                                                          COMMIT and with this one, compare, print entries
    python benchmarks/ledger.py COMMIT --write            and append them to benchmarks/numerics.toml
    python benchmarks/ledger.py COMMIT --record FILE      with numbers that same_digits recorded at COMMIT
    python benchmarks/ledger.py COMMIT --distances FILE   with those of `same_digits compare --distances-to`
    python benchmarks/ledger.py COMMIT --meant CASE --because WHY
                                                          leave a case out that was meant to differ; the
                                                          entries say so

COMMIT is the one that the rows in question were made with. A room of the numerics (`duogp.bench.rooms`) that
changed since then is "shown equal" where no case that runs through it differs by more than the tolerance. A
case that differs is held against the changed room of it that the fewest cases run through; that room gets no
entry, so that rows which depend on it stay stale, and cases that run through it say nothing about others.
Where no case is left that runs through a room (float32 predictions), there is no entry either. The cases run
on a CPU, on 2,000 rows and for 20 steps: what code does on a GPU alone, on large tables or after many steps
alone, they do not see; `duogp bench rerun` on that device does. A case that --meant leaves out says that
there is such code: name the rows that it changes, and make them again. Those named "auto small" depend on the
clock. Five minutes on two free cores.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duogp.bench.numerics import LEDGER, REPOSITORY, Ledger, module_hashes_at
from duogp.bench.provenance import resolved, tree_state
from duogp.bench.rooms import ABSENT, FitTraits, changed_rooms, label, room_hashes, rooms_now, rooms_of

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "same_digits.py"
TOLERANCE = 1e-6


@dataclass
class Verdict:
    """What the cases say about the rooms that changed."""

    equal: dict[str, tuple[int, float]] = field(default_factory=dict)  # room → cases, worst distance
    blamed: dict[str, list[str]] = field(default_factory=dict)  # room → cases that differ
    unseen: list[str] = field(default_factory=list)  # no case left that runs through it


def decide(
    changed: Sequence[str],
    rooms: Mapping[str, Sequence[str]],
    distances: Mapping[str, float],
    tolerance: float = TOLERANCE,
) -> Verdict:
    """The verdict over changed rooms, from the rooms of every case and its distance."""
    verdict = Verdict()
    using = {room: [case for case in distances if room in rooms[case]] for room in changed}
    for case, distance in distances.items():
        if not distance <= tolerance and (own := [room for room in changed if room in rooms[case]]):
            verdict.blamed.setdefault(min(own, key=lambda room: len(using[room])), []).append(case)
    for room in changed:
        if room in verdict.blamed:
            continue
        left = [case for case in using[room] if not verdict.blamed.keys() & set(rooms[case])]
        if left:
            verdict.equal[room] = (len(left), max(distances[case] for case in left))
        else:
            verdict.unseen.append(room)
    return verdict


def entries(verdict: Verdict, then: Mapping[str, str], now: Mapping[str, str], what: str) -> str:
    """The equal rooms as tables of numerics.toml."""
    text = ""
    for room, (cases, worst) in verdict.equal.items():
        versions = json.dumps([label(room, then[room]), label(room, now[room])], ensure_ascii=False)
        evidence = f"{what}: {cases} cases that run through it agree, the worst to {worst:.1e}"
        text += f"\n[[same]]\nversions = {versions}\nevidence = {json.dumps(evidence)}\n"
    return text


def case_rooms(cases: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, list[str]]:
    """The rooms that every case of same_digits runs through."""
    own: dict[str, list[str]] = {}
    for name, (method, given) in cases.items():
        settings = resolved(method, {k: v for k, v in given.items() if k != "random_state"})
        own[name] = rooms_of(FitTraits(method, settings, "cpu"))
    return own


def changed_since(commit: str, ledger: Ledger) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """The rooms that differ from those of a commit and that the ledger does not hold equal; then; now."""
    modules = module_hashes_at(commit)
    if modules is None:
        raise SystemExit(f"ledger: git does not know the commit {commit!r}")
    now = rooms_now()
    then = dict.fromkeys(now, ABSENT) | room_hashes(modules)
    return changed_rooms(then, now, ledger), then, now


def source_of(commit: str, folder: Path) -> Path:
    """The library of a commit, unpacked."""
    command = ["git", "archive", "--format=tar", commit, "--", "src"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run_script(source: Path, arguments: Sequence[str]) -> int:
    """`same_digits` with the library of a folder."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], env=environment, check=False).returncode


def measure(commit: str, record: Path | None, jobs: int, only: Sequence[str]) -> dict[str, Any]:
    """The distances of all cases between the source of a commit and this one."""
    cases = [part for text in only for part in ("--only", text)] + ["--jobs", str(jobs)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if record is None:
            record = folder / "then.json"
            if run_script(source_of(commit, folder), ["record", str(record), *cases]):
                raise SystemExit(f"ledger: a case fails with the source of {commit}")
        found = folder / "distances.json"
        run_script(REPOSITORY / "src", ["compare", str(record), "--distances-to", str(found), *cases])
        out: dict[str, Any] = json.loads(found.read_text("utf-8"))
        return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="whose numbers are compared with today's")
    parser.add_argument("--record", type=Path, help="numbers of that commit, by same_digits record")
    parser.add_argument("--distances", type=Path, help="written by same_digits compare --distances-to")
    parser.add_argument("--only", action="append", default=[], help="cases with this text (repeatable)")
    parser.add_argument(
        "--meant", action="append", default=[], help="a case that differs as it should: left out (repeatable)"
    )
    parser.add_argument("--because", help="why, for the entries; rows that it changes are to be made again")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"append the entries to {LEDGER.name}")
    options = parser.parse_args(arguments)
    if bool(options.meant) != (options.because is not None):
        parser.error("--meant and --because belong together")
    changed, then, now = changed_since(options.commit, Ledger.read())
    if not changed:
        print(f"no room changed since {options.commit}: nothing to decide")
        return 0
    print(f"rooms that changed since {options.commit}: {', '.join(changed)}", flush=True)
    if options.distances:
        found = json.loads(options.distances.read_text("utf-8"))
    else:
        found = measure(options.commit, options.record, options.jobs, options.only)
    import same_digits

    distances = found["distances"]
    if unknown := [case for case in options.meant if case not in distances]:
        parser.error(f"--meant: no cases {', '.join(unknown)}")
    distances = {case: value for case, value in distances.items() if case not in options.meant}
    verdict = decide(changed, case_rooms(same_digits.fits()), distances, found["tolerance"])
    for room, cases in verdict.blamed.items():
        print(f"STALE  {room}: {len(cases)} cases differ: {', '.join(cases)}")
    for room in verdict.unseen:
        print(f"UNSEEN {room}: no case runs through it (or only such as run through a stale room)")
    commit, dirty = tree_state()
    at = f"{commit}{'+' if dirty else ''}, {datetime.now(UTC).date()}"
    what = f"benchmarks/ledger.py {options.commit} at {at}"
    if options.meant:
        what += f", without {', '.join(options.meant)} ({options.because})"
    text = entries(verdict, then, now, what)
    print(text or "\nno entry")
    if options.write and text:
        with LEDGER.open("a", encoding="utf-8") as file:
            file.write(text)
    return 1 if verdict.blamed or verdict.unseen else 0


if __name__ == "__main__":
    sys.exit(main())
