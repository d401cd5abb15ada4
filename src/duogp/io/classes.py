"""This library's classes that may stand in a manifest, and the checks of their arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import nn

import duogp.kernels as k
import duogp.likelihoods as p
import duogp.means as m
from duogp.errors import SavedModelError
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import GammaPrior, LogNormalPrior

# fmt: off
OURS: tuple[type, ...] = (
    k.RBF, k.Matern12, k.Matern32, k.Matern52, k.Hamming, k.GeneralisedRBF, k.RationalQuadratic, k.Periodic,
    k.Linear, k.Tanimoto, k.Constant, k.Scale, k.Sum, k.Product, k.ActiveDims, k.Deep, k.GPyTorchKernel,
    p.GaussianLikelihood, p.HeteroscedasticGaussianLikelihood, p.StudentTLikelihood, p.BernoulliLikelihood,
    p.BetaLikelihood, p.GammaLikelihood, p.PoissonLikelihood, p.RobustMaxLikelihood, p.SoftmaxLikelihood,
    m.Zero, m.ConstantMean, m.LinearMean, m.ModuleMean, m.NetworkMean,
    m.Trees, MLP, nn.Identity, LogNormalPrior, GammaPrior,
)
# fmt: on
#: Classes by the name under which they are saved, whatever they are called in the code.
CLASSES: dict[str, type] = {getattr(cls, "saved_name", cls.__name__): cls for cls in OURS}
NAMES = {cls: name for name, cls in CLASSES.items()}
#: Classes whose constructors take anything and read nothing.
EMPTY: tuple[type, ...] = (object, nn.Module, nn.Identity)


def parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor, by name."""
    definer = (
        next(base for base in cls.__mro__ if "__init__" in vars(base)) if isinstance(cls, type) else None
    )
    return {} if definer in EMPTY else dict(inspect.signature(cls).parameters)


def variadic(cls: Any) -> list[str]:
    """The name of a ``*argument`` of a constructor: its values stand in a manifest as a list."""
    return [name for name, p in parameters_of(cls).items() if p.kind is p.VAR_POSITIONAL]


def check_types(cls: type, arguments: Mapping[str, Any], place: str) -> None:
    """An error for an argument that is not of the type which the constructor declares."""
    hints, star = get_type_hints(getattr(cls, "__init__")), variadic(cls)  # noqa: B009
    for name, value in arguments.items():
        hint, values = hints[name], value if name in star and isinstance(value, list) else [value]
        if not all(_fits(v, hint) for v in values):
            raise SavedModelError(f"its manifest has a value for '{place}.{name}' that is no {_noun(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON has the type of an annotation; a float may be a list of them."""
    if hint is Any or hint is NoneType:
        return hint is Any or value is None
    if hint is bool or get_origin(hint) is Literal:
        return isinstance(value, bool if hint is bool else str)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if hint is float:
        if isinstance(value, list):
            return all(_fits(v, float) for v in value)
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if get_origin(hint) is Sequence:
        inner = get_args(hint)[0]
        return isinstance(value, list) and all(_fits(v, inner) or v == 0 for v in value)  # columns from 0 on
    if options := get_args(hint):
        return any(_fits(value, option) for option in options)
    return isinstance(value, hint)


def _noun(hint: Any) -> str:
    """A word for a type; of several, for the first."""
    first = next(iter(get_args(hint)), hint)
    names = {int: "count", float: "number", bool: "flag"}
    return "text" if isinstance(first, str) else names.get(first, first.__name__.lower())


def cost(cls: type, arguments: Mapping[str, Any], functions: int) -> int:
    """About how many numbers an object holds, from the counts among its arguments.

    Products of every two counts: columns by latent ``functions``, inputs by widths, classes by draws. In a
    likelihood also squares: Gauss–Hermite nodes are the eigenvalues of a matrix, draws have many columns.
    """
    counts = [functions]
    for name, parameter in parameters_of(cls).items():
        value = arguments.get(name, parameter.default)
        if isinstance(value, int):
            counts.append(value)
        elif name == "widths" and isinstance(value, list):  # other lists are not longer than the manifest
            counts += value
    squares = sum(count**2 for count in counts)
    pairs = (sum(counts) ** 2 - squares) // 2
    return pairs + (squares if issubclass(cls, p.Likelihood) else 0)
