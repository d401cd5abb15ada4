"""Every setting of a fit, with its default, checked by name, type and range in one place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, get_args

import numpy as np
import torch

from duogp.bases.inducing import INITIALISERS
from duogp.inference.mean_rules import MEAN_RULES
from duogp.numerics.networks import ACTIVATIONS, Normalisation
from duogp.variational.ridge import RIDGES

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """What `duogp.fit` takes. ``None`` means: chosen from the method, the solver and the data."""

    # the model
    num_inducing: int | None = None  #: points of the block that carries S; 500, or all rows if fewer
    num_extra: int | None = None  #: points of a second block (Z_μ, O); as many as num_inducing
    likelihood: Any = "gaussian"  #: a name ("classes" for labels), or a likelihood object
    num_latents: int | None = None  #: latent functions mixed into the outputs (LMC); None: one for each
    shared_kernel: bool | None = None  #: one kernel for all latent functions; on for many classes
    mean: Any = "constant"  #: prior mean: "zero", "constant", "linear" or a module
    kernel: Any = "matern52"  #: a name or a kernel object
    ard: bool = True  #: one lengthscale per column
    output_scale: bool = True  #: learn the prior variance (kernels given by name)
    initial_lengthscale: float | Sequence[float] | None = None  #: √d, for standardised inputs; a sum: a list
    initial_scale: float | None = None  #: initial prior variance, 1 by default
    initial_std: float | None = None  #: of q(u) relative to the prior's: 1; 0.1 with networks under the ELBO
    initial_noise: float = 0.1
    noise_floor: float = 1e-6  #: the learned noise variance stays above it, in scaled units
    learn_noise: bool | None = None  #: on, unless fixed noise is given
    log_prior: str = "whitened"  #: of a point q(u): "whitened" or "unwhitened" (MATH §4)
    gamma: float = 1.03  #: of the γ-robust objective
    mean_columns: int | None = None  #: of the hybrid basis: columns of k(γ, γ) that a step sees; all
    preconditioner: str = "jacobi"  #: of the subspace basis: "none", "jacobi" or "nystrom"
    ridge: str = "printed"  #: S of a ridge q(u): "printed", "kernel" or "contracting" (MATH §5.3)
    epsilon: float = 0.1  #: of DSGPC-ε: how far the second block is shrunk, in (0, 1]
    gpytorch_sign: bool = False  #: of the γ-robust normaliser, for comparison only

    # networks: feature extractors of deep kernels, network means
    widths: Sequence[int] | None = None  #: of the extractor's layers, its features last; by the rows
    mean_widths: Sequence[int] | None = None  #: of the mean's own extractor or network; as widths
    extractor: Any = None  #: a module of yours from [..., n, d] to [..., n, features], instead of widths
    mean_extractor: Any = None  #: one of its own for the mean kernel; a copy of extractor
    activation: str = "silu"  #: "relu", "silu", "tanh" or "gelu"
    normalisation: str = "none"  #: "none", "layer", "spectral" or "batch" (running moments)
    inducing_space: str = "input"  #: of deep kernels: "input" or "feature"
    weight_decay: float | None = None  #: of network weights, decoupled; 1e-4

    # deep GPs
    num_layers: int | None = None  #: layers of a deep GP, the last one included; 2
    hidden_width: int | None = None  #: units of a hidden layer; as many as inputs, at most 30
    num_samples: int | None = None  #: of the hidden layers in a step; 1, predictive objectives 8
    num_residual: int = 10  #: of DDGPC: β points of every layer but the first
    printed_kl: bool = False  #: of DDGPC: eq. 59 as printed, for comparison only (MATH §5.4)

    # what is optimised
    beta1: float | Sequence[float] = 1.0  #: weight of the KL; a list is chosen from on validation rows
    beta2: float | Sequence[float] | None = None  #: weight of Ω; 1e-3 stochastic, 0 closed-form; or a list
    whitening: str = "Q"  #: of the conditional basis: "Q" or "K"
    omega: str | None = None  #: rows that Ω sees: "rows", "batch" (as published), "blocks", "full"
    omega_block: int | None = None  #: rows of a block of Ω in closed-form training; about num_inducing

    # how
    inducing_init: str | None = None  #: "kmeans" (the default), "random" or "greedy"
    extra_init: str | None = None  #: of a second block, apart; None: together with the first
    learn_inducing: bool = True
    solver: str = "auto"  #: "auto", "closed-form", "stochastic" or "natural"
    warm_start: int | None = None  #: closed-form SVGP steps to start from
    warm_start_rows: int | None = None  #: on a sample of so many rows; all
    time_budget: float | None = None  #: seconds of training, after which it ends where it is
    epochs: int | None = None
    steps: int | None = None  #: optimiser steps in all, instead of epochs
    batch_size: int = 1024
    learning_rate: float | None = None
    natural_rate: float | None = None  #: of natural gradients on q(u): 0.1; 0.02 without log-concavity
    mean_rule: str = "adam"  #: of γ's mean beside natural gradients: "adam", "exact", "diagonal", "joint"
    schedule: Any = None  #: "constant", "multistep", "cosine" or a function of the fraction done
    validation_fraction: float | None = None
    early_stopping: bool | None = None
    patience: int | None = None  #: evaluations without improvement before stopping: 10, 40 with networks
    refit: bool = True  #: closed form: rows held out come back for the final q(u)
    evaluate_every: int | None = None  #: epochs between looks at the validation rows
    standardize: bool | str = True  #: True, False, or "minmax" for inputs in [−1, 1]

    # where
    device: str | None = None  #: "cpu", "cuda", ...; None: CUDA where there is one
    dtype: str = "float64"
    backend: str = "auto"  #: "auto", "eager", "compile" (torch.compile) or "graph" (CUDA)
    jitter: float | None = None  #: relative to the prior variance
    mean_jitter: float | None = None  #: of the conditional basis' mean kernel; jitter by default
    random_state: int = 0
    verbose: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict_shallow(self).items():
            if isinstance(value, np.generic | np.ndarray):  # np.int64(100), an array of β values
                object.__setattr__(self, name, value.tolist())
            elif isinstance(value, torch.dtype):
                object.__setattr__(self, name, str(value).removeprefix("torch."))
            elif name == "dtype" and isinstance(value, type | np.dtype):  # np.float32
                object.__setattr__(self, name, np.dtype(value).name)
        _positive_int("batch_size", self.batch_size)
        _positive_int("num_residual", self.num_residual)
        for name in (
            "num_inducing",
            "num_extra",
            "num_latents",
            "num_layers",
            "hidden_width",
            "num_samples",
            "epochs",
            "steps",
            "evaluate_every",
            "omega_block",
            "mean_columns",
            "patience",
            "warm_start_rows",
        ):
            if getattr(self, name) is not None:
                _positive_int(name, getattr(self, name))
        for name in (
            "learning_rate",
            "natural_rate",
            "initial_scale",
            "initial_std",
            "jitter",
            "mean_jitter",
            "time_budget",
        ):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.initial_lengthscale is not None:
            for value in as_list(self.initial_lengthscale):
                _positive("initial_lengthscale", value)
        if self.warm_start is not None and self.warm_start != 0:
            _positive_int("warm_start", self.warm_start)
        if self.weight_decay is not None and not (_is_number(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be a number ≥ 0, got {self.weight_decay!r}")
        for name in ("widths", "mean_widths"):
            if getattr(self, name) is not None and not as_list(getattr(self, name)):
                raise ValueError(f"{name} must hold at least one width, got {getattr(self, name)!r}")
            for width in as_list(getattr(self, name)):
                _positive_int(name, width)
        for name in ("extractor", "mean_extractor"):
            if not isinstance(getattr(self, name), torch.nn.Module | None):
                raise TypeError(f"{name} must be a torch module, got {getattr(self, name)!r}")
        _one_of("activation", self.activation, tuple(ACTIVATIONS))
        _one_of("normalisation", self.normalisation, get_args(Normalisation))
        _one_of("inducing_space", self.inducing_space, ("input", "feature"))
        for name in ("initial_noise", "noise_floor"):
            _positive(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            given = getattr(self, name)
            values = as_list(given) if given is not None or name == "beta1" else [0.0]
            if not values or not all(_is_number(v) and v >= 0 for v in values):
                raise ValueError(f"{name} must be a number ≥ 0 or a list of such numbers, got {given!r}")
        if any(value == 0 for value in as_list(self.beta1)):
            raise ValueError(f"beta1 must be above 0 (without the KL, q(u) has no scale), got {self.beta1!r}")
        if not (_is_number(self.epsilon) and 0 < self.epsilon <= 1):
            raise ValueError(f"epsilon must be in (0, 1], got {self.epsilon!r}")
        if not (_is_number(self.gamma) and self.gamma > 1):
            raise ValueError(f"gamma must be a number above 1, got {self.gamma!r}")
        for name in (
            "ard", "output_scale", "gpytorch_sign", "learn_inducing", "refit", "verbose", "printed_kl",
        ):  # fmt: skip
            _one_of(name, getattr(self, name), (True, False))
        for name in ("learn_noise", "early_stopping", "shared_kernel"):
            _one_of(name, getattr(self, name), (None, True, False))
        if not isinstance(self.mean, str | torch.nn.Module):
            raise TypeError(f"mean must be a name or a module, got {self.mean!r}")
        for name in ("inducing_init", "extra_init"):
            _one_of(name, getattr(self, name), (None, *INITIALISERS))
        _one_of("solver", self.solver, ("auto", "closed-form", "stochastic", "natural"))
        _one_of("mean_rule", self.mean_rule, MEAN_RULES)
        _one_of("ridge", self.ridge, RIDGES)
        _one_of("preconditioner", self.preconditioner, ("none", "jacobi", "nystrom"))
        _one_of("whitening", self.whitening, ("Q", "K"))
        _one_of("log_prior", self.log_prior, ("whitened", "unwhitened"))
        _one_of("dtype", self.dtype, tuple(DTYPES))
        _one_of("backend", self.backend, ("auto", "eager", "compile", "graph"))
        _one_of("standardize", self.standardize, (True, False, "minmax"))
        if self.omega is not None:
            _one_of("omega", self.omega, ("rows", "batch", "blocks", "full"))
        fraction = self.validation_fraction
        if fraction is not None and not (_is_number(fraction) and 0 <= fraction < 1):
            raise ValueError(f"validation_fraction must be in [0, 1), got {fraction!r}")
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int):
            raise TypeError(f"random_state must be an integer, got {self.random_state!r}")
        if not 0 <= self.random_state < 2**63:
            raise ValueError(f"random_state must be from 0 to 2**63 - 1, got {self.random_state}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def torch_device(self) -> torch.device:
        if self.device is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"device must name a torch device such as 'cpu' or 'cuda', got {self.device!r}"
            ) from error
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be on 'cpu' or 'cuda', got {self.device!r}")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device is {self.device!r}, but this torch sees no CUDA device")
        return device

    def but(self, **changes: Any) -> Settings:
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; objects (kernels, modules, functions) by their representation."""
        plain = (str, int, float, bool, type(None), list, tuple)
        return {k: v if isinstance(v, plain) else repr(v) for k, v in asdict_shallow(self).items()}

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """Settings from keywords; an unknown name is answered with the nearest known one."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; the settings are {', '.join(known)}"
                raise TypeError(f"unknown setting {name!r}{hint}")
        return cls(**given)


def asdict_shallow(settings: Settings) -> dict[str, Any]:
    return {f.name: getattr(settings, f.name) for f in fields(settings)}


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _positive_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def _positive(name: str, value: Any) -> None:
    if not (_is_number(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def _is_number(value: Any) -> bool:
    """A finite real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
