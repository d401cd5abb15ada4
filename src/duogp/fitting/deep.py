"""From a kind of deep GP to a model: which basis stands in which layer, and where everything starts.

    dgp        coupled layers                                    Salimbeni and Deisenroth 2017
    dgp-solve  two blocks, q(u) q(v)                             DGP-SOLVE-GP of Popescu et al.
    dgp-dc     decoupled conditionals, β₂Ω in every layer
    ddgpc      DSGPC first, then `LayerComponents`               Popescu et al.; ε > 0: every layer a bound

Hidden layers start as their skip mean: m near 0 and L_S = 10⁻⁴I, while the last layer starts at its prior.
Their inducing points are those of the first layer, handed on by the skip means, so that they stand where
the data arrive; points drawn uniformly from [−1, 1], as published for DDGPC, are the alternative.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from duogp.bases import Basis, Conditional, Coupled, TwoBlock
from duogp.bases.conditional import Omega, Whitening
from duogp.bases.layer_components import LayerComponents
from duogp.fitting.inducing import select_inducing
from duogp.kernels import Kernel
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.means import make_mean
from duogp.means.skip import SkipMean
from duogp.models.deep import DeepModel
from duogp.models.layers import Layer
from duogp.models.mixing import LinearMixing
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import Objective, predictive
from duogp.variational import BlockQ, CholeskyQ, DiagonalQ, Q, ShrunkQ
from duogp.variational.ridge import RIDGES, Ridge, RidgeQ

#: (standard deviation of every input column [R, 1, d], leading shape of the parameters) → a kernel
KernelFactory = Callable[[Tensor, tuple[int, ...]], Kernel]

#: Widest hidden layer unless the user says how wide.
MAX_WIDTH = 30
#: Samples of the hidden layers in a step: one estimates a mean without bias, the log of a mean needs several.
SAMPLES, PREDICTIVE_SAMPLES = 1, 8
#: How far β is moved off the centres of α, relative to the spread of each column.
RESIDUAL_SHIFT = 0.05


@dataclass(frozen=True)
class Architecture:
    """What a deep GP looks like, beyond its kind."""

    layers: int = 2  #: the last one included; 1 is the shallow model
    width: int | None = None  #: latent functions of a hidden layer; as many as inputs, at most 30
    samples: int | None = None  #: of the hidden layers in a training step: 1, predictive objective 8
    eval_samples: int = 128  #: in evaluation, a fixed set
    columns: int = 1024  #: rows of a batch with draws of their own; further rows repeat them
    hidden_points: str = "propagated"  #: where hidden inducing points start: "propagated" or "uniform"
    hidden_root: float = 1e-4  #: L_S of hidden layers starts at this times I
    shared_kernels: bool = True  #: one kernel for all latent functions of a hidden layer
    q: str = "full"  #: covariance of q(u): "full", "diagonal" or "ridge"
    ridge: Ridge = "printed"  #: of a ridge q(u)
    num_residual: int = 10  #: |β| of each layer but the first (ddgpc)
    epsilon: float = 0.0  #: of the first layer's second block (ddgpc): 0 as published, above 0 a bound
    printed_kl: bool = False  #: eq. 59 instead of the divergence (ddgpc), for comparison only
    whitening: Whitening = "Q"  #: of decoupled conditionals, as the next two
    omega: Omega = "rows"
    mean_jitter: float | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "num_residual"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if not self.hidden_root > 0:
            raise ValueError(f"hidden_root must be above 0, got {self.hidden_root}")
        for name, allowed in (
            ("hidden_points", ("propagated", "uniform")),
            ("q", ("full", "diagonal", "ridge")),
            ("ridge", RIDGES),
        ):
            if getattr(self, name) not in allowed:
                names = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} must be one of {names}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Parts:
    """What one layer is made of. Parameters lead with [replicates, latents]."""

    architecture: Architecture
    is_first: bool
    batch_shape: tuple[int, int]
    inducing: Tensor  # [R, 1, M, d]
    extra: Tensor | None  # second block, [R, 1, M_extra, d]
    generators: Sequence[torch.Generator]
    new_kernel: Callable[[], Kernel]
    new_q: Callable[[int], Q]

    @property
    def q_u(self) -> Q:
        return self.new_q(self.inducing.shape[-2])

    @property
    def orthogonal(self) -> Tensor:
        assert self.extra is not None
        return self.extra


def coupled(parts: Parts) -> Basis:
    return Coupled(parts.new_kernel(), parts.inducing, parts.q_u)


def solve(parts: Parts) -> Basis:
    """q(u) q(v), both learned."""
    q_v = parts.new_q(parts.orthogonal.shape[-2])
    return TwoBlock(parts.new_kernel(), parts.inducing, parts.orthogonal, BlockQ(parts.q_u, q_v))


def conditional(parts: Parts) -> Basis:
    a = parts.architecture
    return Conditional(
        parts.new_kernel(),
        parts.new_kernel(),
        parts.inducing,
        parts.q_u,
        whitening=a.whitening,
        omega=a.omega,
        mean_jitter=a.mean_jitter,
    )


def components(parts: Parts) -> Basis:
    """Both sets explain the first layer's inputs; afterwards a few β are enough."""
    a = parts.architecture
    if parts.is_first:
        q_v = ShrunkQ(parts.orthogonal.shape[-2], parts.batch_shape, epsilon=a.epsilon)
        return TwoBlock(parts.new_kernel(), parts.inducing, parts.orthogonal, BlockQ(parts.q_u, q_v))
    num = min(a.num_residual, parts.inducing.shape[-2])
    residual = residual_points(parts.inducing, num, parts.generators)
    return LayerComponents(parts.new_kernel(), parts.inducing, residual, parts.q_u, printed_kl=a.printed_kl)


