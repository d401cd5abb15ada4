"""Markdown tables of suites: the paper's numbers beside ours, scores without a paper, verdicts, stale rows.

Nothing is dropped: a method or data set of the paper that has not run stands there with a dash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from duogp.bench.report import HIGHER_IS_BETTER, Comparison, compare
from duogp.bench.results import Results
from duogp.bench.status import states
from duogp.bench.suite import Cell, Suite, load_suite
from duogp.bench.verdicts import TableVerdict, judge, without_cell

SUITES = Path(__file__).resolve().parent / "suites"
METRIC_NAMES = {
    "rmse": "RMSE",
    "nll": "NLL",
    "loglik": "log-likelihood",
    "accuracy": "accuracy",
    "accuracy_percent": "accuracy, %",
    "crps": "CRPS",
    "noise_share": "share of noise",
}
NOT_RUN = "–"
#: Marks behind a cell, by verdict.
MARKS = {"worse": " †", "better": " °"}
STALE_MARK = " ˢ"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """A table whose first columns are text and whose others are numbers, set to the right."""
    rule = ["---" if i < text_columns else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows))


def read(name: str) -> tuple[Suite, Results, list[Comparison]]:
    """A suite, its rows, and its comparisons; numbers of the paper without a cell are comparisons too."""
    suite = load_suite(SUITES / f"{name}.toml")
    results = Results.read(suite.results)
    return suite, results, compare(suite, results)


def paper(name: str) -> Callable[[], str]:
    """A suite beside the numbers of its paper."""

    def table() -> str:
        suite, results, rows = read(name)
        everything = rows + [
            Comparison(data, method, metric, None, number, None, 0, None)
            for metric in suite.metrics
            for data, method, number in without_cell(suite, metric)
        ]
        blocks = [_paper_block(everything, metric) for metric in suite.metrics]
        notes = [legend(suite, rows), where(suite, results), stale_note(suite, results), absent_note(suite)]
        return "\n\n".join(filter(None, [*blocks, *notes]))

    return table


def _paper_block(rows: Sequence[Comparison], metric: str) -> str:
    """One line per data set, one column per method: the paper's number / ours."""
    mine = [row for row in rows if row.metric == metric]
    labels = list(dict.fromkeys(row.method for row in mine))
    head = [METRIC_NAMES.get(metric, metric)] + [f"{label} ({_splits(mine, label)})" for label in labels]
    digits = 1 if metric == "accuracy_percent" else 3
    mixed = _is_mixed(mine)
    lines = []
    for data in dict.fromkeys(row.data for row in mine):
        cells = {row.method: row for row in mine if row.data == data}
        pairs = [_pair(cells[label], digits, mixed) if label in cells else "" for label in labels]
        lines.append([data.removeprefix("classification/"), *pairs])
    return markdown(head, lines)


def _is_mixed(rows: Sequence[Comparison]) -> bool:
    """Whether some of the cells that ran are stale and some are not, so that cells need a mark."""
    return len({row.stale > 0 for row in rows if row.ours is not None}) == 2


def _splits(rows: Sequence[Comparison], label: str) -> str:
    """How many splits the cells of a column have that ran: ``3``, ``1–3``; 0 where none did."""
    counts = sorted({row.splits for row in rows if row.method == label and row.splits}) or [0]
    return "–".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))


def shown(value: float | None, digits: int = 3) -> str:
    """A number with a true minus, or the dash of what has not run."""
    return NOT_RUN if value is None else f"{value:.{digits}f}".replace("-", "−")


def _pair(row: Comparison, digits: int, mixed: bool) -> str:
    mark = MARKS.get(row.verdict, "") + (STALE_MARK if mixed and row.stale else "")
    return f"{shown(row.paper, digits)} / {shown(row.ours, digits)}{mark}"


def legend(suite: Suite, rows: Sequence[Comparison]) -> str:
    """What a cell is, the tolerance, and the verdict of every metric."""
    tolerances = [
        f"{100 * value:.0f} % ({METRIC_NAMES[name.removesuffix('_relative')]})"
        if name.endswith("_relative")
        else f"{value:g} ({METRIC_NAMES[name]})"
        for name, value in suite.tolerance.items()
    ]
    text = (
        "Each cell: the paper's mean / ours, over the number of splits in the column's head; – has not run. "
        f"Ours differs by more than {' or '.join(tolerances)}: † worse, ° better."
    )
    return " ".join([text, *(verdict_sentence(verdict) for verdict in judge(suite, rows))])


def verdict_sentence(verdict: TableVerdict) -> str:
    """``RMSE: of 28 cells 24 within tolerance, …``."""
    name = METRIC_NAMES.get(verdict.metric, verdict.metric)
    return f"{name}{verdict.sentence().removeprefix(verdict.metric)}."


