"""`duogp explain`: importance and effects of the columns, and the parts of the predictive variance."""

from functools import partial
from typing import Annotated, Any

import typer

from duogp.cli.model_folder import SavedModel, open_model
from duogp.cli.options import AsJson, Decimal, Device, Encoding, ModelFolder, spooled
from duogp.cli.output import number, percent, print_pairs, print_rows, show
from duogp.reports.effects import has_learned_mean, importances, is_told_apart


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
    """Importance of the columns and, of given rows, effects and the parts of the variance."""
    from duogp.reports.effects import effects, relevance, variance_parts

    saved = open_model(model, device, encoding=encoding, decimal=decimal, from_python=True)
    report: dict[str, Any] = {
        "model": model,
        "importance": importances(saved.estimator),
        "relevance": relevance(saved.gp, saved.schema),
    }
    if data is not None:
        rows = saved.new_rows(saved.table(spooled(data)))
        variance = variance_parts(rows.predict())
        effect = effects(saved.gp, saved.schema, rows.matrix)
        report |= {"rows": len(rows), "effect": effect, "variance": variance}
        saved.report_unseen()
    show(report, as_json, False, partial(_print, saved))


def _print(saved: SavedModel, report: dict[str, Any]) -> None:
    important, found, effect = report["importance"], report["relevance"], report.get("effect")
    order = effect or important or found
    if order is None:
        missing = "this model has no rows to measure importance on, and no lengthscale for each column"
        print_pairs(report["model"], [("importance", f"{missing}: give rows to measure effects")])
        return
    columns: dict[str, dict[str, str]] = {}
    legend = []
    if important:
        columns["importance"] = {name: percent(share) for name, share in important.items()}
        moved = "mean square change of the predictions of training rows when the column is shuffled"
        legend.append(("importance", f"share of the {moved}"))
    if found:
        columns["relevance"] = {name: percent(share) for name, share in found.items()}
        alone = "; the learned prior mean has no part in it" if has_learned_mean(saved.gp) else ""
        legend.append(("relevance", f"share of 1 / lengthscale of the kernel, inputs of one spread{alone}"))
    if effect:
        columns["effect"] = {name: number(value, 3) for name, value in effect.items()}
        what = "probabilities move" if saved.is_classifier else f"the predicted {saved.target} moves"
        legend.append(("effect", f"how far {what} (rms) when the column is shuffled"))
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in order]
    print_rows("Columns", ["column", *columns], rows)
    print_pairs("", legend)
    if effect:
        parts = report["variance"]
        latent = " (latent functions)" if saved.is_classifier else ""
        print_pairs(
            f"Uncertainty of {report['rows']:,} rows{latent}",
            [
                ("standard deviation", number(parts["std"])),
                *_of_the_function(parts),
                ("between members and folds", percent(parts["disagreement_share"])),
                ("noise", percent(parts["noise_share"]) if "noise_share" in parts else None),
            ],
        )


def _of_the_function(parts: dict[str, float]) -> list[tuple[str, str]]:
    """The uncertainty of the function: in two parts, or in one where the model does not tell them apart."""
    within, far = percent(parts["within_data_share"]), percent(parts["distributional_share"])
    if is_told_apart(parts):
        return [("within the data", within), ("far from the data", far)]
    return [("of the function", f"{far} (exact GP: within the data and far from them are not told apart)")]
