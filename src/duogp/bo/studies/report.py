"""The report of a study: one HTML page without anything from elsewhere, and the figure of the incumbent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duogp.bo.candidates import Floats
from duogp.bo.journal import FIGURE
from duogp.bo.studies.goals import MAXIMISE
from duogp.bo.studies.models import surrogate
from duogp.bo.studies.study import Study
from duogp.bo.studies.trials import DONE, Trial
from duogp.disk import write_atomically
from duogp.reports import html
from duogp.reports.html import text

PAGE = "report.html"
#: Evaluations without which importances mean nothing, and the most that they are computed from.
FEW, MANY = 5, 300
#: Size of the picture.
WIDTH, HEIGHT, MARGIN = 720, 300, 46


def write_report(study: Study, *, title: str = "study", command: str | None = None) -> Path:
    """Write the page of a study into its folder; it holds the old page or the new one at any time."""
    if study.folder is None:
        raise ValueError("a report needs a study with a folder")
    path = study.folder / PAGE
    write_atomically(path, page(study, title=title, command=command))
    return path


def page(study: Study, *, title: str = "study", command: str | None = None) -> str:
    """The report as HTML."""
    parts = [
        f"<h1>{text(title)}</h1>",
        _summary(study, command),
        _picture(study),
        _importances(study),
        _table(study),
    ]
    return html.page(title, parts)


def shown(value: Any) -> str:
    """A value to be read: floats with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _summary(study: Study, command: str | None) -> str:
    goals = [f"{word} {name}" for name, word in study.goals.directions.items()]
    goals += [f"{name} {limit}" for name, limit in study.goals.limits.items()]
    failed = sum(trial.reason is not None for trial in study.trials)
    rows = [
        ("goal", ", ".join(goals)),
        ("trials", f"{len(study.done)} done, {failed} failed, {len(study.pending)} pending"),
        ("strategy", study.strategy),
    ]
    if command:
        rows.append(("command", command))
    for trial in study.front[:20]:
        values = ", ".join(f"{name} = {shown(value)}" for name, value in (trial.values or {}).items())
        point = ", ".join(f"{name} = {shown(value)}" for name, value in trial.point.items())
        label = "best" if len(study.goals.directions) == 1 else "on the front"
        rows.append((label, f"{values} at {point} (trial {trial.number})"))
    return html.pairs(rows)


# -- the picture ---------------------------------------------------------------------------------------------


def incumbents(study: Study) -> tuple[Floats, Floats, Floats]:
    """The first objective in the order of results, NaN of failures; of feasible points; their best so far."""
    name, word = next(iter(study.goals.directions.items()))
    told = [study.trials[i] for i in study.order]
    y = np.array([math.nan if t.values is None else t.values[name] for t in told], dtype=np.float64)
    good = [t.values is not None and study.goals.is_feasible(t.values) for t in told]
    feasible = np.where(good, y, np.nan)
    return y, feasible, (np.fmax if word == MAXIMISE else np.fmin).accumulate(feasible)


def _picture(study: Study) -> str:
    if not study.done:
        return ""
    if len(study.goals.directions) > 1:
        return _front_picture(study)
    y, _, best = incumbents(study)
    name, word = next(iter(study.goals.directions.items()))
    low, high = _limits(y, best, word == MAXIMISE)
    x = np.arange(1, len(y) + 1, dtype=np.float64)
    across, up = _axis(0.0, float(len(y) + 1), MARGIN, WIDTH - 10), _axis(low, high, HEIGHT - MARGIN, 10)
    dots = "".join(
        f"<circle cx='{across(a):.1f}' cy='{up(min(max(b, low), high)):.1f}' r='2.5' fill='#bbb'/>"
        for a, b in zip(x, y, strict=True)
        if math.isfinite(b)
    )
    known = np.isfinite(best)
    steps: list[str] = []
    for a, b in zip(x[known], best[known], strict=True):
        height = f"{up(min(max(b, low), high)):.1f}"
        steps.append(f"{'H' if steps else 'M'}{across(a):.1f}{'V' if steps else ','}{height}")
    line = f"<path d='{''.join(steps)}' fill='none' stroke='#3b76b5' stroke-width='2'/>" if steps else ""
    return f"<h2>Best {text(name)} so far</h2>" + _frame(
        dots + line, (1.0, float(len(y))), (low, high), "evaluations", name
    )


def _front_picture(study: Study) -> str:
    names = list(study.goals.directions)[:2]
    pairs = np.array([[(t.values or {})[name] for name in names] for t in study.done])
    (left, bottom), (right, top) = pairs.min(0), pairs.max(0)
    across = _axis(left, right, MARGIN, WIDTH - 10)
    up = _axis(bottom, top, HEIGHT - MARGIN, 10)
    front = {trial.number for trial in study.front}
    dots = "".join(
        f"<circle cx='{across(a):.1f}' cy='{up(b):.1f}' r='3.5' "
        f"fill='{'#3b76b5' if trial.number in front else '#bbb'}'/>"
        for trial, (a, b) in zip(study.done, pairs, strict=True)
    )
    return f"<h2>{text(names[1])} against {text(names[0])}</h2>" + _frame(
        dots, (left, right), (bottom, top), names[0], names[1]
    )


