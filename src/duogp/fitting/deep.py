"""The layers of a deep GP: each built by the recipe of a shallow basis, and where everything starts.

    coupled           Salimbeni and Deisenroth 2017
    solve             two blocks, q(u) q(v): DGP-SOLVE-GP of Popescu et al.
    conditional       decoupled conditionals, β₂Ω in every layer
    layer-components  DSGPC first, then `LayerComponents` (Popescu et al.); ε > 0: every layer a bound

Hidden layers start as their skip mean: m near 0 and L_S = 10⁻⁴I, while the last layer starts at its prior.
Their inducing points are those of the first layer, handed on by the skip means, so that they stand where
the data arrive; points drawn uniformly from [−1, 1], as published for DDGPC, are the alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from duogp.bases.inducing import column_spread
from duogp.bases.recipes import Parts, Recipe, recipe_of
from duogp.kernels import Kernel
from duogp.likelihoods import GaussianLikelihood, Likelihood
from duogp.means import SkipMean, make_mean
from duogp.models.deep import DeepModel
from duogp.models.layers import Layer
from duogp.models.mixing import LinearMixing
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import DataTerm, Objective, as_objective
from duogp.variational import CholeskyQ, Q

#: (standard deviation of every input column [R, 1, d], leading shape of the parameters) → a kernel
KernelFactory = Callable[[Tensor, tuple[int, ...]], Kernel]

#: Widest hidden layer unless the user says how wide.
MAX_WIDTH = 30
#: Samples of the hidden layers in a step: one estimates a mean without bias, the log of a mean needs several.
SAMPLES, PREDICTIVE_SAMPLES = 1, 8


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

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers must be at least 1, got {self.layers}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if not self.hidden_root > 0:
            raise ValueError(f"hidden_root must be above 0, got {self.hidden_root}")
        if self.hidden_points not in ("propagated", "uniform"):
            raise ValueError(
                f"hidden_points must be one of 'propagated', 'uniform', got {self.hidden_points!r}"
            )


def build_deep_model(
    recipe: Recipe | str,
    *,
    inducing: Tensor,
    extra: Tensor | None = None,
    kernel: KernelFactory,
    likelihood: Likelihood,
    latents: int,
    objective: Objective | DataTerm,
    numerics: Numerics,
    num_data: int,
    generators: Sequence[torch.Generator],
    architecture: Architecture | None = None,
    q: type[Q] = CholeskyQ,
    options: Mapping[str, Any] | None = None,
    beta1: Tensor | float = 1.0,
    beta2: Tensor | float = 0.0,
    mean: str | nn.Module = "constant",
    offset: nn.Module | None = None,
    mixing: LinearMixing | None = None,
    shared_kernel: bool = False,
    inputs: Tensor | None = None,
    spread: Tensor | None = None,
    learn_inducing: bool = True,
) -> DeepModel:
    """R replicates of a deep GP, on the device of ``inducing`` and in the precision of ``numerics``.

    Every layer is built by ``recipe`` with a q(u) of the class ``q``; ``options``: the settings that these
    two read. ``inducing`` [R, 1, M, d] and ``extra`` (of the second block, where the recipe has one) are the
    points of the first layer. ``likelihood`` leads with [R] and sees ``latents`` functions, or what
    ``mixing`` makes of them; they share a kernel if ``shared_kernel``. ``mean`` is the prior mean of the last
    layer, a function of that layer's inputs; ``offset`` is one more, of the inputs of the model. ``inputs``
    [R, n, d]: rows whose principal directions a narrow
    hidden layer keeps and whose spread the kernels are given; without them, those of the inducing points.
    ``spread`` [R, 1, d]: that of the inputs, where it is known better.
    """
    recipe = recipe_of(recipe) if isinstance(recipe, str) else recipe
    a = Architecture() if architecture is None else architecture
    options = {} if options is None else options
    if not recipe.can_be_layer:
        raise ValueError(f"layers of a deep GP cannot be built of the basis {recipe.name!r}")
    if (extra is None) == recipe.has_second_block:
        needed = "needs" if extra is None else "has no use for"
        raise ValueError(f"{recipe.name!r} {needed} extra, the points of a second block")
    replicates, dims = inducing.shape[0], inducing.shape[-1]
    width = min(dims, MAX_WIDTH) if a.width is None else a.width
    rows = inducing.squeeze(1) if inputs is None else inputs
    if rows.shape[-1] != dims:  # so have the points of a generalised kernel, behind their places
        raise ValueError(f"inducing has {dims} columns, inputs have {rows.shape[-1]}: they must be the same")
    noise = likelihood.noise if isinstance(likelihood, GaussianLikelihood) and mixing is None else None
    objective = as_objective(objective)

    hidden: list[Layer] = []
    for index in range(a.layers):
        is_last = index == a.layers - 1
        shape = (replicates, latents if is_last else width)
        shared = shared_kernel if is_last else a.shared_kernels
        if spread is None or index:
            spread = column_spread(rows.double())
        new_kernel = partial(kernel, spread, (replicates, 1) if shared else shape)
        parts = Parts(
            inducing.clone(),
            shape,
            lambda role, new_kernel=new_kernel: new_kernel(),  # type: ignore[misc]
            _q_factory(a, q, options, shape, noise=noise if is_last else None, is_hidden=not is_last),
            None if extra is None else extra.clone(),
            options,
            generators,
            layer=index,
        )
        basis = recipe.build(parts)
        basis.initialise(generators)
        if is_last:
            break
        skip = SkipMean.between(rows, width)
        hidden.append(Layer(skip, basis))
        rows = skip(rows.double().unsqueeze(1)).mT
        inducing = _handed_on(inducing, skip, a, generators)
        extra = None if extra is None else _handed_on(extra, skip, a, generators)

    samples = PREDICTIVE_SAMPLES if objective.averages_inside_log else SAMPLES
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
        samples=samples if a.samples is None else a.samples,
        eval_samples=a.eval_samples,
        columns=a.columns,
        offset=offset,
    )
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(numerics.dtype)
        if name.endswith("inducing") and not learn_inducing:
            parameter.requires_grad_(False)
    return model.to(inducing.device)


def _q_factory(
    a: Architecture,
    q: type[Q],
    options: Mapping[str, Any],
    shape: tuple[int, int],
    *,
    noise: Positive | None,
    is_hidden: bool,
) -> Callable[..., Q]:
    """q(u) of one layer, by its size; in hidden layers it starts narrow."""
    own = {name: options[name] for name in q.options if name in options}
    # A σ² of q(u) is the likelihood's noise in the last layer, and as small as S in hidden ones.
    tied = noise if noise is not None and noise.raw.shape == shape else None
    sigma = batched(Positive(a.hidden_root), shape) if is_hidden else tied

    def new_q(size: int, mean_size: int | None = None) -> Q:
        made = q.build(size, shape, mean_size, noise=sigma, **own)
        if is_hidden:
            made.shrink(a.hidden_root)
        return made

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
