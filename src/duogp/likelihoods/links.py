"""From a latent function to the parameter of a density, finite for every finite f."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Link = Literal["probit", "logit"]

#: Above e^30 ≈ 10¹³ the exponential goes on as its tangent: far beyond any rate, and float32 stays finite.
EXP_LIMIT = 30.0
#: How close to 0 and 1 a mean in the unit interval may come.
UNIT_MARGIN = 1e-6


def exponential(x: Tensor) -> Tensor:
    """eˣ; beyond `EXP_LIMIT` its tangent, convex and with a gradient."""
    return x.clamp(max=EXP_LIMIT).exp() * (1 + (x - EXP_LIMIT).clamp(min=0))


def unit_interval(f: Tensor, link: Link) -> tuple[Tensor, Tensor]:
    """m(f) in (0, 1) and 1 − m(f), neither of them by subtraction."""
    squash = torch.special.ndtr if link == "probit" else torch.sigmoid
    return tuple(UNIT_MARGIN + (1 - 2 * UNIT_MARGIN) * squash(x) for x in (f, -f))  # type: ignore[return-value]


def check_link(link: str) -> None:
    if link not in ("probit", "logit"):
        raise ValueError(f"link must be 'probit' or 'logit', got {link!r}")
