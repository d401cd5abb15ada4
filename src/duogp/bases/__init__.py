"""q(f): one file per row of the table of bases."""

from duogp.bases.base import Basis
from duogp.bases.conditional import Conditional
from duogp.bases.coupled import Coupled
from duogp.bases.hybrid import Hybrid
from duogp.bases.linear_form import LinearForm, Probe
from duogp.bases.marginals import Features, Marginals, Penalties, clamp_variance
from duogp.bases.separate import Separate
from duogp.bases.two_block import TwoBlock

__all__ = [
    "Basis",
    "Conditional",
    "Coupled",
    "Features",
    "Hybrid",
    "LinearForm",
    "Marginals",
    "Penalties",
    "Probe",
    "Separate",
    "TwoBlock",
    "clamp_variance",
]
