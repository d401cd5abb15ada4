"""q(u): the variational distributions of the inducing variables, in whitened coordinates."""

from duogp.variational.families import BlockQ, CentredQ, CholeskyQ, DiagonalQ, PointQ, Q, ShrunkQ
from duogp.variational.ridge import RIDGES, RidgeQ

__all__ = ["RIDGES", "BlockQ", "CentredQ", "CholeskyQ", "DiagonalQ", "PointQ", "Q", "RidgeQ", "ShrunkQ"]
