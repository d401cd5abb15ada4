"""From a method's recipe to a model: the only place that knows which class stands behind which name."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from duogp.bases import Basis, Conditional, Coupled, Exact, Hybrid, Separate, Subspace, TwoBlock
from duogp.fitting.deep import MAX_WIDTH, Architecture, KernelFactory, build_deep_model
from duogp.fitting.extractors import Extractor, default_widths, make_network
from duogp.kernels import Constant, GeneralisedRBF, Kernel, Scale, Stationary, Sum, make_kernel
from duogp.likelihoods import LIKELIHOODS, GaussianLikelihood, Likelihood, make_named
from duogp.means import Mean, NetworkMean, make_mean
from duogp.methods import Method
from duogp.methods.settings import Settings, as_list
from duogp.models.mixing import LinearMixing
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.objectives import GammaRobust, Objective, dtc, elbo, predictive, vfitc
from duogp.variational import BlockQ, CentredQ, CholeskyQ, DiagonalQ, PointQ, Q, ShrunkQ
from duogp.variational.ridge import RidgeQ


@dataclass(frozen=True)
class Ingredients:
    """What a basis is made of. Parameters lead with [replicates, latents]."""

    method: Method
    settings: Settings
    omega: str
    batch_shape: tuple[int, int]
    likelihood: Likelihood  # with a leading [replicates]
    rows: Batch | None  # the training rows, for the exact basis
    inducing: Tensor  # [R, 1, M, d]
    extra: Tensor | None  # [R, 1, M_extra, d]
    new_kernel: Callable[..., Kernel]  # of a role: "covariance" (the default) or "mean"
    new_q: Callable[..., Q]

    @property
    def num_inducing(self) -> int:
        return self.inducing.shape[-2]

    @property
    def orthogonal(self) -> Tensor:
        """O, of the bases of two blocks."""
        assert self.extra is not None
        return self.extra

    @property
    def columns(self) -> int | None:
        """How many columns of k(γ, γ) a step sees."""
        asked = self.settings.mean_columns
        return self.method.defaults.get("mean_columns") if asked is None else asked

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
        parts.new_kernel("covariance"),
        parts.new_kernel("mean"),
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
    return _hybrid(parts, orthogonal=False)


def orthogonal_a(parts: Ingredients) -> Basis:
    """ORTH with plain coefficients: linear in the number of mean points."""
    return _hybrid(parts, orthogonal=True)


def _hybrid(parts: Ingredients, *, orthogonal: bool) -> Basis:
    return Hybrid(
        parts.new_kernel(),
        parts.inducing,
        parts.orthogonal,
        parts.q_u(),
        orthogonal=orthogonal,
        columns=parts.columns,
    )


def subspace(parts: Ingredients) -> Basis:
    """Cheng and Boots' decoupled basis."""
    extra = parts.inducing.clone() if parts.extra is None else parts.extra
    return Subspace(
        parts.new_kernel(),
        extra,
        parts.inducing,
        parts.batch_shape,
        preconditioner=parts.settings.preconditioner,  # type: ignore[arg-type]
        columns=parts.columns,
    )


def exact(parts: Ingredients) -> Basis:
    """All training rows, and their noise."""
    rows, likelihood = parts.rows, parts.likelihood
    assert rows is not None and isinstance(likelihood, GaussianLikelihood)
    x = rows.x.unsqueeze(1)
    return Exact(parts.new_kernel(), x, parts.batch_shape, likelihood, rows.noise, rows.weight)


def neural(parts: Ingredients) -> Basis:
    """The mean is a network's, the prior's: u carries a covariance only."""
    q = CentredQ(parts.num_inducing, parts.batch_shape)
    return Coupled(parts.new_kernel(), parts.inducing, q)


BASES: dict[str, Callable[[Ingredients], Basis]] = {
    "coupled": coupled,
    "hybrid": hybrid,
    "orthogonal-a": orthogonal_a,
    "subspace": subspace,
    "exact": exact,
    "neural": neural,
    "solve": solve,
    "orthogonal": orthogonal,
    "components": components,
    "components-eps": components_eps,
    "separate": separate,
    "conditional": conditional,
}
QS: dict[str, type[Q]] = {"full": CholeskyQ, "diagonal": DiagonalQ, "point": PointQ, "ridge": RidgeQ}


def make_objective(name: str, settings: Settings) -> Objective:
    if name == "gamma-robust":
        return GammaRobust(settings.gamma, settings.gpytorch_sign)
    return {"elbo": elbo, "vfitc": vfitc, "predictive": predictive, "dtc": dtc}[name]


def likelihood_name(name: object) -> str:
    """The name as the table has it ("Student T" is "student-t"), or an error with the nearest one."""
    names = [*LIKELIHOODS, "classes"]
    key = re.sub(r"[^a-z]+", "-", str(name).lower().strip())
    if key not in names:
        near = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"unknown likelihood {name!r}{hint} The names are {', '.join(names)}")
    return key


