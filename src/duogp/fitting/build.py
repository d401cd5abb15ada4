"""From a method, settings and points to a model: shallow and deep ones from the same recipes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from duogp.bases.recipes import Parts
from duogp.fitting.deep import MAX_WIDTH, Architecture, build_deep_model
from duogp.fitting.extractors import default_widths, make_network
from duogp.fitting.factories import KernelFactory, initial_kernel, initial_slope, make_likelihood
from duogp.kernels import GeneralisedRBF
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.means import Mean, NetworkMean, OffsetMean, make_mean
from duogp.methods.registry import Method
from duogp.methods.settings import Settings
from duogp.models.mixing import LinearMixing
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import Q


def basis_options(method: Method, settings: Settings, omega: str) -> dict[str, Any]:
    """The settings that the basis of a method reads; ``omega``: as planned."""
    options = {name: getattr(settings, name) for name in method.recipe.options if hasattr(settings, name)}
    for name, value in method.own_settings:
        if options.get(name, value) is None:
            options[name] = value
    return options | ({"omega": omega} if "omega" in options else {})


def q_factory(method: Method, settings: Settings, batch_shape: tuple[int, int], noise: Any) -> Any:
    """(size, mean_size) → q(u); ``noise``: σ² of the likelihood, where q(u) may be tied to it."""
    options = {name: getattr(settings, name) for name in method.q_class.options if hasattr(settings, name)}

    def new_q(size: int, mean_size: int | None = None) -> Q:
        return method.q_class.build(size, batch_shape, mean_size, noise=noise, **options)

    return new_q


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
    learned: int = 0,
) -> Model:
    """R replicates of a method as one model, on the settings' device and in their precision.

    ``rows``: all of the training rows, where the points are the rows; ``inputs`` [R, n, d]: some of them,
    from which the hidden layers of a deep GP choose their directions. ``learned``: the last so many columns
    are a cross-fitted mean.
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
    common: dict[str, Any] = {
        "likelihood": likelihood,
        "objective": _objective(method, settings),
        "numerics": Numerics(replicates, settings.jitter, dtype),
        "num_data": num_data,
        "beta1": beta1,
        "beta2": beta2,
        "mixing": None if settings.num_latents is None else LinearMixing(seen, latents, generators),
    }
    offset = None
    if learned:
        offset = batched(OffsetMean(learned, latents, initial_slope(likelihood)), batch_shape)
    options = basis_options(method, settings, omega)
    if method.is_deep:
        _check_layer_kernel(settings, dims)
        architecture = Architecture(
            layers=settings.num_layers or method.defaults["num_layers"],
            width=settings.hidden_width,
            samples=settings.num_samples,
        )
        deep = build_deep_model(
            method.recipe,
            inducing=inducing,
            extra=extra,
            kernel=partial(initial_kernel, settings),
            latents=latents,
            generators=generators,
            architecture=architecture,
            q=method.q_class,
            options=options | {name: getattr(settings, name) for name in method.q_class.options},
            mean="constant" if learned else settings.mean,
            offset=offset,
            shared_kernel=shared,
            inputs=inputs,
            spread=spread,
            learn_inducing=settings.learn_inducing,
            **common,
        )
        if settings.initial_std is not None:
            deep.basis.q.shrink(settings.initial_std)
        return deep.to(settings.torch_device)

    kernels = KernelFactory(
        method, settings, spread, (replicates, 1) if shared else batch_shape, num_data, inducing, learned
    )
    if kernels.extractors and settings.inducing_space == "feature":
        inducing, extra = kernels.in_feature_space(inducing, extra)
    tied = isinstance(likelihood, GaussianLikelihood) and latents == seen
    parts = Parts(
        inducing,
        batch_shape,
        kernels,
        q_factory(method, settings, batch_shape, likelihood.noise if tied else None),
        extra,
        options,
        generators,
        likelihood=likelihood,
        rows=rows,
    )
    basis = method.recipe.build(parts)
    basis.initialise(generators)
    if not settings.learn_inducing:
        for name, parameter in basis.named_parameters():
            if name.endswith("inducing"):
                parameter.requires_grad_(False)
    mean = _mean(method, settings, dims, num_data, batch_shape) if offset is None else offset
    model = Model(mean=mean, basis=basis, **common)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model = model.to(settings.torch_device)
    if kernels.extractors:
        basis.start_at_prior(model.numerics)
    basis.q.shrink(settings.initial_std or _first_std(method, settings, likelihood))
    return model


def _objective(method: Method, settings: Settings) -> Any:
    objective = method.data_term
    return objective.configured(**{name: getattr(settings, name) for name in objective.options})


def _mean(method: Method, settings: Settings, dims: int, rows: int, batch_shape: tuple[int, int]) -> Mean:
    if not method.has_network_mean:
        return batched(make_mean(settings.mean, dims), batch_shape)
    widths = [*(settings.mean_widths or settings.widths or default_widths(rows)), 1]
    return NetworkMean(make_network(settings, dims, widths, batch_shape, settings.random_state))


def _check_layer_kernel(settings: Settings, dims: int) -> None:
    """An error for kernels that the layers of a deep GP, which make inputs of their own, cannot have."""
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


@torch.no_grad()
def _first_std(method: Method, settings: Settings, likelihood: Likelihood) -> float:
    """Standard deviation of q(u) at the start, relative to the prior's: 1, or 0.1 where features are learned.

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
    wants_variance = method.data_term.averages_inside_log and likelihood.target == "real"
    return 1.0 if wants_variance and noise < 0.5 else 0.1
