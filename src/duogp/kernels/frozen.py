"""k(Z, x) of a stationary kernel with fixed points and lengthscales, for prediction.

Half of the work of `Profile` depends on Z alone and is done once: a prediction of a million rows has tens of
pieces, and on a GPU each piece would launch a hundred small operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.kernels.base import Kernel
from duogp.kernels.distance import within_reach
from duogp.kernels.profiles import Profile, right
from duogp.kernels.stationary import Stationary, profile_of

#: The largest ‖z − centre‖² in squared lengthscales for which r² of coinciding points has an error of about
#: 1e-9, so that a wrong sign of r² does not show in exp(−r²/2). A row is either as near to the centre, or so
#: far from every point that its r² is accurate.
NEAR = 1e5


@dataclass(frozen=True, eq=False)
class FrozenColumns:
    """x ↦ k(Z, x)."""

    profile: Profile
    centre: Tensor  # [..., 1, d]
    inverse: Tensor  # of the lengthscale, [..., 1, d]
    left: Tensor  # [..., M, d + 2]
    sound: bool  # whether a wrong sign of r² is too small to matter

    @classmethod
    @torch.no_grad()
    def of(cls, kernel: Kernel, points: Tensor) -> FrozenColumns | None:
        """The columns of a kernel with a profile at points Z [..., M, d]; None for other kernels."""
        profile = profile_of(kernel)
        if profile is None or points.shape[-1] != getattr(kernel, "dims", None) or not points.numel():
            return None
        assert isinstance(kernel, Stationary)
        points = points.double()
        centre = points.mean(-2, keepdim=True)
        inverse = kernel.lengthscale().double()[..., None, :].reciprocal()
        scaled = within_reach((points - centre) * inverse)
        sound = bool(scaled.square().sum(-1).max() <= NEAR)
        return cls(profile, centre, inverse, profile.left(scaled), sound)

    def __call__(self, x: Tensor) -> Tensor:
        """k(Z, x), x [..., n, d] in float64: [..., M, n]."""
        q = self.left @ right(within_reach((x - self.centre) * self.inverse)).mT
        return self.profile.value(q, sound=self.sound)