def _limits(y: Floats, best: Floats, upwards: bool) -> tuple[float, float]:
    """The range shown: without the very worst, which would compress the rest."""
    ends = [float(np.nanquantile(y, 0.1 if upwards else 0.9))]
    ends += [float(b) for b in (np.nanmin(best), np.nanmax(best))] if np.isfinite(best).any() else []
    ends += [float(np.nanmax(y) if upwards else np.nanmin(y))]
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return low - margin, high + margin


def _axis(low: float, high: float, start: float, end: float) -> Any:
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def _frame(inside: str, across: tuple[float, float], up: tuple[float, float], below: str, beside: str) -> str:
    bottom = HEIGHT - MARGIN
    label = "<text x='{}' y='{}' font-size='11' fill='#555' text-anchor='{}'>{}</text>"
    texts = [
        label.format(MARGIN, bottom + 16, "start", shown(float(across[0]))),
        label.format(WIDTH - 10, bottom + 16, "end", shown(float(across[1]))),
        label.format((MARGIN + WIDTH) // 2, bottom + 32, "middle", text(below)),
        label.format(MARGIN - 4, bottom, "end", f"{up[0]:.3g}"),
        label.format(MARGIN - 4, 18, "end", f"{up[1]:.3g}"),
        label.format(MARGIN + 4, 20, "start", text(beside)),
    ]
    lines = f"<path d='M{MARGIN},10V{bottom}H{WIDTH - 10}' fill='none' stroke='#999'/>"
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='100%'>{lines}{inside}{''.join(texts)}</svg>"


# -- importance ----------------------------------------------------------------------------------------------


def importances(study: Study) -> dict[str, dict[str, float]]:
    """How much each outcome depends on each parameter: shares of the inverse lengthscales of a GP.

    Of categories the column with the shortest lengthscale counts. Empty while little is known.
    """
    history = study.history()
    known = np.flatnonzero(history.known)[-MANY:]
    X = history.X[known]
    columns = np.flatnonzero(X.max(0) > X.min(0)) if len(known) else np.empty(0, dtype=int)
    if len(known) < FEW or not len(columns):
        return {}
    out: dict[str, dict[str, float]] = {}
    for name, y in zip(study.goals.names, np.concatenate([history.Y, history.C], 1)[known].T, strict=True):
        if y.max() == y.min():
            continue
        lengths = surrogate(X[:, columns], y, seed=0).lengthscales()
        if lengths is None:
            continue
        weights = np.zeros(study.space.width)
        weights[columns] = 1.0 / lengths
        shares = np.array([weights[place].max() for place in study.space.slices])
        out[name] = dict(zip(study.space.names, (shares / shares.sum()).tolist(), strict=True))
    return out


def _importances(study: Study) -> str:
    found = importances(study)
    parts = []
    for outcome, shares in found.items():
        rows = [(n, s, f"{100 * s:.0f} %") for n, s in sorted(shares.items(), key=lambda item: -item[1])]
        parts.append(f"<h2>What {text(outcome)} depends on</h2>{html.bars(rows)}")
    if parts:
        parts.append("<p>Shares of the inverse lengthscales of a Gaussian process.</p>")
    return "\n".join(parts)


# -- the table -----------------------------------------------------------------------------------------------


def _table(study: Study) -> str:
    front = {trial.number for trial in study.front}
    head = ["trial", "state", *study.goals.names, *study.space.names, "seconds"]
    cells = "".join(f"<th>{text(name)}</th>" for name in head) + "<th class='words'>note</th>"
    rows = "".join(_row(study, trial, trial.number in front) for trial in study.trials)
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<h2>Trials</h2><div class='frame'>{table}</div>"


def _row(study: Study, trial: Trial, is_best: bool) -> str:
    values: Sequence[Any] = [(trial.values or {}).get(name) for name in study.goals.names]
    values = [*values, *(trial.point.get(name) for name in study.space.names)]
    seconds = "" if trial.ended is None else f"{max(0.0, trial.ended - trial.started):.1f}"
    cells = [trial.number, trial.state, *("" if v is None else shown(v) for v in values), seconds]
    kind = "best" if is_best else trial.state if trial.state != DONE else ""
    inside = "".join(f"<td>{text(cell)}</td>" for cell in cells)
    return f"<tr class='{kind}'>{inside}<td class='words'>{text(trial.reason or '')}</td></tr>"


def save_figure(study: Study, title: str) -> None:
    """Draw the incumbent of a study with one objective to `incumbent.png` in its folder."""
    from duogp.bo.plots import save_incumbent
    from duogp.bo.results import Result

    _, y, best = incumbents(study)
    if study.folder is None or len(study.goals.directions) > 1 or not np.isfinite(best).any():
        return
    word = next(iter(study.goals.directions.values()))
    n = len(y)
    cube = np.zeros((n, study.space.width))
    run = Result(title, study.strategy, cube, y, np.arange(n), np.zeros((2, cube.shape[1])), None, word)
    save_incumbent(study.folder / FIGURE, run)
