"""Sections of a report on the model as a whole: what it is, scores, calibration, variance, effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import codes_of
from duogp.reports.effects import (
    BACKGROUND_ROWS,
    Dependence,
    dependence,
    is_told_apart,
    relevance,
    variance_parts,
)
from duogp.reports.figures import figure, images
from duogp.reports.html import Words, bars, number, pairs, paragraph, percent, table
from duogp.reports.scores import (
    GRID,
    INTERVALS,
    LEVELS,
    TITLES,
    Scores,
    constant_metrics,
    is_on_grid,
    metric_intervals,
    metrics_of,
    wilson,
)
from duogp.reports.subject import Subject
from duogp.tables.frames import some

#: Columns whose partial dependence is drawn, and columns that are listed.
MOST_DRAWN, MOST_LISTED = 6, 15
#: Scores that are shares, and are shown in per cent.
SHARES = ("coverage", "accuracy")


@dataclass(frozen=True)
class Finding:
    """One sentence of the summary; ``is_good``: no action is needed."""

    is_good: bool
    text: str


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own; ``html`` is escaped already."""

    anchor: str
    title: str
    html: str
    findings: tuple[Finding, ...] = ()


# -- the model -----------------------------------------------------------------------------------------------


def model_section(subject: Subject) -> Section:
    """What the model is, in two columns of words."""
    gp, schema = subject.gp, subject.schema
    kinds: dict[str, list[str]] = {}
    for column in schema.columns:
        kinds.setdefault("date or time" if column.kind == "moment" else column.kind, []).append(column.name)
    reference = gp.method.reference if gp.method is not None else None
    likelihood = type(gp.model.likelihood).__name__ if hasattr(gp, "model") else None
    rows: list[tuple[str, Any]] = [
        (
            "predicts",
            subject.target
            + (f": {some(map(str, gp.classes.tolist()), 12)}" if subject.is_classifier else ""),
        ),
        ("method", subject.method),
        *(("because", reason) for reason in subject.reasons),
        ("paper", reference),
        ("likelihood", likelihood),
        *subject.facts.items(),
        *((f"{kind} columns ({len(names)})", some(names, MOST_LISTED)) for kind, names in kinds.items()),
        *(("not used", f"{name}: {reason}") for name, reason in list(schema.dropped.items())[:8]),
    ]
    return Section("model", "The model", pairs(rows), tuple(_repetition(subject)))


def _repetition(subject: Subject) -> list[Finding]:
    """A warning where the rows seem to be those of the fit."""
    same = subject.repeated() if len(subject.known) else 0
    assert subject.sample is not None or not same
    kept = 0 if subject.sample is None else len(subject.sample)
    if same <= max(1, 0.1 * kept):
        return []
    return [
        Finding(
            False,
            f"{same} of the {kept} training rows that the model keeps have the same inputs as rows of this "
            "table. Where these are rows of the fit, the scores below are better than those of new rows.",
        )
    ]


# -- scores --------------------------------------------------------------------------------------------------


def scores_section(subject: Subject) -> list[Section]:
    """Metrics with bootstrap intervals, beside a constant prediction and the rows that the fit held back."""
    scores = subject.scores
    found, ends = metrics_of(subject.gp, scores), metric_intervals(subject.gp, scores)
    constant, test = constant_metrics(subject.gp, scores["y"]), subject.test
    head = ["score", "here", "interval", "constant prediction", *["held back at the fit"] * bool(test)]

    def shown(name: str, value: Any) -> str:
        return percent(value) if name.startswith(SHARES) and value is not None else number(value)

    rows = [
        [
            Words(TITLES.get(name, name)),
            shown(name, value),
            f"{shown(name, ends[name][0])} to {shown(name, ends[name][1])}",
            shown(name, constant.get(name)),
            *([shown(name, (test or {}).get(name))] if test else []),
        ]
        for name, value in found.items()
    ]
    parts = [
        table(head, rows),
        paragraph(
            "Intervals by the bootstrap over these rows. A constant prediction is the mean and the spread of "
            "these targets (of classes, their frequencies): the least that a model must beat.",
            soft=True,
        ),
        _predicted_figure(subject, scores),
    ]
    name = "log_loss" if subject.is_classifier else "r2"
    low, high = ends[name]
    better = high < constant[name] if subject.is_classifier else low > 0
    against = (
        f" against {shown(name, constant[name])} of a constant prediction" if subject.is_classifier else ""
    )
    words = (
        f"{TITLES[name]} {shown(name, found[name])} ({shown(name, low)} to {shown(name, high)}){against}, "
        f"{len(scores['y']):,} rows: {'better' if better else 'not clearly better'} than predicting the "
        "same for every row."
    )
    return [Section("scores", "Scores", "".join(parts), (Finding(bool(better), words),))]


