"""Layer components: the mean and q(u) on α, the residual on other points β (Popescu et al.: DDGPC's layers).

    mean φ_αᵀm    residual k − ‖φ_β‖²    explained ‖L_Sᵀφ_α‖²

Inputs of a hidden layer crowd around zero, so a few β cover them, while α has to draw the function. Unlike
those of DSGPC, whose residual sees both sets, these components are a process with a density against the
prior as long as |β| ≤ |α| (MATH §5.4). With G = L_β⁻¹ k(β, α) L_α⁻ᵀ its divergence is (MATH §11 B8)

    KL = ½ [‖L_S‖² + ‖m‖² − |β| − log|I + S| − log|G (I + S⁻¹)⁻¹ Gᵀ|]
       = ½ [‖L_S‖² + ‖m‖² − |β| − 2 Σ log diag E − log|TᵀT|],   E Eᵀ = I + L_SᵀL_S,  T = E⁻¹L_SᵀGᵀ

It grows as a β moves away from all α, where q treats f(β) as known although no data determine it; so β must
start near α. The published eq. 59, ½ [‖L_S‖² + ‖m‖² − log|I − GᵀG + S|], is neither this nor the divergence
of the values at α (it lacks −½‖G‖² for that): its ELBO is not a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.inducing import column_spread, select_inducing
from duogp.bases.marginals import Features
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import Q

#: How far β is moved off the centres of α, relative to the spread of each column.
RESIDUAL_SHIFT = 0.05


class ComponentFactors(NamedTuple):
    """Factors of k(α, α) and k(β, β), and the whitened covariance between them."""

    alpha: Factor  # L_α
    beta: Factor  # L_β
    G: Tensor  # L_β⁻¹ k(β, α) L_α⁻ᵀ  [..., M_β, M_α], float64


class LayerComponents(Basis):
    """``printed_kl``: eq. 59 as published instead of the divergence, for comparison with the paper only."""

    def __init__(
        self, kernel: Kernel, inducing: Tensor, residual: Tensor, q: Q, *, printed_kl: bool = False
    ) -> None:
        super().__init__()
        sizes = residual.shape[-2], inducing.shape[-2]
        if not 1 <= sizes[0] <= sizes[1]:
            raise ValueError(
                f"there must be at least 1 residual point and at most as many as inducing points, "
                f"got {sizes[0]} and {sizes[1]}: with more, the divergence from the prior is infinite"
            )
        if not q.is_gaussian:
            raise ValueError(
                f"layer components need a q(u) with a covariance, got {type(q).__name__}: with none, the "
                "divergence from the prior is infinite"
            )
        self.kernel = kernel
        self.inducing = nn.Parameter(inducing)  # α
        self.residual_inducing = nn.Parameter(residual)  # β
        self.q = q
        self.printed_kl = printed_kl

    def factors(self, numerics: Numerics) -> ComponentFactors:
        a, b = self.inducing.double(), self.residual_inducing.double()
        alpha, beta = numerics.factor(self.kernel(a, a)), numerics.factor(self.kernel(b, b))
        # The jitters of α and of β are noises of their own, so k(β, α) has none.
        G = beta.L_inv.double() @ self.kernel(b, a) @ alpha.L_inv.double().mT
        return ComponentFactors(alpha, beta, G)

    def features(self, x: Tensor, factors: ComponentFactors) -> Features:
        phi = factors.alpha.whiten(self.kernel(self.inducing, x))
        phi_residual = factors.beta.whiten(self.kernel(self.residual_inducing, x))
        return Features(mean=phi, explained=phi, residual=self.kernel.diag(x) - norm2(phi_residual))

    def q_of(self, factors: ComponentFactors) -> Q:
        return self.q.bind(factors.alpha, self.inducing)

    def kl(self, factors: ComponentFactors, q: Q) -> Tensor:
        root, G = q.root().double(), factors.G  # L_S need not be square
        square = root.square().sum((-2, -1)) + q.mean.double().square().sum(-1)
        if self.printed_kl:
            eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
            return 0.5 * (square - _log_det(eye - G.mT @ G + root @ root.mT))
        eye = torch.eye(root.shape[-1], dtype=G.dtype, device=G.device)
        E, info = torch.linalg.cholesky_ex(eye + root.mT @ root)
        T = torch.linalg.solve_triangular(E, root.mT @ G.mT, upper=False)
        log_dets = 2 * _log_diagonal(E, info) + _log_det(T.mT @ T)
        return 0.5 * (square - G.shape[-2] - log_dets)

    def frozen(self, factors: ComponentFactors) -> FrozenPosterior:
        alpha, beta, _ = factors
        probe = Probe(self.kernel, self.inducing.detach())
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=probe,
            mean_weights=(alpha.L_inv.mT @ self.q.mean.to(alpha.L).unsqueeze(-1)).squeeze(-1),  # L_α⁻ᵀ m
            residual_probe=Probe(self.kernel, self.residual_inducing.detach()),
            residual_root=beta.L_inv,
            residual_jitter=beta.jitter.unsqueeze(-1),
            explained_probe=probe,
            explained_root=self.q_of(factors).root().to(alpha.L).mT @ alpha.L_inv,  # L_Sᵀ L_α⁻¹
        )


@torch.no_grad()
def residual_points(inducing: Tensor, num: int, generators: Sequence[torch.Generator]) -> Tensor:
    """β [R, 1, num, d]: centres of α, moved a little, so that they are near α but none of it (§11 B8)."""
    out = []
    for alpha, generator in zip(inducing.squeeze(1).double(), generators, strict=True):
        centres = select_inducing("kmeans", alpha, num, generator=generator)
        noise = torch.randn(centres.shape, generator=generator, device=generator.device, dtype=torch.float64)
        out.append(centres + RESIDUAL_SHIFT * column_spread(alpha) * noise.to(alpha.device))
    return torch.stack(out).unsqueeze(1).to(inducing.dtype)


def _log_det(A: Tensor) -> Tensor:
    """log|A| of a positive A."""
    L, info = torch.linalg.cholesky_ex(A)
    return 2 * _log_diagonal(L, info)


def _log_diagonal(L: Tensor, info: Tensor) -> Tensor:
    """Σ log diag L; −∞ where A was singular, so that the divergence says what it is: infinite."""
    return torch.where(info == 0, L.diagonal(dim1=-2, dim2=-1).log().sum(-1), -torch.inf)
