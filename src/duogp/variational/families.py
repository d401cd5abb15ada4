"""q(u) in whitened coordinates: u = L v, v ~ N(m, S), prior v ~ N(0, I).

Each q knows its mean, how it weighs features, and its penalty. `V` generalises the prior: against
N(0, P) with VᵀV = P⁻¹ (the conditional basis in Q-whitened coordinates, MATH §11 B1).
The mean may live on more or fewer points than the covariance (the separate basis).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from duogp.numerics.factorisation import Factor, norm2, project


class Q(nn.Module):
    """Base of all q(v): a mean, and a covariance S that subclasses parametrise."""

    #: whether q has a density with respect to the prior, so that its penalty is a KL divergence
    is_gaussian = True
    #: whether the mean is a parameter, or zero by definition
    learns_mean = True
    #: whether it can hold the optimal q(u) of a Gaussian likelihood, or the nearest of its family
    has_closed_form = False
    #: whether natural gradients move it
    has_natural_gradient = False
    #: whether the covariance is a function of the inducing points, given by `bind`
    depends_on_points = False
    #: settings of a fit that `build` reads
    options: tuple[str, ...] = ()
    #: parameters of the covariance over M points, as a formula
    covariance_formula = ""
    #: whether the penalty of a point q is −log p(u) instead of −log p(v)
    unwhitened = False

    def __init__(self, size: int, batch_shape: Sequence[int] = (), *, mean_size: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.mean = nn.Parameter(torch.zeros(*batch_shape, size if mean_size is None else mean_size))

    @classmethod
    def build(cls, size: int, batch_shape: Sequence[int], mean_size: int | None = None, **options: Any) -> Q:
        """q(u) of a fit; ``options``: the settings named by `options`."""
        return cls(size, batch_shape, mean_size=mean_size)

    @staticmethod
    def covariance_size(m: int) -> int:
        """Parameters of the covariance over m points."""
        return 0

    @torch.no_grad()
    def perturb_mean(self, scale: float, generators: Sequence[torch.Generator]) -> None:
        """Start near, not at, the prior mean, where some gradients vanish. One generator a replicate."""
        for mean, generator in zip(self.mean, generators, strict=True):
            noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
            mean.copy_(scale * noise.to(mean))

    @torch.no_grad()
    def shrink(self, factor: float) -> None:
        """Multiply the standard deviations by a factor, where they are parameters."""

    def mean_of(self, phi: Tensor) -> Tensor:
        """φᵀ m [..., n] of features φ [..., M, n]."""
        return project(phi, self.mean)

    def variance_of(self, phi: Tensor) -> Tensor:
        """The diagonal of φᵀ S φ, [..., n], of features φ [..., M, n]."""
        return norm2(self.root_of(phi))

    def root_of(self, phi: Tensor) -> Tensor:
        """L_Sᵀ φ [..., M, n], whose squared column norms are φᵀSφ, of features φ [..., M, n]."""
        self._missing()

    def root(self) -> Tensor:
        """L_S [..., M, M] with L_S L_Sᵀ = S, dense."""
        self._missing()

    def log_det(self) -> Tensor:
        """log|S|, [...]."""
        self._missing()

    def second_moment(self, W: Tensor) -> Tensor:
        """‖W L_S‖² + ‖W m‖² = tr W (S + m mᵀ) Wᵀ, [...], of W [..., k, M]."""
        return (W @ self.root()).square().sum((-2, -1)) + (W @ self.mean.unsqueeze(-1)).square().sum((-2, -1))

    def spread(self, D: Tensor) -> Tensor:
        """[D L_S, D m], [..., n, M + 1] of D [..., n, M], so that ‖spread‖² = tr D(S + mmᵀ)Dᵀ."""
        return torch.cat([D @ self.root().to(D), D @ self.mean.to(D).unsqueeze(-1)], -1)

    def penalty(self) -> Tensor:
        """KL(m, S ‖ I) = ½ [tr S + mᵀm − log|S| − M], of each latent function: [..., latent]."""
        return 0.5 * (self.trace() + self.mean.square().sum(-1) - self.log_det() - self.size)

    def penalty_against(self, V: Tensor, half_log_det_prior: Tensor) -> Tensor:
        """KL(m, S ‖ P), VᵀV = P⁻¹:  ½ [‖V L_S‖² + ‖V m‖² − log|S| + log|P| − M].

        V [..., M, M], ½ log|P| and the result [...], one for each latent function.
        """
        return 0.5 * (self.second_moment(V) - self.log_det() - self.size) + half_log_det_prior

    def trace(self) -> Tensor:
        """tr S, [R, latent]."""
        return self.root().square().sum((-2, -1))

    def covariance(self) -> Tensor:
        """S, [R, latent, M, M]."""
        root = self.root()
        return root @ root.mT

    def num_parameters(self) -> int:
        """Variational parameters of one latent function."""
        self._missing()

    def set_(self, mean: Tensor, root: Tensor) -> None:
        """Write N(mean, root rootᵀ), mean [..., M], root [..., M, M], or the nearest of the family."""
        self._missing()

    def parts(self) -> list[tuple[Q, slice]]:
        """The independent blocks of q and where they stand; most q are one block."""
        return [(self, slice(0, self.size))]

    def bind(self, factor: Factor, points: Tensor) -> Q:
        """This q at the inducing points [R, 1, M, d] of the moment; itself, unless S depends on them."""
        return self

    def _missing(self) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} has no such quantity: q.penalty(), q.penalty_against(V, ½ log|P|), "
            "q.second_moment(W) and q.variance_of(φ) work for every q(u)"
        )

    def log_density_offset(self, half_log_det: Tensor) -> Tensor:
        """What −log p(u) has beyond ½ mᵀm: ½ log|K_Z| + (M/2) log 2π, [R, latent] as ½ log|K_Z|."""
        return half_log_det + 0.5 * self.mean.shape[-1] * math.log(2 * math.pi)


class CholeskyQ(Q):
    """S = L_S L_Sᵀ, all of it. The diagonal of L_S may change sign; only its square matters."""

    has_closed_form = True
    has_natural_gradient = True
    covariance_formula = "M(M+1)/2"

    @staticmethod
    def covariance_size(m: int) -> int:
        return m * (m + 1) // 2

    def __init__(self, size: int, batch_shape: Sequence[int] = (), *, mean_size: int | None = None) -> None:
        super().__init__(size, batch_shape, mean_size=mean_size)
        self.raw_root = nn.Parameter(torch.eye(size).expand(*batch_shape, size, size).clone())

    @torch.no_grad()
    def shrink(self, factor: float) -> None:
        self.raw_root.mul_(factor)

    def root(self) -> Tensor:
        return self.raw_root.tril()

    def penalty(self, root: Tensor | None = None) -> Tensor:
        """KL(m, S ‖ I), [R, latent]; ``root`` [R, latent, M, M]: that of the moment, where it is at hand."""
        trace = (self.root() if root is None else root).square().sum((-2, -1))
        return 0.5 * (trace + self.mean.square().sum(-1) - self.log_det() - self.size)

    def root_of(self, phi: Tensor) -> Tensor:
        return self.root().mT @ phi

    def log_det(self) -> Tensor:
        return self.raw_root.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)

    def num_parameters(self) -> int:
        return self.mean.shape[-1] + self.size * (self.size + 1) // 2

    @torch.no_grad()
    def set_(self, mean: Tensor, root: Tensor) -> None:
        self.mean.copy_(mean)
        self.raw_root.copy_(root.tril())


class CentredQ(CholeskyQ):
    """A full S around a mean of zero: the mean of f is the prior mean's."""

    learns_mean = False
    has_closed_form = False

    def __init__(self, size: int, batch_shape: Sequence[int] = (), *, mean_size: int | None = None) -> None:
        super().__init__(size, batch_shape, mean_size=mean_size)
        self.mean.requires_grad_(False)

    def perturb_mean(self, scale: float, generators: Sequence[torch.Generator]) -> None:
        """The mean stays at zero."""

    def num_parameters(self) -> int:
        return self.size * (self.size + 1) // 2

    @torch.no_grad()
    def set_(self, mean: Tensor, root: Tensor) -> None:
        self.raw_root.copy_(root.tril())