def target_kind(settings: Settings) -> str:
    """What y may be under the likelihood asked for: "real", "count", "positive", "unit" or "classes"."""
    spec = settings.likelihood
    if isinstance(spec, Likelihood):
        return spec.target
    name = likelihood_name(spec)
    return "classes" if name == "classes" else LIKELIHOODS[name].target


def make_likelihood(
    settings: Settings, outputs: int, fixed_noise: bool, classes: int | None = None
) -> Likelihood:
    spec = settings.likelihood
    if isinstance(spec, Likelihood):
        if getattr(spec, "outputs", outputs) != outputs:
            raise ValueError(f"likelihood is made for {spec.outputs} outputs, but y has {outputs}")
        if classes is not None and getattr(spec, "classes", classes) != classes:
            raise ValueError(f"likelihood is made for {spec.classes} classes, but y has {classes}")
        return spec
    spec = likelihood_name(spec)
    if spec == "classes":
        spec = "bernoulli" if classes == 2 else "robust-max"
    learn = not fixed_noise if settings.learn_noise is None else settings.learn_noise
    if fixed_noise and not learn and spec == "gaussian":  # all of the noise is given
        return GaussianLikelihood(outputs, noise=2e-10, floor=1e-10, learn=False)
    floor = settings.noise_floor
    return make_named(
        spec,
        outputs=outputs,
        classes=classes,
        noise=max(settings.initial_noise, 2 * floor),
        noise_floor=floor,
        learn_noise=learn,
    )


def initial_kernel(settings: Settings, spread: Tensor, batch_shape: tuple[int, ...] = ()) -> Kernel:
    """The kernel that replicates start from; ``spread``: the standard deviation of every column, [..., d]."""
    dims = spread.shape[-1]
    kernel = make_kernel(settings.kernel, dims, ard=settings.ard, scale=settings.output_scale)
    kernel = batched(kernel, batch_shape)
    if isinstance(settings.kernel, str):
        # Two standardised rows are about √(2d) apart: at √d they are neither alike nor strangers.
        typical = spread if settings.ard else spread.square().mean(-1, keepdim=True).sqrt()
        summands = list(kernel.kernels) if isinstance(kernel, Sum) else [kernel]
        initial = as_list(settings.initial_lengthscale) or [math.sqrt(dims) * typical]
        if len(initial) not in (1, len(summands)):
            raise ValueError(
                f"initial_lengthscale must be one number, or one for each of the {len(summands)} summands of "
                f"{settings.kernel!r}, got {len(initial)}"
            )
        for i, part in enumerate(summands):
            base = part.kernel if isinstance(part, Scale) else part
            if isinstance(base, Stationary):
                base.lengthscale.set_(initial[i % len(initial)])
            if isinstance(part, Scale) and settings.initial_scale is not None:
                part.variance.set_(settings.initial_scale / len(summands))
    return kernel


def _extractors(method: Method, settings: Settings, rows: int, inducing: Tensor) -> dict[str, Extractor]:
    """The feature extractors of a deep method by role; none for the others."""
    roles = {"shared": ("covariance",), "decoupled": ("covariance", "mean"), "mean": ("mean",)}
    chosen = roles.get(method.defaults.get("extractor", ""), ())
    batch = (inducing.shape[0], 1)
    seed = settings.random_state
    return {role: Extractor(settings, role, rows, inducing, seed, batch) for role in chosen}


def _layer_kernels(settings: Settings, dims: int) -> KernelFactory:
    """Kernels of the layers of a deep GP, which have inputs of their own making."""
    kernel = initial_kernel(settings, torch.ones(dims))
    if kernel.categorical_columns(dims):
        raise ValueError("layers of a deep GP hand on numbers: kernels of categories are for shallow methods")
    if any(isinstance(part, GeneralisedRBF) for part in kernel.modules()):
        raise ValueError("layers of a deep GP share their points: 'generalised-rbf' is for shallow methods")
    width = settings.hidden_width or min(dims, MAX_WIDTH)
    if not isinstance(settings.kernel, str) and width != dims:
        raise ValueError(
            f"a kernel object is made for the {dims} columns of X, and hidden layers are {width} wide: "
            f"give the kernel by name, or hidden_width={dims}"
        )
    return partial(initial_kernel, settings)


def _architecture(method: Method, settings: Settings, omega: str) -> Architecture:
    return Architecture(
        layers=settings.num_layers or method.defaults["num_layers"],
        width=settings.hidden_width,
        samples=settings.num_samples,
        q=method.q,
        ridge=settings.ridge,  # type: ignore[arg-type]
        num_residual=settings.num_residual,
        printed_kl=settings.printed_kl,
        whitening=settings.whitening,  # type: ignore[arg-type]
        omega=omega,  # type: ignore[arg-type]
        mean_jitter=settings.mean_jitter,
    )


@torch.no_grad()
def _first_std(method: Method, settings: Settings, likelihood: Likelihood) -> float:
    """Of q(u), relative to the prior's: where features are learned, they must not become the way out.

    Under the ELBO a wide q(u) is expensive at first, and a network's quickest relief is features that explain
    nothing. The predictive objective wants the variance of the targets instead, about one: with a narrow q(u)
    and little noise only the residual has it, again for features that explain nothing, and hardly a gradient
    comes back from there. At the prior the variance is one whatever the features.
    """
    if not method.has_network:
        return 1.0
    noise = settings.initial_noise
    if isinstance(likelihood, GaussianLikelihood):
        noise = float(likelihood.noise().mean())
    wants_variance = method.objective == "predictive" and likelihood.target == "real"
    return 1.0 if wants_variance and noise < 0.5 else 0.1


