"""Hybrid and orthogonal bases with many mean points γ: coefficients a, not whitened, at a cost linear in |γ|.

The inducing points β carry q(u) = N(m, S); the mean has further basis functions k(·, γ) with plain
coefficients a. With φ_γa = L⁻¹ k(β, γ) a and C = k(γ, γ) − φ_γᵀφ_γ (MATH §3, §11 B2):

    hybrid      mean k(x, γ)a + φᵀm               ½aᵀCa + ½‖m + φ_γa‖² + KL(0, S ‖ I)
    orthogonal  mean k(x, γ)a + φᵀ(m − φ_γa)      ½aᵀCa + KL(m, S ‖ I)
    residual k − ‖φ‖² and explained ‖L_Sᵀφ‖² in both

The two are one process in two coordinates (Cheng and Boots 2017; Salimbeni et al. 2018). aᵀk(γ, γ)a is all
that is quadratic in |γ|; over a random subset I of its columns it is (|γ|/|I|) aᵀk(γ, I)a_I: unbiased, value
and gradient, though a single draw may be negative (MATH §3.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2, project
from duogp.variational import Q


class HybridFactors(NamedTuple):
    """The factor of k(β, β), and what the plain coefficients contribute to the whitened mean."""

    beta: Factor
    lift: Tensor  # φ_γ a  [..., M]


class Hybrid(Basis):
    """q(u) on β, and coefficients a on γ. ``columns``: columns of k(γ, γ) in one step; None: all of them."""

    has_closed_form = True
    has_mean_coefficients = True
    columns_index: Tensor | None
    replicate_buffers = ("columns_index",)

    def __init__(
        self,
        kernel: Kernel,
        inducing: Tensor,
        mean_inducing: Tensor,
        q: Q,
        *,
        orthogonal: bool = False,
        columns: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.inducing = nn.Parameter(inducing)  # β
        self.mean_inducing = nn.Parameter(mean_inducing)  # γ
        self.q = q
        self.a = nn.Parameter(torch.zeros(*q.mean.shape[:-1], mean_inducing.shape[-2]))
        self.orthogonal = orthogonal
        index = None
        if columns is not None and columns < mean_inducing.shape[-2]:
            index = torch.zeros(inducing.shape[0], columns, dtype=torch.long)
        self.register_buffer("columns_index", index, persistent=False)
        self._order: Tensor | None = None
        self._source: tuple[int, ...] = ()
        self._drawn = 0

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """The next columns of a random order; a new order when too few of the last are left."""
        if self.columns_index is None:
            return
        size, count = self.a.shape[-1], self.columns_index.shape[-1]
        source = size, *(id(g) for g in generators)  # γ may grow, and another training begin
        if self._order is None or self._source != source or self._drawn + count > size:
            pairs = zip(self.columns_index, generators, strict=True)
            self._order = torch.stack([torch.randperm(size, generator=g, device=g.device) for _, g in pairs])
            self._source, self._drawn = source, 0
        self.columns_index.copy_(self._order[:, self._drawn : self._drawn + count])
        self._drawn += count

    def draw_state(self) -> dict[str, Tensor]:
        return {} if self._order is None else {"order": self._order, "drawn": torch.tensor(self._drawn)}

    def restore_draws(self, state: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> None:
        if "order" in state:
            self._order = state["order"].to(self.a.device)
            self._source = self.a.shape[-1], *(id(g) for g in generators)
            self._drawn = int(state["drawn"])

    def mean_rules(self) -> tuple[str, ...]:
        return "exact", "diagonal"

    def use_all_columns(self) -> None:
        self.columns_index = None

    def factors(self, numerics: Numerics) -> HybridFactors:
        z, gamma, a = self.inducing.double(), self.mean_inducing.double(), self.a.double()
        beta = numerics.factor(self.kernel(z, z))
        lift = (beta.L_inv.double() @ project(self.kernel(gamma, z), a).unsqueeze(-1)).squeeze(-1)
        return HybridFactors(beta, lift)

    def quadratic(self, kernel: Kernel, gamma: Tensor, a: Tensor) -> Tensor:
        """aᵀ k(γ, γ) a, or an unbiased estimate from some of its columns.

        [R, latent], of γ [R, 1, M_γ, d] and a [R, latent, M_γ].
        """
        if self.columns_index is None:
            return (project(kernel(gamma, gamma), a) * a).sum(-1)
        index = self.columns_index.unsqueeze(1)  # [R, 1, b]
        points = gamma.gather(-2, index.unsqueeze(-1).expand(*index.shape, gamma.shape[-1]))
        chosen = a.gather(-1, index.expand(*a.shape[:-1], index.shape[-1]))
        scale = a.shape[-1] / index.shape[-1]
        return scale * (project(kernel(gamma, points), a) * chosen).sum(-1)

    def features(self, x: Tensor, factors: HybridFactors) -> Features:
        phi = factors.beta.whiten(self.kernel(self.inducing, x))
        offset = project(self.kernel(self.mean_inducing, x), self.a)
        if self.orthogonal:
            offset = offset - project(phi, factors.lift.to(phi))
        residual = self.kernel.diag(x) - norm2(phi)
        return Features(mean=phi, explained=phi, residual=residual, offset=offset)

    def kl(self, factors: HybridFactors, q: Q) -> Tensor:
        gamma, a = self.mean_inducing.double(), self.a.double()
        norm = self.quadratic(self.kernel, gamma, a) - factors.lift.square().sum(-1)  # aᵀCa, or its estimate
        penalty = q.penalty() + 0.5 * norm
        if self.orthogonal:
            return penalty
        return penalty + (q.mean * factors.lift).sum(-1) + 0.5 * factors.lift.square().sum(-1)

    def prior_mean(self, factors: HybridFactors) -> Tensor | None:
        return None if self.orthogonal else -factors.lift

    def num_variational_parameters(self) -> int:
        return self.q.num_parameters() + self.a.shape[-1]

    def frozen(self, factors: HybridFactors) -> FrozenPosterior:
        L_inv = factors.beta.L_inv
        of_beta = Probe(self.kernel, self.inducing.detach())
        m = self.q.mean.to(L_inv) - factors.lift.to(L_inv) if self.orthogonal else self.q.mean.to(L_inv)
        weights = (L_inv.mT @ m.unsqueeze(-1)).squeeze(-1)
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=Probe(self.kernel, torch.cat([self.inducing, self.mean_inducing], -2).detach()),
            mean_weights=torch.cat([weights, self.a.to(weights)], -1),
            residual_probe=of_beta,
            residual_root=L_inv,
            residual_jitter=factors.beta.jitter.unsqueeze(-1),
            explained_probe=of_beta,
            explained_root=self.q.root().to(L_inv).mT @ L_inv,
        )
