"""`duogp evaluate`: how good the predictions are on rows whose target is known."""

from collections.abc import Iterator
from typing import Any

import typer
from numpy.typing import NDArray

from duogp.cli.fit import metric_pairs
from duogp.cli.manners import command
from duogp.cli.models import SavedModel, open_model, rows_with_target
from duogp.cli.options import AsJson, DataFile, Device, ModelFolder
from duogp.cli.scores import Scored, metrics_of, score_rows
from duogp.cli.showing import print_json, print_pairs


def register(app: typer.Typer) -> None:
    @command(app)
    def evaluate(model: ModelFolder, data: DataFile, device: Device = None, as_json: AsJson = False) -> None:
        """Metrics of a model on a table with known targets: accuracy, density, calibration."""
        saved = open_model(model, device)
        scored = score_file(saved, data)
        saved.tell_unseen()
        found = metrics_of(saved.gp, scored)
        if as_json:
            print_json({"model": model, "data": data, "rows": scored.rows, **found})
        else:
            print_pairs(f"{model} on {data}", [("rows", f"{scored.rows:,}"), *metric_pairs(found)])


def score_file(saved: SavedModel, data: str) -> Scored:
    """Predictions for all rows of a file that have a target."""
    return score_rows(saved.gp, _pieces(saved, data))


def _pieces(saved: SavedModel, data: str) -> Iterator[tuple[NDArray, NDArray]]:
    found = False
    for table in saved.rows(data, target=True):
        there: Any = saved.schema.targets(table)[1]
        if there.any():
            found = True
            rows, y, _ = rows_with_target(saved.schema, table)
            yield saved.encode(rows), y
    if not found:
        raise ValueError(f"no row of {data!r} has a value of {saved.target!r} to compare with")
