"""Gaussian processes on tensors: a fitted posterior, some of its outputs, and it given more observations.

Every Gaussian basis freezes into mean f̄(x) and covariance c(x, x′) = k(x, x′) − φ(x)ᵀφ(x′) + ψ(x)ᵀψ(x′)
(`bases.FrozenPosterior`). That is a Gaussian process in its own right, so new observations y* = f(X*) + ε
condition it like any other, whatever basis it came from:

    G Gᵀ = c(X*, X*) + Σ*      h(x) = G⁻¹ c(X*, x)
    mean f̄(x) + h(x)ᵀ G⁻¹ (y* − f̄(X*))      covariance c(x, x′) − h(x)ᵀ h(x′)

Hyperparameters, inducing points and q(u) stay; nothing is approximated beyond them. The covariance does not
depend on y*, so many fantasies y* share one factorisation. A sample path is conditioned by Matheron's rule
with the same factor. Everything here is float64; x is in the user's units, f in the scaled ones of the fit;
batches *b come first:

    x [*b, q, d]    mean [*b, latent, q]    covariance [*b, latent, q, q′]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from duogp.bases import FrozenPosterior, clamp_variance
from duogp.numerics.factorisation import jittered_root, project

#: Added to a covariance that is conditioned on, relative to its prior: the rounding of c.
ROUNDING = 1e-10

#: Functions drawn from a process: x [*b, q, d] ↦ [num, *b, latent, q].
Draws = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Points:
    """Rows with their mean and the features that their covariance is computed from."""

    x: Tensor  # [*b, q, d]
    mean: Tensor  # [*b, latent, q]
    features: tuple[Tensor, ...]  # each [*b, latent, r, q]
    inner: Points | None = None  # the same rows under the process that this one is made from
    each: tuple[Points, ...] = ()  # under every process of a stack


class Process(ABC):
    """A Gaussian process over several latent functions."""

    #: of the process itself: fantasies, batches of observations
    batch_shape: torch.Size = torch.Size()

    @abstractmethod
    def at(self, x: Tensor) -> Points:
        """Rows [*b, q, d] with their mean and features."""

    @abstractmethod
    def covariance(self, a: Points, b: Points) -> Tensor:
        """c(a, b): [*b, latent, qa, qb]."""

    @abstractmethod
    def prior_variance(self, x: Tensor) -> Tensor:
        """k(x, x), the scale of rounding errors: [*b, latent, q]."""

    @abstractmethod
    def sample_paths(self, num: int, generator: torch.Generator, num_features: int = 1024) -> Draws:
        """``num`` functions drawn from the process."""

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of f(x); variances are floored at rounding, their gradients are not.

        x [*b, q, d] → [*b, latent, q] and [*b, latent, q, q].
        """
        points = self.at(x)
        covariance = self.covariance(points, points)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        floor = clamp_variance(diagonal, self.prior_variance(x)) - diagonal
        return points.mean, covariance + torch.diag_embed(floor)