class DiagonalQ(Q):
    """S = diag(s²): mean field; the family depends on the whitening and the order of Z (MATH §11 A5)."""

    has_closed_form = True
    covariance_formula = "M"

    @staticmethod
    def covariance_size(m: int) -> int:
        return m

    def __init__(self, size: int, batch_shape: Sequence[int] = (), *, mean_size: int | None = None) -> None:
        super().__init__(size, batch_shape, mean_size=mean_size)
        self.std = nn.Parameter(torch.ones(*batch_shape, size))

    @torch.no_grad()
    def shrink(self, factor: float) -> None:
        self.std.mul_(factor)

    def root(self) -> Tensor:
        return torch.diag_embed(self.std)

    def root_of(self, phi: Tensor) -> Tensor:
        return self.std.unsqueeze(-1) * phi

    def second_moment(self, W: Tensor) -> Tensor:
        mean_part = (W @ self.mean.unsqueeze(-1)).square().sum((-2, -1))
        return (W * self.std.unsqueeze(-2)).square().sum((-2, -1)) + mean_part

    def spread(self, D: Tensor) -> Tensor:
        return torch.cat([D * self.std.to(D).unsqueeze(-2), D @ self.mean.to(D).unsqueeze(-1)], -1)

    def log_det(self) -> Tensor:
        return self.std.square().log().sum(-1)

    def trace(self) -> Tensor:
        return self.std.square().sum(-1)

    def num_parameters(self) -> int:
        return self.mean.shape[-1] + self.size

    @torch.no_grad()
    def set_(self, mean: Tensor, root: Tensor) -> None:
        """The mean-field q nearest in KL(q‖·) to N(mean, root rootᵀ): precisions match on the diagonal.

        mean [..., M], root [..., M, M] lower triangular.
        """
        precision = torch.cholesky_inverse(root).diagonal(dim1=-2, dim2=-1)
        self.mean.copy_(mean)
        self.std.copy_(precision.rsqrt())


