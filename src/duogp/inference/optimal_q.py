"""q(u) at its optimum: constants in the place of parameters, block by block of a model's family."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.variational import DiagonalQ, PointQ, Q, ShrunkQ


class _QuadraticForm(torch.autograd.Function):
    """φᵀAφ of each column for a constant symmetric A: one product forward, none backward."""

    @staticmethod
    def forward(ctx: Any, phi: Tensor, A: Tensor) -> Tensor:
        product = A @ phi
        ctx.save_for_backward(product)
        return (phi * product).sum(-2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (product,) = ctx.saved_tensors
        return 2 * g.unsqueeze(-2) * product, None


class OptimalQ(Q):
    """q at its closed-form optimum: constants, so that gradients flow through the features only."""

    mean: Tensor  # type: ignore[assignment]
    S: Tensor | None

    def __init__(self, mean: Tensor, root: Tensor | None, log_det: Tensor, like: Q) -> None:
        torch.nn.Module.__init__(self)
        covariance = None if root is None else root @ root.mT
        self._root = root
        self.register_buffer("mean", mean)
        self.register_buffer("S", covariance)
        self._log_det = log_det
        self.size = mean.shape[-1] if covariance is None else covariance.shape[-1]
        self.is_gaussian = like.is_gaussian
        self.unwhitened = like.unwhitened

    def root(self) -> Tensor:
        return self.mean.new_zeros(*self.mean.shape, self.size) if self._root is None else self._root

    def variance_of(self, phi: Tensor) -> Tensor:
        return (
            torch.zeros_like(phi[..., 0, :]) if self.S is None else _QuadraticForm.apply(phi, self.S.to(phi))
        )

    def mean_of(self, phi: Tensor) -> Tensor:
        return (self.mean.to(phi).unsqueeze(-2) @ phi).squeeze(-2)

    def second_moment(self, W: Tensor) -> Tensor:
        mean_part = (W @ self.mean.to(W).unsqueeze(-1)).square().sum((-2, -1))
        return mean_part if self.S is None else mean_part + _QuadraticForm.apply(W.mT, self.S.to(W)).sum(-1)

    def spread(self, D: Tensor) -> Tensor:
        mean = D @ self.mean.to(D).unsqueeze(-1)
        return mean if self._root is None else torch.cat([D @ self._root.to(D), mean], -1)

    def log_det(self) -> Tensor:
        return self._log_det

    def trace(self) -> Tensor:
        return (
            torch.zeros_like(self._log_det) if self.S is None else self.S.diagonal(dim1=-2, dim2=-1).sum(-1)
        )

    def penalty(self) -> Tensor:
        return super().penalty() if self.is_gaussian else 0.5 * self.mean.square().sum(-1)

    def penalty_against(self, V: Tensor, half_log_det_prior: Tensor) -> Tensor:
        return (
            super().penalty_against(V, half_log_det_prior)
            if self.is_gaussian
            else 0.5 * self.second_moment(V)
        )


class Optimum(NamedTuple):
    """N(mean, root rootᵀ), root lower triangular."""

    mean: Tensor
    root: Tensor

    def as_q(self, like: Q) -> OptimalQ:
        """Constants of the same family as a model's q, block by block: full, mean field, a point."""
        if isinstance(like, PointQ):
            return OptimalQ(self.mean, None, torch.zeros_like(self.mean[..., 0]), like)
        root = self.root.new_zeros(self.root.shape)
        log_det = torch.zeros_like(self.mean[..., 0])
        for block, s in like.parts():
            own = self.root[..., s, s]
            if isinstance(block, PointQ):  # no covariance, and no entropy in the sum of penalties
                log_det = log_det - block.size
                continue
            if isinstance(block, DiagonalQ):
                std = torch.cholesky_inverse(own).diagonal(dim1=-2, dim2=-1).rsqrt()
                own = torch.diag_embed(std)
            root[..., s, s] = own
            if isinstance(block, ShrunkQ):
                log_det = log_det + block.log_det()
            else:
                log_det = log_det + 2 * own.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return OptimalQ(self.mean, root, log_det, like)
