"""The report of a model on a table: one HTML page for the person who must sign off."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duogp._version import __version__
from duogp.disk import write_atomically
from duogp.reports.html import page, paragraph, text
from duogp.reports.rows_sections import drift_section, far_section, worst_section
from duogp.reports.sections import (
    Finding,
    Section,
    calibration_section,
    effects_section,
    model_section,
    scores_section,
    variance_section,
)
from duogp.reports.subject import MOST_ROWS, Subject, subject_of


@dataclass(frozen=True)
class Report:
    """A page and its findings.

    ``findings``: one sentence each, with ``is_good``: False where somebody should look.
    """

    html: str
    findings: tuple[Finding, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, the whole page or nothing."""
        write_atomically(Path(path), self.html)
        return Path(path)

    def __repr__(self) -> str:
        look = sum(not finding.is_good for finding in self.findings)
        size = f"{len(self.html) / 1024:,.0f} KiB"
        return f"Report({len(self.findings)} findings, {look} to look at, {size} of HTML)"


def report(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    target: str = "y",
    title: str | None = None,
    max_rows: int = MOST_ROWS,
    path: str | os.PathLike[str] | None = None,
) -> Report:
    """The report of a fitted model on new rows, as one self-contained HTML page.

    ``model``: a fitted `GPRegressor`, `GPClassifier` or `GP`. ``X``: rows [n, d], an array or a frame with
    the columns of the fit; of more than ``max_rows`` a random choice. ``y`` [n]: their targets; without them
    the page has no scores, but drift, far rows and the parts of the variance. ``target``: the name of the
    target, which a Series brings along. ``path``: where to write the page.

        report = duogp.report(model, X_new, y_new, path="report.html")
        print([finding.text for finding in report.findings if not finding.is_good])
    """
    if not isinstance(max_rows, int) or max_rows < 1:
        raise ValueError(f"max_rows must be a positive whole number, got {max_rows!r}")
    made = report_of(subject_of(model, X, y, target=target).taken(max_rows), title)
    if path is not None:
        made.save(path)
    return made


def report_of(subject: Subject, title: str | None = None) -> Report:
    """The report of a subject."""
    title = title or f"Model report: {subject.target}"
    sections = [model_section(subject)]
    if len(subject.known):
        sections += [*scores_section(subject), calibration_section(subject)]
    sections.append(variance_section(subject))
    sections += [far_section(subject), drift_section(subject)]
    sections += [effects_section(subject)]
    if len(subject.known):
        sections.append(worst_section(subject))
    findings = tuple(finding for section in sections for finding in section.findings)
    parts = [
        f"<h1>{text(title)}</h1>",
        paragraph(_about(subject), soft=True),
        _findings(findings),
        "<nav>" + "".join(f'<a href="#{s.anchor}">{text(s.title)}</a>' for s in sections) + "</nav>",
        *(_section(section) for section in sections),
        f"<footer>duogp {text(__version__)}. The page holds all it shows: nothing is loaded from elsewhere."
        "</footer>",
    ]
    return Report(page(title, parts), findings)


def _about(subject: Subject) -> str:
    n, known = len(subject), len(subject.known)
    rows = (
        f"{n:,} rows"
        if subject.given_rows is None
        else f"{n:,} of {subject.given_rows:,} rows, drawn at random"
    )
    targets = (
        f"{known:,} of them with a known {subject.target}" if known else f"{subject.target} is not known"
    )
    return f"{rows}, {targets}. Row 1 is the first row of the table. Intervals are of 95 %."


def _findings(findings: tuple[Finding, ...]) -> str:
    words = ["good" if finding.is_good else "look" for finding in findings]
    lines = "".join(
        f'<li class="{word}"><b>{word}</b> {text(finding.text)}</li>'
        for word, finding in zip(words, findings, strict=True)
    )
    return f'<ul class="findings">{lines}</ul>'


def _section(section: Section) -> str:
    return f'<h2 id="{section.anchor}">{text(section.title)}</h2>\n{section.html}'
