"""`duogp explain`: relevance and effects of the columns, and the parts of the predictive variance."""

from functools import partial
from typing import Annotated, Any

import typer

from duogp.cli.model_folder import SavedModel, open_model
from duogp.cli.options import AsJson, Decimal, Device, Encoding, ModelFolder, spooled
from duogp.cli.output import number, percent, print_pairs, print_rows, show


def explain(
    model: ModelFolder,
    data: Annotated[
        str | None, typer.Argument(help="Rows to explain: adds effects and the parts of the variance.")
    ] = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Relevance of the columns and, of given rows, effects and the parts of the variance."""
    from duogp.reports.effects import effects, relevance, variance_parts

    saved = open_model(model, device, encoding=encoding, decimal=decimal)
    report: dict[str, Any] = {"model": model, "relevance": relevance(saved.gp, saved.schema)}
    if data is not None:
        rows = saved.new_rows(saved.table(spooled(data)))
        variance = variance_parts(rows.predict())
        effect = effects(saved.gp, saved.schema, rows.matrix)
        report |= {"rows": len(rows), "effect": effect, "variance": variance}
        saved.report_unseen()
    show(report, as_json, False, partial(_print, saved))


def _print(saved: SavedModel, report: dict[str, Any]) -> None:
    found, effect = report["relevance"], report.get("effect")
    if found is None and effect is None:
        missing = "this model has no lengthscale for each column: give rows to measure effects"
        print_pairs(report["model"], [("relevance", missing)])
        return
    columns: dict[str, dict[str, str]] = {}
    legend = []
    if found:
        columns["relevance"] = {name: percent(share) for name, share in found.items()}
        legend.append(("relevance", "share of 1 / lengthscale, for inputs scaled to one spread"))
    if effect:
        columns["effect"] = {name: number(value, 3) for name, value in effect.items()}
        what = "probabilities move" if saved.is_classifier else f"the predicted {saved.target} moves"
        legend.append(("effect", f"how far {what} (rms) when the column is shuffled"))
    rows = [[name, *(column[name] for column in columns.values())] for name in effect or found]
    print_rows("Columns", ["column", *columns], rows)
    print_pairs("", legend)
    if effect:
        parts = report["variance"]
        latent = " (latent functions)" if saved.is_classifier else ""
        print_pairs(
            f"Uncertainty of {report['rows']:,} rows{latent}",
            [
                ("standard deviation", number(parts["std"])),
                ("within the data", percent(parts["within_data_share"])),
                ("far from the data", percent(parts["distributional_share"])),
                ("between members and folds", percent(parts["disagreement_share"])),
                ("noise", percent(parts["noise_share"]) if "noise_share" in parts else None),
            ],
        )