def _predicted_figure(subject: Subject, scores: Scores) -> str:
    from duogp import plots

    if subject.is_classifier:
        codes, p = _known_classes(subject, scores)
        if not len(codes):
            return ""
        return figure(
            lambda ax: plots.confusion_plot(codes, p.argmax(1), subject.gp.classes, ax),
            (4.6, 4.2),
            "Confusion matrix: true and likeliest class",
        )
    args = scores["y"], scores["mean"], scores["std"]
    return figure(
        lambda ax: plots.predicted_vs_observed(*args, ax=ax, name=subject.target, max_rows=300),
        (4.6, 4.4),
        "Observed against predicted values",
    )


def _known_classes(subject: Subject, scores: Scores) -> tuple[NDArray[np.intp], NDArray]:
    """Numbers of the true classes, and probabilities, of rows with a class of the model."""
    codes = codes_of(scores["y"], subject.gp.classes)
    return codes[codes >= 0], scores["probabilities"][codes >= 0]


# -- calibration ---------------------------------------------------------------------------------------------


def calibration_section(subject: Subject) -> Section:
    """Reliability, and the coverage of intervals or of sets of classes."""
    scores = subject.scores
    html, finding = (_class_calibration if subject.is_classifier else _number_calibration)(subject, scores)
    return Section("calibration", "Calibration", html, (finding,))


def _number_calibration(subject: Subject, scores: Scores) -> tuple[str, Finding]:
    from duogp import plots

    y, q = scores["y"], scores["quantiles"]
    at = {level: j for j, level in enumerate(LEVELS.tolist())}
    rows, verdict = [], None
    for level in INTERVALS:
        low, high = (q[:, at[round(side, 6)]] for side in ((1 - level) / 2, (1 + level) / 2))
        inside = int(((low <= y) & (y <= high)).sum())
        ends = wilson(inside, len(y))
        rows.append(
            [
                f"{100 * level:g} %",
                percent(inside / len(y)),
                f"{percent(ends[0])} to {percent(ends[1])}",
                number(float(np.median(high - low))),
            ]
        )
        if level == 0.95:
            verdict = inside / len(y), ends
    assert verdict is not None
    share, (low_end, high_end) = verdict
    fits = low_end <= 0.95 <= high_end
    wide = "wider than they need to be"
    if is_on_grid(subject.gp):
        wide = "they end on values of the target, and cannot hold exactly their level"
    said = "as they should" if fits else "too narrow" if share < 0.95 else wide
    finding = Finding(
        fits or share > 0.95,
        f"95 % intervals hold {percent(share)} of the targets ({percent(low_end)} to {percent(high_end)}): "
        f"{said}.",
    )
    even = q[:, [at[round(float(p), 6)] for p in GRID]]
    drawn = images(
        [
            lambda ax: plots.quantile_reliability_plot(y, even, GRID, ax),
            lambda ax: plots.pit_histogram(y, even, ax),
        ],
        (4.1, 3.7),
        "Calibration",
    )
    steps = " The target takes few values: both have steps where it has them."
    words = paragraph(
        "First: the share of targets below each predicted quantile; on the diagonal if calibrated. Second: "
        "where the targets fall in their predicted distributions, twenty bins of equal probability; flat "
        "if calibrated, high at both ends where intervals are too narrow. Grey: where calibrated "
        "predictions of as many rows stay." + (steps if is_on_grid(subject.gp) else ""),
        soft=True,
    )
    head = ["interval", "targets inside", "interval of the share", "median width"]
    return drawn + words + table(head, rows), finding


def _class_calibration(subject: Subject, scores: Scores) -> tuple[str, Finding]:
    from duogp import plots

    codes = codes_of(scores["y"], subject.gp.classes)
    p = scores["probabilities"]
    hits = int((p.argmax(1) == codes).sum())
    sure, ends = float(p.max(1).mean()), wilson(hits, len(codes))
    fits = ends[0] <= sure <= ends[1]
    said = "calibrated on average" if fits else "too sure" if sure > ends[1] else "less sure than it could be"
    finding = Finding(
        fits or sure < ends[0],
        f"The likeliest class has the probability {percent(sure)} on average and is the true one in "
        f"{percent(hits / len(codes))} of the rows ({percent(ends[0])} to {percent(ends[1])}): {said}.",
    )
    order = np.argsort(-p, axis=1, kind="stable")
    before = np.cumsum(np.take_along_axis(p, order, 1), 1)
    rank = np.argmax(order == codes[:, None], axis=1)
    rows = []
    for level in INTERVALS:
        size = 1 + (before < level - 1e-12).sum(1).clip(max=p.shape[1] - 1)
        inside = int(((rank < size) & (codes >= 0)).sum())
        low, high = wilson(inside, len(codes))
        cells = [percent(inside / len(codes)), f"{percent(low)} to {percent(high)}", f"{size.mean():.2f}"]
        rows.append([f"{100 * level:g} %", *cells])
    known = codes >= 0
    drawn = ""
    if known.any():
        drawn = figure(
            lambda ax: plots.reliability_plot(codes[known], p[known], ax),
            (4.1, 4.1),
            "Reliability of probabilities",
        )
    words = paragraph(
        "How often the likeliest class is the true one, against its probability; on the diagonal if "
        "calibrated, below it where the model is too sure. The table: the smallest sets of classes with at "
        "least the given probability.",
        soft=True,
    )
    head = ["set", "true class inside", "interval of the share", "classes in a set"]
    return drawn + words + table(head, rows), finding