def where(suite: Suite, results: Results) -> str:
    """Devices, versions of torch and precision of the rows behind a table."""
    rows = [row for cell in suite.cells() if (row := results.ok(cell)) is not None]
    if not rows:
        return "Not run yet."
    devices = sorted({str(row["device_name"]) for row in rows})
    torch = sorted({str(row["versions"]["torch"]) for row in rows})
    return f"{', '.join(devices)}, torch {', '.join(torch)}, {', '.join(sorted({r['dtype'] for r in rows}))}."


def stale_note(suite: Suite, results: Results) -> str:
    """How many rows behind a table are stale and why, how many cells failed or are missing."""
    found = states(suite, results)
    ran = [each for each in found if each.row is not None and each.state in ("done", "stale")]
    old = [each for each in ran if each.state == "stale"]
    rest = Counter(each.state for each in found)
    still = f"{rest['missing']} of {len(found)} cells are missing, {rest['failed']} failed"
    if not old:
        return f"No row is stale; {still}."
    reasons = Counter(each.why.partition(":")[0] for each in old)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    which = "all" if len(old) == len(ran) else f"{len(old)} of"
    mark = "" if len(old) == len(ran) else " (ˢ)"
    lists = f"`duogp bench status {suite.name}` lists them"
    return f"**Stale**: {which} {len(ran)} rows{mark} ({why}); {still}. {lists}."


def absent_note(suite: Suite) -> str:
    """Parts of the paper that cannot be run, with the reason; nothing where there are none."""
    reasons: dict[str, str] = getattr(suite, "absent", {})
    return (
        f"Not available: {'; '.join(f'{what} ({why})' for what, why in reasons.items())}." if reasons else ""
    )


def scores(name: str, metrics: Sequence[str]) -> Callable[[], str]:
    """A suite whose paper prints no numbers: ours alone, the best of each line in bold."""

    def table() -> str:
        suite, results, _ = read(name)
        rows = compare(suite, results, shared_cells(suite, results))
        blocks = [_score_block(rows, metric) for metric in metrics]
        notes = [where(suite, results), stale_note(suite, results), absent_note(suite)]
        return "\n\n".join(filter(None, [*blocks, *notes]))

    return table


def shared_cells(suite: Suite, results: Results) -> list[Cell]:
    """The cells of the splits that all methods with a result on a data set have, so that means compare.

    Of a method without any result, all of its cells.
    """
    cells = suite.cells()
    done: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        if results.ok(cell) is not None:
            done.setdefault((cell.data, cell.label), set()).add(cell.split)
    shared = {
        data: set.intersection(*(splits for (d, _), splits in done.items() if d == data)) for data, _ in done
    }
    return [
        cell
        for cell in cells
        if (cell.data, cell.label) not in done or not shared[cell.data] or cell.split in shared[cell.data]
    ]


def _score_block(rows: Sequence[Comparison], metric: str) -> str:
    mine = [row for row in rows if row.metric == metric]
    classes = {row.data for row in mine if row.ours is not None}  # sets that have the metric at all
    mine = [row for row in mine if row.data in classes or not _other_kind(row)]
    labels = list(dict.fromkeys(row.method for row in mine))
    best = max if metric in HIGHER_IS_BETTER else min
    mixed = _is_mixed(mine)
    lines = []
    for data in dict.fromkeys(row.data for row in mine):
        cells = {row.method: row for row in mine if row.data == data}
        values = {label: row.ours for label, row in cells.items() if row.ours is not None}
        winner = shown(best(values.values())) if values else ""
        line = []
        for label in labels:
            text = shown(cells[label].ours) if label in cells else ""
            bold = f"**{text}**" if text and text == winner else text
            line.append(bold + (STALE_MARK if mixed and label in cells and cells[label].stale else ""))
        lines.append([data.removeprefix("classification/"), *line])
    head = [METRIC_NAMES[metric]] + [f"{label} ({_splits(mine, label)})" for label in labels]
    return markdown(head, lines)


def _other_kind(row: Comparison) -> bool:
    """Whether a data set cannot have a metric: an accuracy of numbers, an RMSE of labels."""
    is_class = row.data.startswith("classification/")
    return (row.metric.startswith("accuracy") and not is_class) or (row.metric == "rmse" and is_class)


def finite(name: str) -> Callable[[], str]:
    """A suite that asks whether fits end with finite numbers."""

    def sentence() -> str:
        suite, results, _ = read(name)
        cells = suite.cells()
        ok = sum(results.ok(cell) is not None for cell in cells)
        failed = sum(results.failure(cell) is not None for cell in cells)
        sets = list(dict.fromkeys(cell.data for cell in cells))
        count = len({cell.label for cell in cells})
        text = (
            f"{ok} of {len(cells)} fits ended with finite metrics, {failed} did not: {count} methods on "
            f"{', '.join(sets)}. {where(suite, results)}"
        )
        return f"{text}\n\n{stale_note(suite, results)}"

    return sentence
