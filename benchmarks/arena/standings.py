"""Rows of the results file as scores per set and family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arena.contestants import OURS, family_of
from arena.ranks import Matrix, ranks

Row = dict[str, Any]
#: Metrics by kind, the lower the better, and their names in reports.
METRICS = {
    "regression": {"nll": "NLL", "crps": "CRPS", "rmse": "RMSE"},
    "classification": {"nll": "log loss", "error": "error (1 − accuracy)"},
}
#: A contestant is in a report if it has rows of this share of the sets that ours has.
ENOUGH = 0.9


@dataclass(frozen=True, eq=False)
class Standing:
    """Scores of one kind of tables and one metric: [sets, names]; NaN: not finished."""

    sets: list[str]
    names: list[str]
    scores: Matrix

    def column(self, name: str) -> Any:
        return self.scores[:, self.names.index(name)]


def name_of(row: Row, labels: Sequence[str]) -> str:
    """The contestant, with the label of ours where there are several."""
    return f"{OURS} ({row['label']})" if row["contestant"] == OURS and len(labels) > 1 else row["contestant"]


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row per key: the last that finished, else the last."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["table"], row["split"], row["contestant"], row["label"])
        if key not in found or row["status"] == "ok" or found[key]["status"] != "ok":
            found[key] = row
    return list(found.values())


def standing(
    rows: Iterable[Row],
    kind: str,
    metric: str,
    labels: Sequence[str],
    half: str = "all",
    within: float | None = None,
) -> Standing:
    """Means over the splits of a set that all contestants of the report have rows of.

    A contestant that failed in one of these splits (or whose fit took longer than ``within`` seconds) has not
    finished the set. ``labels``: the versions of ours that take part.
    """
    chosen = [
        row
        for row in latest(rows)
        if row["kind"] == kind and half in ("all", row["half"])
        and (row["contestant"] != OURS or row["label"] in labels)
    ]  # fmt: skip
    splits: dict[str, dict[str, dict[int, float]]] = {}  # name → set → split → score
    for row in chosen:
        ok = row["status"] == "ok" and (within is None or row["fit_seconds"] <= within)
        value = row[metric] if ok else np.nan
        splits.setdefault(name_of(row, labels), {}).setdefault(row["table"], {})[row["split"]] = value
    mine = [name for name in splits if name.startswith(OURS)]
    tables = sorted(set.intersection(*(set(splits[name]) for name in mine))) if mine else []
    names = [n for n in splits if len(set(splits[n]) & set(tables)) >= ENOUGH * max(1, len(tables))]
    names.sort(key=lambda name: (name not in mine, name))
    kept, scores = [], []
    for table in tables:
        common = set.intersection(*(set(splits[name].get(table, {})) for name in names))
        if common:
            kept.append(table)
            scores.append([np.mean([splits[name][table][k] for k in sorted(common)]) for name in names])
    return Standing(kept, names, np.asarray(scores, np.float64).reshape(len(kept), len(names)))


def families(found: Standing) -> tuple[Standing, dict[str, str]]:
    """One column per family: its loss with the best mean rank in this metric; and which loss that is."""
    if not found.sets:
        return found, {}
    means = ranks(found.scores).mean(0)
    best: dict[str, int] = {}
    for i, name in enumerate(found.names):
        family = name if name.startswith(OURS) else family_of(name)
        if family not in best or means[i] < means[best[family]]:
            best[family] = i
    columns = list(best.values())
    members = {family: found.names[i] for family, i in best.items()}
    return Standing(found.sets, list(best), found.scores[:, columns]), members
