"""q(u): the variational distributions of the inducing variables, in whitened coordinates."""

from duogp.variational.blocks import BlockQ, ShrunkQ
from duogp.variational.families import CentredQ, CholeskyQ, DiagonalQ, PointQ, Q
from duogp.variational.ridge import RIDGES, RidgeQ

__all__ = ["RIDGES", "BlockQ", "CentredQ", "CholeskyQ", "DiagonalQ", "PointQ", "Q", "RidgeQ", "ShrunkQ"]
