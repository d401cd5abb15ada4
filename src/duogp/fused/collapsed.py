"""The collapsed ELBO of a Gaussian likelihood from sums over rows, and its gradient by few large products.

With t = y − μ₀ and features φ = L⁻¹ k(Z, x), the bound sees n rows only through

    G = φφᵀ    h = φt    tᵀt    Σ k(x, x)

and, where another kernel has the covariance (the conditional basis), through G_k = φ_kφ_kᵀ, of which the
bound needs the trace and its gradient all the rest. q = N(m, S) being at its optimum, it is held fixed:

    −2 data = Σ log 2πs² + (tᵀt − 2mᵀh + tr (S + mmᵀ)G + Σ k(x, x) − tr G_k) / s²

Everything on this side of the sums is M × M and left to automatic differentiation. What it says about G
and h, A = gG + gGᵀ and gh, is carried to the rows and to L⁻¹ by hand:

    gφ = Aφ + gh tᵀ = (A + gh mᵀ) φ + gh (t − φᵀm)ᵀ        the second form subtracts before it multiplies
    gk = L⁻ᵀ gφ,  L⁻ᵀ multiplied into the small matrix      gL⁻¹ = gφ kᵀ = (AG + gh hᵀ) Lᵀ

Three products of M²n, L⁻¹k, φφᵀ and gk, instead of five. G could be had from kkᵀ without the first of them,
but L⁻¹(kkᵀ)L⁻ᵀ squares the condition number. Measured on 100 pairs of points 1e-5 apart, 1,000 rows,
s² = 5e-4, float64, the largest error of G/s², which stands next to I: 8e-6 with features and 2e-3 without at
jitter 1e-6, 2e-4 and 0.2 at 1e-8, 3e-3 and 18 at 1e-10. So features first, for both kernels.

Streamed over chunks of rows, k is made twice and φ once. A gradient stands next to nothing: in float64 L⁻¹ is
multiplied into the small matrices from the right as well, and these multiply k instead of φ.

A multiplicative variance of a kernel is left to the end, and a stationary kernel is differentiated by one
product with x in place of two.

Weights w of rows scale φ and t by √w; noise of single rows by √w / s as well.

**Quick products.** In float32 the kernel and the three products take half the time. x, k and φ are float32
then, and so are sums over `QUICK_ROWS` rows; points, lengthscales, L, the sums over all rows and what is made
of them stay float64. Errors of 6e-8 in k are multiplied by ‖L⁻¹‖ in φ, and by v/s² in what stands next to I.
Measured with 300 points on 3,000 to 10,000 rows of five tables, the relative error of the gradient of Z is
2e-5 to 1e-4 where ‖L⁻¹‖ v/s² is 20 to 300, 1e-3 to 2e-3 at 600 to 700, and 0.1 or more from 2e4 on: that
product decides (`quick_is_enough`). The q(u) that is kept comes from float64 in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from duogp.bases.conditional import Conditional
from duogp.kernels import Kernel, Scale, Stationary
from duogp.kernels.grams import StationaryGrams, weighted_differences
from duogp.kernels.profiles import Profile, weighted_sums
from duogp.kernels.stationary import profile_of
from duogp.likelihoods.gaussian import LOG_2PI
from duogp.numerics.factorisation import Factor
from duogp.numerics.products import add_product, gram_of, substitutes

if TYPE_CHECKING:
    from duogp.models.model import Batch, Model


#: Rows whose products are summed in float32, where that is enough.
QUICK_ROWS = 1024
#: The ‖L⁻¹‖ v/s² up to which it is, the largest norm of a row of L⁻¹ standing for ‖L⁻¹‖.
QUICK_LIMIT = 1000.0


@torch.no_grad()
def quick_is_enough(model: Model, factors: Any) -> bool:
    """Whether float32 products are precise enough for a gradient here, and quicker than float64: on a CPU.

    It depends on the parameters alone: a training that is taken up again has the same answer.
    """
    points, likelihood = model.basis.inducing, model.likelihood
    if not isinstance(points, Tensor) or not substitutes(points) or points.dtype != torch.float64:
        return False
    for side in sides(model, factors):
        if _profile_of(side.kernel, points.shape[-1]) is None:
            return False
        amplified = side.factor.L_inv.norm(dim=-1).amax(-1) * side.variance / likelihood.noise()  # type: ignore[operator]
        if not bool((amplified <= QUICK_LIMIT).all()):
            return False
    return True


def without_variance(kernel: Kernel) -> tuple[Kernel, Tensor | float]:
    """(k, v) of a kernel v·k, however deep the variance lies."""
    variance: Tensor | float = 1.0
    while isinstance(kernel, Scale):
        variance, kernel = variance * kernel.variance().double(), kernel.kernel
    return kernel, variance


class Sums(NamedTuple):
    """What the bound sees of the rows, without the kernels' variances; float64, additive over chunks.

    Latent functions that share a kernel share its sums: L is 1 or the number of outputs P.
    """

    gram: Tensor  # φφᵀ [R, L, M, M]
    moment: Tensor  # φt [R, P, M]
    square: Tensor  # tᵀt [R, P]
    prior: Tensor  # Σ k(x, x) [R, L]
    log_noise: Tensor  # Σ log 2πs² [R, P]
    explained: Tensor  # tr φ_kφ_kᵀ [R, L]
    residual_gram: Tensor | None  # φ_kφ_kᵀ itself, where φ_k is not φ; only for the gradient of L_K⁻¹

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        found = (None if a is None or b is None else a + b for a, b in zip(self, other, strict=True))
        return Sums(*found)  # type: ignore[arg-type]

    def leaves(self) -> Sums:
        """The same numbers, whose gradients are kept."""
        found = (None if s is None else s.detach().requires_grad_() for s in self)
        return Sums(*found)  # type: ignore[arg-type]


class Side(NamedTuple):
    """A kernel and the inducing points as it sees them."""

    kernel: Kernel  # without its variance
    variance: Tensor  # [R, L] float64
    factor: Factor

    @classmethod
    def of(cls, kernel: Kernel, factor: Factor) -> Side:
        ones = factor.L.new_ones(factor.L.shape[:-2], dtype=torch.float64)
        kernel, variance = without_variance(kernel)
        return cls(kernel, ones * variance, factor)


def sides(model: Model, factors: Any) -> list[Side]:
    """What the mean is made of and, where that is something else, what the residual is made of."""
    basis = model.basis
    if isinstance(basis, Conditional):
        return [Side.of(basis.mean_kernel, factors.mean), Side.of(basis.kernel, factors.covariance)]
    return [Side.of(basis.kernel, factors)]


class ChunkSums:
    """The sums over one chunk of rows, and the gradients from these sums back to the parameters.

    ``quick``: by products in float32, unless rows have noise of their own.
    """

    def __init__(self, model: Model, batch: Batch, factors: Any, *, quick: bool = False) -> None:
        x = batch.x.unsqueeze(-3)
        self._quick = quick and batch.noise is None
        noise = model.likelihood.variance(batch.noise)  # type: ignore[operator]
        weight = None if batch.weight is None else batch.weight.unsqueeze(-2)
        log_noise = (LOG_2PI + noise.double().log()).expand(*batch.y.shape[:-1], -1)
        if batch.noise is None:  # the same for all rows: divided by at the end
            scale = None if weight is None else weight.sqrt()
            rows = x.shape[-2] if weight is None else weight.sum(-1)
            log_noise = rows * log_noise.squeeze(-1)
        else:
            scale = noise.rsqrt() if weight is None else weight.sqrt() * noise.rsqrt()
            log_noise = (log_noise if weight is None else weight * log_noise).sum(-1)
        target = batch.y - model.mean(x)
        self._sides = sides(model, factors)
        prior = self._sides[-1].kernel.diag(x).double()
        if scale is not None:
            target = target * scale
            prior = prior * scale.double().square()
        points = model.basis.inducing
        assert isinstance(points, Tensor)
        self._target = target
        self._cross = []
        for side in self._sides:
            k = cross_covariance(side.kernel, points, x.float() if self._quick else x)
            self._cross.append(k if scale is None else k * scale.unsqueeze(-2).to(k))
        self._prior, self._log_noise = prior.sum(-1), log_noise

    @cached_property
    @torch.no_grad()
    def _features(self) -> list[Tensor]:
        return [_whitened(side.factor, k) for side, k in zip(self._sides, self._cross, strict=True)]

    @torch.no_grad()
    def sums(self) -> Sums:
        """A Gram matrix over s² must stay positive next to I: in float32 only where that is certain."""
        target = self._target.double()
        rows = QUICK_ROWS if self._quick else target.shape[-1]
        grams = [_gram(features, rows) for features in self._features]
        phi = self._features[0]
        moment = _product(_beside(target, phi), phi, rows)
        return Sums(
            gram=grams[0],
            moment=moment.reshape(*target.shape[:-1], -1),
            square=target.square().sum(-1),
            prior=self._prior,
            log_noise=self._log_noise,
            explained=grams[-1].diagonal(dim1=-2, dim2=-1).sum(-1),
            residual_gram=grams[1] if len(grams) > 1 else None,
        )

    def backward(self, pull: Pullback) -> None:
        """Carry the gradients of sums to the kernels, the prior mean and the noise."""
        given: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            every = self._features if pull.whitened else [k.detach() for k in self._cross]
            rows, towards, fit = every[0], *(A.to(every[0]) for A in (pull.towards[0], pull.fit))
            left = _beside(self._target, rows).to(rows) - fit @ rows
            g_k = towards @ rows
            add_product(g_k, pull.moment.to(rows), left)
            given.append((self._cross[0], g_k))
            if self._target.requires_grad:
                fitted = (pull.target.to(rows) @ rows).reshape(self._target.shape).to(self._target)
                given.append((self._target, pull.square.to(fitted) * self._target + fitted))
            for k, towards, rows in zip(self._cross[1:], pull.towards[1:], every[1:], strict=True):
                given.append((k, towards.to(rows) @ rows))
            given += [(self._prior, pull.prior), (self._log_noise, pull.log_noise)]
        wanted = [(value, gradient) for value, gradient in given if value.requires_grad]
        torch.autograd.backward([value for value, _ in wanted], [gradient for _, gradient in wanted])


class Pullback:
    """Gradients of the sums on their way to rows: the small matrices, made once for all chunks.

    ``centre``: m as the features without a variance see it, [R, P, M]. ``whitened``: they multiply φ; else
    k, which is float64 then.
    """

    @torch.no_grad()
    def __init__(self, sums: Sums, centre: Tensor, parts: Sequence[Side], *, whitened: bool) -> None:
        self.whitened = whitened
        gram, explained = _gradient(sums.gram), 2 * _gradient(sums.explained)[..., None, None]
        g_moment, m = (_beside(v, gram) for v in (_gradient(sums.moment), centre))  # [R, L, P / L, M]
        C = gram + gram.mT + g_moment.mT @ m
        if len(parts) == 1:
            C.diagonal(dim1=-2, dim2=-1).add_(explained.squeeze(-1))
        first, *others = (side.factor.L_inv for side in parts)
        self.towards = [first.mT @ C.to(first), *((explained.to(L_inv) * L_inv).mT for L_inv in others)]
        self.fit, self.target = m, g_moment
        if not whitened:
            pairs = zip(self.towards, (first, *others), strict=True)
            self.towards = [A @ L_inv for A, L_inv in pairs]
            self.fit, self.target = (A.to(first) @ first for A in (m, g_moment))
        self.moment = (g_moment.to(first) @ first).mT
        self.square = 2 * _gradient(sums.square).unsqueeze(-1)
        self.prior, self.log_noise = _gradient(sums.prior), _gradient(sums.log_noise)


@torch.no_grad()
def backward_to_factors(sums: Sums, parts: Sequence[Side]) -> None:
    """Add to the gradients of L⁻¹ what comes through the features of all rows."""
    g_gram, explained = _gradient(sums.gram), 2 * _gradient(sums.explained)[..., None, None]
    g_moment, h = (_beside(v, sums.gram) for v in (_gradient(sums.moment), sums.moment))
    found = [(g_gram + g_gram.mT) @ sums.gram + g_moment.mT @ h]  # gφ φᵀ
    if sums.residual_gram is None:
        found[0] += explained * sums.gram
    else:
        found.append(explained * sums.residual_gram)
    for side, P in zip(parts, found, strict=True):
        L, L_inv = side.factor.L, side.factor.L_inv
        more = (P.sum_to_size(L.shape) @ L.to(P).mT).to(L_inv)  # outputs may share it
        L_inv.grad = more if L_inv.grad is None else L_inv.grad + more


class Weighed(NamedTuple):
    """The sums in the coordinates of q, and the precision with which they speak: what is left of the data."""

    gram: Tensor  # ΨΨᵀ [R, L, M, M], up to `scale`
    scale: Tensor  # [R, P]
    moment: Tensor  # ΨΛt [R, P, M]
    rest: Tensor  # Σ log 2πs² + λ t² + λ (k − ‖φ_k‖²), [R, P]

    @torch.no_grad()
    def precision(self) -> Tensor:
        """ΨΛΨᵀ."""
        return self.scale[..., None, None] * self.gram

    def loss(self, mean: Tensor, S: Tensor | None) -> Tensor:
        """−Σ data for a fixed q = N(mean, S), [R]."""
        second = mean.unsqueeze(-1) * mean.unsqueeze(-2)
        if S is not None:
            second += S
        quadratic = self.scale * (second * self.gram).sum((-2, -1)) - 2 * (mean * self.moment).sum(-1)
        return 0.5 * (quadratic + self.rest).sum(-1)


def weighed(model: Model, factors: Any, sums: Sums, *, by_row: bool) -> Weighed:
    """``by_row``: rows have noise of their own, which is in the sums already."""
    parts = sides(model, factors)
    of_mean, of_residual = parts[0].variance, parts[-1].variance
    gram, moment = sums.gram, sums.moment
    if isinstance(model.basis, Conditional) and model.basis.whitening == "K":
        B = factors.bridge.double()  # ψ = Bᵀφ
        gram, moment = B.mT @ gram @ B, (moment.unsqueeze(-2) @ B).squeeze(-2)
    square = sums.square
    if model.objective.charges_residual:
        square = square + of_residual * sums.prior - of_residual.square() * sums.explained
    precision = torch.ones_like(square)
    if not by_row:
        precision = model.likelihood.noise().double().reciprocal()  # type: ignore[operator]
    return Weighed(
        gram=gram,
        scale=precision * of_mean.square(),
        moment=(precision * of_mean).unsqueeze(-1) * moment,
        rest=sums.log_noise + precision * square,
    )


@torch.no_grad()
def centre_of(model: Model, factors: Any, mean: Tensor) -> Tensor:
    """q's mean as the features without a variance see it."""
    if isinstance(model.basis, Conditional) and model.basis.whitening == "K":
        mean = (factors.bridge.double() @ mean.unsqueeze(-1)).squeeze(-1)
    return sides(model, factors)[0].variance.unsqueeze(-1) * mean


