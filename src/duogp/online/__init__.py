"""Learning from an unbounded stream: bases that grow, steps that recover, memory that stays bounded."""

from duogp.online.adam import GrowingAdam
from duogp.online.growth import Grown, append_coupled, append_mean, append_tied, free_mean, novel_rows, tie
from duogp.online.learner import OnlineGP

__all__ = [
    "GrowingAdam",
    "Grown",
    "OnlineGP",
    "append_coupled",
    "append_mean",
    "append_tied",
    "free_mean",
    "novel_rows",
    "tie",
]
