"""`duogp predict`: a column or more of predictions for each row of a table, in pieces of any file."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from duogp.cli.manners import command, say
from duogp.cli.models import SavedModel, open_model
from duogp.cli.options import AsJson, DataFile, Device, ModelFolder, Quiet, names_of, probabilities_of
from duogp.cli.showing import plain, print_json
from duogp.tables import format_of, table_writer


def register(app: typer.Typer) -> None:
    @command(app)
    def predict(
        model: ModelFolder,
        data: DataFile,
        output: Annotated[
            str | None,
            typer.Option(
                "--output", "-o", help="CSV, TSV, Parquet, Arrow or Feather (default: CSV, printed)."
            ),
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
        device: Device = None,
        quiet: Quiet = False,
        as_json: AsJson = False,
    ) -> None:
        """Predict the target of new rows: mean and standard deviation, or label and class probabilities."""
        saved = open_model(model, device)
        asked = Asked(
            saved,
            probabilities_of(quantiles, "--quantiles"),
            None if interval is None else probabilities_of(str(interval), "--interval")[0],
            conformal,
            names_of(keep),
        )
        rows = 0
        with predictions_to(output, as_json) as write:
            typed = output is not None and format_of(output) not in ("csv", "tsv")
            for table in saved.rows(data, keep=asked.keep, typed=typed):
                out = asked.predict(table)
                rows += out.num_rows
                write(out)
        if not quiet:
            saved.tell_unseen()
        if output is None:
            return
        if as_json:
            print_json({"rows": rows, "output": output, "columns": out.column_names})
        elif not quiet:
            say(f"{rows:,} rows to {output}: {', '.join(out.column_names)}")


class Asked:
    """Which columns of predictions are wanted."""

    def __init__(
        self,
        saved: SavedModel,
        quantiles: list[float],
        interval: float | None,
        conformal: bool,
        keep: list[str],
    ) -> None:
        if saved.is_classifier and (quantiles or interval is not None):
            raise ValueError("--quantiles and --interval are for numbers; this model predicts classes")
        if conformal and interval is None:
            raise ValueError("--conformal is of an interval: say how probable, for example --interval 0.9")
        self.saved, self.quantiles, self.interval, self.keep = saved, quantiles, interval, keep
        self.conformal = conformal

    def predict(self, table: Any) -> Any:
        """An arrow table with the columns kept and those predicted."""
        from duogp.tables.arrow import arrow

        X = self.saved.encode(table)
        columns = self._classes(X) if self.saved.is_classifier else self._numbers(X)
        if clash := [name for name in self.keep if name in columns]:
            raise ValueError(f"--keep {clash[0]}: a column of the predictions has the same name")
        kept = {name: table.column(name) for name in self.keep}
        return arrow().table(kept | columns)

    def _numbers(self, X: NDArray) -> dict[str, Any]:
        from duogp.sklearn.quantiles import predictive_quantiles

        prediction = self.saved.gp.predict(X)
        out = {"mean": prediction.mean, "std": prediction.std}
        ends = [] if self.interval is None else [(1 - self.interval) / 2, (1 + self.interval) / 2]
        levels = [*self.quantiles, *([] if self.conformal else ends)]
        if levels:
            values = predictive_quantiles(self.saved.gp, X, np.array(levels))[..., 0]
            out |= {f"q{level:g}": value for level, value in zip(self.quantiles, values, strict=False)}
            if ends and not self.conformal:
                out |= {"lower": values[-2], "upper": values[-1]}
        if self.conformal:
            if self.saved.estimator is None:
                raise ValueError("this model was saved without its estimator: it has no conformal intervals")
            if self.saved.estimator.calibration_ is None:
                raise ValueError(
                    "this model was fitted without calibration rows: fit it again with "
                    "--set calibration_fraction=0.2"
                )
            low, high = self.saved.estimator.predict_interval(X, self.interval, kind="conformal")
            out |= {"lower": low, "upper": high}
        return out

    def _classes(self, X: NDArray) -> dict[str, Any]:
        prediction = self.saved.gp.predict(X)
        target = self.saved.schema.target
        labels = prediction.labels if target is None else target.arrow_labels(prediction.labels)
        chances = {
            f"p_{label}": p for label, p in zip(prediction.classes, prediction.probabilities.T, strict=True)
        }
        return {"label": labels, **chances}


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
                ("[" if not written else ",") + "\n" + json.dumps(plain(record), ensure_ascii=False)
            )
            written += 1

    yield write_records
    sys.stdout.write("\n]\n")