class PointQ(Q):
    """S = 0: u is a parameter, not a random variable (MAP, PPGPR-δ). No KL exists (MATH §11 A7).

    Its penalty is −log p(v) = ½ mᵀm up to a constant; with ``unwhitened`` it is −log p(u), which adds
    ½ log|K_Z| + (M/2) log 2π: another objective for the hyperparameters and Z.
    """

    is_gaussian = False
    has_closed_form = True
    options = ("log_prior",)

    @classmethod
    def build(
        cls,
        size: int,
        batch_shape: Sequence[int],
        mean_size: int | None = None,
        *,
        log_prior: str = "whitened",
        **options: Any,
    ) -> PointQ:
        return cls(size, batch_shape, mean_size=mean_size, unwhitened=log_prior == "unwhitened")

    def __init__(
        self,
        size: int,
        batch_shape: Sequence[int] = (),
        *,
        mean_size: int | None = None,
        unwhitened: bool = False,
    ) -> None:
        super().__init__(size, batch_shape, mean_size=mean_size)
        self.unwhitened = unwhitened

    def root(self) -> Tensor:
        return self.mean.new_zeros(*self.mean.shape[:-1], self.size, self.size)

    def root_of(self, phi: Tensor) -> Tensor:
        return torch.zeros_like(phi)

    def variance_of(self, phi: Tensor) -> Tensor:
        return torch.zeros_like(phi[..., 0, :])

    def second_moment(self, W: Tensor) -> Tensor:
        return (W @ self.mean.unsqueeze(-1)).square().sum((-2, -1))

    def spread(self, D: Tensor) -> Tensor:
        return D @ self.mean.to(D).unsqueeze(-1)

    def penalty(self) -> Tensor:
        return 0.5 * self.mean.square().sum(-1)

    def penalty_against(self, V: Tensor, half_log_det_prior: Tensor) -> Tensor:
        return 0.5 * self.second_moment(V)

    def trace(self) -> Tensor:
        return torch.zeros_like(self.mean[..., 0])

    def num_parameters(self) -> int:
        return self.mean.shape[-1]

    @torch.no_grad()
    def set_(self, mean: Tensor, root: Tensor) -> None:
        self.mean.copy_(mean)
