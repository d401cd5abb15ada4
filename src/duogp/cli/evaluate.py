"""`duogp evaluate`: metrics of a model on rows whose target is known."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from duogp.cli.model_folder import SavedModel, open_model, rows_with_target
from duogp.cli.options import AsJson, DataFile, Decimal, Device, Encoding, ModelFolder, spooled
from duogp.cli.output import print_pairs, show
from duogp.cli.scores import metric_pairs
from duogp.reports.scores import Scores, metrics_of, score_rows


def evaluate(
    model: ModelFolder,
    data: DataFile,
    encoding: Encoding = None,
    decimal: Decimal = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Metrics of a model on a table with known targets: accuracy, density, calibration."""
    saved = open_model(model, device, encoding=encoding, decimal=decimal)
    scores = score_file(saved, spooled(data))
    saved.report_unseen()
    found, rows = metrics_of(saved.gp, scores), len(scores["y"])
    report = {"model": model, "data": data, "rows": rows, **found}
    pairs = [("rows", f"{rows:,}"), *metric_pairs(found)]
    show(report, as_json, False, lambda _: print_pairs(f"{model} on {data}", pairs))


def score_file(saved: SavedModel, data: str) -> Scores:
    """Targets and predictions of all rows of a file that have a target."""

    def pieces() -> Iterator[tuple[Any, NDArray]]:
        found = False
        for table in saved.rows(data, target=True):
            rows, y, _ = rows_with_target(saved.schema, table)
            if len(y):
                found = True
                yield saved.new_rows(rows), y
        if not found:
            raise ValueError(f"no row of {data!r} has a value of {saved.target!r} to compare with")

    return score_rows(pieces())
