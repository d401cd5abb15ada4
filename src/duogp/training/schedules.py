"""Learning-rate schedules: a function of the fraction of training done, times the base rate."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def constant(progress: float) -> float:
    """The factor of the learning rate: always one."""
    return 1.0


def multistep(progress: float) -> float:
    """×0.2 at one third and at two thirds (the protocol of Zhu et al. 2023)."""
    return 0.2 ** min(2, math.floor(3 * progress + 1e-9))


def cosine(progress: float) -> float:
    """From 1 to 1% along half a cosine."""
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def cycles(progress: float) -> float:
    """Half a cosine after the other, by the loop (`training.cycles.Cycles`); by itself a constant."""
    return 1.0


def ramp(step: int, total: int) -> float:
    """From 1 % to 1 over the first hundred steps, or 5 % of them: natural gradients start carefully."""
    return min(1.0, 0.01 + 0.99 * step / min(100.0, max(0.05 * total, 1.0)))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "multistep": multistep,
    "cosine": cosine,
    "cycles": cycles,
}


def make_schedule(spec: str | Schedule) -> Schedule:
    """The schedule of a name, or the function given."""
    if callable(spec):
        return spec
    if spec not in SCHEDULES:
        raise ValueError(
            f"schedule must be one of {', '.join(sorted(SCHEDULES))}, or a function, got {spec!r}"
        )
    return SCHEDULES[spec]