class FittedProcess(Process):
    """The posterior of a fitted model: its `FrozenPosterior`, its prior mean, the scaling of its inputs."""

    def __init__(self, form: FrozenPosterior, mean: nn.Module, scaled: Callable[[Tensor], Tensor]) -> None:
        self.form, self.mean, self.scaled = form, mean, scaled

    def at(self, x: Tensor) -> Points:
        """Rows with their features; their x is the scaled one."""
        form, x = self.form, self.scaled(x)
        rows = x.reshape(1, 1, -1, x.shape[-1])  # all rows in one product, whatever their batches
        k = {p: p(rows) for p in {form.mean_probe, form.residual_probe, form.explained_probe}}
        mean = project(k[form.mean_probe], form.mean_weights) + self.mean(rows)
        phi = form.residual_root @ k[form.residual_probe]
        psi = form.explained_root @ k[form.explained_probe]
        mean, phi, psi = (_in_batches(part[0], x, 0) for part in (mean, phi, psi))
        return Points(x, mean, (phi, psi))

    def covariance(self, a: Points, b: Points) -> Tensor:
        # A leading dimension of one, so that the parameters' [1, latent] meets a batch dimension.
        prior = self.form.prior(a.x[None].unsqueeze(-3), b.x[None].unsqueeze(-3)).squeeze(0)
        (phi_a, psi_a), (phi_b, psi_b) = a.features, b.features
        return prior - phi_a.mT @ phi_b + psi_a.mT @ psi_b

    def prior_variance(self, x: Tensor) -> Tensor:
        return self.form.prior.diag(self.scaled(x)[None].unsqueeze(-3)).squeeze(0)

    def sample_paths(self, num: int, generator: torch.Generator, num_features: int = 1024) -> Draws:
        with torch.no_grad():
            draw = self.form.sample_paths(num, generator, num_features)

        def path(x: Tensor) -> Tensor:
            x = self.scaled(x)
            rows = x.reshape(1, 1, -1, x.shape[-1])
            return _in_batches(draw(rows)[:, 0] + self.mean(rows), x, 1)

        return path


class Selected(Process):
    """Some of the latent functions."""

    def __init__(self, base: Process, index: Sequence[int]) -> None:
        self.base, self.index = base, list(index)
        self.batch_shape = base.batch_shape

    def at(self, x: Tensor) -> Points:
        inner = self.base.at(x)
        return Points(x, inner.mean[..., self.index, :], (), inner)

    def covariance(self, a: Points, b: Points) -> Tensor:
        assert a.inner is not None and b.inner is not None
        of_all = self.base.covariance(a.inner, b.inner)
        if of_all.shape[-3] == 1:  # one kernel for all
            return of_all.expand(*of_all.shape[:-3], len(self.index), *of_all.shape[-2:])
        return of_all[..., self.index, :, :]

    def prior_variance(self, x: Tensor) -> Tensor:
        prior = self.base.prior_variance(x)
        return prior if prior.shape[-2] == 1 else prior[..., self.index, :]

    def sample_paths(self, num: int, generator: torch.Generator, num_features: int = 1024) -> Draws:
        path = self.base.sample_paths(num, generator, num_features)
        return lambda x: path(x)[..., self.index, :]


