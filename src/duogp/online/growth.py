"""Bases that grow: each operation takes a basis and returns a larger one with the same posterior.

Appending inducing points Z₂ to Z₁ leaves the leading block of the Cholesky factor alone, so in whitened
coordinates the old features are the first of the new ones, and multiplying q by the prior of the rest changes
nothing (up to jitter, where the prior variance differs from point to point):

    coupled           m ← [m; 0]      L_S ← blockdiag(L_S, I)
    subspace, β       S ← blockdiag(S, I), that is L₀ ← blockdiag(L₀, 0)
    subspace, α       a ← [a; 0]

The gradient of new columns of L₀ vanishes at zero, so they start at `SPARK` on the diagonal, which moves a
variance by about SPARK². While the bases are tied α is β; `free_mean` copies it, and from then on only α
grows (Cheng and Boots 2017, algorithm 1; MATH §6.4).
"""

from __future__ import annotations

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

#: Where new columns of L₀ start.
SPARK = 1e-5
#: Variance, relative to the prior's, that the points of now must leave to a row worth adding.
NOVELTY = 1e-6


class Grown(NamedTuple):
    """A larger basis, and which of its parameters take the place of which: old entries lead in each."""

    basis: Basis
    heirs: list[tuple[nn.Parameter, nn.Parameter]]  # (old, new)


def lead_with(old: Tensor, new: Tensor) -> Tensor:
    """``new`` with the entries of ``old`` as its leading block."""
    out = new.clone()
    out[tuple(slice(0, size) for size in old.shape)] = old
    return out


# -- coupled -------------------------------------------------------------------------------------------------


@torch.no_grad()
def append_coupled(basis: Coupled, points: Tensor) -> Grown:
    """Further inducing points [R, 1, m, d], with q the prior there."""
    q = basis.q
    if not isinstance(q, CholeskyQ):
        raise TypeError(f"a coupled basis grows with a full q(u), got {type(q).__name__}")
    larger = CholeskyQ(q.size + points.shape[-2], q.mean.shape[:-1]).to(q.mean)
    for old, new in ((q.mean, larger.mean), (q.raw_root, larger.raw_root)):
        new.copy_(lead_with(old, new))
    out = Coupled(basis.kernel, _joined(basis.inducing, points), larger)
    return _grown(out, basis, ("inducing", "q.mean", "q.raw_root"))


# -- subspace ------------------------------------------------------------------------------------------------


@torch.no_grad()
def tie(basis: Subspace, columns: int | None = None) -> Subspace:
    """A subspace basis at the prior with α = β."""
    none = basis.inducing[..., :0, :].detach().clone()
    out = _subspace(basis, none, basis.inducing.detach().clone(), columns, shared=True)
    out.q.raw_root.copy_(_sparked(basis.q.raw_root, basis.q.size))
    return out


@torch.no_grad()
def append_tied(
    basis: Subspace, points: Tensor, numerics: Numerics | None = None, columns: int | None = None
) -> Grown:
    """Further points for mean and covariance at once, while α = β."""
    if not (basis.shared and basis.mean_inducing.shape[-2] == 0):
        raise ValueError("the bases of mean and covariance are no longer tied: only the mean grows")
    out = _subspace(basis, basis.mean_inducing, _joined(basis.inducing, points), columns, shared=True)
    out.q.raw_root.copy_(_sparked(basis.q.raw_root, out.q.size))
    _keep_mean(basis, out, numerics)
    return _grown(out, basis, ("inducing", "mean_inducing", "q.a0", "q.raw_root"))