KINDS: dict[str, Callable[[Parts], Basis]] = {
    "dgp": coupled,
    "dgp-solve": solve,
    "dgp-dc": conditional,
    "ddgpc": components,
}
HAVE_SECOND_BLOCK = ("dgp-solve", "ddgpc")
HAVE_RIDGE = ("dgp", "ddgpc")


def build_deep_model(
    kind: str,
    *,
    inducing: Tensor,
    extra: Tensor | None = None,
    kernel: KernelFactory,
    likelihood: Likelihood,
    latents: int,
    objective: Objective,
    numerics: Numerics,
    num_data: int,
    generators: Sequence[torch.Generator],
    architecture: Architecture | None = None,
    beta1: Tensor | float = 1.0,
    beta2: Tensor | float = 0.0,
    mean: str | nn.Module = "constant",
    mixing: LinearMixing | None = None,
    shared_kernel: bool = False,
    inputs: Tensor | None = None,
    spread: Tensor | None = None,
    learn_inducing: bool = True,
) -> DeepModel:
    """R replicates of a deep GP, on the device of ``inducing`` and in the precision of ``numerics``.

    ``inducing`` [R, 1, M, d] and ``extra`` (of the second block, where the kind has one) are the points of
    the first layer. ``likelihood`` leads with [R] and sees ``latents`` functions, or what ``mixing`` makes of
    them; they share a kernel if ``shared_kernel``. ``mean`` is the prior mean of the last layer, a function
    of that layer's inputs. ``inputs`` [R, n, d]: rows whose principal directions a narrow hidden layer keeps
    and whose spread the kernels are given; without them, those of the inducing points. ``spread`` [R, 1, d]:
    that of the inputs, where it is known better.
    """
    a = Architecture() if architecture is None else architecture
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"unknown deep GP {kind!r}{hint} The kinds are {', '.join(KINDS)}")
    if (extra is None) == (kind in HAVE_SECOND_BLOCK):
        needed = "needs" if extra is None else "has no use for"
        raise ValueError(f"{kind!r} {needed} extra, the points of a second block")
    if a.q == "ridge" and kind not in HAVE_RIDGE:
        raise ValueError(f"a ridge q(u) is for {' and '.join(map(repr, HAVE_RIDGE))}, not for {kind!r}")
    replicates, dims = inducing.shape[0], inducing.shape[-1]
    width = min(dims, MAX_WIDTH) if a.width is None else a.width
    rows = inducing.squeeze(1) if inputs is None else inputs
    if rows.shape[-1] != dims:  # so have the points of a generalised kernel, behind their places
        raise ValueError(f"inducing has {dims} columns, inputs have {rows.shape[-1]}: they must be the same")
    noise = likelihood.noise if isinstance(likelihood, GaussianLikelihood) and mixing is None else None

    hidden: list[Layer] = []
    for index in range(a.layers):
        is_last = index == a.layers - 1
        shape = (replicates, latents if is_last else width)
        shared = shared_kernel if is_last else a.shared_kernels
        if spread is None or index:
            spread = _spread(rows.double())
        parts = Parts(
            architecture=a,
            is_first=index == 0,
            batch_shape=shape,
            inducing=inducing.clone(),
            extra=None if extra is None else extra.clone(),
            generators=generators,
            new_kernel=partial(kernel, spread, (replicates, 1) if shared else shape),
            new_q=_q_factory(a, shape, noise=noise if is_last else None, is_hidden=not is_last),
        )
        basis = KINDS[kind](parts)
        basis.initialise(generators)
        if is_last:
            break
        skip = SkipMean.between(rows, width)
        hidden.append(Layer(skip, basis))
        rows = skip(rows.double().unsqueeze(1)).mT
        inducing = _handed_on(inducing, skip, a, generators)
        extra = None if extra is None else _handed_on(extra, skip, a, generators)

    model = DeepModel(
        hidden,
        mean=batched(make_mean(mean, rows.shape[-1]), (replicates, latents)),
        basis=basis,
        likelihood=likelihood,
        objective=objective,
        numerics=numerics,
        num_data=num_data,
        beta1=beta1,
        beta2=beta2,
        mixing=mixing,
        samples=(PREDICTIVE_SAMPLES if objective is predictive else SAMPLES)
        if a.samples is None
        else a.samples,
        eval_samples=a.eval_samples,
        columns=a.columns,
    )
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(numerics.dtype)
        if name.endswith("inducing") and not learn_inducing:
            parameter.requires_grad_(False)
    return model.to(inducing.device)


