"""Candidates on the log scale: GPs of the logarithm of a positive target (`posterior.log_target`)."""

from __future__ import annotations

from dataclasses import replace

from scipy.stats import skew

from duogp.data.columns import informative_columns
from duogp.fitting.dataset import Dataset
from duogp.fitting.race import Candidate
from duogp.numerics.lognormal import LogScale
from duogp.posterior.log_target import LogTargetGP, LogUnits

#: What labels, notes and checkpoints of the log scale end with.
OF_LOGS = "of log y"


def log_scale_of(data: Dataset, least_skew: float) -> LogScale | None:
    """The log scale of one target above zero that is skewed to the right, and less so on that scale."""
    y = data.target.values[data.rows[0]]
    if data.noise is not None or data.offsets is not None or y.shape[1] > 1 or not y.min() > 0:
        return None
    if not informative_columns(y)[0]:  # a constant has no skew
        return None
    scale = LogScale.of(y)
    before, after = float(skew(y[:, 0])), float(skew(scale.logs(y)[:, 0]))
    return scale if before > least_skew and abs(after) < before else None


def on_logs(data: Dataset, scale: LogScale) -> Dataset:
    """The same rows with the logarithms of the targets."""
    target = replace(data.target, values=scale.logs(data.target.values))
    return replace(data, target=target, cross_fits={})


def in_target_units(candidate: Candidate, units: LogUnits) -> Candidate:
    """A candidate that was trained on logarithms, as one of the target itself."""
    again = candidate.refit
    return replace(
        candidate,
        label=f"{candidate.label} {OF_LOGS}",
        gp=LogTargetGP.of(candidate.gp, units),
        held=units.moments(*candidate.held),
        refit=None if again is None else lambda: LogTargetGP.of(again(), units),
    )
