"""`duogp explain`: which columns matter, and what the uncertainty consists of."""

from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from duogp.cli.manners import command
from duogp.cli.models import SavedModel, open_model, relevance
from duogp.cli.options import AsJson, Device, ModelFolder
from duogp.cli.showing import number, percent, print_json, print_pairs, print_rows

#: Rows of which the effect of shuffling a column is measured.
SHUFFLED_ROWS = 2000


def register(app: typer.Typer) -> None:
    @command(app)
    def explain(
        model: ModelFolder,
        data: Annotated[
            str | None, typer.Argument(help="Rows to explain: adds effects and the parts of the variance.")
        ] = None,
        device: Device = None,
        as_json: AsJson = False,
    ) -> None:
        """Relevance of the columns and, of given rows, effects and the parts of the variance."""
        saved = open_model(model, device)
        report: dict[str, Any] = {"model": model, "relevance": relevance(saved.gp, saved.schema)}
        if data is not None:
            X = saved.schema.encode(saved.table(data, target=False)).matrix
            report |= {
                "rows": len(X),
                "effect": effects(saved, X),
                "variance": variance_parts(saved.gp.predict(X)),
            }
        if as_json:
            print_json(report)
        else:
            _print(saved, report)


def effects(saved: SavedModel, X: NDArray, seed: int = 0) -> dict[str, float]:
    """How far predictions move, root mean square, when one column of the table is shuffled.

    Numbers in the units of the target; of classes, their probabilities.
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
    """Average variance and the shares of its parts; of classes, of the latent functions."""
    parts = {"within_data": prediction.explained, "distributional": prediction.residual}
    if hasattr(prediction, "noise"):
        parts["noise"] = prediction.noise
    means = {name: float(np.mean(value)) for name, value in parts.items()}
    total = sum(means.values())
    return {
        "std": float(np.sqrt(total)),
        **{f"{name}_share": value / total if total > 0 else float("nan") for name, value in means.items()},
    }


def _print(saved: SavedModel, report: dict[str, Any]) -> None:
    found, effect = report["relevance"], report.get("effect")
    if found is None and effect is None:
        print_pairs(
            report["model"],
            [("relevance", "this model has no lengthscale for each column: give rows to measure effects")],
        )
        return
    heads = ["column", *(["relevance"] if found else []), *(["effect"] if effect else [])]
    names = list(effect or found or {})
    rows = [
        [name, *([percent(found[name])] if found else []), *([number(effect[name], 3)] if effect else [])]
        for name in names
    ]
    print_rows("Columns", heads, rows)
    legend = []
    if found:
        legend.append(("relevance", "share of 1 / lengthscale, for inputs scaled to one spread"))
    if effect:
        what = "probabilities move" if saved.is_classifier else f"the predicted {saved.target} moves"
        legend.append(("effect", f"how far {what} (rms) when the column is shuffled"))
    print_pairs("", legend)
    if effect:
        parts = report["variance"]
        print_pairs(
            f"Uncertainty of {report['rows']:,} rows"
            + (" (latent functions)" if saved.is_classifier else ""),
            [
                ("standard deviation", number(parts["std"])),
                ("within the data", percent(parts["within_data_share"])),
                ("far from the data", percent(parts["distributional_share"])),
                ("noise", percent(parts["noise_share"]) if "noise_share" in parts else None),
            ],
        )
