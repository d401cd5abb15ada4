"""q(f): one file per row of the table of bases."""

from typing import Any

from duogp._moved import moved_name
from duogp.bases.base import Basis
from duogp.bases.conditional import Conditional
from duogp.bases.coupled import Coupled
from duogp.bases.exact import Exact
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.hybrid import Hybrid
from duogp.bases.layer_components import LayerComponents
from duogp.bases.marginals import Features, Marginals, Penalties, clamp_variance
from duogp.bases.separate import Separate
from duogp.bases.subspace import Subspace, SubspaceQ, optimal_decoupled
from duogp.bases.subspace_prior import SubspaceState, subspace_kl
from duogp.bases.two_block import TwoBlock

__all__ = [
    "Basis",
    "Conditional",
    "Coupled",
    "Exact",
    "Features",
    "FrozenPosterior",
    "Hybrid",
    "LayerComponents",
    "Marginals",
    "Penalties",
    "Probe",
    "Separate",
    "Subspace",
    "SubspaceQ",
    "SubspaceState",
    "TwoBlock",
    "clamp_variance",
    "optimal_decoupled",
    "subspace_kl",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
