"""Every setting of a fit, with its default, checked by name, type and range in one place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Check(NamedTuple):
    """A condition on the value of a setting; ``each``: on every entry of a list."""

    what: str  # "NAME must WHAT, got VALUE"
    holds: Callable[[Any], bool]
    each: bool = False
    error: type[Exception] = ValueError


def as_list(value: Any) -> list[Any]:
    """A value as a list: itself if it is one, empty for None."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _is_number(value: Any) -> bool:
    """A finite real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_weights(value: Any) -> bool:
    return bool(as_list(value)) and all(_is_number(v) and v >= 0 for v in as_list(value))


def _are_shares(value: Any) -> bool:
    return isinstance(value, Sequence) and all(_is_number(v) and 0 <= v < 1 for v in value)


#: Checks of a type of setting, see `_checks`.
COUNT = Check("be a positive integer", lambda v: _is_integer(v) and v >= 1)
POSITIVE = Check("be a positive number", lambda v: _is_number(v) and v > 0)
MODERATE = Check("be a number from 1e-100 to 1e100", lambda v: _is_number(v) and 1e-100 <= v <= 1e100)
WIDTHS = Check("hold at least one width", lambda v: bool(as_list(v)))
#: Checks of single settings.
COUNT_OR_ZERO = COUNT._replace(holds=lambda v: v == 0 or COUNT.holds(v))
NOT_NEGATIVE = Check("be a number ≥ 0", lambda v: _is_number(v) and v >= 0)
ABOVE_ONE = Check("be a number above 1", lambda v: _is_number(v) and v > 1)
SHARE = Check("be in [0, 1)", lambda v: _is_number(v) and 0 <= v < 1)
TWO_SHARES = Check("be two numbers in [0, 1)", lambda v: _are_shares(v) and len(v) == 2)
POSITIVE_SHARE = Check("be in (0, 1]", lambda v: _is_number(v) and 0 < v <= 1)
WEIGHTS = Check("be a number ≥ 0 or a list of such numbers", _are_weights)
NO_ZERO = Check("be above 0 (without the KL, q(u) has no scale)", lambda v: 0 not in as_list(v))
MODULE = Check("be a torch module", lambda v: isinstance(v, torch.nn.Module), error=TypeError)
MEAN = Check(
    "be a name, a module, `duogp.means.Trees` or a scikit-learn model",
    lambda v: isinstance(v, str | torch.nn.Module) or hasattr(v, "fit") or hasattr(v, "model"),
    error=TypeError,
)
#: The prior of lengthscales that grows with the number of inputs, see `fitting.factories`.
BY_DIMENSION = "dimension"
LENGTHSCALE_PRIOR = Check(
    f"be {BY_DIMENSION!r} or a prior such as duogp.numerics.parameters.LogNormalPrior",
    lambda v: v == BY_DIMENSION or callable(v),
)
NOISE_PRIOR = Check("be a prior such as duogp.numerics.parameters.LogNormalPrior", callable, error=TypeError)
FOLDS_OF_MEAN = Check("be an integer from 2 on", lambda v: _is_integer(v) and v >= 2)
INTEGER = Check("be an integer", _is_integer, error=TypeError)
SEED = Check("be from 0 to 2**63 - 1", lambda v: 0 <= v < 2**63)


class CheckedSettings:
    """Base of a frozen dataclass of settings, whose types are their checks.

    An int is positive, a float is a positive number, a Literal is a choice; `Check`s in an annotation replace
    these. None passes where it is the default.
    """

    device: str | None
    dtype: Any

    def __post_init__(self) -> None:
        cls: Any = type(self)
        checks = checks_of(cls)
        for name, value in asdict_shallow(self).items():
            if isinstance(value, np.generic | np.ndarray):  # np.int64(100), an array of β values
                value = value.tolist()
            elif isinstance(value, torch.dtype):
                value = str(value).removeprefix("torch.")
            elif name == "dtype" and isinstance(value, type | np.dtype):  # np.float32
                value = np.dtype(value).name
            object.__setattr__(self, name, value)
            for check in checks[name] if value is not None or getattr(cls, name) is not None else ():
                for part in as_list(value) if check.each else [value]:
                    if not check.holds(part):
                        raise check.error(f"{name} must {check.what}, got {part!r}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The precision of the fit."""
        return DTYPES[self.dtype]

    @property
    def torch_device(self) -> torch.device:
        """The device of the fit; an error where it is not available."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values; objects (kernels, modules, functions) by their representation."""
        plain = (str, int, float, bool, type(None), list, tuple)
        return {k: v if isinstance(v, plain) else repr(v) for k, v in asdict_shallow(self).items()}


