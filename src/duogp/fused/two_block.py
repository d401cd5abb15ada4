"""The training step of a two-block basis: one coupled basis on Z ∪ O with a block-diagonal S.

The factor of k([Z, O], [Z, O]) is [[L, 0], [φ_Oᵀ, C]], so the features of the union are φ and φ_⊥. Where v
keeps its prior covariance (ORTH), S_v = I: its variance then is explained, not residual, so this step gives
ORTH's variance but not its parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.bases.marginals import Moments, Penalties, Reads
from duogp.bases.two_block import TwoBlock
from duogp.fused.coupled import coupled_moments
from duogp.fused.projections import MANY_ROWS, Projection
from duogp.fused.step import Step
from duogp.fused.two_block_projections import BlockVariance, MeanTotal, MeanVariance
from duogp.kernels.stationary import stationary_part
from duogp.numerics import products
from duogp.numerics.factorisation import Numerics
from duogp.variational import CentredQ, CholeskyQ, ShrunkQ


def find(basis: TwoBlock, x: Tensor, reads: Reads, with_omega: bool) -> Step | None:
    """The step for blocks with a free, a centred or a shrunk q and a kernel with a profile."""
    if not (
        all(type(block) in (CholeskyQ, CentredQ, ShrunkQ) for block, _ in basis.q.parts())
        and not (basis.mean_only and reads == "parts")
        and basis.inducing.shape[:-2] == basis.orthogonal_inducing.shape[:-2]
        and stationary_part(basis.kernel, basis.inducing, x) is not None
    ):
        return None

    def step(x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        q, both = basis.q, torch.cat([basis.inducing, basis.orthogonal_inducing], -2)
        few = x.shape[-2] < MANY_ROWS * both.shape[-2]
        projection: Projection | None = None
        if basis.mean_only:  # S = diag(S_u, I)
            projection = MeanVariance()
            if reads == "sum" and both.shape[:-2] == q.mean.shape[:-1]:
                learns = torch.is_grad_enabled() and any(p.requires_grad for p in basis.parameters())
                projection = MeanTotal() if learns and not products.substitutes(both) else projection
        elif reads != "parts" and few:
            projection = BlockVariance(basis.inducing.shape[-2])
        f = coupled_moments(
            basis.kernel, both, x, q.mean, q.root(), numerics, reads=reads, projection=projection
        )
        return f, Penalties(q.penalty().sum(-1))

    return step
