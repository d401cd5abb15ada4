"""Subspace: α for the mean, β for the covariance, both parametrised in the RKHS (Cheng and Boots 2017).

    mean k(x, α)a        covariance (I + Ψ_β B Ψ_βᵀ)⁻¹, B = L_B L_Bᵀ

With φ = L_β⁻¹ k(β, x), G = L_βᵀL_B and S = (I + GGᵀ)⁻¹ this is the separate basis with plain coefficients and
an S that never exceeds the prior (MATH §6.1, §11 A1, B3):

    residual k − ‖φ‖²    explained ‖chol(I + GGᵀ)⁻¹φ‖²    ½aᵀk(α, α)a + KL(0, S ‖ I)

What is optimised are raw coefficients a₀ and a full square L₀, which a preconditioner maps to a and L_B:

    none      a = a₀                 L_B = L₀
    jacobi    a = a₀ / diag K_α      L_B = L₀ / diag K_β, row by row
    nystrom   a = P⁻¹a₀              L_B = L_β⁻ᵀL₀, that is G = L₀
              P = φ_αᵀφ_α + diag(K_α − φ_αᵀφ_α) with a nugget, in O(M_α M_β²) by Woodbury

One family, three geometries for a first-order optimiser (appendix A.1). aᵀk(α, α)a is all that is quadratic
in M_α; `columns` estimates it from some of its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import FrozenPosterior, Probe
from duogp.bases.marginals import Features
from duogp.bases.subspace_prior import SubspaceState, squared_norm, subspace_kl
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics, lower_root_of_inverse, norm2, project
from duogp.variational import Q

Preconditioner = Literal["none", "jacobi", "nystrom"]
#: The least variance, relative to the prior's, that a Nyström preconditioner leaves to each mean point.
#: Where α has β's points nothing else is left, and with 1e-6 Adam starts much slower than with 1e-2.
NYSTROM_NUGGET = 1e-2


class SubspaceQ(Q):
    """The raw coefficients a₀ and L₀. Mean and covariance depend on the kernel, see `Subspace.q_of`."""

    covariance_formula = "M²"

    @staticmethod
    def covariance_size(m: int) -> int:
        return m * m

    def __init__(self, size: int, batch_shape: Sequence[int] = (), *, mean_size: int | None = None) -> None:
        nn.Module.__init__(self)
        self.size = size
        self.a0 = nn.Parameter(torch.zeros(*batch_shape, size if mean_size is None else mean_size))
        self.raw_root = nn.Parameter(torch.zeros(*batch_shape, size, size))  # L₀

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The raw coefficients a₀ [R, latent, M_α], where another q has its mean."""
        return self.a0

    @torch.no_grad()
    def perturb_mean(self, scale: float, generators: Sequence[torch.Generator]) -> None:
        """a₀ ~ scale/√M_α, L₀ ~ scale/M_β: near the prior, not at L₀ = 0, where its gradient vanishes."""
        for a0, root, generator in zip(self.a0, self.raw_root, generators, strict=True):
            for target, width in ((a0, a0.shape[-1] ** 0.5), (root, root.shape[-1])):
                noise = torch.randn(target.shape, generator=generator, dtype=torch.float64)
                target.copy_((scale / max(width, 1)) * noise.to(target))

    def num_parameters(self) -> int:
        return self.a0.shape[-1] + self.size**2

    def root(self) -> Tensor:
        raise RuntimeError("the covariance of a subspace q depends on the kernel: use q_of(factors)")

    def set_(self, mean: Tensor, root: Tensor) -> None:
        raise RuntimeError("the coefficients of a subspace q depend on the kernel: use Subspace.set_")


class SubspaceFactors(NamedTuple):
    """All that the B form needs and that does not depend on x: S = (I + GGᵀ)⁻¹ in whitened coordinates."""

    beta: Factor  # L_β
    a: Tensor  # [R, latent, M_α]
    L: Tensor  # L_B  [R, latent, M_β, M_β]
    G: Tensor  # L_βᵀ L_B
    H: Factor  # of I + GGᵀ