@dataclass(frozen=True)
class Settings(CheckedSettings):
    """What `duogp.fit` takes. ``None`` means: chosen from the method, the solver and the data."""

    # the model
    num_inducing: int | None = None  #: points of the block that carries S; 500, or all rows if fewer
    num_extra: int | None = None  #: points of a second block (Z_μ, O); as many as num_inducing
    likelihood: Any = "gaussian"  #: a name ("classes" for labels), or a likelihood object
    num_latents: int | None = None  #: latent functions mixed into the outputs (LMC); None: one for each
    shared_kernel: bool | None = None  #: one kernel for all latent functions; on for many classes
    mean: Annotated[Any, MEAN] = "constant"  #: prior mean: "zero", "constant", "linear", "trees", "ridge",
    #: a module, or any scikit-learn regressor or classifier, which is cross-fitted like trees and ridge
    mean_folds: Annotated[int, FOLDS_OF_MEAN] = 5  #: of a cross-fitted mean
    mean_as_input: bool = True  #: a cross-fitted mean is also a column of the kernel's inputs
    kernel: Any = "matern52"  #: a name or a kernel object
    ard: bool = True  #: one lengthscale per column
    output_scale: bool = True  #: learn the prior variance (kernels given by name)
    initial_lengthscale: Annotated[float | Sequence[float] | None, MODERATE._replace(each=True)] = (
        None  #: √d, for standardised inputs; a sum: a list
    )
    initial_scale: Annotated[float | None, MODERATE] = None  #: initial prior variance, 1 by default
    lengthscale_prior: Annotated[Any, LENGTHSCALE_PRIOR] = None  #: "dimension" or a `Prior`, in scaled units
    initial_std: float | None = None  #: of q(u) relative to the prior's: 1; 0.1 with networks under the ELBO
    initial_noise: Annotated[float, MODERATE] = 0.1
    noise_floor: float = 1e-6  #: the learned noise variance stays above it, in scaled units
    learn_noise: bool | None = None  #: on, unless fixed noise is given
    noise_prior: Annotated[Any, NOISE_PRIOR] = None  #: a `Prior` of the noise variance, in scaled units
    log_prior: Literal["whitened", "unwhitened"] = "whitened"  #: of a point q(u) (MATH §4)
    gamma: Annotated[float, ABOVE_ONE] = 1.03  #: of the γ-robust objective
    mean_columns: int | None = None  #: of the hybrid basis: columns of k(γ, γ) that a step sees; all
    preconditioner: Literal["none", "jacobi", "nystrom"] = "jacobi"  #: of the subspace basis
    ridge: Literal["printed", "kernel", "contracting"] = "printed"  #: S of a ridge q(u) (MATH §5.3)
    epsilon: Annotated[float, POSITIVE_SHARE] = 0.1  #: of DSGPC-ε: how far the second block is shrunk
    gpytorch_sign: bool = False  #: of the γ-robust normaliser, for comparison only
    doubled_noise: bool = False  #: predictive: 2s² in training, as DCPPGPR's script; for comparison only

    # networks: feature extractors of deep kernels, network means
    widths: Sequence[int] | None = None  #: of the extractor's layers, its features last; by the rows
    mean_widths: Sequence[int] | None = None  #: of the mean's own extractor or network; as widths
    extractor: Annotated[Any, MODULE] = None  #: a module from [..., n, d] to [..., n, features], no widths
    mean_extractor: Annotated[Any, MODULE] = None  #: one of its own for the mean kernel; a copy of extractor
    activation: Literal["relu", "silu", "tanh", "gelu"] = "silu"
    normalisation: Literal["none", "layer", "spectral", "batch"] = "none"  #: "batch": by running moments
    inducing_space: Literal["input", "feature"] = "input"  #: of deep kernels
    weight_decay: Annotated[float | None, NOT_NEGATIVE] = None  #: of network weights, decoupled; 1e-4

    # deep GPs
    num_layers: int | None = None  #: layers of a deep GP, the last one included; 2
    hidden_width: int | None = None  #: units of a hidden layer; as many as inputs, at most 30
    num_samples: int | None = None  #: of the hidden layers in a step; 1, predictive objectives 8
    num_residual: int = 10  #: of DDGPC: β points of every layer but the first
    printed_kl: bool = False  #: of DDGPC: eq. 59 as printed, for comparison only (MATH §5.4)

    # what is optimised
    beta1: Annotated[float | Sequence[float], WEIGHTS, NO_ZERO] = 1.0  #: of the KL; a list: by validation
    beta2: Annotated[float | Sequence[float] | None, WEIGHTS] = None  #: of Ω; 1e-3 stochastic, 0 closed-form
    whitening: Literal["Q", "K"] = "Q"  #: of the conditional basis
    omega: Literal["rows", "batch", "blocks", "full"] | None = None  #: rows that Ω sees
    omega_block: int | None = None  #: rows of a block of Ω in closed-form training; about num_inducing

    # how
    inducing_init: Literal["random", "kmeans", "greedy"] | None = None  #: "kmeans" by default
    extra_init: Literal["random", "kmeans", "greedy"] | None = None  #: of a second block; with the first
    learn_inducing: bool = True
    solver: Literal["auto", "closed-form", "stochastic", "natural"] = "auto"
    warm_start: Annotated[int | None, COUNT_OR_ZERO] = None  #: closed-form SVGP steps to start from
    warm_start_rows: int | None = None  #: on a sample of so many rows; all
    time_budget: float | None = None  #: seconds of training, after which it ends where it is
    epochs: int | None = None  #: at most; in closed form an epoch is a step
    steps: int | None = None  #: optimiser steps in all, at most, instead of epochs
    tolerance: Annotated[float, NOT_NEGATIVE] = (
        0.005  #: nats a row that more steps must gain; 0: take all steps
    )
    batch_size: int = 1024
    optimizer: Literal["auto", "adam", "lbfgs"] = (
        "auto"  #: L-BFGS in closed form, unless Adam's rate is given
    )
    learning_rate: float | None = None  #: of Adam
    adam_betas: Annotated[Sequence[float] | None, TWO_SHARES] = (
        None  #: of Adam's means of gradients and of their squares; 0.95, in a protocol 0.9 and 0.999
    )
    natural_rate: float | None = None  #: of natural gradients on q(u): 0.1; 0.02 without log-concavity
    mean_rule: Literal["adam", "exact", "diagonal", "joint"] = "adam"  #: of γ, beside natural gradients
    schedule: Any = None  #: "constant", "multistep", "cosine", "cycles" or a function of the fraction done
    validation_fraction: Annotated[float | None, SHARE] = None
    early_stopping: bool | None = None
    patience: int | None = None  #: looks without improvement before stopping: 10, 40 with networks or L-BFGS
    refit: bool = True  #: closed form: rows held out come back for the final q(u)
    evaluate_every: int | None = None  #: epochs between looks at the validation rows
    standardize: bool | Literal["minmax", "cube"] = True  #: "minmax": inputs in [−1, 1]; "cube": from
    #: [0, 1] where a column is inside and fills it, else from its range

    # where
    device: str | None = None  #: "cpu", "cuda", ...; None: CUDA where there is one
    dtype: Literal["float32", "float64"] = "float64"
    predict_precision: Literal["float32", "float64"] = "float64"  #: of the variances of `GP.predict`
    backend: Literal["auto", "eager", "compile", "graph"] = "auto"  #: "graph": on CUDA
    jitter: float | None = None  #: relative to the prior variance
    mean_jitter: float | None = None  #: of the conditional basis' mean kernel; jitter by default
    random_state: Annotated[int, INTEGER, SEED] = 0
    verbose: bool = False

    def but(self, **changes: Any) -> Settings:
        """The same settings with some changed."""
        return replace(self, **changes)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """Settings from keywords; an unknown name is answered with the nearest known one."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown_setting(name, known)
        return cls(**given)


#: Keywords of `duogp.fit` that are no settings.
OTHER_ARGUMENTS = ("callbacks", "validation", "sample_weight", "noise")


def unknown_setting(name: str, known: Sequence[str]) -> TypeError:
    """The error for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(name, [*known, *OTHER_ARGUMENTS], 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; the settings are {', '.join(known)}"
    return TypeError(f"unknown setting {name!r}{hint}")


def asdict_shallow(settings: Any) -> dict[str, Any]:
    """Fields of a dataclass by name, their values as they are."""
    return {f.name: getattr(settings, f.name) for f in fields(settings)}


@cache
def checks_of(cls: Any) -> dict[str, list[Check]]:
    """The checks of every setting of a class."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: _checks(hints[f.name]) for f in fields(cls)}


def _checks(hint: Any) -> list[Check]:
    """The checks of a type: those that it is annotated with, or else those of its options."""
    if hasattr(hint, "__metadata__"):
        return list(hint.__metadata__)
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if choices := [choice for option in options for choice in _choices(option)]:
        allowed = [None, *choices] if NoneType in options else choices
        return [Check(f"be one of {', '.join(map(repr, allowed))}", lambda v: v in allowed)]
    if hint == Sequence[int] | None:
        return [WIDTHS, COUNT._replace(each=True)]
    check = {int: COUNT, float: POSITIVE}.get(options[0])
    return [] if check is None else [check._replace(each=any(get_origin(o) is Sequence for o in options))]


def _choices(option: Any) -> tuple[Any, ...]:
    return (True, False) if option is bool else get_args(option) if get_origin(option) is Literal else ()
