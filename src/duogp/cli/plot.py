"""`duogp plot`: figures of a model and of its predictions."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from duogp.cli.evaluate import score_file
from duogp.cli.explain import effects
from duogp.cli.manners import command, say
from duogp.cli.models import SavedModel, open_model, relevance
from duogp.cli.options import AsJson, Device, ModelFolder, Quiet, names_of
from duogp.cli.showing import print_json
from duogp.data.labels import codes_of

KINDS = ("predicted", "calibration", "zscore", "history", "relevance", "variance", "slices", "all")
ENDINGS = (".png", ".pdf", ".svg", ".jpg")
#: Columns that are sliced unless some are named.
MOST_SLICES = 6


def register(app: typer.Typer) -> None:
    @command(app)
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
        draw_file(model, data, output, kind, names_of(columns), device)
        if as_json:
            print_json({"model": model, "data": data, "kind": kind, "output": output})
        elif not quiet:
            say(f"{kind} of {model} to {output}")


def draw_file(
    model: str, data: str | None, output: str, kind: str, columns: list[str], device: str | None = None
) -> None:
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
    _matplotlib()
    from matplotlib import pyplot as plt

    panels = Panels(saved, data, columns)
    figure = panels.draw(kind)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _matplotlib() -> None:
    """Figures go to files only: no window, no display."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "figures need matplotlib: pip install matplotlib", name="matplotlib"
        ) from None
    matplotlib.use("Agg")


class Panels:
    """The panels of a model; predictions and tables are made once."""

    def __init__(self, saved: SavedModel, data: str | None, columns: list[str]) -> None:
        self.saved, self.data, self.columns = saved, data, columns
        self._scored: Any = None
        self._table: Any = None

    def draw(self, kind: str) -> Any:
        from duogp.plots import panel_grid, share_limits

        if kind == "slices":
            jobs = self.slices()
        elif kind == "all":
            jobs = self.everything()
        else:
            jobs = [self.job(kind)]
        size = (3.6, 3.0) if kind == "slices" else (4.2, 3.9) if kind == "all" else None
        if size is None:  # one panel in the shape that suits it
            return jobs[0](None).figure
        panels = panel_grid(len(jobs), size)
        for ax, job in zip(panels, jobs, strict=True):
            job(ax)
        sliced = [ax for ax in panels if ax.get_gid() == "slice"]
        if sliced:
            share_limits(sliced)
        return panels[0].figure

    def everything(self) -> list[Callable[[Any], Any]]:
        kinds = ["predicted", "calibration"] + ["zscore"] * (not self.saved.is_classifier) + ["variance"]
        if len(self.saved.gp.history):
            kinds.append("history")
        kinds.append("relevance")
        room = 3 + -len(kinds) % 3  # whole rows of three
        return [self.job(kind, titled=True) for kind in kinds] + self.slices(room, titled=True)

    def job(self, kind: str, titled: bool = False) -> Callable[[Any], Any]:
        draw = getattr(self, kind)

        def run(ax: Any) -> Any:
            drawn = draw(ax)
            if titled:
                from duogp.plots import entitle

                entitle(drawn, TITLES[kind])
            return drawn

        return run

    # -- the kinds -------------------------------------------------------------------------------------------

    def predicted(self, ax: Any) -> Any:
        from duogp import plots

        if self.saved.is_classifier:
            codes, p = self.classes()
            return plots.confusion_plot(codes, p.argmax(1), self.saved.gp.classes, ax)
        return plots.predicted_vs_observed(*self.numbers(), ax=ax, name=self.saved.target)

    def calibration(self, ax: Any) -> Any:
        from duogp import plots

        if self.saved.is_classifier:
            return plots.reliability_plot(*self.classes(), ax)
        return plots.calibration_plot(*self.numbers(), ax=ax)

    def zscore(self, ax: Any) -> Any:
        from duogp import plots

        if self.saved.is_classifier:
            raise ValueError("z-scores are of numbers; this model predicts classes: use --kind calibration")
        return plots.zscore_cdf(*self.numbers(), ax=ax)

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
        return plots.relevance_plot(
            list(effect), list(effect.values()), ax, xlabel="change when shuffled (rms)"
        )

    def variance(self, ax: Any) -> Any:
        from duogp import plots

        return plots.variance_plot(self.saved.gp.predict(self.matrix), ax, target=self.saved.target)

    def slices(self, most: int = MOST_SLICES, titled: bool = False) -> list[Callable[[Any], Any]]:
        """One panel for each column asked for, otherwise for those with the largest effects."""
        from duogp.tables.schema import require_columns

        known = [column.name for column in self.saved.schema.columns]
        require_columns(self.columns, known, "--columns")
        chosen = self.columns or list(effects(self.saved, self.matrix))[:most]
        return [self._slice(name, name == chosen[0], titled) for name in chosen]

    def _slice(self, name: str, legend: bool, titled: bool) -> Callable[[Any], Any]:
        def run(ax: Any) -> Any:
            from duogp import plots
            from duogp.tables.slices import slice_of

            found = slice_of(self.saved.schema, self.table, name)
            prediction = self.saved.gp.predict(found.matrix)
            target = self.saved.target
            if self.saved.is_classifier and len(self.saved.gp.classes) == 2:
                target = f"{target} = {self.saved.gp.classes[1]}"
            ax = plots.slice_plot(
                found.along, prediction, ax, name=name, target=target, data=found.data, legend=legend
            )
            ax.set_gid("slice")
            if titled:
                plots.entitle(ax, f"Effect of {plots.label_of(name)}")
            return ax

        return run

    # -- what they need --------------------------------------------------------------------------------------

    @property
    def scored(self) -> Any:
        if self._scored is None:
            assert self.data is not None
            self._scored = score_file(self.saved, self.data)
        return self._scored

    @property
    def table(self) -> Any:
        if self._table is None:
            assert self.data is not None
            self._table = self.saved.table(self.data, target=False)
        return self._table

    @property
    def matrix(self) -> Any:
        return self.saved.schema.encode(self.table).matrix

    def numbers(self) -> tuple[Any, Any, Any]:
        """Targets, means and standard deviations."""
        return self.scored.joined("y"), self.scored.joined("mean"), self.scored.joined("std")

    def classes(self) -> tuple[Any, Any]:
        """Numbers of the true classes, and probabilities, of rows with a class that the model knows."""
        codes = codes_of(self.scored.joined("y"), self.saved.gp.classes)
        known = codes >= 0
        if not known.any():
            raise ValueError(f"no row has a {self.saved.target!r} that the model knows")
        return codes[known], self.scored.joined("probabilities")[known]


TITLES = {
    "predicted": "Predicted and observed",
    "calibration": "Calibration",
    "zscore": "Distribution of z-scores",
    "variance": "Parts of the uncertainty",
    "history": "Training",
    "relevance": "Most relevant columns",
}
