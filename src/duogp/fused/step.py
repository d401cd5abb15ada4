"""The type of a fused step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from duogp.bases.marginals import Moments, Penalties
from duogp.numerics.factorisation import Numerics

#: (x [R, 1, n, d], numerics) → moments of f at the rows, of the type that the objective reads, and penalties.
Step = Callable[[Tensor, Numerics], tuple[Moments, Penalties]]
