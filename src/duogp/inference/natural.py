"""Natural gradients on q(u) = N(m, S), whatever the basis (MATH §1.3, §3.2, §11 A4, B10).

With natural parameters S⁻¹m, −½S⁻¹ and gradients g_m, g_S of the loss (the negative objective, summed over
the data), a step of size ρ is

    S⁻¹ ← S⁻¹ + 2ρ g_S,     S⁻¹m ← S⁻¹m − ρ (g_m − 2 g_S m)

exact in one step of size 1/β₁ for a Gaussian likelihood and a full batch. Where g_S can be negative definite
(the predictive objective) the precision would leave the positive cone; there the always-positive rule

    S⁻¹ ← ½ [S⁻¹ + (S⁻¹ + ρG) S (S⁻¹ + ρG)],  G = 2 g_S,     m ← m − ρ S g_m  (the new S)

has the same fixed points. A step that fails all the same is not taken, and the size is halved from then on:
decided on the device, without asking the host.

A mean that S does not belong to (that of the separate basis, of γ in ORTH) stays with Adam, or gets a rule of
its own: `duogp.inference.mean_rules`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.bases.base import Basis
from duogp.inference.mean_rules import JointMeans, make_mean_rule
from duogp.numerics.factorisation import lower_root_of_inverse, symmetrise
from duogp.numerics.triangles import inverse_of_lower
from duogp.variational import CholeskyQ


def covariance_gradient(root: Tensor, root_gradient: Tensor) -> Tensor:
    """g_S from that of a Cholesky factor R of S:  sym(R⁻ᵀ Φ(RᵀgR) R⁻¹), Φ = tril with halved diagonal.

    Each [..., M, M].
    """
    P = torch.tril(root.mT @ root_gradient)
    P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    inverse = inverse_of_lower(root)
    return symmetrise(inverse.mT @ P @ inverse)


class NaturalGradient:
    """Natural-gradient steps on the full-covariance blocks of q; everything else is left to Adam.

    `compute` reads the gradients before Adam moves anything, `write` puts the new values in place after it.
    """

    def __init__(
        self,
        basis: Basis,
        num_data: Tensor,
        rate: float,
        *,
        always_positive: bool = False,
        mean_rule: str = "adam",
        beta1: Tensor | None = None,
    ) -> None:
        self.blocks = [block for block, _ in basis.q.parts() if isinstance(block, CholeskyQ)]
        if not self.blocks:
            raise ValueError("natural gradients need a q(u) with a full covariance")
        beta1 = torch.ones_like(num_data) if beta1 is None else beta1
        self.mean_rule = make_mean_rule(mean_rule, basis, num_data, beta1)
        basis.keep_record = self.mean_rule is not None
        if isinstance(self.mean_rule, JointMeans):  # it moves the covariances too
            self.blocks = []
        self.basis = basis
        self.with_mean = basis.mean_shares_features and all(block.learns_mean for block in self.blocks)
        self.num_data = num_data
        self.always_positive = always_positive
        self.rate = torch.full_like(num_data, rate)  # ρ, on the device
        self.shrink = torch.ones_like(num_data)  # halved where a step left the positive cone
        self._new: list[tuple[Tensor, Tensor]] = []

    @property
    def parameters(self) -> list[Tensor]:
        """What only this optimiser moves."""
        out: list[Tensor] = []
        for block in self.blocks:
            out.append(block.raw_root)
            if self.with_mean and block.mean.shape[-1] == block.size:
                out.append(block.mean)
        return out + ([] if self.mean_rule is None else self.mean_rule.parameters)

    @property
    def state(self) -> list[Tensor]:
        """What a snapshot must hold beside the parameters."""
        return [self.shrink] + ([] if self.mean_rule is None else self.mean_rule.state)

    def set_rate(self, value: float) -> None:
        self.rate.fill_(value)

    @torch.no_grad()
    def compute(self) -> None:
        """The next (m, root) of every block, from gradients of the loss per datum."""
        rho = (self.rate * self.shrink)[:, None, None, None]
        scale = self.num_data[:, None, None, None]
        if self.mean_rule is not None:
            self.mean_rule.compute(self.rate * self.shrink)
        self._new = [self._block(block, rho, scale) for block in self.blocks]

    @torch.no_grad()
    def write(self) -> None:
        if self.mean_rule is not None:
            self.mean_rule.write()
            self.basis.recorded = None
        for block, (mean, root) in zip(self.blocks, self._new, strict=True):
            block.raw_root.copy_(root)
            if self.with_mean:
                block.mean[..., : block.size] = mean
        self._new = []

    def zero_grad(self) -> None:
        for block in self.blocks:
            block.raw_root.grad = None
            block.mean.grad = None
        for p in self.parameters:
            p.grad = None

    def _block(self, block: CholeskyQ, rho: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        assert block.raw_root.grad is not None
        size = block.size
        # A factor with a positive diagonal; columns of either sign give the same S.
        sign = block.raw_root.diagonal(dim1=-2, dim2=-1).sign().double().unsqueeze(-2)
        root = block.root().double() * sign
        g_S = scale * covariance_gradient(root, block.raw_root.grad.double() * sign)
        m = g_m = torch.zeros_like(root[..., :1])  # where the mean is none of S's business
        if self.with_mean:
            assert block.mean.grad is not None
            m = block.mean[..., :size].double().unsqueeze(-1)
            g_m = scale * block.mean.grad[..., :size].double().unsqueeze(-1)
        inverse = inverse_of_lower(root)
        P = inverse.mT @ inverse  # S⁻¹
        if self.always_positive:
            half = root.mT @ (P + 2 * rho * g_S)
            new_root, info = lower_root_of_inverse(0.5 * (P + half.mT @ half))
            new_m = m - rho * (new_root @ (new_root.mT @ g_m))
        else:
            new_root, info = lower_root_of_inverse(P + 2 * rho * g_S)
            new_m = new_root @ (new_root.mT @ (P @ m - rho * (g_m - 2 * g_S @ m)))
        finite = torch.isfinite(new_root.sum((-2, -1)) + new_m.sum((-2, -1)))
        bad = (info != 0) | ~finite
        # Only a step from sound gradients says something about its size.
        sound = torch.isfinite(g_S.sum((-2, -1)) + g_m.sum((-2, -1)))
        self.shrink.mul_(torch.where((bad & sound).flatten(1).any(1), 0.5, 1.0))
        keep = bad[..., None, None]
        new_m = torch.where(keep, m, new_m).squeeze(-1)
        return new_m.to(block.mean.dtype), torch.where(keep, root, new_root).to(block.raw_root.dtype)
