"""`duogp predict`: columns of predictions for the rows of a table, in chunks of rows."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import typer

from duogp.bench.results import finite
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
    names_of,
    probabilities_of,
    spooled,
)
from duogp.cli.output import show
from duogp.tables import format_of, table_writer
from duogp.tables.arrow import arrow


def predict(
    model: ModelFolder,
    data: DataFile,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="CSV, TSV, Parquet, Arrow or Feather (default: CSV, printed)."),
    ] = None,
    quantiles: Annotated[str | None, typer.Option(help="Such as 0.05,0.5,0.95.")] = None,
    interval: Annotated[
        float | None, typer.Option(help="Probability of an interval, such as 0.9: columns lower, upper.")
    ] = None,
    conformal: Annotated[
        bool,
        typer.Option(
            "--conformal",
            help="The interval holds whatever the model (fit with --set calibration_fraction=0.2).",
        ),
    ] = False,
    keep: Annotated[str | None, typer.Option(help="Columns to copy, with commas between.")] = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict the target of new rows: mean and standard deviation, or label and class probabilities."""
    saved = open_model(model, device, encoding=encoding, decimal=decimal, from_python=True)
    data = spooled(data)
    level = None if interval is None else probabilities_of(str(interval), "--interval")[0]
    levels, kept = probabilities_of(quantiles, "--quantiles"), names_of(keep)
    if saved.is_classifier and (levels or level is not None):
        raise ValueError("--quantiles and --interval are for numbers; this model predicts classes")
    if conformal and level is None:
        raise ValueError("--conformal is of an interval: say how probable, for example --interval 0.9")
    rows = 0
    typed = output is not None and format_of(output) not in ("csv", "tsv")
    tables = saved.rows(data, keep=kept, typed=typed)
    from duogp.data.prefetch import ahead, behind

    with predictions_to(output, as_json) as to_file, behind(to_file) as write:
        # Some rows are read, others encoded, predicted and written at the same time.
        for table, new in ahead((table, saved.new_rows(table)) for table in ahead(tables)):
            if saved.is_classifier:
                columns = class_columns(saved, new)
            else:
                columns = number_columns(saved, new, levels, level, conformal)
            if clash := [name for name in kept if name in columns]:
                raise ValueError(f"--keep {clash[0]}: a column of the predictions has the same name")
            out = arrow().table({name: table.column(name) for name in kept} | columns)
            rows += out.num_rows
            write(out)
    if not quiet:
        saved.report_unseen()
    if output is not None:
        report = {"rows": rows, "output": output, "columns": out.column_names}
        line = f"{rows:,} rows to {output}: {', '.join(out.column_names)}"
        show(report, as_json, quiet, lambda _: print_line(line))


def number_columns(
    saved: SavedModel, rows: Any, levels: list[float], interval: float | None, conformal: bool
) -> dict[str, Any]:
    """Mean, standard deviation, quantiles and the ends of an interval of new observations."""
    prediction = rows.predict()
    out = {"mean": prediction.mean, "std": prediction.std}
    ends = [] if interval is None or conformal else [(1 - interval) / 2, (1 + interval) / 2]
    if levels or ends:
        values = rows.quantiles(np.array(levels + ends))[..., 0]
        names = [f"q{level:g}" for level in levels] + ["lower", "upper"][: len(ends)]
        out |= dict(zip(names, values, strict=True))
    if conformal:
        if saved.estimator is None:
            raise ValueError("this model was saved without its estimator: it has no conformal intervals")
        if saved.estimator.calibration_ is None:
            raise ValueError(
                "this model was fitted without calibration rows: fit it again with "
                "--set calibration_fraction=0.2"
            )
        out["lower"], out["upper"] = saved.estimator._conformal_interval(rows, interval)
    return out


def class_columns(saved: SavedModel, rows: Any) -> dict[str, Any]:
    """The likeliest label and the probability of each class."""
    prediction = rows.predict()
    target = saved.schema.target
    labels = prediction.labels if target is None else target.arrow_labels(prediction.labels)
    pairs = zip(prediction.classes, prediction.probabilities.T, strict=True)
    return {"label": labels, **{f"p_{label}": p for label, p in pairs}}


@contextmanager
def predictions_to(output: str | None, as_json: bool) -> Iterator[Any]:
    """A function that writes a table of predictions: to a file, or printed as CSV or as a JSON list."""
    if output is not None or not as_json:
        with table_writer(output) as write:
            yield write
        return
    written = 0

    def write_records(table: Any) -> None:
        nonlocal written
        for record in table.to_pylist():
            sys.stdout.write(
                ("," if written else "[") + "\n" + json.dumps(finite(record), ensure_ascii=False)
            )
            written += 1

    yield write_records
    sys.stdout.write("\n]\n")