# -- variance ------------------------------------------------------------------------------------------------


def variance_section(subject: Subject) -> Section:
    """The parts of the predictive variance, on average and row by row."""
    from duogp import plots

    parts = variance_parts(subject.prediction)
    what = {
        "within_data": "within the data: values of the function that the training rows leave uncertain",
        "distributional": "far from the data: variance of the prior that the training rows say nothing of",
        "disagreement": "between models: members of a stack, or folds of a learned mean, that disagree",
        "noise": "noise: observations at the same inputs differ by so much",
    }
    if not is_told_apart(parts):
        del what["within_data"]
        what["distributional"] = (
            "the function: an exact GP does not tell variance within the data from variance far from them"
        )
    rows = [
        [Words(words), percent(parts[f"{name}_share"])]
        for name, words in what.items()
        if f"{name}_share" in parts
    ]
    of = "the latent functions, which have no noise" if subject.is_classifier else f"{subject.target}"
    html = [
        paragraph(f"Standard deviation of {of}: {number(parts['std'])} (root of the average variance)."),
        table(["part of the variance", "share"], rows),
        figure(
            lambda ax: plots.variance_plot(subject.prediction, ax, target=subject.target),
            (4.8, 3.4),
            "Parts of the uncertainty of the rows",
        ),
        paragraph(
            "More training rows lessen every part but the noise, which only better inputs lessen.",
            True,
        ),
    ]
    return Section("variance", "What the variance is made of", "".join(html))


# -- effects -------------------------------------------------------------------------------------------------


def effects_section(subject: Subject) -> Section:
    """Importances of the columns, and partial dependence on the most important ones."""
    from duogp import plots

    found = subject.effects
    top = max(found.values(), default=0.0) or 1.0
    listed = list(found.items())[:MOST_LISTED]
    lengths = relevance(subject.gp, subject.schema)
    what = "probabilities move" if subject.is_classifier else f"the predicted {subject.target} moves"
    more = f" {MOST_LISTED} of {len(found)} columns." if len(found) > MOST_LISTED else ""
    html = [
        paragraph(f"How far {what} (root mean square) when a column is shuffled among these rows.{more}"),
        bars((name, value / top, number(value, 3)) for name, value in listed),
    ]
    if lengths is not None:
        first = ", ".join(f"{name} {percent(share)}" for name, share in list(lengths.items())[:5])
        html.append(
            paragraph(f"By the model's own lengthscales (share of 1 / lengthscale): {first}.", soft=True)
        )
    drawn = [name for name, value in found.items() if value > 0][:MOST_DRAWN]
    if drawn:
        html += ["<h3>Partial dependence</h3>", _dependences(subject, drawn, plots)]
    return Section("effects", "What the predictions depend on", "".join(html))


def _draw_dependence(found: Dependence, name: str, label: str, ax: Any) -> Any:
    from duogp.plots import dependence_plot

    return dependence_plot(found.along, found.curves, found.half, ax, name=name, target=label)


def _dependences(subject: Subject, names: list[str], plots: Any) -> str:
    from duogp.sklearn.training_rows import within_reach

    source = subject.rows.matrix if subject.sample is None else within_reach(subject.sample, subject.gp)
    chosen = np.random.default_rng(0).permutation(len(source))[:BACKGROUND_ROWS]
    background = source[np.sort(chosen)]
    jobs: list[Callable[[Any], Any]] = []
    for name in names:
        try:
            found = dependence(subject.gp, subject.schema, subject.table, name, background)
        except ValueError:  # a column without values in this table
            continue
        label = subject.target if found.label is None else f"P({found.label})"
        jobs.append(partial(_draw_dependence, found, name, label))
    if not jobs:
        return ""
    of = "these rows" if subject.sample is None else "training rows"
    band = "" if subject.is_classifier else " Blue: a 95 % band of that average, on the safe side."
    words = (
        f"The average prediction of {len(background)} {of} when one column is set to each value in "
        f"turn.{band} Grey: 80 % of the single rows; where it is wide, the effect depends on other columns. "
        "One scale for all."
    )
    return images(jobs, (3.7, 3.0), "Partial dependence", plots.share_limits) + paragraph(words, soft=True)
