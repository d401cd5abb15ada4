"""Tables of the arena: frames with categories, dates and gaps, their targets, and the half each belongs to.

A set comes from the data folder (``DUOGP_DATA``), from scikit-learn, or from a package that carries data in
its distribution (see `packaged`); nothing is downloaded. At most `MOST_ROWS` rows of each are kept, drawn at
random by a seed that depends on the name alone.

**Halves.** Settings of duogp may be chosen on sets of the half "choice"; the half "report" is for the
verdict. The rule has seen no results: sets of one origin form a family; families of one kind (regression or
classification), of one type (arrays or mixed tables) and of one size class are sorted by the sha256 of their
name and alternate between the halves. `halves.json` holds the outcome. Three more, "blind", "blind-2"
and "blind-3", have a rule of their own (see `blind`) and are used only where they are named: "all" are the
first two.

    python -m arena.tables --export FOLDER     write every set as an npz file that needs no other package
    python -m arena.tables                     print the list; both take --half blind
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: Rows of a set that are kept, and of a split that are used.
MOST_ROWS = 12_000
TRAIN_ROWS = 5_000
TEST_ROWS = 3_000
TEST_SHARE = 0.2
SMALL = 1_500  # rows: the border between the two size classes
HALVES = Path(__file__).with_name("halves.json")
BLIND = ("blind", "blind-2", "blind-3")  # the halves that "all" leaves out
EXPORTED = "arena.json"  # the list of an exported folder


@dataclass(frozen=True)
class Entry:
    """A set before it is loaded: what its half depends on, and how to read it."""

    name: str
    kind: str  # "regression" or "classification"
    source: str
    load: Callable[[], tuple[pd.DataFrame, Any]]
    family: str = ""  # sets of one origin have one family and one half; default: the name
    mixed: bool = False  # columns are not all numbers


@dataclass(frozen=True, eq=False)
class Table:
    """A loaded set: the frame X (categories of dtype category, gaps are NaN), y, and where it is from."""

    name: str
    kind: str
    source: str
    half: str
    X: pd.DataFrame
    y: NDArray  # float64, or class numbers from 0
    mixed: bool

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1 if self.kind == "classification" else 0


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of one random split."""

    train: NDArray[np.intp]
    test: NDArray[np.intp]


