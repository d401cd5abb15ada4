"""From settings to likelihoods, kernels and extractors: what a name among the settings stands for."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from duogp.fitting.extractors import Extractor
from duogp.kernels import ActiveDims, Constant, Kernel, Scale, Stationary, Sum, make_kernel
from duogp.likelihoods import LIKELIHOODS, GaussianLikelihood, Likelihood, make_named
from duogp.methods.registry import Method
from duogp.methods.settings import BY_DIMENSION, Settings, as_list
from duogp.numerics.parameters import LogNormalPrior, Prior, batched

#: A likelihood by the labels: "bernoulli" for two classes, "robust-max" for more.
CLASSES = "classes"
PROBIT_SLOPE = 0.6
#: Range of a scaled column: of a uniform one with standard deviation 1, of [−1, 1], of the unit cube.
UNIT_RANGE: dict[Any, float] = {True: math.sqrt(12.0), "minmax": 2.0, "cube": 2.0, False: 1.0}


def likelihood_name(name: object) -> str:
    """The name as the table has it ("Student T" is "student-t"), or an error with the nearest one."""
    names = [*LIKELIHOODS, CLASSES]
    key = re.sub(r"[^a-z]+", "-", str(name).lower().strip())
    if key not in names:
        near = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"unknown likelihood {name!r}{hint} The names are {', '.join(names)}")
    return key


def target_kind(spec: Any) -> str:
    """What y may be under a likelihood: "real", "count", "positive", "unit" or "classes"."""
    if isinstance(spec, Likelihood):
        return spec.target
    name = likelihood_name(spec)
    return "classes" if name == CLASSES else LIKELIHOODS[name].target


def likelihood_traits(settings: Settings) -> Likelihood | type[Likelihood]:
    """An object with the traits of the likelihood asked for: itself, or the class behind its name."""
    spec = settings.likelihood
    if isinstance(spec, Likelihood):
        return spec
    name = likelihood_name(spec)
    return Likelihood if name == CLASSES else LIKELIHOODS[name]  # no trait holds for classes of any number


def likelihood_label(settings: Settings) -> str:
    """The likelihood asked for, in words for messages."""
    spec = settings.likelihood
    return type(spec).__name__ if isinstance(spec, Likelihood) else repr(spec)


def is_gaussian(settings: Settings) -> bool:
    """Whether the likelihood is Gaussian with one noise variance, so that q(u) has a closed form."""
    return likelihood_traits(settings).is_gaussian


def make_likelihood(
    settings: Settings, outputs: int, fixed_noise: bool, classes: int | None = None
) -> Likelihood:
    """The likelihood of the settings for so many outputs or classes, without leading dimensions."""
    spec = settings.likelihood
    if isinstance(spec, Likelihood):
        if getattr(spec, "outputs", outputs) != outputs:
            raise ValueError(f"likelihood is made for {spec.outputs} outputs, but y has {outputs}")
        if classes is not None and getattr(spec, "classes", classes) != classes:
            raise ValueError(f"likelihood is made for {spec.classes} classes, but y has {classes}")
        return spec
    spec = likelihood_name(spec)
    if spec == CLASSES:
        spec = "bernoulli" if classes == 2 else "robust-max"
    learn = not fixed_noise if settings.learn_noise is None else settings.learn_noise
    if fixed_noise and not learn and LIKELIHOODS[spec].is_gaussian:  # all of the noise is given
        return GaussianLikelihood(outputs, noise=2e-10, floor=1e-10, learn=False)
    floor = settings.noise_floor
    likelihood = make_named(
        spec,
        outputs=outputs,
        classes=classes,
        noise=max(settings.initial_noise, 2 * floor),
        noise_floor=floor,
        learn_noise=learn,
    )
    if settings.noise_prior is not None:
        if not isinstance(likelihood, GaussianLikelihood):
            raise ValueError(f"noise_prior is of Gaussian noise, got likelihood={settings.likelihood!r}")
        likelihood.noise.prior = settings.noise_prior
    return likelihood


def initial_slope(likelihood: Likelihood) -> float:
    """Of a latent function in the log odds that a mean predicts: the probit of p is 0.6 times its logit."""
    return PROBIT_SLOPE if getattr(likelihood, "link", None) == "probit" else 1.0


def initial_kernel(
    settings: Settings, spread: Tensor, batch_shape: tuple[int, ...] = (), *, learned: int = 0
) -> Kernel:
    """The kernel that replicates start from; ``spread``: the standard deviation of every column, [..., d].

    ``learned``: the last so many columns are a cross-fitted mean, which kernels see that are given by name.
    """
    if learned and not (settings.mean_as_input and isinstance(settings.kernel, str)):
        dims = spread.shape[-1] - learned
        return ActiveDims(initial_kernel(settings, spread[..., :dims], batch_shape), range(dims))
    dims = spread.shape[-1]
    kernel = make_kernel(settings.kernel, dims, ard=settings.ard, scale=settings.output_scale)
    kernel = batched(kernel, batch_shape)
    if isinstance(settings.kernel, str):
        # Two standardised rows are about √(2d) apart: at √d they are neither alike nor unrelated.
        typical = spread if settings.ard else spread.square().mean(-1, keepdim=True).sqrt()
        summands = list(kernel.kernels) if isinstance(kernel, Sum) else [kernel]
        prior = lengthscale_prior(settings, dims)
        mode = prior.mode if prior is not None else None
        start = math.sqrt(dims) * typical if mode is None else mode
        initial = as_list(settings.initial_lengthscale) or [start]
        if len(initial) not in (1, len(summands)):
            raise ValueError(
                f"initial_lengthscale must be one number, or one for each of the {len(summands)} summands of "
                f"{settings.kernel!r}, got {len(initial)}"
            )
        for i, part in enumerate(summands):
            base = part.kernel if isinstance(part, Scale) else part
            if isinstance(base, Stationary):
                base.lengthscale.set_(initial[i % len(initial)])
                base.lengthscale.prior = prior
            if isinstance(part, Scale) and settings.initial_scale is not None:
                part.variance.set_(settings.initial_scale / len(summands))
    return kernel


def lengthscale_prior(settings: Settings, dims: int) -> Prior | None:
    """The prior of lengthscales on so many inputs.

    "dimension": log lengthscale ~ N(√2 + ½ log d, 3) in units of a column's range (Hvarfner et al. 2024): as
    points of the cube are √d times as far apart in d dimensions, so are functions expected to vary less.
    """
    if settings.lengthscale_prior != BY_DIMENSION:
        return settings.lengthscale_prior
    unit = UNIT_RANGE[settings.standardize]
    return LogNormalPrior(math.sqrt(2.0) + 0.5 * math.log(dims) + math.log(unit), math.sqrt(3.0))


class KernelFactory:
    """Kernels of a shallow model by role, on features where the method has extractors.

    Decoupled extractors stand below one kernel (Zhu et al. 2023, example 2).
    """

    def __init__(
        self,
        method: Method,
        settings: Settings,
        spread: Tensor,
        shape: tuple[int, int],
        rows: int,
        inducing: Tensor,
        learned: int = 0,
    ) -> None:
        roles = {"shared": ("covariance",), "decoupled": ("covariance", "mean"), "mean": ("mean",)}
        chosen = roles.get(method.defaults.get("extractor", ""), ())
        batch, seed = (inducing.shape[0], 1), settings.random_state
        self.extractors = {role: Extractor(settings, role, rows, inducing, seed, batch) for role in chosen}
        self._of_inputs: Callable[[], Kernel] = lambda: initial_kernel(
            settings, spread, shape, learned=learned
        )
        self._settings, self._shape = settings, shape
        self._on_features: Kernel | None = None

    def __call__(self, role: str) -> Kernel:
        own = self.extractors.get(role)
        if own is None:
            return self._of_inputs()
        if self._on_features is None:
            self._on_features = initial_kernel(self._settings, own.spread, self._shape)
        return own.kernel(self._on_features)

    def in_feature_space(self, inducing: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Inducing points as features of the one extractor."""
        if len(self.extractors) > 1:
            raise ValueError(
                "inducing_space='feature' is for one extractor: two have two spaces of features; use 'input'"
            )
        (only,) = self.extractors.values()
        with torch.no_grad():
            return only.points, None if extra is None else only.kernel(Constant()).embed(extra)
