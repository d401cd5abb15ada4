"""The training step of `Hybrid`, whose mean has plain coefficients: φ_γa as one more column of φ.

With c = k(β, γ)a beside the columns k(β, x), one factorisation whitens both, and the projection on the last
column gives φᵀφ_γa and ‖φ_γa‖² (symbols as in `bases.hybrid`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.bases.hybrid import Hybrid
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads
from duogp.fused.projections import PartsAndLastColumn
from duogp.fused.step import Step
from duogp.kernels.stationary import split_variance
from duogp.numerics.factorisation import Numerics, project
from duogp.variational import CholeskyQ

#: Columns come in multiples of this: products of matrices whose rows begin anywhere are slow on a GPU.
ALIGNED = 8


def find(basis: Hybrid, x: Tensor, reads: Reads, with_omega: bool) -> Step | None:
    """The step for a free S and one latent function."""
    q = basis.q
    alone = basis.a.shape[:-1] == basis.inducing.shape[:-2] == (x.shape[0], 1)
    if type(q) is not CholeskyQ or not alone:
        return None

    def step(x: Tensor, numerics: Numerics) -> tuple[Moments, Penalties]:
        z, gamma, a = basis.inducing, basis.mean_inducing, basis.a
        base, own = split_variance(basis.kernel)
        variance = x.new_ones(1) if own is None else own.to(x.dtype)
        n = x.shape[-2]
        K, _ = numerics.jittered(base(z.double(), z.double()))
        column = project(base(gamma, z), a).unsqueeze(-1)  # whitened in this precision too
        k, root = base(z, x), q.root()
        padding = column.new_zeros(*column.shape[:-1], -(n + 1) % ALIGNED)
        *parts, info = PartsAndLastColumn()(K, torch.cat([k, padding, column], -1), q.mean, root)
        numerics.note(info)
        (mu, lifted), (norm, _), (explained, _), (along, length) = (
            (part[..., :n], part[..., -1:]) for part in parts
        )
        length = length.squeeze(-1).double()  # ‖φ_γa‖² of the unit kernel
        mean = project(base(gamma, x), a)
        quadratic = basis.quadratic(base, gamma.double(), a.double()) - length
        # φ and φ_γa grow with the root of the kernel's variance.
        kl = q.penalty(root) + 0.5 * variance * quadratic
        if basis.orthogonal:
            mean = mean - along
        else:
            kl = kl + variance.sqrt() * lifted.squeeze(-1) + 0.5 * variance * length
        variance = variance.unsqueeze(-1)
        mean = variance.sqrt() * mu + variance * mean
        f = Marginals(mean, variance * (base.diag(x) - norm), variance * explained)
        return f, Penalties(kl.sum(-1))

    return step