@torch.no_grad()
def free_mean(basis: Subspace, columns: int | None = None) -> Grown:
    """α becomes a copy of β that goes its own way."""
    if not basis.shared:
        raise ValueError("the mean has its own points already")
    out = _subspace(basis, basis.mean_points.detach().clone(), basis.inducing, columns, shared=False)
    out.q.a0.copy_(basis.q.a0)
    out.q.raw_root.copy_(basis.q.raw_root)
    grown = _grown(out, basis, ("inducing", "q.a0", "q.raw_root"))
    out.mean_inducing.requires_grad_(basis.inducing.requires_grad)
    # What the optimiser has learned of the tied points holds for both copies.
    return grown._replace(heirs=[*grown.heirs, (basis.inducing, out.mean_inducing)])


@torch.no_grad()
def append_mean(
    basis: Subspace, points: Tensor, numerics: Numerics | None = None, columns: int | None = None
) -> Grown:
    """Further points for the mean alone, with coefficients of zero."""
    if basis.shared:
        raise ValueError("the mean shares the points of the covariance: free it first")
    out = _subspace(basis, _joined(basis.mean_inducing, points), basis.inducing, columns, shared=False)
    out.q.raw_root.copy_(basis.q.raw_root)
    _keep_mean(basis, out, numerics)
    return _grown(out, basis, ("inducing", "mean_inducing", "q.a0", "q.raw_root"))


def _subspace(basis: Subspace, mean: Tensor, beta: Tensor, columns: int | None, *, shared: bool) -> Subspace:
    out = Subspace(
        basis.kernel,
        mean.detach(),
        beta.detach(),
        basis.q.a0.shape[:-1],
        preconditioner=basis.preconditioner,
        columns=columns,
        shared=shared,
        prior=basis.prior,
    )
    out.q.to(basis.q.a0)
    if out.columns_index is not None:
        out.columns_index = out.columns_index.to(beta.device)
    return out


def _sparked(root: Tensor, size: int) -> Tensor:
    """L₀ as the leading block of one of the given size, the rest of the diagonal just off zero."""
    eye = torch.eye(size, dtype=root.dtype, device=root.device)
    return lead_with(root.detach(), (SPARK * eye).expand(*root.shape[:-2], size, size))


def _keep_mean(basis: Subspace, out: Subspace, numerics: Numerics | None) -> None:
    """a ← [a; 0]. The Nyström preconditioner sees all points, so there a₀ is solved for again."""
    out.q.a0.copy_(lead_with(basis.q.a0, torch.zeros_like(out.q.a0)))
    if basis.preconditioner == "nystrom":
        if numerics is None:
            raise ValueError("growing under the Nyström preconditioner needs numerics")
        a = basis.factors(numerics).a
        root = out.q.raw_root.clone()
        factors = out.factors(numerics)
        eye = torch.eye(out.q.size, dtype=a.dtype, device=a.device).expand_as(root)
        out.set_(factors, lead_with(a, torch.zeros_like(factors.a)), eye)
        out.q.raw_root.copy_(root)


def _joined(points: Tensor, more: Tensor) -> Tensor:
    return torch.cat([points.detach(), more.to(points)], -2)


def _grown(out: Basis, basis: Basis, names: tuple[str, ...]) -> Grown:
    heirs = []
    for name in names:
        old, new = basis.get_parameter(name), out.get_parameter(name)
        new.requires_grad_(old.requires_grad)
        heirs.append((old, new))
    out.train(basis.training)
    return Grown(out, heirs)


# -- which rows ----------------------------------------------------------------------------------------------


@torch.no_grad()
def novel_rows(
    kernel: Kernel, points: Tensor, x: Tensor, count: int, jitter: float = NOVELTY
) -> NDArray[np.intp]:
    """Up to ``count`` rows of x [n, d], in their order, of which the points [R, 1, M, D] do not know enough.

    A row is worth adding when, given the points and the rows taken before it, some latent function keeps
    more than `NOVELTY` of its prior variance there (and more than the jitter, which would account for it).
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
    """Up to ``count`` rows of x that no single point and no row before them stands for; cost linear in M.

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
    """[..., a, b] on the host, leading dimensions in one."""
    return values.flatten(0, -3).cpu().numpy()
