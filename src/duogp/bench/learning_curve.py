"""The learning curve of a row: where training ended, how flat the loss had become, and the loss itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Points of a curve that a row keeps at most.
POINTS = 200
#: The last part of training, by which flatness is judged.
LATE = 0.2
#: Smallest loss (in nats per datum) that its own change is measured by.
SMALLEST_SCALE = 0.1

Curve = Sequence[tuple[int, float, float]]  # iteration, seconds, mean loss of the epoch


def summary(
    history: Any, per_epoch: int, steps: int | None = None, *, with_trace: bool = False
) -> dict[str, Any]:
    """The fields of a row's ``history``: the last loss, epochs, iterations, rollbacks, flatness.

    ``per_epoch``: optimiser steps of an epoch; ``steps``: where training ended if that is within an epoch.
    """
    names = ("solver", "best_epoch", "stopped_early", "rollbacks", "jitter")
    out = {name: value for name in names if (value := getattr(history, name, None)) is not None}
    if history is None or not len(history):
        return out
    last = math.inf if steps is None else steps
    curve = [(int(min(r.epoch * per_epoch, last)), float(r.seconds), float(r.loss)) for r in history]
    out |= {"epochs": len(history), "iterations": curve[-1][0], "loss": history[-1].loss}
    if (flat := flatness(curve)) is not None:
        out["flatness"] = flat
    if with_trace:
        out["trace"] = [[i, round(seconds, 3), loss] for i, seconds, loss in thinned(curve)]
    return out


def flatness(curve: Curve) -> float | None:
    """Fall of a straight line through the last fifth of the losses, relative to the loss at its end.

    Near 0 where training had converged, positive where it was still improving; None below three losses.
    """
    late = [(i, loss) for i, _, loss in curve if i >= (1 - LATE) * curve[-1][0] and math.isfinite(loss)]
    if len(late) < 3:
        return None
    iterations, losses = np.array(late, dtype=np.float64).T
    slope, level = np.polyfit(iterations - iterations[-1], losses, 1)
    fall = -slope * (iterations[-1] - iterations[0])
    return float(fall / max(abs(level), SMALLEST_SCALE))


def thinned(curve: Curve, most: int = POINTS) -> Curve:
    """At most ``most`` points, evenly spaced, the last one among them."""
    if len(curve) <= most:
        return curve
    return [curve[i] for i in np.unique(np.linspace(0, len(curve) - 1, most).round().astype(int))]


def steps_per_epoch(solver: str, rows: int, batch_size: int) -> int:
    """Optimiser steps of one pass over the rows; a closed-form step uses them all."""
    return 1 if solver == "closed-form" else -(-rows // min(batch_size, rows))
