"""`duogp plot`: figures of a model and of its predictions."""

from pathlib import Path
from typing import Annotated

import typer

from duogp.cli.errors import print_line
from duogp.cli.model_folder import open_model
from duogp.cli.options import AsJson, Decimal, Device, Encoding, ModelFolder, Quiet, names_of, spooled
from duogp.cli.output import show

KINDS = ("predicted", "calibration", "zscore", "history", "relevance", "variance", "slices", "all")
ENDINGS = (".png", ".pdf", ".svg", ".jpg")


def plot(
    model: ModelFolder,
    data: Annotated[str | None, typer.Argument(help="Rows to look at; history needs none.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="PNG, PDF, SVG or JPG.")] = "figure.png",
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "all",
    columns: Annotated[str | None, typer.Option(help="Columns to slice, with commas between.")] = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Draw calibration, z-scores, predictions, training, effects of single columns."""
    path = Path(output)
    if kind not in KINDS:
        raise ValueError(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"--output must end in one of {', '.join(ENDINGS)}, got {output!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    saved = open_model(model, device, encoding=encoding, decimal=decimal)
    if data is None and kind not in ("history", "relevance"):
        raise ValueError(f"--kind {kind} needs rows: duogp plot {model} DATA --kind {kind}")
    try:
        import matplotlib
    except ModuleNotFoundError:
        hint = "figures need matplotlib: pip install matplotlib"
        raise ModuleNotFoundError(hint, name="matplotlib") from None
    matplotlib.use("Agg")  # files only: no window, no display
    from matplotlib import pyplot as plt

    from duogp.cli.panels import Panels

    figure = Panels(saved, None if data is None else spooled(data), names_of(columns)).draw(kind)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    report = {"model": model, "data": data, "kind": kind, "output": output}
    show(report, as_json, quiet, lambda _: print_line(f"{kind} of {model} to {output}"))
