"""`duogp report`: one HTML page on a model and a table."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from duogp.cli.errors import print_line
from duogp.cli.model_folder import SavedModel, open_model
from duogp.cli.options import (
    AsJson,
    DataFile,
    Decimal,
    Device,
    Encoding,
    ModelFolder,
    Quiet,
    files_in,
    spooled,
)
from duogp.cli.output import show
from duogp.tables import column_names_of
from duogp.tables.arrow import arrow


def report(
    model: ModelFolder,
    data: DataFile,
    output: Annotated[str, typer.Option("--output", "-o", help="The HTML file to write.")] = "report.html",
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    max_rows: Annotated[int, typer.Option(help="Rows to look at; of more a random choice.")] = 10_000,
    encoding: Encoding = None,
    decimal: Decimal = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page: scores with intervals, calibration, variance, drift, effects, worst rows."""
    path = Path(output)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output must end in .html, got {output!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    if max_rows < 1:
        raise ValueError(f"--max-rows must be at least 1, got {max_rows}")
    saved = open_model(model, device, encoding=encoding, decimal=decimal)
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        hint = "figures need matplotlib: pip install matplotlib"
        raise ModuleNotFoundError(hint, name="matplotlib") from None
    from duogp.reports.page import report_of

    subject = subject_of_file(saved, spooled(data)).taken(max_rows)
    made = report_of(subject, title)
    made.save(path)
    findings = [{"good": finding.is_good, "text": finding.text} for finding in made.findings]
    found = {"model": model, "data": data, "rows": len(subject), "output": output, "findings": findings}
    show(found, as_json, quiet, _print)


def subject_of_file(saved: SavedModel, data: str) -> Any:
    """The subject of a report: a saved model, and the rows of a file with or without a target."""
    from duogp.reports.subject import Subject

    has_target = all(saved.target in column_names_of(path, saved.form) for path in files_in(data))
    table = arrow().concat_tables(list(saved.rows(data, target=has_target)))
    y, there = saved.schema.targets(table) if has_target else (None, None)
    if there is not None and not there.any():
        y = there = None
    fitted, seconds = saved.report.get("rows"), saved.report.get("seconds")
    points = saved.report.get("num_inducing")
    facts = {
        "trained on": f"{fitted:,} rows in {seconds:.1f} s" if fitted and seconds else None,
        "inducing points": f"{points:,}" if points else None,
        "folder": saved.folder.name,
    }
    sample = getattr(saved.estimator, "_sample", None)
    return Subject(
        gp=saved.gp,
        schema=saved.schema,
        table=table,
        target=saved.target,
        y=y if y is None else np.asarray(y),
        there=there,
        sample=sample,
        method=str(saved.report.get("method") or ""),
        reasons=tuple(saved.report.get("reasons") or ()),
        facts=facts,
        test=saved.report.get("test"),
    )


def _print(found: dict[str, Any]) -> None:
    print_line(f"report on {found['rows']:,} rows to {found['output']}")
    for finding in found["findings"]:
        word, color = ("good", None) if finding["good"] else ("look", "yellow")
        print_line(f"{word}  {finding['text']}", color)
