"""`duogp plot`: figures of a model and of its predictions."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duogp.cli.errors import print_line
from duogp.cli.evaluate import score_file
from duogp.cli.explain import effects
from duogp.cli.model_folder import SavedModel, open_model, relevance
from duogp.cli.options import AsJson, Device, ModelFolder, Quiet, names_of
from duogp.cli.output import print_json

KINDS = ("predicted", "calibration", "zscore", "history", "relevance", "variance", "slices", "all")
ENDINGS = (".png", ".pdf", ".svg", ".jpg")
#: Columns that are sliced unless some are named.
MOST_SLICES = 6
#: Titles of the panels in a figure of all kinds.
TITLES = {
    "predicted": "Predicted and observed",
    "calibration": "Calibration",
    "zscore": "Distribution of z-scores",
    "variance": "Parts of the uncertainty",
    "history": "Training",
    "relevance": "Most relevant columns",
}


def plot(
    model: ModelFolder,
    data: Annotated[str | None, typer.Argument(help="Rows to look at; history needs none.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="PNG, PDF, SVG or JPG.")] = "figure.png",
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "all",
    columns: Annotated[str | None, typer.Option(help="Columns to slice, with commas between.")] = None,
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
    saved = open_model(model, device)
    if data is None and kind not in ("history", "relevance"):
        raise ValueError(f"--kind {kind} needs rows: duogp plot {model} DATA --kind {kind}")
    try:
        import matplotlib
    except ModuleNotFoundError:
        hint = "figures need matplotlib: pip install matplotlib"
        raise ModuleNotFoundError(hint, name="matplotlib") from None
    matplotlib.use("Agg")  # files only: no window, no display
    from matplotlib import pyplot as plt

    figure = Panels(saved, data, names_of(columns)).draw(kind)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    if as_json:
        print_json({"model": model, "data": data, "kind": kind, "output": output})
    elif not quiet:
        print_line(f"{kind} of {model} to {output}")


class Panels:
    """The panels of a model: one method per kind, drawn on given axes; predictions are made once."""

    def __init__(self, saved: SavedModel, data: str | None, columns: list[str]) -> None:
        self.saved, self.data, self.columns = saved, data, columns

    def draw(self, kind: str) -> Any:
        """A figure of one kind, or of all."""
        from duogp.plots import panel_grid, share_limits

        if kind not in ("slices", "all"):
            return getattr(self, kind)(None).figure  # one panel, in a shape of its own
        jobs = self.slices() if kind == "slices" else self.everything()
        panels = panel_grid(len(jobs), (3.6, 3.0) if kind == "slices" else (4.2, 3.9))
        for ax, job in zip(panels, jobs, strict=True):
            job(ax)
        if sliced := [ax for ax in panels if ax.get_gid() == "slice"]:
            share_limits(sliced)
        return panels[0].figure

    def everything(self) -> list[Callable[[Any], Any]]:
        """Panels of all kinds, in whole rows of three."""
        kinds = ["predicted", "calibration"] + ["zscore"] * (not self.saved.is_classifier) + ["variance"]
        kinds += ["history"] * bool(len(self.saved.gp.history)) + ["relevance"]
        return [partial(self.titled, kind) for kind in kinds] + self.slices(3 + -len(kinds) % 3, titled=True)

    def titled(self, kind: str, ax: Any) -> None:
        from duogp.plots import entitle

        entitle(getattr(self, kind)(ax), TITLES[kind])

    def slices(self, most: int = MOST_SLICES, titled: bool = False) -> list[Callable[[Any], Any]]:
        """A panel for each column asked for, otherwise for those with the largest effects."""
        from duogp.tables.schema import require_columns

        require_columns(self.columns, [column.name for column in self.saved.schema.columns], "--columns")
        chosen = self.columns or list(effects(self.saved, self.matrix))[:most]
        return [partial(self.slice, name, name == chosen[0], titled) for name in chosen]

    # -- the kinds -------------------------------------------------------------------------------------------

    def predicted(self, ax: Any) -> Any:
        from duogp import plots

        if self.saved.is_classifier:
            codes, p = self.classes
            return plots.confusion_plot(codes, p.argmax(1), self.saved.gp.classes, ax)
        return plots.predicted_vs_observed(*self.numbers, ax=ax, name=self.saved.target)

    def calibration(self, ax: Any) -> Any:
        from duogp import plots

        if self.saved.is_classifier:
            return plots.reliability_plot(*self.classes, ax)
        return plots.calibration_plot(*self.numbers, ax=ax)

    def zscore(self, ax: Any) -> Any:
        from duogp import plots

        if self.saved.is_classifier:
            raise ValueError("z-scores are of numbers; this model predicts classes: use --kind calibration")
        return plots.zscore_cdf(*self.numbers, ax=ax)

    def history(self, ax: Any) -> Any:
        from duogp import plots

        if not len(self.saved.gp.history):
            raise ValueError("this model has no training history: it was solved for in one step")
        return plots.history_plot(self.saved.gp.history, ax)

    def relevance(self, ax: Any) -> Any:
        from duogp import plots

        found = relevance(self.saved.gp, self.saved.schema)
        if found is not None:
            return plots.relevance_plot(list(found), list(found.values()), ax)
        if self.data is None:
            raise ValueError("this model has no lengthscale for each column: give rows to measure effects on")
        effect = effects(self.saved, self.matrix)
        xlabel = "change when shuffled (rms)"
        return plots.relevance_plot(list(effect), list(effect.values()), ax, xlabel=xlabel)

    def variance(self, ax: Any) -> Any:
        from duogp import plots

        return plots.variance_plot(self.saved.gp.predict(self.matrix), ax, target=self.saved.target)

    def slice(self, name: str, legend: bool, titled: bool, ax: Any) -> None:
        """The effect of one column."""
        from duogp import plots
        from duogp.tables.slices import slice_of

        found = slice_of(self.saved.schema, self.table, name)
        classes, target = self.saved.gp.classes, self.saved.target
        if classes is not None and len(classes) == 2:
            target = f"{target} = {classes[1]}"
        prediction = self.saved.gp.predict(found.matrix)
        plots.slice_plot(
            found.along, prediction, ax, name=name, target=target, data=found.data, legend=legend
        )
        ax.set_gid("slice")
        if titled:
            plots.entitle(ax, f"Effect of {plots.label_of(name)}")

    # -- their data ------------------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> Any:
        assert self.data is not None
        return score_file(self.saved, self.data)

    @cached_property
    def table(self) -> Any:
        assert self.data is not None
        return self.saved.table(self.data)

    @cached_property
    def matrix(self) -> Any:
        """The rows as inputs of the model, [n, d]."""
        return self.saved.schema.encode(self.table).matrix

    @property
    def numbers(self) -> tuple[Any, Any, Any]:
        """Targets, means and standard deviations."""
        return self.scores["y"], self.scores["mean"], self.scores["std"]

    @property
    def classes(self) -> tuple[Any, Any]:
        """Numbers of the true classes, and probabilities, of rows with a class that the model knows."""
        from duogp.data.labels import codes_of

        codes = codes_of(self.scores["y"], self.saved.gp.classes)
        known = codes >= 0
        if not known.any():
            raise ValueError(f"no row has a {self.saved.target!r} that the model knows")
        return codes[known], self.scores["probabilities"][known]
