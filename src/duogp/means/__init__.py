"""Prior means: functions of x that are added outside the KL."""

from duogp.means.affine import Logistic, Ridge
from duogp.means.crossfit import CrossFit, Trees
from duogp.means.offset import OffsetMean
from duogp.means.parametric import ConstantMean, LinearMean, Mean, ModuleMean, NetworkMean, Zero, make_mean
from duogp.means.skip import SkipMean

__all__ = [
    "ConstantMean",
    "CrossFit",
    "LinearMean",
    "Logistic",
    "Mean",
    "ModuleMean",
    "NetworkMean",
    "OffsetMean",
    "Ridge",
    "SkipMean",
    "Trees",
    "Zero",
    "make_mean",
]
