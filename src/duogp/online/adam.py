"""Adam for parameters that grow, with steps that can be refused on the device.

Moments of new entries start at zero, and every entry corrects its moments for its own age: with one count for
all, as in torch, the first steps of new entries would be several times too long. A refused step (`ok` false,
a tensor, so that the host does not wait) changes neither parameters nor moments. `duogp.training.adam` has
neither: it moves parameters of fixed shape by torch's fused kernel, which takes one count for all entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from duogp.online.growth import lead_with
from duogp.training.adam import BETAS, EPSILON


class EntryMoments(NamedTuple):
    """Moments of the gradients of one parameter, entry by entry."""

    first: Tensor
    second: Tensor
    age: Tensor  # steps taken: one number, or one for each entry once the parameter has grown


class GrowingAdam:
    """Adam whose parameters may be replaced by larger ones between steps."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.moments = {
            p: EntryMoments(torch.zeros_like(p), torch.zeros_like(p), p.new_zeros(())) for p in parameters
        }

    def state(self) -> list[Tensor]:
        """All moments, for snapshots."""
        return [t for moments in self.moments.values() for t in moments]

    @torch.no_grad()
    def step(self, rate: float, ok: Tensor) -> None:
        """Move every parameter that has a gradient, unless ``ok`` is false."""
        b1, b2 = BETAS
        for p, (first, second, age) in self.moments.items():
            if (g := p.grad) is None:
                continue
            m = torch.lerp(first, g, 1 - b1)
            v = torch.lerp(second, g.square(), 1 - b2)
            t = age + 1
            change = rate * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + EPSILON)
            for now, then in ((p, p - change), (first, m), (second, v), (age, t)):
                now.copy_(torch.where(ok, then, now))

    @torch.no_grad()
    def inherit(self, heirs: Sequence[tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Grown parameters take over the moments of those they replace; new entries start at zero."""
        known = {id(p): moments for p, moments in self.moments.items()}
        replaced = {id(old) for old, _ in heirs}
        self.moments = {p: moments for p, moments in self.moments.items() if id(p) not in replaced}
        for old, new in heirs:
            if (moments := known.get(id(old))) is None:  # not a parameter of this optimiser
                continue
            first, second, age = moments
            none = torch.zeros_like(new)
            age = age.clone() if new.shape == old.shape else lead_with(age.expand_as(old), none)
            self.moments[new] = EntryMoments(lead_with(first, none), lead_with(second, none), age)
