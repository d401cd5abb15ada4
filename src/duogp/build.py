"""From a method's recipe to a model: the only place that knows which class stands behind which name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from duogp.bases import Basis, Conditional, Coupled, Hybrid, Separate, TwoBlock
from duogp.kernels import Kernel, Scale, Stationary, make_kernel
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.linalg import Numerics
from duogp.means import make_mean
from duogp.methods import Method
from duogp.model import Model
from duogp.objectives import GammaRobust, Objective, elbo, predictive, vfitc
from duogp.parameters import batched
from duogp.settings import Settings
from duogp.variational import BlockQ, CholeskyQ, DiagonalQ, PointQ, Q, ShrunkQ


@dataclass(frozen=True)
class Ingredients:
    """What a basis is made of. Parameters lead with [replicates, outputs]."""

    settings: Settings
    omega: str
    batch_shape: tuple[int, int]
    inducing: Tensor  # [R, 1, M, d]
    extra: Tensor | None  # [R, 1, M_extra, d]
    new_kernel: Callable[[], Kernel]
    new_q: Callable[..., Q]

    @property
    def num_inducing(self) -> int:
        return self.inducing.shape[-2]

    @property
    def orthogonal(self) -> Tensor:
        """O, of the bases of two blocks."""
        assert self.extra is not None
        return self.extra

    def q_u(self) -> Q:
        return self.new_q(self.num_inducing, self.batch_shape)


def coupled(parts: Ingredients) -> Basis:
    return Coupled(parts.new_kernel(), parts.inducing, parts.q_u())


def separate(parts: Ingredients) -> Basis:
    extra = parts.inducing.clone() if parts.extra is None else parts.extra
    q = parts.new_q(parts.num_inducing, parts.batch_shape, mean_size=extra.shape[-2])
    return Separate(parts.new_kernel(), extra, parts.inducing, q)


def conditional(parts: Ingredients) -> Basis:
    return Conditional(
        parts.new_kernel(),
        parts.new_kernel(),
        parts.inducing,
        parts.q_u(),
        whitening=parts.settings.whitening,  # type: ignore[arg-type]
        omega=parts.omega,  # type: ignore[arg-type]
        mean_jitter=parts.settings.mean_jitter,
    )


def solve(parts: Ingredients) -> Basis:
    """q(u) q(v), both learned."""
    extra = parts.orthogonal
    q_v = parts.new_q(extra.shape[-2], parts.batch_shape)
    return TwoBlock(parts.new_kernel(), parts.inducing, extra, BlockQ(parts.q_u(), q_v))


def orthogonal(parts: Ingredients) -> Basis:
    """v learns a mean only."""
    extra = parts.orthogonal
    q = parts.new_q(parts.num_inducing, parts.batch_shape, mean_size=parts.num_inducing + extra.shape[-2])
    return TwoBlock(parts.new_kernel(), parts.inducing, extra, q, mean_only=True)


def components(parts: Ingredients) -> Basis:
    """v is shrunk to zero, and its divergence from the prior forgotten."""
    q_v = ShrunkQ(parts.orthogonal.shape[-2], parts.batch_shape, epsilon=0.0)
    return TwoBlock(parts.new_kernel(), parts.inducing, parts.orthogonal, BlockQ(parts.q_u(), q_v))


def components_eps(parts: Ingredients) -> Basis:
    """v is shrunk towards zero, and pays for it."""
    q_v = ShrunkQ(parts.orthogonal.shape[-2], parts.batch_shape, epsilon=parts.settings.epsilon)
    return TwoBlock(parts.new_kernel(), parts.inducing, parts.orthogonal, BlockQ(parts.q_u(), q_v))


def hybrid(parts: Ingredients) -> Basis:
    """γ for the mean alone, with plain coefficients."""
    columns = parts.settings.mean_columns
    return Hybrid(parts.new_kernel(), parts.inducing, parts.orthogonal, parts.q_u(), columns=columns)


BASES: dict[str, Callable[[Ingredients], Basis]] = {
    "coupled": coupled,
    "hybrid": hybrid,
    "solve": solve,
    "orthogonal": orthogonal,
    "components": components,
    "components-eps": components_eps,
    "separate": separate,
    "conditional": conditional,
}
QS: dict[str, type[Q]] = {"full": CholeskyQ, "diagonal": DiagonalQ, "point": PointQ}


def make_objective(name: str, settings: Settings) -> Objective:
    if name == "gamma-robust":
        return GammaRobust(settings.gamma, settings.gpytorch_sign)
    return {"elbo": elbo, "vfitc": vfitc, "predictive": predictive}[name]


def make_likelihood(settings: Settings, outputs: int, fixed_noise: bool) -> Likelihood:
    spec = settings.likelihood
    if isinstance(spec, Likelihood):
        if getattr(spec, "outputs", outputs) != outputs:
            raise ValueError(f"likelihood is made for {spec.outputs} outputs, but y has {outputs}")
        return spec
    if spec != "gaussian":
        raise ValueError(f"likelihood must be 'gaussian' or a Likelihood object, got {spec!r}")
    learn = not fixed_noise if settings.learn_noise is None else settings.learn_noise
    if fixed_noise and not learn:  # all of the noise is given
        return GaussianLikelihood(outputs, noise=2e-10, floor=1e-10, learn=False)
    floor = settings.noise_floor
    return GaussianLikelihood(outputs, noise=max(settings.initial_noise, 2 * floor), floor=floor, learn=learn)


def initial_kernel(settings: Settings, spread: Tensor, batch_shape: tuple[int, ...] = ()) -> Kernel:
    """The kernel that replicates start from; ``spread``: the standard deviation of every column, [..., d]."""
    dims = spread.shape[-1]
    kernel = make_kernel(settings.kernel, dims, ard=settings.ard, scale=settings.output_scale)
    kernel = batched(kernel, batch_shape)
    if isinstance(settings.kernel, str):
        base = kernel.kernel if isinstance(kernel, Scale) else kernel
        if isinstance(base, Stationary):
            # Two standardised rows are about √(2d) apart: at √d they are neither alike nor strangers.
            typical = spread if settings.ard else spread.square().mean(-1, keepdim=True).sqrt()
            base.lengthscale.set_(settings.initial_lengthscale or math.sqrt(dims) * typical)
    return kernel


def build_model(
    method: Method,
    settings: Settings,
    *,
    inducing: Tensor,
    extra: Tensor | None,
    outputs: int,
    num_data: int,
    beta1: Tensor,
    beta2: Tensor,
    omega: str,
    fixed_noise: bool,
    spread: Tensor,
    generators: Sequence[torch.Generator],
) -> Model:
    """R replicates of a method as one model, on the settings' device and in their precision."""
    replicates, dims = inducing.shape[0], inducing.shape[-1]
    dtype = settings.torch_dtype
    batch_shape = (replicates, outputs)

    def new_kernel() -> Kernel:
        return initial_kernel(settings, spread, batch_shape)

    def new_q(*args: object, **kwargs: object) -> Q:
        if method.q == "point":
            kwargs["unwhitened"] = settings.log_prior == "unwhitened"
        return QS[method.q](*args, **kwargs)  # type: ignore[arg-type]

    parts = Ingredients(settings, omega, batch_shape, inducing, extra, new_kernel, new_q)
    basis = BASES[method.basis](parts)
    basis.initialise(generators)
    if not settings.learn_inducing:
        for name, parameter in basis.named_parameters():
            if name.endswith("inducing"):
                parameter.requires_grad_(False)
    model = Model(
        mean=batched(make_mean(settings.mean, dims), batch_shape),
        basis=basis,
        likelihood=batched(make_likelihood(settings, outputs, fixed_noise), (replicates,)),
        objective=make_objective(method.objective, settings),
        numerics=Numerics(replicates, settings.jitter, dtype),
        num_data=num_data,
        beta1=beta1,
        beta2=beta2,
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model.to(settings.torch_device)