@torch.no_grad()
def _features_of(extractor: Extractor, points: Tensor) -> Tensor:
    return extractor.kernel(Constant()).embed(points)


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
    classes: int | None = None,
    rows: Batch | None = None,
    inputs: Tensor | None = None,
) -> Model:
    """R replicates of a method as one model, on the settings' device and in their precision.

    ``rows``: all of the training rows, for the exact basis; ``inputs`` [R, n, d]: some of them, from which
    the hidden layers of a deep GP choose their directions.
    """
    replicates, dims = inducing.shape[0], spread.shape[-1]
    dtype = settings.torch_dtype
    likelihood = batched(make_likelihood(settings, outputs, fixed_noise, classes), (replicates,))
    seen = likelihood.num_latents(outputs)  # functions that the likelihood sees
    latents = settings.num_latents or seen
    if settings.num_latents is not None and seen > outputs:
        raise ValueError(
            f"num_latents mixes latent functions into outputs that a likelihood sees one by one; "
            f"{settings.likelihood!r} looks at {seen} of them together"
        )
    batch_shape = (replicates, latents)
    shared = settings.shared_kernel
    if shared is None:  # classes differ in what they say, not in how smooth they are
        shared = latents > 1 and likelihood.target == "classes"

    mixing = None if settings.num_latents is None else LinearMixing(seen, latents, generators)
    if method.is_deep:
        model: Model = build_deep_model(
            method.name.removesuffix("-ridge"),
            inducing=inducing,
            extra=extra,
            kernel=_layer_kernels(settings, dims),
            likelihood=likelihood,
            latents=latents,
            objective=make_objective(method.objective, settings),
            numerics=Numerics(replicates, settings.jitter, dtype),
            num_data=num_data,
            generators=generators,
            architecture=_architecture(method, settings, omega),
            beta1=beta1,
            beta2=beta2,
            mean=settings.mean,
            mixing=mixing,
            shared_kernel=shared,
            inputs=inputs,
            spread=spread,
            learn_inducing=settings.learn_inducing,
        )
        if settings.initial_std is not None:
            model.basis.q.shrink(settings.initial_std)
        return model.to(settings.torch_device)

    kernel_shape = (replicates, 1) if shared else batch_shape
    deep = _extractors(method, settings, num_data, inducing)
    base_kernel: list[Kernel] = []  # decoupled extractors stand below one kernel (Zhu et al. 2023, example 2)

    def new_kernel(role: str = "covariance") -> Kernel:
        own = deep.get(role)
        if own is None:
            return initial_kernel(settings, spread, kernel_shape)
        if not base_kernel:
            base_kernel.append(initial_kernel(settings, own.spread, kernel_shape))
        return own.kernel(base_kernel[0])

    if deep and settings.inducing_space == "feature":
        if len(deep) > 1:
            raise ValueError(
                "inducing_space='feature' is for one extractor: two have two spaces of features; use 'input'"
            )
        (only,) = deep.values()
        inducing = only.points
        extra = None if extra is None else _features_of(only, extra)

    def new_q(*args: object, **kwargs: object) -> Q:
        if method.q == "point":
            kwargs["unwhitened"] = settings.log_prior == "unwhitened"
        if method.q == "ridge":
            kwargs["kind"] = settings.ridge
            tied = isinstance(likelihood, GaussianLikelihood) and latents == seen
            kwargs["noise"] = likelihood.noise if tied else None
        return QS[method.q](*args, **kwargs)  # type: ignore[arg-type]

    parts = Ingredients(
        method, settings, omega, batch_shape, likelihood, rows, inducing, extra, new_kernel, new_q
    )
    basis = BASES[method.basis](parts)
    basis.initialise(generators)
    if not settings.learn_inducing:
        for name, parameter in basis.named_parameters():
            if name.endswith("inducing"):
                parameter.requires_grad_(False)
    if method.basis == "neural":
        widths = [*(settings.mean_widths or settings.widths or default_widths(num_data)), 1]
        net = make_network(settings, dims, widths, batch_shape, settings.random_state)
        mean: Mean = NetworkMean(net)
    else:
        mean = batched(make_mean(settings.mean, dims), batch_shape)
    model = Model(
        mean=mean,
        basis=basis,
        likelihood=likelihood,
        objective=make_objective(method.objective, settings),
        numerics=Numerics(replicates, settings.jitter, dtype),
        num_data=num_data,
        beta1=beta1,
        beta2=beta2,
        mixing=mixing,
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model = model.to(settings.torch_device)
    if isinstance(basis, Conditional) and deep:
        basis.start_at_prior(model.numerics)
    basis.q.shrink(settings.initial_std or _first_std(method, settings, likelihood))
    return model