class BoundSubspaceQ(Q):
    """N(a, S) at the kernel of the moment: a weighs k(α, x), S = (I + GGᵀ)⁻¹ weighs φ."""

    def __init__(self, factors: SubspaceFactors) -> None:
        nn.Module.__init__(self)
        self.size = factors.G.shape[-2]
        self._factors = factors

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._factors.a

    def mean_of(self, k: Tensor) -> Tensor:
        return project(k, self.mean.to(k))

    def root_of(self, phi: Tensor) -> Tensor:
        return self._factors.H.L_inv.to(phi) @ phi

    def root(self) -> Tensor:
        return self._factors.H.L_inv.mT

    def log_det(self) -> Tensor:
        return -2 * self._factors.H.half_log_det()

    def penalty(self) -> Tensor:
        """KL(0, S ‖ I) = ½ log|H| − ½ tr GᵀH⁻¹G, zero at G = 0; what the mean costs needs k(α, α).

        [R, latent].
        """
        H, G = self._factors.H, self._factors.G
        return H.half_log_det() - 0.5 * (H.L_inv.double() @ G).square().sum((-2, -1))


class Subspace(Basis):
    """``shared``: the mean has the covariance points too, before its own (appendix A.2).

    ``columns``: how many columns of k(α, α) a step sees; None: all of them. ``prior``: what the KL is
    against instead of the kernel's own prior, as `state` gave it yesterday.
    """

    has_natural_gradient = False
    mean_is_kernel_expansion = True
    mean_shares_features = False
    columns_index: Tensor | None
    replicate_buffers = ("columns_index", *(f"prior_{name}" for name in SubspaceState._fields))

    def __init__(
        self,
        kernel: Kernel,
        mean_inducing: Tensor,
        inducing: Tensor,
        batch_shape: Sequence[int],
        *,
        preconditioner: Preconditioner = "none",
        columns: int | None = None,
        shared: bool = False,
        prior: SubspaceState | None = None,
    ) -> None:
        if preconditioner not in get_args(Preconditioner):
            names = ", ".join(map(repr, get_args(Preconditioner)))
            raise ValueError(f"preconditioner must be one of {names}, got {preconditioner!r}")
        super().__init__()
        self.kernel = kernel
        self.mean_inducing = nn.Parameter(mean_inducing)  # α, or what α has beyond β
        self.inducing = nn.Parameter(inducing)  # β
        self.preconditioner = preconditioner
        self.shared = shared
        size = inducing.shape[-2]
        mean_size = mean_inducing.shape[-2] + (size if shared else 0)
        self.q: SubspaceQ = SubspaceQ(size, batch_shape, mean_size=mean_size)
        index = None
        if columns is not None and columns < mean_size:
            index = torch.zeros(inducing.shape[0], columns, dtype=torch.long)
        self.register_buffer("columns_index", index, persistent=False)
        if prior is not None:
            prior = prior._replace(
                jitter=torch.as_tensor(prior.jitter, dtype=torch.float64).expand(*batch_shape)
            )
        for name in SubspaceState._fields:  # buffers follow the model to its device and into its copies
            value = None if prior is None else getattr(prior, name).detach().double().clone()
            self.register_buffer(f"prior_{name}", value)

    def rebuilt(
        self,
        mean_inducing: Tensor,
        inducing: Tensor,
        columns: int | None,
        *,
        shared: bool,
        prior: SubspaceState | None,
    ) -> Subspace:
        """A basis with this kernel and other points, each set [R, 1, M, d], coefficients at zero."""
        shape, preconditioner = self.q.a0.shape[:-1], self.preconditioner
        options: dict[str, Any] = {"preconditioner": preconditioner, "columns": columns, "shared": shared}
        out = Subspace(self.kernel, mean_inducing.detach(), inducing.detach(), shape, **options, prior=prior)
        out.q.to(self.q.a0)
        return out.to(inducing.device)

    @property
    def prior(self) -> SubspaceState | None:
        """What the KL is against; None: the prior of the kernel."""
        parts = [self._buffers[f"prior_{name}"] for name in SubspaceState._fields]
        return None if parts[0] is None else SubspaceState(*parts)  # type: ignore[arg-type]

    @property
    def mean_points(self) -> Tensor:
        """α  [R, 1, M_α, d]."""
        return torch.cat([self.inducing, self.mean_inducing], -2) if self.shared else self.mean_inducing

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        if self.columns_index is not None:
            size, count = self.q.a0.shape[-1], self.columns_index.shape[-1]
            for row, g in zip(self.columns_index, generators, strict=True):
                row.copy_(torch.randperm(size, generator=g, device=g.device)[:count])

    def initialise(self, generators: Sequence[torch.Generator], mean_scale: float = 1e-6) -> None:
        self.q.perturb_mean(mean_scale, generators)

    def start_from(self, source: Basis) -> None:
        """The points only: the coefficients are of another kind."""
        if self.inducing.shape == source.inducing.shape:
            self.inducing.data.copy_(source.inducing)

    def factors(self, numerics: Numerics) -> SubspaceFactors:
        z, a, L = self.inducing.double(), self.q.a0.double(), self.q.raw_root.double()
        beta = numerics.factor(self.kernel(z, z))
        if self.preconditioner == "jacobi":
            a = a / self.kernel.diag(self.mean_points.double())
            L = L / self.kernel.diag(z).unsqueeze(-1)
        if self.preconditioner == "nystrom":
            a, info = nystrom_solve(*self._nystrom(beta), a)
            numerics.note(info)
            G, L = L, beta.L_inv.double().mT @ L
        else:
            G = beta.L.double().mT @ L
        H = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device) + G @ G.mT
        # H ≥ I needs no jitter, and with some S would no longer belong to B.
        H_factor = numerics.factor(H, prior_diagonal=torch.zeros_like(H[..., 0]))
        return SubspaceFactors(beta, a, L, G, H_factor)

    def features(self, x: Tensor, factors: SubspaceFactors) -> Features:
        phi = factors.beta.whiten(self.kernel(self.inducing, x))
        return Features(
            mean=self.kernel(self.mean_points, x),
            explained=phi,
            residual=self.kernel.diag(x) - norm2(phi),
        )

    def q_of(self, factors: SubspaceFactors) -> BoundSubspaceQ:
        return BoundSubspaceQ(factors)

    def kl(self, factors: SubspaceFactors, q: Q) -> Tensor:
        alpha = self.mean_points.double()
        norm = squared_norm(self.kernel, alpha, q.mean, self.columns_index)
        if self.prior is None:
            return q.penalty() + 0.5 * norm
        return subspace_kl(self.kernel, self._live_state(factors), self.prior, norm=norm)

    def frozen(self, factors: SubspaceFactors) -> FrozenPosterior:
        L_inv = factors.beta.L_inv
        of_beta = Probe(self.kernel, self.inducing.detach())
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=Probe(self.kernel, self.mean_points.detach()),
            mean_weights=factors.a.to(L_inv),
            residual_probe=of_beta,
            residual_root=L_inv,
            residual_jitter=factors.beta.jitter.unsqueeze(-1),
            explained_probe=of_beta,
            explained_root=factors.H.L_inv @ L_inv,  # chol(I + GGᵀ)⁻¹ L_β⁻¹
        )

    def state(self, factors: SubspaceFactors) -> SubspaceState:
        """The posterior as it stands, detached: a prior for data that come later."""
        return SubspaceState(*(t.detach().clone() for t in self._live_state(factors)))  # type: ignore[union-attr]

    def _live_state(self, factors: SubspaceFactors) -> SubspaceState:
        alpha, beta = self.mean_points.double(), self.inducing.double()
        return SubspaceState(alpha, factors.a, beta, factors.L, factors.beta.jitter)

    @torch.no_grad()
    def set_(self, factors: SubspaceFactors, a: Tensor, root: Tensor) -> None:
        """Write the mean k(·, α)a and the whitened S = root rootᵀ, at the kernel of these factors.

        a [R, latent, M_α], root [R, latent, M_β, M_β].
        GGᵀ = S⁻¹ − I: no B stands for an S above the prior, and such an S is refused.
        """
        V, s, _ = torch.linalg.svd(root.double())  # S = V s² Vᵀ
        if bool((s > 1 + 1e-6).any()):
            raise ValueError(f"root rootᵀ must not exceed I, got the eigenvalue {float(s.max()) ** 2:g}")
        G = V * (s.pow(-2) - 1).clamp_min(0).sqrt().unsqueeze(-2)
        beta, a = factors.beta, a.double()
        L = G if self.preconditioner == "nystrom" else beta.L_inv.double().mT @ G
        if self.preconditioner == "jacobi":
            a = a * self.kernel.diag(self.mean_points.double())
            L = L * self.kernel.diag(self.inducing.double()).unsqueeze(-1)
        elif self.preconditioner == "nystrom":
            a = nystrom_product(*self._nystrom(beta), a)
        self.q.a0.copy_(a)
        self.q.raw_root.copy_(L)

    def _nystrom(self, beta: Factor) -> tuple[Tensor, Tensor]:
        """φ_α, and what it leaves of the variances at α, with a nugget: P is positive whatever rounds."""
        alpha = self.mean_points.double()
        variance = self.kernel.diag(alpha)
        phi = beta.L_inv.double() @ self.kernel(self.inducing.double(), alpha)
        nugget = torch.maximum(beta.jitter.unsqueeze(-1), NYSTROM_NUGGET * variance)
        return phi, (variance - norm2(phi)).clamp_min(0) + nugget

    @property
    def num_points(self) -> tuple[int, int]:
        return self.mean_points.shape[-2], self.q.size


