"""Two blocks: u on Z, and v on O, the part of f(O) that u does not explain.

With φ = L⁻¹ k(Z, x) and the orthogonal features φ_⊥ = C⁻¹ (k(O, x) − φ_Oᵀφ), C Cᵀ = k(O, O) − φ_Oᵀφ_O:

    mean φᵀm_u + φ_⊥ᵀm_v    residual k − ‖φ‖² − ‖φ_⊥‖²    explained ‖L_uᵀφ‖² + ‖L_vᵀφ_⊥‖²    KL_u + KL_v

What q(v) is decides the method (MATH §5, §11 B4):

    full             SOLVE-GP (Shi et al. 2020)
    prior covariance the orthogonally decoupled basis, ORTH (Salimbeni et al. 2018): v learns a mean only, so
                     its covariance counts as residual: k − ‖φ‖², in both of ORTH's parametrisations
    N(0, εI)         DSGPC-ε, a true bound for every ε in (0, 1]; ε‖φ_⊥‖² counts as explained.
                     ε = 0 without its KL: DSGPC as published
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import CholeskyQ, Q


class TwoBlockFactors(NamedTuple):
    """Factors of k(Z, Z) and of the rest of k(O, O), and the whitened features of O."""

    u: Factor  # L
    v: Factor  # C
    phi_o: Tensor  # φ(O)  [..., M, M_o]


class TwoBlock(Basis):
    """u on Z and v ⟂ u on O.

    ``mean_only``: v keeps its prior covariance (ORTH), so q has a mean of size M + M_o and an S of size M.
    """

    has_closed_form = True

    def __init__(
        self, kernel: Kernel, inducing: Tensor, orthogonal: Tensor, q: Q, *, mean_only: bool = False
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.inducing = nn.Parameter(inducing)  # Z
        self.orthogonal_inducing = nn.Parameter(orthogonal)  # O
        self.q = q
        self.mean_only = mean_only

    def factors(self, numerics: Numerics) -> TwoBlockFactors:
        z, o = self.inducing.double(), self.orthogonal_inducing.double()
        u = numerics.factor(self.kernel(z, z))
        # C is a difference and rounds relative to the prior: so does its jitter (MATH §11 A2).
        phi_o = u.whiten(self.kernel(z, o).to(u.L_inv.dtype))
        schur = self.kernel(o, o) - phi_o.double().mT @ phi_o.double()
        return TwoBlockFactors(u, numerics.factor(schur, prior_diagonal=self.kernel.diag(o)), phi_o)

    def features(self, x: Tensor, factors: TwoBlockFactors) -> Features:
        phi = factors.u.whiten(self.kernel(self.inducing, x))
        phi_perp = factors.v.whiten(self.kernel(self.orthogonal_inducing, x) - factors.phi_o.mT @ phi)
        both = torch.cat([phi, phi_perp], -2)
        if self.mean_only:
            return Features(mean=both, explained=phi, residual=self.kernel.diag(x) - norm2(phi))
        return Features(mean=both, explained=both, residual=self.kernel.diag(x) - norm2(both))

    def mean_rules(self) -> tuple[str, ...]:
        joint = all(isinstance(block, CholeskyQ) for block, _ in self.q.parts())
        return (*(("joint",) if joint else ()), *(("exact",) if self.mean_only else ()))

    def q_of(self, factors: TwoBlockFactors) -> Q:
        return self.q.bind(factors.u, self.inducing)

    def kl(self, factors: TwoBlockFactors, q: Q) -> Tensor:
        return q.penalty()

    def frozen(self, factors: TwoBlockFactors) -> FrozenPosterior:
        """Both feature sets are linear in k([Z, O], x):  [φ; φ_⊥] = W k."""
        u, v, phi_o = factors
        size_u, size_v = u.L.shape[-1], v.L.shape[-1]
        W = u.L.new_zeros(*u.L.shape[:-2], size_u + size_v, size_u + size_v)
        W[..., :size_u, :size_u] = u.L_inv
        W[..., size_u:, :size_u] = -v.L_inv @ phi_o.mT @ u.L_inv
        W[..., size_u:, size_u:] = v.L_inv
        both = Probe(self.kernel, torch.cat([self.inducing, self.orthogonal_inducing], -2).detach())
        of_u = Probe(self.kernel, self.inducing.detach())
        jitter = torch.cat([f.jitter.unsqueeze(-1).expand(f.L.shape[:-1]) for f in (u, v)], -1)
        root = self.q_of(factors).root().to(W)
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=both,
            mean_weights=(W.mT @ self.q.mean.to(W).unsqueeze(-1)).squeeze(-1),
            residual_probe=of_u if self.mean_only else both,
            residual_root=u.L_inv if self.mean_only else W,
            residual_jitter=jitter[..., :size_u] if self.mean_only else jitter,
            explained_probe=of_u if self.mean_only else both,
            explained_root=root.mT @ (u.L_inv if self.mean_only else W),
        )