def _q_factory(
    a: Architecture, shape: tuple[int, int], *, noise: Positive | None, is_hidden: bool
) -> Callable[[int], Q]:
    """q(u) of one layer, by its size."""

    def new_q(size: int) -> Q:
        if a.q == "ridge":  # σ² is the likelihood's noise in the last layer, and as small as S in hidden ones
            tied = noise if noise is not None and noise.raw.shape == shape else None
            small = batched(Positive(a.hidden_root), shape) if is_hidden else None
            return RidgeQ(size, shape, kind=a.ridge, noise=small if is_hidden else tied)
        q: CholeskyQ | DiagonalQ = (CholeskyQ if a.q == "full" else DiagonalQ)(size, shape)
        if is_hidden:
            root = q.raw_root if isinstance(q, CholeskyQ) else q.std
            root.data.mul_(a.hidden_root)
        return q

    return new_q


@torch.no_grad()
def _handed_on(
    points: Tensor, skip: SkipMean, a: Architecture, generators: Sequence[torch.Generator]
) -> Tensor:
    """Where the next layer's points start: [R, 1, M, width]."""
    moved = skip(points.double()).mT.unsqueeze(1)
    if a.hidden_points == "uniform":
        for own, generator in zip(moved, generators, strict=True):
            uniform = torch.rand(own.shape, generator=generator, device=generator.device, dtype=torch.float64)
            own.copy_(2 * uniform - 1)
    return moved.to(points.dtype)


@torch.no_grad()
def residual_points(inducing: Tensor, num: int, generators: Sequence[torch.Generator]) -> Tensor:
    """β [R, 1, num, d]: centres of α, moved a little, so that they are near α but none of it (§11 B8)."""
    out = []
    for alpha, generator in zip(inducing.squeeze(1).double(), generators, strict=True):
        centres = select_inducing("kmeans", alpha, num, generator=generator)
        noise = torch.randn(
            centres.shape, generator=generator, device=generator.device, dtype=torch.float64
        ).to(alpha.device)
        out.append(centres + RESIDUAL_SHIFT * _spread(alpha[None])[0] * noise)
    return torch.stack(out).unsqueeze(1).to(inducing.dtype)


def _spread(rows: Tensor) -> Tensor:
    """Standard deviation of every column of [R, n, d]: [R, 1, d]; 1 for constant columns."""
    std = rows.std(-2, correction=1 if rows.shape[-2] > 1 else 0, keepdim=True)
    rounding = 1e-12 * rows.abs().amax((-2, -1), keepdim=True)
    return torch.where(std > rounding, std, torch.ones_like(std))