def nystrom_product(phi: Tensor, D: Tensor, a: Tensor) -> Tensor:
    """P a [..., n] with P = φᵀφ + diag D, φ [..., M, n], D and a [..., n]."""
    return project(phi, (phi @ a.unsqueeze(-1)).squeeze(-1)) + D * a


def nystrom_solve(phi: Tensor, D: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """P⁻¹v and the flags of its factorisation.

    With W = φD^−½, P⁻¹ = D^−½ [I − Wᵀ(I + WWᵀ)⁻¹W] D^−½: the bracket has its eigenvalues in (0, 1].
    """
    scale = D.rsqrt()
    W, b = phi * scale.unsqueeze(-2), v * scale
    inner = torch.eye(W.shape[-2], dtype=W.dtype, device=W.device) + W @ W.mT
    C, info = torch.linalg.cholesky_ex(inner)
    correction = torch.cholesky_solve(W @ b.unsqueeze(-1), C).squeeze(-1)
    return scale * (b - project(W, correction)), info


def optimal_decoupled(
    K_alpha: Tensor, K_alphaX: Tensor, phi: Tensor, y: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """(a*, R) that maximise the ELBO of a Gaussian likelihood, S* = R Rᵀ whitened, in float64 (MATH §3.1).

        a* = (K_αX K_Xα/s² + K_α)⁻¹ K_αX y/s²        S* = (I + φφᵀ/s²)⁻¹

    The appendix of Salimbeni et al. (2018) leaves out the last 1/s² of a*. ``phi``: φ(X), [..., M_β, n];
    ``noise``: s² of every row, [..., n] or [..., 1]. K_α must be positive definite as it is.
    """
    K_alpha, K_alphaX, phi, y, noise = (t.double() for t in (K_alpha, K_alphaX, phi, y, noise))
    weighed = K_alphaX / noise.unsqueeze(-2)
    normal = torch.linalg.cholesky(K_alpha + weighed @ K_alphaX.mT)
    a = torch.cholesky_solve((weighed @ y.unsqueeze(-1)), normal).squeeze(-1)
    eye = torch.eye(phi.shape[-2], dtype=phi.dtype, device=phi.device)
    root, _ = lower_root_of_inverse(eye + (phi / noise.unsqueeze(-2)) @ phi.mT)
    return a, root
