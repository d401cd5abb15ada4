"""Kernels of x − x′, all with unit variance.

Each class is its formula and its spectrum: k(x − x′) = E_ω cos(ωᵀ(x − x′)) (Bochner), so √2 cos(ωᵀx + b) with
b ~ U(0, 2π) is an unbiased feature (Rahimi and Recht 2007).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from duogp.kernels import draws
from duogp.kernels.base import FeatureMap, Kernel, Scale, check_dims
from duogp.kernels.distance import centred, scaled, squared_distance
from duogp.kernels.profiles import Exponential2, HalfInteger, Profile
from duogp.numerics.parameters import Positive, Prior

LN2 = math.log(2.0)  # softplus(0)


class Stationary(Kernel):
    """A unit-variance kernel of the scaled difference (x − x′) / lengthscale.

    A subclass has a `profile` or a `covariance`, and `frequencies`.
    """

    #: k as a function of the scaled r² alone, with a derivative written by hand; None: there is none
    profile: ClassVar[Profile | None] = None

    def __init__(
        self,
        dims: int = 1,
        *,
        ard: bool = True,
        lengthscale: float | Sequence[float] = LN2,
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        self.dims, self.ard = dims, ard
        self.lengthscale = Positive(lengthscale, (dims if ard else 1,), prior=prior)

    def settings(self) -> dict[str, Any]:
        return {"dims": self.dims, "ard": self.ard}

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saved models."""
        return {**self.settings(), "lengthscale": self.lengthscale, "prior": self.lengthscale.prior}

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        check_dims(self, self.dims, x1, x2)
        return self.covariance(x1, x2, self.lengthscale()[..., None, :])

    def diag(self, x: Tensor) -> Tensor:
        check_dims(self, self.dims, x)
        shape = torch.broadcast_shapes(self.lengthscale.batch_shape, x.shape[:-2])
        return x.new_ones(()).expand(*shape, x.shape[-2])

    def covariance(self, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
        """The formula, with lengthscale [*b, 1, d or 1]; a kernel without a profile defines its own."""
        if self.profile is None:
            raise NotImplementedError(f"{type(self).__name__} has neither a profile nor a covariance")
        return self.profile(*scaled(x1, x2, lengthscale), x1.dtype)

    @abstractmethod
    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        """num draws of ω from the spectrum: [*b, d, num]."""

    @torch.no_grad()
    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        omega = self.frequencies(num, generator)  # [*b, d, F]
        phase = draws.angle((*self.batch_shape, 1, num), omega, generator)

        def features(x: Tensor) -> Tensor:
            check_dims(self, self.dims, x)
            angles = x.double() @ omega + phase
            if not angles.requires_grad:  # in place: a third of the memory
                return angles.cos_().mul_(math.sqrt(2.0)).to(x.dtype)
            return (math.sqrt(2.0) * angles.cos()).to(x.dtype)

        return features

    def _event(self, value: Positive) -> Tensor:
        """A parameter as [*b, d, 1], detached and in float64, to scale draws of frequencies."""
        now = value().detach().double()
        return now.expand(*now.shape[:-1], self.dims)[..., None]

    def _normal_frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        """z / lengthscale with z ~ N(0, I): the spectrum of the RBF kernel; others are mixtures of it."""
        lengthscale = self._event(self.lengthscale)
        return draws.normal((*self.batch_shape, self.dims, num), lengthscale, generator) / lengthscale


def profile_of(kernel: Kernel) -> Profile | None:
    """The profile of a kernel; None where it has none, or a subclass has changed the formula."""
    kind = type(kernel)
    if not isinstance(kernel, Stationary) or kind.forward is not Stationary.forward:
        return None
    return kernel.profile if kind.covariance is Stationary.covariance else None  # type: ignore[attr-defined]


def split_variance(kernel: Kernel) -> tuple[Kernel, Tensor | None]:
    """(k, s) of a kernel s·k, s [*b]; (k, None) of a kernel without a variance."""
    return (kernel.kernel, kernel.variance()) if isinstance(kernel, Scale) else (kernel, None)


def stationary_part(kernel: Kernel, points: Tensor, x: Tensor) -> Stationary | None:
    """The kernel, without its variance, if it is a function of r² with a profile, of rows like the points.

    Points [..., M, d], x [..., n, d].
    """
    base, _ = split_variance(kernel)
    if profile_of(base) is None or not isinstance(base, Stationary):
        return None
    return base if points.shape[-1] == x.shape[-1] == base.dims else None


class RBF(Stationary):
    """exp(−r²/2)."""

    profile = Exponential2()

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        return self._normal_frequencies(num, generator)


class Matern(Stationary):
    """The half-integer Matérn family: a polynomial in s = √(2ν) r times exp(−s)."""

    twice_nu: int  # 2ν

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        # Multivariate Student-t with 2ν degrees of freedom: one χ² for each frequency, shared by the
        # dimensions, because r is Euclidean over them.
        z = self._normal_frequencies(num, generator)
        chi2 = draws.chi2(self.twice_nu, (*self.batch_shape, 1, num), z, generator)
        return z * (self.twice_nu / chi2).sqrt()


class Matern12(Matern):
    """exp(−r)."""

    twice_nu = 1
    profile = HalfInteger(1)


class Matern32(Matern):
    """(1 + s) exp(−s), s = √3 r."""

    twice_nu = 3
    profile = HalfInteger(3)


class Matern52(Matern):
    """(1 + s + s²/3) exp(−s), s = √5 r."""

    twice_nu = 5
    profile = HalfInteger(5)


class RationalQuadratic(Stationary):
    """(1 + r²/2α)^−α: RBF kernels whose precision is Gamma(α, α)."""

    def __init__(
        self,
        dims: int = 1,
        *,
        ard: bool = True,
        lengthscale: float | Sequence[float] = LN2,
        alpha: float = 1.0,
        prior: Prior | None = None,
    ) -> None:
        super().__init__(dims, ard=ard, lengthscale=lengthscale, prior=prior)
        self.alpha = Positive(float(alpha))

    def covariance(self, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
        r2 = squared_distance(x1, x2, lengthscale)
        alpha = self.alpha().to(r2.dtype)[..., None, None]
        return torch.exp(-alpha * torch.log1p(0.5 * r2 / alpha))

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        z = self._normal_frequencies(num, generator)
        alpha = self.alpha().detach().double()[..., None, None]
        precision = draws.gamma(alpha.expand(*self.batch_shape, 1, num), generator) / alpha
        return z * precision.sqrt()


class Periodic(Stationary):
    """exp(−2 Σ_d sin²(π (x_d − x′_d) / p_d) / l_d²).

    As 2 sin²(θ/2) = 1 − cos θ, this is the RBF kernel between points on circles (MacKay 1998): with
    u = (cos 2πx/p, sin 2πx/p) / l, ‖u − u′‖² = Σ 2 (1 − cos 2π(x − x′)/p) / l². One matmul, no n·m·d tensor.
    """

    def __init__(
        self,
        dims: int = 1,
        *,
        ard: bool = True,
        lengthscale: float | Sequence[float] = LN2,
        period: float | Sequence[float] = 1.0,
        prior: Prior | None = None,
    ) -> None:
        super().__init__(dims, ard=ard, lengthscale=lengthscale, prior=prior)
        self.period = Positive(period, (dims if ard else 1,))

    def covariance(self, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
        turn = 2.0 * math.pi / self.period().double()[..., None, :]
        u1, u2 = (_circles(x * turn, lengthscale) for x in centred(x1, x2))
        return Exponential2()(u1, u2, x1.dtype)

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        # exp(λ(cos θ − 1)) = e^−λ Σ_q I_q(λ) cos qθ with λ = 1/l², and e^−λ I_q(λ) are the probabilities of a
        # Skellam variable: the difference of two Poisson(λ/2), so the spectrum needs no truncated table.
        half_rate = 0.5 * self._event(self.lengthscale).pow(-2).expand(*self.batch_shape, self.dims, num)
        harmonic = draws.poisson(half_rate, generator) - draws.poisson(half_rate, generator)
        return 2.0 * math.pi * harmonic / self._event(self.period)


def _circles(angle: Tensor, lengthscale: Tensor) -> Tensor:
    return torch.cat([angle.cos() / lengthscale.double(), angle.sin() / lengthscale.double()], -1)


class Hamming(Stationary):
    """exp(−Σ_d 1[x_d ≠ x′_d] / l_d) on integer codes held as floats; differentiable in l only."""

    def covariance(self, x1: Tensor, x2: Tensor, lengthscale: Tensor) -> Tensor:
        inverse = lengthscale.to(x1.dtype).reciprocal()
        weight = inverse.expand(*lengthscale.shape[:-1], self.dims)  # [*b, 1, d]
        total = torch.zeros((), dtype=x1.dtype, device=x1.device)
        for d in range(self.dims):
            differs = (x1[..., :, None, d] - x2[..., None, :, d]).detach().abs() > 0.5
            total = total + differs.to(x1.dtype) * weight[..., d, None]
        return torch.exp(-total)

    def categorical_columns(self, dims: int) -> set[int]:
        return set(range(dims))

    def frequencies(self, num: int, generator: torch.Generator | None) -> Tensor:
        # E cos ωδ must be 1 at δ = 0 and ρ = exp(−1/l) at every other integer: ω = 0 with probability ρ, and
        # otherwise uniform on the circle, where E cos ωδ = 0.
        rho = self._event(self.lengthscale).reciprocal().neg().exp()
        shape = (*self.batch_shape, self.dims, num)
        still = draws.uniform(shape, rho, generator) < rho
        return torch.where(still, 0.0, draws.angle(shape, rho, generator))

    def unbiased_features(self, num: int, generator: torch.Generator | None = None) -> FeatureMap:
        features = super().unbiased_features(num, generator)
        return lambda x: features(x.round())