def _gram(features: Tensor, rows: int) -> Tensor:
    """φφᵀ in float64; sums of so many rows are made in the precision of φ where they are not all."""
    if rows >= features.shape[-1]:
        return gram_of(features.double())
    first, *others = features.split(rows, -1)
    total = gram_of(first).double()
    for part in others:
        total += gram_of(part)
    return total


def _product(target: Tensor, features: Tensor, rows: int) -> Tensor:
    """tφᵀ in float64, likewise."""
    if rows >= features.shape[-1]:
        return target @ features.double().mT
    parts = zip(target.split(rows, -1), features.split(rows, -1), strict=True)
    return sum((t.to(phi) @ phi.mT).double() for t, phi in parts)


def _whitened(factor: Factor, k: Tensor) -> Tensor:
    """L⁻¹k; on a CPU by substitution, two thirds of the work of a product, of rows: (kᵀL⁻ᵀ)ᵀ."""
    if substitutes(k):
        return torch.linalg.solve_triangular(factor.L.mT.to(k), k.mT, upper=True, left=False).mT
    return factor.whiten(k)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _beside(vectors: Tensor, matrices: Tensor) -> Tensor:
    """[R, P, m] as rows beside [R, L, ...]: [R, L, P / L, m], so that a shared matrix is not copied."""
    *lead, latents = matrices.shape[:-2]
    return vectors.reshape(*lead, latents, vectors.shape[-2] // latents, vectors.shape[-1])


# -- k(Z, x) -------------------------------------------------------------------------------------------------


def cross_covariance(kernel: Kernel, points: Tensor, x: Tensor) -> Tensor:
    """k(Z, x), with a backward pass of its own where the kernel has a profile."""
    profile = _profile_of(kernel, x.shape[-1])
    if profile is None or points.shape[-1] != x.shape[-1]:
        return kernel(points, x)
    assert isinstance(kernel, Stationary)
    return _StationaryCross.apply(profile, points, x, kernel.lengthscale().unsqueeze(-2))


def _profile_of(kernel: Kernel, dims: int) -> Profile | None:
    """The profile of a kernel of so many columns, all of them."""
    return profile_of(kernel) if getattr(kernel, "dims", None) == dims else None


class _StationaryCross(torch.autograd.Function):
    """Points, rows and lengthscales ↦ k(r²), differentiated as in `duogp.kernels.grams`."""

    @staticmethod
    def forward(ctx: Any, profile: Profile, z: Tensor, x: Tensor, lengthscale: Tensor) -> Tensor:
        grams = StationaryGrams(profile, z, x, lengthscale)
        scaled = grams.scaled(z, x, lengthscale)
        value, slope = grams.with_rows(scaled)
        ctx.profile, ctx.like = profile, [(t.shape, t.dtype) for t in (z, x, lengthscale)]
        ctx.save_for_backward(*scaled, slope)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        a, b, inverse, slope = ctx.saved_tensors
        W = gradient.mul_(slope)  # made for this node alone, by `ChunkSums.backward`
        towards, squares = weighted_differences(W, a, b)
        scale = 2.0 * ctx.profile.slope_scale * inverse
        found = [scale * towards, None, -scale * squares]
        if ctx.needs_input_grad[2]:
            sums, weights = weighted_sums(W.mT, a)
            found[1] = scale * (weights * b - sums)
        shaped = zip(found, ctx.like, strict=True)
        return None, *(None if g is None else g.sum_to_size(shape).to(dtype) for g, (shape, dtype) in shaped)
