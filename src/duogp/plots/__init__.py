"""Figures of data, predictions and training. Matplotlib is imported where a figure is drawn.

Every function draws on the axes it is given, or on new ones with a title, and returns them.
"""

from duogp.plots.calibration import (
    calibration_plot,
    confusion_plot,
    predicted_vs_observed,
    reliability_plot,
    zscore_cdf,
)
from duogp.plots.checks import dependence_plot, pit_histogram, quantile_reliability_plot
from duogp.plots.functions import bands, one_dimensional_fit, slice_plot, slices
from duogp.plots.histories import history_plot
from duogp.plots.parts import relevance_plot, variance_plot
from duogp.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PARTS,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    entitle,
    label_of,
    panel_grid,
    share_limits,
)

__all__ = [
    "BLUE",
    "FAINT",
    "GREEN",
    "INK",
    "ORANGE",
    "PALETTE",
    "PARTS",
    "PURPLE",
    "SKY",
    "STYLE",
    "VERMILION",
    "bands",
    "calibration_plot",
    "confusion_plot",
    "dependence_plot",
    "entitle",
    "history_plot",
    "label_of",
    "one_dimensional_fit",
    "panel_grid",
    "pit_histogram",
    "predicted_vs_observed",
    "quantile_reliability_plot",
    "relevance_plot",
    "reliability_plot",
    "share_limits",
    "slice_plot",
    "slices",
    "variance_plot",
    "zscore_cdf",
]