def seed_of(*parts: object) -> int:
    """A seed that depends on the given words alone."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "little")


def split(table: Table, number: int) -> Split:
    """Random split: 20 % test rows (at most 3,000), the others for training (at most 5,000).

    Of labels every class with two rows or more keeps one in the training rows.
    """
    n = len(table.y)
    order = np.random.default_rng(seed_of(table.name, number)).permutation(n)
    tests = min(TEST_ROWS, max(1, round(TEST_SHARE * n)))
    test, rest = order[:tests], order[tests:]
    train = rest[:TRAIN_ROWS]
    if table.kind == "classification":
        lacking = np.setdiff1d(table.y[order], table.y[train])
        moved = [int(order[table.y[order] == c][0]) for c in lacking]
        train = np.concatenate([train, np.asarray(moved, np.intp)])
        test = np.setdiff1d(test, moved, assume_unique=True)
    return Split(train, test)


# -- halves ------------------------------------------------------------------------------------------------


def assign_halves(sets: Iterable[tuple[str, str, str, bool, int]]) -> dict[str, str]:
    """Halves by the rule above of (name, family, kind, mixed, rows); a family follows its largest set."""
    families: dict[str, list[tuple[str, str, bool, int]]] = {}
    for name, family, kind, mixed, rows in sets:
        families.setdefault(family or name, []).append((name, kind, mixed, rows))
    groups: dict[tuple[str, bool, bool], list[str]] = {}
    for family, members in families.items():
        _, kind, mixed, rows = max(members, key=lambda member: (member[3], member[0]))
        groups.setdefault((kind, mixed, rows >= SMALL), []).append(family)
    halves = {}
    for number, key in enumerate(sorted(groups)):
        ordered = sorted(groups[key], key=lambda family: hashlib.sha256(family.encode()).hexdigest())
        for place, family in enumerate(ordered):
            half = ("choice", "report")[(place + number) % 2]
            halves |= {member[0]: half for member in families[family]}
    return dict(sorted(halves.items()))


# -- loading -----------------------------------------------------------------------------------------------


def tidy(X: pd.DataFrame) -> pd.DataFrame:
    """Texts and truth values as categories, other numbers as float64, dates as they are."""
    columns = {}
    for name in X.columns:
        column = X[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.cat.rename_categories([str(level) for level in column.cat.categories])
        elif pd.api.types.is_datetime64_any_dtype(column):
            column = column.astype("datetime64[s]")
        elif pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
            column = column.astype("string").astype(object).where(column.notna(), None).astype("category")
        else:
            column = column.astype(np.float64)
        columns[str(name)] = column
    return pd.DataFrame(columns).reset_index(drop=True)


def build(entry: Entry, half: str) -> Table:
    """The set of an entry: rows with a target, at most `MOST_ROWS` of them, classes numbered from 0."""
    X, y = entry.load()
    y = pd.Series(np.asarray(y))
    there = y.notna().to_numpy()
    X, y = X.loc[there].reset_index(drop=True), y[there].reset_index(drop=True)
    if len(y) > MOST_ROWS:
        rows = np.random.default_rng(seed_of(entry.name)).choice(len(y), MOST_ROWS, replace=False)
        X, y = X.iloc[np.sort(rows)], y.iloc[np.sort(rows)]
    if entry.kind == "classification":
        counts = y.value_counts()
        kept = y.isin(counts.index[counts >= 5]).to_numpy()  # a class of fewer rows cannot be split
        X, y = X.loc[kept], y.loc[kept]
        target: NDArray = np.unique(y.astype(str).to_numpy(), return_inverse=True)[1].astype(np.int64)
    else:
        target = y.to_numpy(np.float64)
    X = tidy(X)
    mixed = entry.mixed or not all(pd.api.types.is_numeric_dtype(dtype) for dtype in X.dtypes)
    return Table(entry.name, entry.kind, entry.source, half, X, target, mixed)


def entries() -> list[Entry]:
    """Sets of "choice" and "report": of the data folder, of scikit-learn, of packages with data."""
    from arena.folder import folder_entries
    from arena.packaged import packaged_entries

    found = [*folder_entries(), *packaged_entries()]
    assert len({entry.name for entry in found}) == len(found)
    return found


def stored_halves() -> dict[str, str]:
    return dict(json.loads(HALVES.read_text(encoding="utf-8"))) if HALVES.exists() else {}


def listed_entries() -> dict[str, tuple[Entry, str]]:
    """All sets by name, each with its half."""
    from arena.blind import blind_entries

    halves = stored_halves()
    found = {entry.name: (entry, halves.get(entry.name, "choice")) for entry in entries()}
    fresh = {entry.name: (entry, half) for entry, half in blind_entries()}
    assert not found.keys() & fresh.keys()
    return found | fresh


class Collection:
    """The sets of an exported folder, or those that this machine's packages and data folder have."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        if folder is not None:
            listed = json.loads((folder / EXPORTED).read_text(encoding="utf-8"))
            self.heads = {row["name"]: row for row in listed}
        else:
            listed = listed_entries()
            self.entries = {name: entry for name, (entry, _) in listed.items()}
            self.heads = {
                name: {"name": name, "kind": entry.kind, "half": half}
                for name, (entry, half) in listed.items()
            }

    def names(self, half: str = "all", kind: str | None = None) -> list[str]:
        """Names in a fixed order, of one half and one kind; "all": of the halves "choice" and "report"."""
        return [
            name
            for name, head in self.heads.items()
            if (half == head["half"] or (half == "all" and head["half"] not in BLIND))
            and kind in (None, head["kind"])
        ]

    def load(self, name: str) -> Table:
        if name not in self.heads:
            raise ValueError(f"no set {name!r}; there are {', '.join(self.heads)}")
        if self.folder is not None:
            return read(self.folder / f"{name}.npz", self.heads[name])
        return build(self.entries[name], self.heads[name]["half"])


