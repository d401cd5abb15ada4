"""The panels of `duogp plot`. Importing this module imports torch."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from duogp import plots
from duogp.cli.evaluate import score_file
from duogp.cli.model_folder import SavedModel
from duogp.data.labels import codes_of
from duogp.reports.effects import effects, relevance
from duogp.tables.schema import require_columns
from duogp.tables.slices import slice_of

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


class Panels:
    """The panels of a model: one method per kind, drawn on given axes; predictions are made once."""

    def __init__(self, saved: SavedModel, data: str | None, columns: list[str]) -> None:
        self.saved, self.data, self.columns = saved, data, columns

    def draw(self, kind: str) -> Any:
        """A figure of one kind, or of all."""
        if kind not in ("slices", "all"):
            return getattr(self, kind)(None).figure  # one panel, in a shape of its own
        jobs = self.slices() if kind == "slices" else self.everything()
        panels = plots.panel_grid(len(jobs), (3.6, 3.0) if kind == "slices" else (4.2, 3.9))
        for ax, job in zip(panels, jobs, strict=True):
            job(ax)
        if sliced := [ax for ax in panels if ax.get_gid() == "slice"]:
            plots.share_limits(sliced)
        return panels[0].figure

    def everything(self) -> list[Callable[[Any], Any]]:
        """Panels of all kinds, in whole rows of three."""
        kinds = ["predicted", "calibration"] + ["zscore"] * (not self.saved.is_classifier) + ["variance"]
        kinds += ["history"] * bool(len(self.saved.gp.history)) + ["relevance"]
        return [partial(self.titled, kind) for kind in kinds] + self.slices(3 + -len(kinds) % 3, titled=True)

    def titled(self, kind: str, ax: Any) -> None:
        plots.entitle(getattr(self, kind)(ax), TITLES[kind])

    def slices(self, most: int = MOST_SLICES, titled: bool = False) -> list[Callable[[Any], Any]]:
        """A panel for each column asked for, otherwise for those with the largest effects."""
        require_columns(self.columns, [column.name for column in self.saved.schema.columns], "--columns")
        chosen = self.columns or list(effects(self.saved.gp, self.saved.schema, self.matrix))[:most]
        return [partial(self.slice, name, name == chosen[0], titled) for name in chosen]

    # -- the kinds -------------------------------------------------------------------------------------------

    def predicted(self, ax: Any) -> Any:
        if self.saved.is_classifier:
            codes, p = self.classes
            return plots.confusion_plot(codes, p.argmax(1), self.saved.gp.classes, ax)
        return plots.predicted_vs_observed(*self.numbers, ax=ax, name=self.saved.target)

    def calibration(self, ax: Any) -> Any:
        if self.saved.is_classifier:
            return plots.reliability_plot(*self.classes, ax)
        return plots.calibration_plot(*self.numbers, ax=ax)

    def zscore(self, ax: Any) -> Any:
        if self.saved.is_classifier:
            raise ValueError("z-scores are of numbers; this model predicts classes: use --kind calibration")
        return plots.zscore_cdf(*self.numbers, ax=ax)

    def history(self, ax: Any) -> Any:
        if not len(self.saved.gp.history):
            raise ValueError("this model has no training history: it was solved for in one step")
        return plots.history_plot(self.saved.gp.history, ax)

    def relevance(self, ax: Any) -> Any:
        found = relevance(self.saved.gp, self.saved.schema)
        if found is not None:
            return plots.relevance_plot(list(found), list(found.values()), ax)
        if self.data is None:
            raise ValueError("this model has no lengthscale for each column: give rows to measure effects on")
        effect = effects(self.saved.gp, self.saved.schema, self.matrix)
        xlabel = "change when shuffled (rms)"
        return plots.relevance_plot(list(effect), list(effect.values()), ax, xlabel=xlabel)

    def variance(self, ax: Any) -> Any:
        return plots.variance_plot(self.saved.new_rows(self.table).predict(), ax, target=self.saved.target)

    def slice(self, name: str, legend: bool, titled: bool, ax: Any) -> None:
        """The effect of one column."""
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
        """Numbers of the true classes, and probabilities, of rows with a class of the model."""
        codes = codes_of(self.scores["y"], self.saved.gp.classes)
        known = codes >= 0
        if not known.any():
            raise ValueError(f"no row has a {self.saved.target!r} that the model knows")
        return codes[known], self.scores["probabilities"][known]
