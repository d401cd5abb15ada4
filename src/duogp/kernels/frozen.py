"""k(Z, x) of a stationary kernel whose points and lengthscales will not change again, for prediction.

Half of what `Profile` does concerns Z alone and is done here once: a prediction of a million rows makes tens
of pieces, and on a GPU each piece is a hundred small operations that the host has to start.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.kernels.base import Kernel
from duogp.kernels.profiles import Profile, right
from duogp.kernels.stationary import Stationary, profile_of

#: Points so far from their centre, in squared lengthscales, that r² of what coincides with them may have an
#: error of some 1e-9: up to here a wrong sign of r² goes unnoticed in exp(−r²/2). A row is either as near to
#: the centre, or so far from every point that its r² is right.
NEAR = 1e5


@dataclass(frozen=True, eq=False)
class FrozenColumns:
    profile: Profile
    centre: Tensor  # [..., 1, d]
    inverse: Tensor  # of the lengthscale, [..., 1, d]
    left: Tensor  # [..., M, d + 2]
    sound: bool  # whether a wrong sign of r² is too small to matter

    @classmethod
    @torch.no_grad()
    def of(cls, kernel: Kernel, points: Tensor) -> FrozenColumns | None:
        """None where the kernel is of another kind."""
        profile = profile_of(kernel)
        if profile is None or points.shape[-1] != getattr(kernel, "dims", None) or not points.numel():
            return None
        assert isinstance(kernel, Stationary)
        points = points.double()
        centre, inverse = (
            points.mean(-2, keepdim=True),
            kernel.lengthscale().double()[..., None, :].reciprocal(),
        )
        scaled = (points - centre) * inverse
        sound = bool(scaled.square().sum(-1).max() <= NEAR)
        return cls(profile, centre, inverse, profile.left(scaled), sound)

    def __call__(self, x: Tensor) -> Tensor:
        """k(Z, x), x [..., n, d] in float64: [..., M, n]."""
        q = self.left @ right((x - self.centre) * self.inverse).mT
        return self.profile.value(q, sound=self.sound)
