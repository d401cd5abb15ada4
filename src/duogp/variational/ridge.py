"""A covariance of u that is a function of where the inducing points are: kernel ridge regression's.

Popescu et al. give q(u) the covariance that Bayesian ridge regression has at its own inputs, so that q(u)
learns a mean only (MATH §5.3, §11 B7). With L Lᵀ = K_Z, in the unwhitened coordinates of u:

    printed      S = σ² [Z (ZᵀZ + λI_d)⁻¹ Zᵀ + I]      linear features of the raw locations, as published
    kernel       S = σ² [K_Z (K_Z + λI)⁻¹ + I]         the same with the kernel's features
    contracting  S = λ K_Z (K_Z + λI)⁻¹                 never above the prior

The first two exceed the prior wherever K_Z has eigenvalues below σ², so their KL contains (σ²/2) tr K_Z⁻¹,
a number that the jitter decides: 66 nats or 4·10⁵ for the same model. The third has no such term.
σ² is the likelihood's noise where it has one, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from duogp.numerics.factorisation import Factor, lower_root_of_inverse
from duogp.numerics.parameters import Positive, batched
from duogp.variational.families import Q

Ridge = Literal["printed", "kernel", "contracting"]
RIDGES: tuple[Ridge, ...] = ("printed", "kernel", "contracting")


class RidgeQ(Q):
    """A learned mean and λ; `bind` gives it the points and their factor, on which S depends."""

    depends_on_points = True
    options = ("ridge",)

    @classmethod
    def build(
        cls,
        size: int,
        batch_shape: Sequence[int],
        mean_size: int | None = None,
        *,
        ridge: Ridge = "printed",
        noise: Positive | None = None,
        **options: Any,
    ) -> RidgeQ:
        """``noise``: σ² of the likelihood, where it has one."""
        return cls(size, batch_shape, kind=ridge, noise=noise, mean_size=mean_size)

    def __init__(
        self,
        size: int,
        batch_shape: Sequence[int] = (),
        *,
        kind: Ridge = "printed",
        noise: Positive | None = None,
        penalty: float = 1e-2,
        mean_size: int | None = None,
    ) -> None:
        if kind not in RIDGES:
            raise ValueError(f"kind must be one of {', '.join(RIDGES)}, got {kind!r}")
        super().__init__(size, batch_shape, mean_size=mean_size)
        self.kind = kind
        self.ridge_penalty = batched(Positive(penalty), batch_shape)  # λ
        self.noise = batched(Positive(0.1), batch_shape) if noise is None else noise  # σ²

    def bind(self, factor: Factor, points: Tensor) -> BoundRidge:
        L, L_inv = factor.L.double(), factor.L_inv.double()
        penalty = self.ridge_penalty().double()[..., None, None]  # λ
        if self.kind == "printed":
            z = points.double()
            features, gram = L_inv @ z, z.mT @ z
        else:
            features, gram = None, L.mT @ L
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        shrunk, _ = lower_root_of_inverse(gram + penalty * eye)  # E⁻ᵀ:  E⁻ᵀE⁻¹ = (gram + λI)⁻¹
        log_ridge = -2 * _log_diagonal(shrunk)  # log|gram + λI|
        if self.kind == "contracting":  # whitened λ (LᵀL + λI)⁻¹
            root = penalty.sqrt() * shrunk
            log_det = self.size * penalty.squeeze((-2, -1)).log() - log_ridge
        else:  # whitened σ² (Y Yᵀ + L⁻¹L⁻ᵀ),  Y = L⁻¹ Z E⁻ᵀ;  with kernel features L⁻¹ L = I instead of L⁻¹ Z
            Y = shrunk if features is None else features @ shrunk
            noise = self.noise().double()[..., None, None]
            root = noise.sqrt() * torch.cat([Y, L_inv.expand(*Y.shape[:-2], *L_inv.shape[-2:])], -1)
            doubled, _ = lower_root_of_inverse(2 * gram + penalty * eye)
            log_det = (
                self.size * noise.squeeze((-2, -1)).log()
                - 2 * _log_diagonal(doubled)
                - log_ridge
                - 2 * factor.half_log_det().double()
            )
        return BoundRidge(self.mean, root.to(factor.L.dtype), log_det.to(factor.L.dtype))

    def num_parameters(self) -> int:
        return self.mean.shape[-1]

    def root(self) -> Tensor:
        raise RuntimeError("the covariance of a ridge q(u) depends on its points: bind them first")

    @torch.no_grad()
    def set_(self, mean: Tensor, root: Tensor) -> None:
        """The mean [..., M]; the covariance is what the points make it."""
        self.mean.copy_(mean)


class BoundRidge(Q):
    """N(m, S) with S from its root, which need not be square."""

    mean: Tensor  # type: ignore[assignment]

    def __init__(self, mean: Tensor, root: Tensor, log_det: Tensor) -> None:
        torch.nn.Module.__init__(self)
        self.__dict__["mean"] = mean  # a tensor with a graph, not a parameter of this passing object
        self.size = root.shape[-2]
        self._root, self._log_det = root, log_det

    def root(self) -> Tensor:
        return self._root

    def root_of(self, phi: Tensor) -> Tensor:
        return self._root.mT.to(phi) @ phi

    def log_det(self) -> Tensor:
        return self._log_det


def _log_diagonal(root: Tensor) -> Tensor:
    return root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
