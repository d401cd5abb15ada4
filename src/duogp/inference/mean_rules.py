"""Natural steps for means that a covariance does not belong to: γ of ORTH and hybrid, u and v of SOLVE-GP.

Let g be the gradient of the loss (the negative objective, summed over the data), w_i = 2 ∂loss/∂explained_i
the precision of row i (1/s² for a Gaussian ELBO). Then, in the coordinates of each basis
(MATH §3.2, §11 B10):

    exact      m_v ← m_v − τ g_v                       whitened, metric I; ORTH as two blocks
               a   ← a − τ C⁻¹ g_a                     plain coefficients, metric C = k(γ, γ) − φ_γᵀφ_γ
                                                       of the orthogonal basis, k(γ, γ) of the hybrid one
    diagonal   a   ← a − τ diag(C)⁻¹ g_a               no factor of C (its products are still |γ|²)
    joint      m   ← m − ρ P⁻¹ g_m,  P = I + ΨwΨᵀ      all of Ψ = [φ; φ_⊥]: lands on the optimum in one step

The metric of the first three is the prior's, not the objective's curvature, so alone they are stable only for
τ < 2/λ_max of the curvature in that metric. Here u takes its own step at the same time. With the blocks A_uu,
A_uv, A_vv of the curvature both together are stable iff [[A_uu, −A_uv], [−A_vu, 2I/τ − A_vv]] is positive,
which τ ≤ 1/λ_max(A_vv) guarantees and 2/λ_max does not. λ_max is estimated by power iteration on every batch
and τ kept below 0.9 of 1/λ_max; the iteration starts from where it ended, so a few products are enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from duogp.bases.base import Basis
from duogp.numerics.factorisation import lower_root_of_inverse
from duogp.variational import CholeskyQ

if TYPE_CHECKING:
    from duogp.bases.hybrid import Hybrid

MEAN_RULES = ("adam", "exact", "diagonal", "joint")
SAFETY = 0.9


class MeanRule(ABC):
    """Owns some mean parameters; `compute` before Adam moves anything, `write` after it."""

    parameters: list[Tensor]
    state: list[Tensor]  # what a snapshot must hold

    def __init__(self, basis: Basis, num_data: Tensor, beta1: Tensor) -> None:
        self.basis, self.num_data, self.beta1 = basis, num_data, beta1
        self.parameters, self.state = [], []

    def row_precision(self) -> Tensor:
        """w [R, latent, n], scaled from the batch to all data; never negative, so that curvature is."""
        recorded = self.basis.recorded
        assert recorded is not None and recorded.explained.grad is not None
        w = 2 * self.num_data[:, None, None] * recorded.explained.grad.double()
        return w.clamp_min(0.0)

    def gradient(self, parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        return self.num_data.view(-1, *[1] * (parameter.dim() - 1)) * parameter.grad.double()

    @abstractmethod
    def compute(self, rho: Tensor) -> None:
        """``rho`` [R]."""

    @abstractmethod
    def write(self) -> None: ...


class PowerIteration:
    """λ_max of a positive operator, from a vector that remembers."""

    STEPS = 8

    def __init__(self, like: Tensor) -> None:
        generator = torch.Generator().manual_seed(0)
        v = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)
        self.v = v / v.norm(dim=-1, keepdim=True)

    def estimate(self, apply: Callable[[Tensor], Tensor]) -> Tensor:
        """[...] for vectors [..., M]."""
        v = self.v
        for _ in range(self.STEPS):
            product = apply(v)
            size = product.norm(dim=-1, keepdim=True)
            v = product / size.clamp_min(1e-30)
        # A perturbation keeps it from sleeping in an eigenvector that is no longer the largest.
        self.v.copy_(torch.nn.functional.normalize(v + 1e-3 * self.v.roll(1, -1), dim=-1))
        return size.squeeze(-1)


class WhitenedGamma(MeanRule):
    """m_v of ORTH in whitened coordinates: the metric is I."""

    def __init__(self, basis: Basis, num_data: Tensor, beta1: Tensor) -> None:
        super().__init__(basis, num_data, beta1)
        self.block = basis.q
        self.size = basis.q.size
        self.power = PowerIteration(self.block.mean[..., self.size :])
        self.state = [self.power.v]

    def compute(self, rho: Tensor) -> None:
        recorded = self.basis.recorded
        assert recorded is not None
        perp, w = recorded.features.mean[..., self.size :, :].double(), self.row_precision()
        beta1 = self.beta1[:, None, None]

        def curvature(v: Tensor) -> Tensor:
            projected = w * (perp.mT @ v.unsqueeze(-1)).squeeze(-1)
            return beta1 * v + (perp @ projected.unsqueeze(-1)).squeeze(-1)

        limit = SAFETY / self.power.estimate(curvature)
        tau = torch.minimum(rho[:, None], limit).unsqueeze(-1)
        m_v = self.block.mean[..., self.size :].double()
        self._new = m_v - tau * self.gradient(self.block.mean)[..., self.size :]

    def write(self) -> None:
        self.block.mean[..., self.size :] = self._new.to(self.block.mean.dtype)


class CoefficientGamma(MeanRule):
    """Plain coefficients a of the hybrid and the orthogonal basis, with C or its diagonal as metric."""

    def __init__(self, basis: Hybrid, num_data: Tensor, beta1: Tensor, *, diagonal: bool) -> None:
        super().__init__(basis, num_data, beta1)
        self.hybrid = basis
        self.diagonal = diagonal
        self.parameters = [basis.a]
        self.power = PowerIteration(basis.a)
        self.state = [self.power.v]

    def compute(self, rho: Tensor) -> None:
        recorded, basis = self.basis.recorded, self.hybrid
        assert recorded is not None
        w, beta1 = self.row_precision(), self.beta1[:, None, None]
        gamma, z = basis.mean_inducing.double(), basis.inducing.double()
        C, c_x = basis.kernel(gamma, gamma), basis.kernel(gamma, recorded.x.double())
        prior = basis.kernel.diag(gamma)
        if basis.orthogonal:  # with m fixed, a moves only what u does not explain
            lifted = recorded.factors.beta.L_inv.double() @ basis.kernel(z, gamma)  # φ_γ
            C, c_x = C - lifted.mT @ lifted, c_x - lifted.mT @ recorded.features.mean.double()
        if self.diagonal:
            metric = C.diagonal(dim1=-2, dim2=-1).clamp_min(0) + 1e-4 * prior

            def root_inverse(v: Tensor, transpose: bool) -> Tensor:
                return v / metric.sqrt()
        else:
            eye = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device)
            R, _ = lower_root_of_inverse(C + 1e-6 * prior.mean(-1)[..., None, None] * eye)

            def root_inverse(v: Tensor, transpose: bool) -> Tensor:
                return ((R.mT if transpose else R) @ v.unsqueeze(-1)).squeeze(-1)

        def curvature(v: Tensor) -> Tensor:  # Rᵀ (β₁C + C_γX w C_Xγ) R
            u = root_inverse(v, False).unsqueeze(-1)
            product = beta1.unsqueeze(-1) * (C @ u) + c_x @ (w.unsqueeze(-1) * (c_x.mT @ u))
            return root_inverse(product.squeeze(-1), True)

        limit = SAFETY / self.power.estimate(curvature)
        tau = torch.minimum(rho[:, None], limit).unsqueeze(-1)
        step = root_inverse(root_inverse(self.gradient(basis.a), True), False)
        self._new = basis.a.double() - tau * step

    def write(self) -> None:
        self.hybrid.a.copy_(self._new)


class JointMeans(MeanRule):
    """u and v at once, and their covariances from the same precision: S_u = P_uu⁻¹, S_v = P_vv⁻¹.

    P is averaged over steps, P ← (1 − ρβ₁)P + ρ(β₁I + ΨwΨᵀ), as natural gradients average a block's own S⁻¹.
    """

    def __init__(self, basis: Basis, num_data: Tensor, beta1: Tensor) -> None:
        super().__init__(basis, num_data, beta1)
        self.blocks = [(b, s) for b, s in basis.q.parts() if isinstance(b, CholeskyQ)]
        mean = basis.q.mean
        eye = torch.eye(mean.shape[-1], dtype=torch.float64, device=mean.device)
        self.P = eye.expand(*mean.shape[:-1], *eye.shape).clone()
        self.state = [self.P]
        self.parameters = [p for b, _ in self.blocks for p in (b.mean, b.raw_root)]

    def compute(self, rho: Tensor) -> None:
        recorded = self.basis.recorded
        assert recorded is not None
        psi, w = recorded.features.mean.double(), self.row_precision()
        rate, beta1 = (t[:, None, None, None] for t in (rho, self.beta1))
        eye = torch.eye(self.P.shape[-1], dtype=self.P.dtype, device=self.P.device)
        target = beta1 * eye + (psi * w.unsqueeze(-2)) @ psi.mT
        P = (1 - rate * beta1) * self.P + rate * target
        root, info = lower_root_of_inverse(P)
        means = torch.cat([b.mean for b, _ in self.blocks], -1).double()
        g = torch.cat([self.gradient(b.mean) for b, _ in self.blocks], -1).unsqueeze(-1)
        new = means - (rate * (root @ (root.mT @ g))).squeeze(-1)
        sound = (info == 0) & torch.isfinite(new.sum(-1))
        self._mean = torch.where(sound.unsqueeze(-1), new, means)
        self._P = torch.where(sound[..., None, None], P, self.P)
        self._roots = [lower_root_of_inverse(self._P[..., s, s])[0] for _, s in self.blocks]

    def write(self) -> None:
        self.P.copy_(self._P)
        start = 0
        for (block, _), root in zip(self.blocks, self._roots, strict=True):
            end = start + block.mean.shape[-1]
            block.mean.copy_(self._mean[..., start:end])
            block.raw_root.copy_(root)
            start = end


def make_mean_rule(name: str, basis: Basis, num_data: Tensor, beta1: Tensor) -> MeanRule | None:
    """The rule of that name for this basis; None where Adam keeps the mean. N and β₁ [R]."""
    if name not in MEAN_RULES:
        raise ValueError(f"the mean rule must be one of {', '.join(MEAN_RULES)}, got {name!r}")
    if name == "adam":
        return None
    if name not in basis.mean_rules():
        raise ValueError(f"the mean rule {name!r} is not defined for the {type(basis).__name__} basis")
    if name == "joint":
        return JointMeans(basis, num_data, beta1)
    if basis.has_mean_coefficients:
        return CoefficientGamma(cast("Hybrid", basis), num_data, beta1, diagonal=name == "diagonal")
    return WhitenedGamma(basis, num_data, beta1)
