"""`duogp explain`: relevance and effects of the columns, and the parts of the predictive variance."""

from functools import partial
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from duogp.cli.model_folder import SavedModel, open_model, relevance
from duogp.cli.options import AsJson, Decimal, Device, Encoding, ModelFolder, spooled
from duogp.cli.output import number, percent, print_pairs, print_rows, show

#: Rows of which the effect of shuffling a column is measured.
SHUFFLED_ROWS = 2000


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
    saved = open_model(model, device, encoding=encoding, decimal=decimal)
    report: dict[str, Any] = {"model": model, "relevance": relevance(saved.gp, saved.schema)}
    if data is not None:
        rows = saved.new_rows(saved.table(spooled(data)))
        variance = variance_parts(rows.predict())
        report |= {"rows": len(rows), "effect": effects(saved, rows.matrix), "variance": variance}
        saved.report_unseen()
    show(report, as_json, False, partial(_print, saved))


def effects(saved: SavedModel, X: NDArray, seed: int = 0) -> dict[str, float]:
    """Root mean square change of the predictions when one column of the table is shuffled, the largest first.

    In the units of the target; of classes, of their probabilities.
    """
    rng = np.random.default_rng(seed)
    rows = X[np.sort(rng.permutation(len(X))[:SHUFFLED_ROWS])]
    sources = np.array(saved.schema.sources)
    before = _predicted(saved.gp.predict(rows))
    found = {}
    for column in saved.schema.columns:
        changed = rows.copy()
        own = sources == column.name
        changed[:, own] = rows[rng.permutation(len(rows))][:, own]
        found[column.name] = float(np.sqrt(np.mean((_predicted(saved.gp.predict(changed)) - before) ** 2)))
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _predicted(prediction: Any) -> NDArray:
    return prediction.probabilities if hasattr(prediction, "probabilities") else prediction.mean


def variance_parts(prediction: Any) -> dict[str, float]:
    """Root of the average variance and the shares of its parts; of classes, of the latent functions."""
    parts = {"within_data": prediction.explained, "distributional": prediction.residual}
    parts["disagreement"] = np.broadcast_to(np.float64(prediction.disagreement), parts["within_data"].shape)
    if hasattr(prediction, "noise"):
        parts["noise"] = prediction.noise
    means = {name: float(np.mean(value)) for name, value in parts.items()}
    total = sum(means.values())
    shares = {f"{name}_share": value / total if total > 0 else float("nan") for name, value in means.items()}
    return {"std": float(np.sqrt(total)), **shares}


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
