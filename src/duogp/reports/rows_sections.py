"""Sections of a report on single rows and columns: far rows, drift, the worst predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import codes_of
from duogp.metrics import SMALLEST_PROBABILITY
from duogp.reports.drift import SIGNIFICANT, USUAL, ColumnDrift, distances, drift
from duogp.reports.html import Words, number, paragraph, percent, table
from duogp.reports.scores import LEVELS, wilson
from duogp.reports.sections import Finding, Section
from duogp.reports.subject import Subject
from duogp.tables.frames import some

#: Rows that are listed, and columns that are shown of each.
MOST_ROWS_LISTED, MOST_COLUMNS = 10, 4
#: A share of far rows whose interval begins above this is worth a look; one in a hundred is usual.
MANY_FAR = 0.02

NOT_KEPT = (
    "The model keeps none of its training rows (it was not saved from an estimator, or by an old version), "
    "so that new rows cannot be compared with them here."
)


def far_section(subject: Subject) -> Section:
    """Rows that have no near neighbour among the training rows that the model keeps."""
    title = "Rows far from the training data"
    found = None if subject.sample is None else distances(subject.schema, subject.sample, subject.rows.matrix)
    html, findings = [], []
    if found is None:
        html.append(
            paragraph(NOT_KEPT if subject.sample is None else "Too few training rows to compare with.")
        )
        order = np.argsort(-_far_share(subject), kind="stable")[:MOST_ROWS_LISTED]
    else:
        assert subject.sample is not None
        far = int(found.is_far.sum())
        low, high = wilson(far, len(subject))
        usual = f"{100 * (1 - USUAL):.0f} %"
        said = f"{percent(far / len(subject))} of the rows ({percent(low)} to {percent(high)})"
        findings.append(
            Finding(
                low <= MANY_FAR,
                f"{said} are farther from the training rows than all but {usual} of these are from each "
                "other.",
            )
        )
        html.append(
            paragraph(
                f"Distance to the nearest of {len(subject.sample)} training rows, columns scaled to one "
                "spread, in units of the typical distance between neighbours. Beyond "
                f"{number(found.limit, 3)} a row counts as far: {far:,} rows, {usual} would be usual."
            )
        )
        order = np.argsort(-found.distance, kind="stable")[:MOST_ROWS_LISTED]
    share = _far_share(subject)
    told_apart = bool(np.any(subject.prediction.explained))
    head = [
        "row",
        *(["distance", "differs most in"] if found is not None else []),
        "variance far from the data" if told_apart else "variance of the function",
    ]
    names = [] if found is not None else _leading(subject)
    rows = []
    for i in order.tolist():
        cells: list[Any] = [subject.row_number(i)]
        if found is not None:
            name = found.column[i]
            cells += [number(float(found.distance[i]), 3), Words(f"{name}: {_value(subject, name, i)}")]
        rows.append([*cells, percent(float(share[i])), *_values(subject, names, i)])
    html.append(table([*head, *names], rows))
    html.append(
        paragraph(
            "The last number is a share of the row's variance: "
            + (
                "what the training rows say nothing of."
                if told_apart
                else "the uncertainty of the function, which an exact GP has in one part."
            ),
            True,
        )
    )
    return Section("far", title, "".join(html), tuple(findings))


def _far_share(subject: Subject) -> NDArray[np.float64]:
    """The distributional part of the variance of each row as a share of all of it, [n]."""
    p = subject.prediction
    total = p.residual + p.explained + p.disagreement + (p.noise if hasattr(p, "noise") else 0.0)
    residual, total = (
        np.asarray(v, dtype=np.float64).reshape(len(p), -1).sum(1) for v in (p.residual, total)
    )
    return residual / np.maximum(total, np.finfo(np.float64).tiny)


# -- drift ---------------------------------------------------------------------------------------------------


def drift_section(subject: Subject) -> Section:
    """Columns whose values are others than those of the training rows."""
    findings = _unknown_values(subject)
    if subject.sample is None:
        return Section("drift", "Drift", paragraph(NOT_KEPT), tuple(findings))
    found = drift(subject.schema, subject.sample, subject.table, subject.rows.matrix)
    moved = [each.name for each in found if each.has_drifted]
    if moved:
        words = f"{len(moved)} of {len(found)} columns have other values than in training: {some(moved, 6)}."
    else:
        words = f"None of {len(found)} columns differs from the training rows by more than chance explains."
    findings.insert(0, Finding(not moved, words))
    head = [
        "column",
        "kind",
        "distance",
        "p",
        "training rows",
        "these rows",
        "gaps then",
        "gaps now",
        "unseen levels",
    ]
    html = [
        table(head, [_drift_row(each) for each in found[:40]]),
        paragraph(
            f"Each column of {len(subject):,} rows against {len(subject.sample)} training rows, all that "
            "the model keeps. Distance: the largest difference of the two distribution functions, of "
            "categories half the sum of the differences of their shares; 0 is the same, 1 has nothing in "
            "common. p: of such a difference by chance, corrected for the number of columns; below "
            f"{SIGNIFICANT} it counts as drift. Numbers: median, and the central 90 %. Differences below "
            "about 0.1 cannot be told from chance with so few training rows, and drift that shows in no "
            "single column is not tested. Targets and ranges of the training rows are not kept.",
            soft=True,
        ),
    ]
    return Section("drift", "Drift", "".join(html), tuple(findings))


def _drift_row(each: ColumnDrift) -> list[Any]:
    p = f"{each.p:.2g}" if each.p >= 1e-4 else "< 0.0001"
    return [
        Words(each.name + (" (drift)" if each.has_drifted else "")),
        Words(each.kind),
        f"{each.distance:.2f}",
        p,
        Words(each.before),
        Words(each.now),
        percent(each.gaps_before),
        percent(each.gaps_now),
        number(each.unseen),
    ]


def _unknown_values(subject: Subject) -> list[Finding]:
    """A sentence for the columns with levels or gaps that no training row had."""
    unknown = {name: int(rows.sum()) for name, rows in subject.schema.unknown(subject.table).items()}
    if not unknown:
        return []
    listed = some((f"{name} ({count:,} rows)" for name, count in unknown.items()), 6)
    how = "they are predicted as an average over known values, with wider intervals"
    return [Finding(False, f"Values that no training row had, a new level or a gap: {listed}; {how}.")]


# -- worst rows ----------------------------------------------------------------------------------------------


def worst_section(subject: Subject) -> Section:
    """The rows whose targets the model thought least likely."""
    scores, known = subject.scores, subject.known
    names = _leading(subject)
    if subject.is_classifier:
        codes = codes_of(scores["y"], subject.gp.classes)
        p = scores["probabilities"]
        given = np.where(codes < 0, 0.0, p[np.arange(len(p)), np.maximum(codes, 0)])
        surprise = -np.log(np.maximum(given, SMALLEST_PROBABILITY))
        best = p.argmax(1)
        head = ["row", "true", "predicted", "probability of the true class"]
    else:
        surprise = -scores["log_density"]
        at = {level: j for j, level in enumerate(LEVELS.tolist())}
        low, high = (scores["quantiles"][:, at[level]] for level in (0.025, 0.975))
        head = ["row", "observed", "predicted", "95 % interval", "surprise"]
    rows = []
    for i in np.argsort(-surprise, kind="stable")[:MOST_ROWS_LISTED].tolist():
        place = int(known[i])
        if subject.is_classifier:
            label = subject.gp.classes[best[i]]
            cells = [
                Words(scores["y"][i]),
                Words(f"{label} ({percent(float(p[i, best[i]]))})"),
                percent(float(given[i])),
            ]
        else:
            interval = f"{number(float(low[i]))} to {number(float(high[i]))}"
            cells = [number(float(scores["y"][i])), number(float(scores["mean"][i])), interval]
            cells.append(number(float(surprise[i]), 3))
        rows.append([subject.row_number(place), *cells, *_values(subject, names, place)])
    of = "minus the log probability" if subject.is_classifier else "minus the log density, in nats: surprise"
    words = (
        f"The rows whose true value was least likely to the model ({of}), with the columns of largest effect."
    )
    return Section("worst", "Worst rows", table([*head, *names], rows) + paragraph(words, soft=True))


def _leading(subject: Subject) -> list[str]:
    return list(subject.effects)[:MOST_COLUMNS]


def _values(subject: Subject, names: list[str], place: int) -> list[Any]:
    return [Words(_value(subject, name, place)) for name in names]


def _value(subject: Subject, name: str, place: int, most: int = 60) -> str:
    """The cell of a row in words."""
    value = subject.table.column(name)[place].as_py()
    if value is None:
        return "(none)"
    shown = number(value) if isinstance(value, float) else str(value)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
