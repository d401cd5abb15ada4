"""Prior means: functions of x that are added outside the KL."""

from duogp.means.parametric import ConstantMean, LinearMean, Mean, ModuleMean, NetworkMean, Zero, make_mean
from duogp.means.skip import SkipMean

__all__ = [
    "ConstantMean",
    "LinearMean",
    "Mean",
    "ModuleMean",
    "NetworkMean",
    "SkipMean",
    "Zero",
    "make_mean",
]
