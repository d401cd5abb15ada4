"""Conditional: a mean kernel q and a covariance kernel k on one Z (Zhu et al. 2023: DCSVGP, DCPPGPR).

The conditional of f given u = f(Z) takes its mean from q and its covariance from k; u keeps the prior
N(0, K_Z). With L_K L_Kᵀ = K_Z, R Rᵀ = Q_Z, φ_k = L_K⁻¹ k(Z, x), φ_q = R⁻¹ q(Z, x):

    Q-whitening   mean φ_qᵀm   explained ‖L_Sᵀφ_q‖²   KL(m, S ‖ K̄), K̄⁻¹ = VᵀV, V = L_K⁻¹R
    K-whitening   ψ = Bᵀφ_q, B = R⁻¹L_K; mean ψᵀm; explained ‖L_Sᵀψ‖²; KL(m, S ‖ I)
    residual      k − ‖φ_k‖² in both

and, for the mismatch D of the two conditional means at the data (MATH §11 B1),

    Ω = ½ (‖L_s⁻¹ D L_S‖² + ‖L_s⁻¹ D m‖²),   L_s L_sᵀ = K̃ = k(X, X) − φ_kᵀφ_k

With Ω over all rows, KL + Ω is the KL of the joint q(f, u) from the prior, and β₁ = β₂ = 1 bounds log p(y).
Over single rows or blocks of rows it bounds the evidence of FITC or PITC instead.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis, with_density_offset
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features, Mismatch, RowMismatch
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, norm2
from duogp.variational import CholeskyQ, Q

Whitening = Literal["Q", "K"]
Omega = Literal["rows", "batch", "blocks", "full"]

#: The reference implementation's nugget on the residual block of a minibatch (MATH §2.3).
REFERENCE_NUGGET = 1e-3


class ConditionalFactors(NamedTuple):
    """Cholesky factors of both kernels at Z, and the matrix between their whitened coordinates."""

    covariance: Factor  # L_K
    mean: Factor  # R
    bridge: Tensor  # V = L_K⁻¹ R  (Q-whitening)  or  B = R⁻¹ L_K  (K-whitening)


class Conditional(Basis):
    """Decoupled conditionals (Zhu et al. 2023): own kernels for mean and covariance on one Z.

    ``omega`` says which residual block Ω sees:

    - ``"rows"``: blocks of one row, scaled to the sum over all rows: no factorisation, and at β₂ = 1 a
      bound on the evidence of FITC, not on log p(y) (MATH §11 B6);
    - ``"batch"``: the minibatch as it comes, unscaled, with the reference code's 1e-3 nugget: what the
      paper's experiments ran, not a bound;
    - ``"blocks"``: one block of a fixed partition, scaled to the sum over blocks: at β₂ = 1 a bound on
      the evidence of PITC (MATH §11 B6);
    - ``"full"``: all rows at once: the paper's formula, for n up to a few thousand.

    In all but ``"batch"`` the nugget is part of the model: it is added to the residual variance as well.
    """

    has_closed_form = True
    pays_to_compile = True
    has_omega = True
    #: of Adam on the collapsed bound, which overfits sooner than that of one kernel
    closed_form_rate = 0.03
    #: closed-form steps of the coupled basis from which training starts
    warm_start_steps = 1000

    def __init__(
        self,
        kernel: Kernel,
        mean_kernel: Kernel,
        inducing: Tensor,
        q: Q,
        *,
        whitening: Whitening = "Q",
        omega: Omega = "batch",
        nugget: float | None = None,
        mean_jitter: float | None = None,
    ) -> None:
        super().__init__()
        if whitening not in ("Q", "K"):
            raise ValueError(f"whitening must be 'Q' or 'K', got {whitening!r}")
        if omega not in ("rows", "batch", "blocks", "full"):
            raise ValueError(f"omega must be 'rows', 'batch', 'blocks' or 'full', got {omega!r}")
        self.kernel = kernel
        self.mean_kernel = mean_kernel
        self.inducing = nn.Parameter(inducing)
        self.q = q
        self.whitening = whitening
        self.omega = omega
        self.mean_jitter = mean_jitter  # of Q_Z; as that of K_Z where None
        self.nugget = REFERENCE_NUGGET if nugget is None and omega == "batch" else nugget

    @torch.no_grad()
    def start_at_prior(self, numerics: Numerics) -> None:
        """S = K̄, the prior's covariance in Q-whitened coordinates: I only where the two kernels agree."""
        if self.whitening == "Q" and isinstance(self.q, CholeskyQ):
            factors = self.factors(numerics)
            root = factors.mean.L_inv.double() @ factors.covariance.L.double()  # B Bᵀ = K̄
            self.q.set_(self.q.mean, root.to(self.q.raw_root.dtype).expand_as(self.q.raw_root))

    def factors(self, numerics: Numerics) -> ConditionalFactors:
        z = self.inducing.double()
        covariance = numerics.factor(self.kernel(z, z))
        mean = numerics.factor(self.mean_kernel(z, z), jitter=self.mean_jitter)
        bridge = covariance.L_inv @ mean.L if self.whitening == "Q" else mean.L_inv @ covariance.L
        return ConditionalFactors(covariance, mean, bridge)

    def features(self, x: Tensor, factors: ConditionalFactors) -> Features:
        phi_k = factors.covariance.whiten(self.kernel(self.inducing, x))
        phi = factors.mean.whiten(self.mean_kernel(self.inducing, x))
        if self.whitening == "K":
            phi = factors.bridge.mT @ phi  # ψ = Bᵀ φ_q
        residual = self.kernel.diag(x) - norm2(phi_k)
        return Features(mean=phi, explained=phi, residual=residual, residual_features=phi_k)

    def kl(self, factors: ConditionalFactors, q: Q) -> Tensor:
        half_log_det_k = factors.covariance.half_log_det()
        if self.whitening == "K":
            penalty = q.penalty()
        else:
            penalty = q.penalty_against(factors.bridge, half_log_det_k - factors.mean.half_log_det())
        return with_density_offset(penalty, q, half_log_det_k)

    def omega_scale(self, rows: int, num_data: Tensor) -> Tensor | float:
        """N/B [R] for rows or a block of a partition; 1 for all rows, or a batch as in the reference code."""
        return num_data / rows if self.omega in ("rows", "blocks") else 1.0

    def collapsed_omega_scale(self, chunks: int) -> float:
        """The reference code sees one block a step, unscaled: on average 1/chunks of the sum (MATH §2.3)."""
        return 1.0 / chunks if self.omega == "batch" else 1.0

    def prior_root(self, factors: ConditionalFactors) -> Tensor | None:
        return factors.bridge if self.whitening == "Q" else None

    def mismatch(
        self, x: Tensor, features: Features, factors: ConditionalFactors, numerics: Numerics
    ) -> tuple[Features, Mismatch | RowMismatch]:
        phi, phi_k = features.mean, features.residual_features
        assert phi_k is not None
        D = (phi - phi_k).mT if self.whitening == "K" else phi.mT - phi_k.mT @ factors.bridge
        if self.omega == "rows":
            residual = features.residual + self._nugget(x, numerics).to(features.residual)
            return features._replace(residual=residual), RowMismatch(residual, D)
        x, phi_k64 = x.double(), phi_k.double()
        residual = self.kernel(x, x) - phi_k64.mT @ phi_k64  # K̃
        residual, nugget = numerics.jittered(residual, self.kernel.diag(x), self.nugget)
        if self.omega != "batch":  # the nugget is part of the model
            own = nugget.to(features.residual.dtype).unsqueeze(-1)
            features = features._replace(residual=features.residual + own)
        return features, Mismatch(residual, D)

    def _nugget(self, x: Tensor, numerics: Numerics) -> Tensor:
        """What is added to the residual variance of rows, [R, latent, 1]."""
        prior = self.kernel.diag(x).double().mean(-1)
        return (numerics.relative(self.nugget) * prior).unsqueeze(-1)

    def kernels(self) -> dict[str, Kernel]:
        return super().kernels() | {"mean": self.mean_kernel}

    def frozen(self, factors: ConditionalFactors) -> FrozenPosterior:
        mean_probe = Probe(self.mean_kernel, self.inducing.detach())
        lift = factors.mean.L_inv if self.whitening == "Q" else factors.bridge.mT @ factors.mean.L_inv
        m = self.q.mean.to(lift)
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=mean_probe,
            mean_weights=(lift.mT @ m.unsqueeze(-1)).squeeze(-1),
            residual_probe=Probe(self.kernel, self.inducing.detach()),
            residual_root=factors.covariance.L_inv,
            residual_jitter=factors.covariance.jitter.unsqueeze(-1),
            explained_probe=mean_probe,
            explained_root=self.q.root().to(lift).mT @ lift,
        )

    def whitening_factor(self, numerics: Numerics) -> Factor:
        factors = self.factors(numerics)
        return factors.mean if self.whitening == "Q" else factors.covariance
