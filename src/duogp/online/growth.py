"""Growth of a basis: each operation returns a larger basis with the same posterior.

Appending inducing points Z₂ to Z₁ leaves the leading block of the Cholesky factor as it is, so in whitened
coordinates the old features are the first of the new ones, and multiplying q by the prior of the rest changes
nothing (up to jitter, where the prior variance differs from point to point):

    coupled           m ← [m; 0]      L_S ← blockdiag(L_S, I)
    subspace, β       S ← blockdiag(S, I), that is L₀ ← blockdiag(L₀, 0)
    subspace, α       a ← [a; 0]

The gradient of new columns of L₀ vanishes at zero, so they start at `SPARK` on the diagonal, which moves a
variance by about SPARK². While the bases are tied α is β; `free_mean` copies it, and from then on only α
grows (Cheng and Boots 2017, algorithm 1; MATH §6.4).

`growing_block` and `tie` are the two functions that differ from basis to basis: register a basis there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatch
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from duogp.bases import Coupled, Subspace
from duogp.bases.base import Basis
from duogp.kernels import Kernel
from duogp.numerics.factorisation import Numerics
from duogp.variational import CholeskyQ

#: Diagonal of new columns of L₀.
SPARK = 1e-5
#: Least conditional variance of a row worth adding, given the points, relative to its prior variance.
NOVELTY = 1e-6


class Grown(NamedTuple):
    """A larger basis, and pairs of its parameters with those they replace: old entries lead in each."""

    basis: Basis
    heirs: list[tuple[nn.Parameter, nn.Parameter]]  # (old, new)


class Block(NamedTuple):
    """The block of points that grows next, and its way of growing."""

    points: Tensor  # [R, 1, M, D], those so far
    limit: str  # the setting that holds its final size
    independent: bool  # whether it is factorised, so that distinct points are not enough
    append: Callable[[Tensor, Numerics], Grown]  # further points [R, 1, m, D]
    when_full: Callable[[], Grown] | None = None  # a change that lets another block grow


@singledispatch
def growing_block(basis: Basis, columns: int | None = None) -> Block:
    """The block of a basis that grows next; ``columns`` of k(α, α) that a step of the grown basis sees."""
    raise TypeError(f"a basis that grows is Coupled or Subspace, got {type(basis).__name__}")


@growing_block.register(Coupled)
def _(basis: Coupled, columns: int | None = None) -> Block:
    return Block(basis.inducing, "num_inducing", True, lambda points, _: append_coupled(basis, points))


@growing_block.register(Subspace)
def _(basis: Subspace, columns: int | None = None) -> Block:
    if basis.shared:
        append = partial(append_tied, basis, columns=columns)
        return Block(basis.inducing, "num_inducing", True, append, lambda: free_mean(basis, columns))
    return Block(basis.mean_inducing, "num_extra", False, partial(append_mean, basis, columns=columns))


def lead_with(old: Tensor, new: Tensor) -> Tensor:
    """``new`` [...] with the entries of ``old`` as its leading block."""
    out = new.clone()
    out[tuple(slice(0, size) for size in old.shape)] = old
    return out


@torch.no_grad()
def append_coupled(basis: Coupled, points: Tensor) -> Grown:
    """The basis with further inducing points [R, 1, m, d], and q the prior there."""
    q = basis.q
    if not isinstance(q, CholeskyQ):
        raise TypeError(f"a coupled basis grows with a full q(u), got {type(q).__name__}")
    larger = CholeskyQ(q.size + points.shape[-2], q.mean.shape[:-1]).to(q.mean)
    for old, new in ((q.mean, larger.mean), (q.raw_root, larger.raw_root)):
        new.copy_(lead_with(old, new))
    out = Coupled(basis.kernel, _joined(basis.inducing, points), larger)
    return _grown(out, basis, ("inducing", "q.mean", "q.raw_root"))


@singledispatch
@torch.no_grad()
def tie(basis: Basis, columns: int | None = None) -> Basis:
    """A basis at the prior whose mean and covariance have the same points: α = β. A coupled one has them."""
    return basis


@tie.register(Subspace)
@torch.no_grad()
def _(basis: Subspace, columns: int | None = None) -> Subspace:
    none = basis.inducing[..., :0, :].detach().clone()
    out = _subspace(basis, none, basis.inducing.detach().clone(), columns, shared=True)
    out.q.raw_root.copy_(basis.q.raw_root)
    return out


def append_tied(
    basis: Subspace, points: Tensor, numerics: Numerics | None = None, columns: int | None = None
) -> Grown:
    """The basis with further points [..., k, d] for mean and covariance at once, while α = β."""
    if not (basis.shared and basis.mean_inducing.shape[-2] == 0):
        raise ValueError("the bases of mean and covariance are no longer tied: only the mean grows")
    out = _subspace(basis, basis.mean_inducing, _joined(basis.inducing, points), columns, shared=True)
    return _continued(basis, out, numerics)


@torch.no_grad()
def free_mean(basis: Subspace, columns: int | None = None) -> Grown:
    """The basis with α a copy of β, optimised on its own."""
    if not basis.shared:
        raise ValueError("the mean has its own points already")
    out = _subspace(basis, basis.mean_points.detach().clone(), basis.inducing, columns, shared=False)
    # The optimiser's moments of the tied points hold for both copies.
    return _continued(basis, out, None, mean_inducing="inducing")


def append_mean(
    basis: Subspace, points: Tensor, numerics: Numerics | None = None, columns: int | None = None
) -> Grown:
    """The basis with further points [..., k, d] for the mean alone, with coefficients of zero."""
    if basis.shared:
        raise ValueError("the mean shares the points of the covariance: free it first")
    out = _subspace(basis, _joined(basis.mean_inducing, points), basis.inducing, columns, shared=False)
    return _continued(basis, out, numerics)


def _subspace(basis: Subspace, mean: Tensor, beta: Tensor, columns: int | None, *, shared: bool) -> Subspace:
    """A subspace basis of other points, at its prior."""
    return basis.rebuilt(mean, beta, columns, shared=shared, prior=basis.prior)


@torch.no_grad()
def _continued(basis: Subspace, out: Subspace, numerics: Numerics | None, **old_names: str) -> Grown:
    """``out`` at the posterior of ``basis``, whose points lead: a ← [a; 0], L₀ ← blockdiag(L₀, SPARK I).

    The Nyström preconditioner depends on all points, so there a₀ is solved for again.
    """
    spark = SPARK * torch.eye(out.q.size, dtype=basis.q.a0.dtype, device=basis.q.a0.device)
    out.q.raw_root.copy_(lead_with(basis.q.raw_root, spark.expand_as(out.q.raw_root)))
    out.q.a0.copy_(lead_with(basis.q.a0, torch.zeros_like(out.q.a0)))
    if basis.preconditioner == "nystrom" and out.q.a0.shape != basis.q.a0.shape:
        if numerics is None:
            raise ValueError("growing under the Nyström preconditioner needs numerics")
        a = basis.factors(numerics).a
        root = out.q.raw_root.clone()
        factors = out.factors(numerics)
        eye = torch.eye(out.q.size, dtype=a.dtype, device=a.device).expand_as(root)
        out.set_(factors, lead_with(a, torch.zeros_like(factors.a)), eye)
        out.q.raw_root.copy_(root)
    return _grown(out, basis, ("inducing", "mean_inducing", "q.a0", "q.raw_root"), **old_names)


def _joined(points: Tensor, more: Tensor) -> Tensor:
    return torch.cat([points.detach(), more.to(points)], -2)


def _grown(out: Basis, basis: Basis, names: tuple[str, ...], **old_names: str) -> Grown:
    """``out`` with the named parameters as heirs of those of ``basis``, by the same name or an old one."""
    heirs = []
    for name in names:
        old, new = basis.get_parameter(old_names.get(name, name)), out.get_parameter(name)
        new.requires_grad_(old.requires_grad)
        heirs.append((old, new))
    out.train(basis.training)
    return Grown(out, heirs)


@torch.no_grad()
def novel_rows(
    kernel: Kernel, points: Tensor, x: Tensor, count: int, jitter: float = NOVELTY
) -> NDArray[np.intp]:
    """Up to ``count`` rows of x [n, d], in their order, that are not determined by the points [R, 1, M, D].

    A row is taken when, given the points and the rows taken before it, some latent function has more than
    `NOVELTY` of its prior variance left there (and more than the jitter, which alone could account for it).
    """
    x, points = x.double()[None, None], points.double()
    prior = kernel.diag(x)
    K = kernel(points, points)
    scale = jitter * K.diagonal(dim1=-2, dim2=-1).mean(-1)
    K = K + scale[..., None, None] * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    L = torch.linalg.cholesky_ex(K)[0]
    phi = torch.linalg.solve_triangular(L, kernel(points, x), upper=False)
    C = kernel(x, x) - phi.mT @ phi
    C = C / (prior.sqrt().unsqueeze(-1) * prior.sqrt().unsqueeze(-2))
    return _independent(_flat(C), count, max(NOVELTY, 2 * jitter))


@torch.no_grad()
def distinct_rows(kernel: Kernel, points: Tensor, x: Tensor, count: int) -> NDArray[np.intp]:
    """Up to ``count`` rows of x that differ from every point and every row taken before; cost linear in M.

    Enough where nothing is factorised: mean points need to differ, not to be independent.
    """
    x, points = x.double()[None, None], points.double()
    root = kernel.diag(x).sqrt().unsqueeze(-2)
    near = (kernel(points, x) / (kernel.diag(points).sqrt().unsqueeze(-1) * root)).square()
    known = _flat(near.amax(-2, keepdim=True))[:, 0]  # [latents, n]
    among = _flat((kernel(x, x) / (root.mT * root)).square())
    taken: list[int] = []
    for i in range(known.shape[-1]):
        if len(taken) == count:
            break
        if (known[:, i] < 1 - NOVELTY).any():
            taken.append(i)
            known = np.maximum(known, among[:, i])
    return np.array(taken, dtype=np.intp)


def _independent(C: NDArray[np.float64], count: int, threshold: float) -> NDArray[np.intp]:
    """Rows taken one by one from conditional covariances [latents, n, n], by a partial Cholesky."""
    variance = np.diagonal(C, axis1=-2, axis2=-1).copy()
    factors: list[NDArray[np.float64]] = []
    taken: list[int] = []
    for i in range(C.shape[-1]):
        if len(taken) == count:
            break
        if not (variance[:, i] > threshold).any():
            continue
        column = C[:, :, i].copy()
        for f in factors:
            column -= f * f[:, i : i + 1]
        pivot = variance[:, i : i + 1]
        f = np.where(pivot > threshold, column / np.sqrt(np.maximum(pivot, threshold)), 0.0)
        variance -= f**2
        factors.append(f)
        taken.append(i)
    return np.array(taken, dtype=np.intp)


def _flat(values: Tensor) -> NDArray[np.float64]:
    """[..., a, b] as an array [latents, a, b] on the host."""
    return values.flatten(0, -3).cpu().numpy()
