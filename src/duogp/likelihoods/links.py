"""From a latent function to the parameter of a density, finite for every finite f."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Link = Literal["probit", "logit"]

#: Above e^30 ≈ 10¹³ the exponential goes on as its tangent: far beyond any rate, and float32 stays finite.
EXP_LIMIT = 30.0
#: A mean in the unit interval and its complement are no smaller than this, so that their logs are finite.
UNIT_FLOOR = 1e-30


def exponential(x: Tensor) -> Tensor:
    """eˣ, elementwise [...]; beyond `EXP_LIMIT` its tangent, convex and with a gradient."""
    return x.clamp(max=EXP_LIMIT).exp() * (1 + (x - EXP_LIMIT).clamp(min=0))


def unit_interval(f: Tensor, link: Link) -> tuple[Tensor, Tensor]:
    """m(f) in (0, 1) and 1 − m(f), which is small by itself and not by subtraction; each [...] as f."""
    squash = torch.special.ndtr if link == "probit" else torch.sigmoid
    return UNIT_FLOOR + squash(f), UNIT_FLOOR + squash(-f)


def check_link(link: str) -> None:
    """An error for a link that is neither probit nor logit."""
    if link not in ("probit", "logit"):
        raise ValueError(f"link must be 'probit' or 'logit', got {link!r}")