class Stacked(Process):
    """Processes of equal shape, one for each index of a batch: x broadcasts to [*b′, *batch, q, d]."""

    def __init__(self, processes: Sequence[Process], batch_shape: torch.Size) -> None:
        self.processes, self.batch_shape = list(processes), batch_shape

    def at(self, x: Tensor) -> Points:
        x = self._spread(x)
        each = tuple(p.at(rows) for p, rows in zip(self.processes, self._parts(x), strict=True))
        return Points(x, self._stack([points.mean for points in each], x), (), each=each)

    def covariance(self, a: Points, b: Points) -> Tensor:
        pairs = zip(self.processes, a.each, b.each, strict=True)
        parts = torch.broadcast_tensors(*(process.covariance(c, d) for process, c, d in pairs))
        lead = parts[0].dim() - 3
        return torch.stack(parts, lead).unflatten(lead, self.batch_shape)

    def prior_variance(self, x: Tensor) -> Tensor:
        x = self._spread(x)
        each = zip(self.processes, self._parts(x), strict=True)
        return self._stack([process.prior_variance(rows) for process, rows in each], x)

    def sample_paths(self, num: int, generator: torch.Generator, num_features: int = 1024) -> Draws:
        paths = [process.sample_paths(num, generator, num_features) for process in self.processes]

        def path(x: Tensor) -> Tensor:
            x = self._spread(x)
            each = zip(paths, self._parts(x), strict=True)
            return self._stack([draw(rows) for draw, rows in each], x, 1)

        return path

    def _spread(self, x: Tensor) -> Tensor:
        """x with the dimensions of the batch."""
        return x.expand(*torch.broadcast_shapes(x.shape[:-2], self.batch_shape), *x.shape[-2:])

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The rows [*b′, q, d] of every process."""
        lead = x.dim() - 2 - len(self.batch_shape)
        return x.flatten(lead, -3).unbind(lead)

    def _stack(self, parts: Sequence[Tensor], x: Tensor, before: int = 0) -> Tensor:
        """Parts [..., *b′, latent, q] as [..., *b′, *batch, latent, q]; ``before``: dimensions before b′."""
        lead = before + x.dim() - 2 - len(self.batch_shape)
        return torch.stack(list(parts), lead).unflatten(lead, self.batch_shape)


class Conditioned(Process):
    """A process after y [*b′, latent, n] was observed at x [*b, n, d] with noise variances [..., latent, n].

    *b must broadcast to *b′: fantasies y of one x share its factorisation. Gradients flow to x and to y.
    """

    def __init__(self, base: Process, x: Tensor, y: Tensor, noise: Tensor) -> None:
        self.base, self.x = base, x
        self.points = base.at(x)
        covariance = base.covariance(self.points, self.points)
        self.noise = noise.expand(*covariance.shape[:-3], *y.shape[-2:])
        rounding = ROUNDING * base.prior_variance(x)
        noisy = covariance + torch.diag_embed(self.noise + rounding)
        scale = noisy.diagonal(dim1=-2, dim2=-1).detach().mean(-1)
        failure = "the new observations cannot be conditioned on: their covariance is singular"
        self.root = jittered_root(noisy, scale, first=0.0, last=1e-3, failure=failure)
        innovation = y - self.points.mean
        self.target = y
        self.white = torch.linalg.solve_triangular(self.root, innovation.unsqueeze(-1), upper=False)
        self.batch_shape = innovation.shape[:-2]

    def at(self, x: Tensor) -> Points:
        inner = self.base.at(x)
        cross = self.base.covariance(self.points, inner)
        h = torch.linalg.solve_triangular(self.root, cross, upper=False)
        return Points(x, inner.mean + (h.mT @ self.white).squeeze(-1), (h,), inner)

    def covariance(self, a: Points, b: Points) -> Tensor:
        assert a.inner is not None and b.inner is not None
        return self.base.covariance(a.inner, b.inner) - a.features[0].mT @ b.features[0]

    def prior_variance(self, x: Tensor) -> Tensor:
        return self.base.prior_variance(x)

    def sample_paths(self, num: int, generator: torch.Generator, num_features: int = 1024) -> Draws:
        before = self.base.sample_paths(num, generator, num_features)

        def in_every_batch(x: Tensor) -> Tensor:
            """x with all batch dimensions, so that those of the draws come before them."""
            return x.expand(*torch.broadcast_shapes(x.shape[:-2], self.batch_shape), *x.shape[-2:])

        known = before(in_every_batch(self.x))  # [num, *b′, latent, n]
        epsilon = torch.randn(known.shape, generator=generator, dtype=torch.float64).to(known.device)
        missing = self.target - known - self.noise.sqrt() * epsilon
        white = torch.linalg.solve_triangular(self.root, missing.unsqueeze(-1), upper=False)
        weights = torch.linalg.solve_triangular(self.root.mT, white, upper=True)

        def path(x: Tensor) -> Tensor:
            x = in_every_batch(x)
            cross = self.base.covariance(self.base.at(x), self.points)  # [*b, latent, q, n]
            more = x.dim() - 2 - len(self.batch_shape)  # batches of x beyond those of the process
            return before(x) + (cross @ weights[(slice(None), *[None] * more)]).squeeze(-1)

        return path


def _in_batches(values: Tensor, x: Tensor, dim: int) -> Tensor:
    """[..., all rows] as [..., q], with the batch dimensions of x [*b, q, d] inserted at ``dim``."""
    batch = x.shape[:-2]
    values = values.unflatten(-1, (*batch, x.shape[-2]))  # [..., *b, q]
    first = values.dim() - len(batch) - 1
    source, target = (tuple(range(start, start + len(batch))) for start in (first, dim))
    return values.movedim(source, target)