# -- files -------------------------------------------------------------------------------------------------


def write(table: Table, path: Path) -> None:
    """One npz file of plain arrays: numbers, dates as seconds, codes and levels of categories."""
    arrays: dict[str, NDArray] = {"y": table.y, "columns": np.asarray(table.X.columns, str)}
    for i, name in enumerate(table.X.columns):
        column = table.X[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            arrays[f"codes{i}"] = column.cat.codes.to_numpy(np.int32)
            arrays[f"levels{i}"] = np.asarray(column.cat.categories, str)
        elif pd.api.types.is_datetime64_any_dtype(column):
            arrays[f"dates{i}"] = column.to_numpy("datetime64[s]")
        else:
            values = column.to_numpy(np.float64)
            short = values.astype(np.float32)
            arrays[f"numbers{i}"] = short if np.array_equal(short, values, equal_nan=True) else values
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def read(path: Path, head: dict[str, Any]) -> Table:
    """The inverse of `write`."""
    with np.load(path, allow_pickle=False) as file:
        columns: dict[str, Any] = {}
        for i, name in enumerate(file["columns"]):
            if f"codes{i}" in file:
                columns[str(name)] = pd.Categorical.from_codes(file[f"codes{i}"], list(file[f"levels{i}"]))
            elif f"dates{i}" in file:
                columns[str(name)] = file[f"dates{i}"]
            else:
                columns[str(name)] = file[f"numbers{i}"].astype(np.float64)
        X, y = pd.DataFrame(columns), file["y"]
    return Table(head["name"], head["kind"], head["source"], head["half"], X, y, head["mixed"])


def export(folder: Path) -> list[dict[str, Any]]:
    """Write every set and the list of all; update `halves.json` where a set is new."""
    halves, rows, loaded = stored_halves(), [], []
    for entry in entries():
        table = build(entry, "")
        loaded.append((entry, table))
        print(f"{entry.name}: {table.X.shape}", flush=True)
    fresh = assign_halves((e.name, e.family, e.kind, e.mixed, len(t.y)) for e, t in loaded)
    if set(fresh) != set(halves):
        halves = fresh
        HALVES.write_text(json.dumps(halves, indent=1) + "\n", encoding="utf-8")
    for entry, table in loaded:
        write(table, folder / f"{entry.name}.npz")
        rows.append(describe(table) | {"half": halves[entry.name], "family": entry.family or entry.name})
    (folder / EXPORTED).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


def export_blind(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Write the sets of a blind half and their list."""
    rows = []
    for entry, half in listed_entries().values():
        if half == wanted:
            table = build(entry, half)
            write(table, folder / f"{entry.name}.npz")
            rows.append(describe(table) | {"family": entry.name})
    (folder / EXPORTED).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


def describe(table: Table) -> dict[str, Any]:
    X = table.X
    return {
        "name": table.name,
        "kind": table.kind,
        "source": table.source,
        "half": table.half,
        "mixed": table.mixed,
        "rows": len(X),
        "columns": X.shape[1],
        "categories": sum(isinstance(dtype, pd.CategoricalDtype) for dtype in X.dtypes),
        "dates": sum(pd.api.types.is_datetime64_any_dtype(dtype) for dtype in X.dtypes),
        "gaps": int(X.isna().to_numpy().sum()),
        "classes": table.classes,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="arena.tables", description="The sets of the arena.")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write all sets as npz files")
    parser.add_argument("--half", choices=("all", *BLIND), default="all", help="all: choice and report")
    options = parser.parse_args(arguments)
    if options.export:
        blind = options.half in BLIND
        rows = export_blind(options.export, options.half) if blind else export(options.export)
    else:
        collection = Collection()
        rows = [describe(collection.load(name)) for name in collection.names(options.half)]
    for row in rows:
        print("  ".join(str(row[key]) for key in ("name", "kind", "half", "rows", "columns", "gaps")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
