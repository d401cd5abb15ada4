"""Objects among the settings as nested specifications, and back.

    {"class": "Scale", "kernel": {"class": "RBF", "dims": 2, "ard": true, "lengthscale": [0.7, 0.7]}, ...}

A class is a name in `CLASSES`, a table of this library's own; its arguments are those of its constructor,
each with the kind of value that it must be. Whatever else a user put there (a torch module, a gpytorch
kernel, a function) is a place with a name, ``{"object": "kernel.0.kernel"}``, to be filled by the one who
loads. Nothing is looked up by a name from a file except in that table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from duogp import kernels as k
from duogp import likelihoods as p
from duogp import means as m
from duogp.io.errors import SavedModelError
from duogp.kernels.foreign import Foreign
from duogp.likelihoods.monte_carlo import PATTERN
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import GammaPrior, LogNormalPrior, Positive, Prior

PLAIN = (str, int, float, bool, type(None))
#: Numbers that the objects of a manifest may hold beside those in the file of tensors, and for each of those.
FREE_NUMBERS, NUMBERS_EACH = 2**22, 64


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(check(v) for v in value)


#: What an argument may be when it comes back.
KINDS: dict[str, Callable[[Any], bool]] = {
    "count": _is_count,
    "counts": lambda v: _is_list(v, _is_count),
    "columns": lambda v: _is_list(v, lambda c: isinstance(c, int) and c >= 0),
    "flag": lambda v: isinstance(v, bool),
    "number": lambda v: _is_number(v) or _is_list(v, _is_number),
    "text": lambda v: isinstance(v, str),
    "kernel": lambda v: isinstance(v, k.Kernel),
    "kernels": lambda v: _is_list(v, lambda part: isinstance(part, k.Kernel)),
    "module": lambda v: isinstance(v, nn.Module),
    "prior": lambda v: v is None or isinstance(v, Prior),
}


@dataclass(frozen=True)
class Argument:
    """An argument of a constructor: its kind, and how an object says what it was given."""

    name: str
    kind: str
    of: Callable[[Any], Any] | None = None

    def read(self, thing: Any) -> Any:
        value = getattr(thing, self.name) if self.of is None else self.of(thing)
        return value().detach().tolist() if isinstance(value, Positive) else value


@dataclass(frozen=True)
class Entry:
    """A class of this library. ``cost``: numbers that an object with such arguments holds, about."""

    make: Callable[..., Any]
    arguments: tuple[Argument, ...] = ()
    cost: Callable[[Mapping[str, Any]], int] = lambda given: given.get("dims", 1)


def _nodes(of: str) -> Callable[[Any], int]:
    return lambda likelihood: getattr(likelihood, of).nodes.numel()


def _draws(of: str, which: str) -> Callable[[Any], int]:
    return lambda likelihood: getattr(getattr(likelihood, of), which).shape[1]


def _user_module(module: nn.Module) -> nn.Module:
    """What somebody gave, without our wrapper."""
    return module.module if isinstance(module, Foreign) else module


def _mlp(inputs: int, widths: list[int], **look: Any) -> MLP:
    """The generator keeps the process' own random numbers out of it."""
    return MLP(inputs, widths, generator=torch.Generator().manual_seed(0), **look)


def _mlp_cost(given: Mapping[str, Any]) -> int:
    sizes = [given["inputs"], *given["widths"]]
    return sum((a + 1) * b for a, b in itertools.pairwise(sizes))


def _quadrature_cost(given: Mapping[str, Any]) -> int:
    """Gauss–Hermite nodes are the eigenvalues of a matrix."""
    squares = sum(given.get(name, 32) ** 2 for name in ("nodes", "outer_nodes"))
    return squares + given.get("outputs", 1)


def _draws_cost(given: Mapping[str, Any]) -> int:
    training = given.get("samples", 8) + given.get("inner_samples", 32)
    fixed = given.get("eval_samples", 256) + given.get("eval_inner_samples", 1024)
    return given["classes"] * (PATTERN * training + fixed)


DIMS, ARD = Argument("dims", "count"), Argument("ard", "flag")
KERNEL, OUTPUTS, LINK = Argument("kernel", "kernel"), Argument("outputs", "count"), Argument("link", "text")
VARIANCE = Argument("variance", "number")
STATIONARY = (
    DIMS,
    ARD,
    Argument("lengthscale", "number"),
    Argument("prior", "prior", lambda s: s.lengthscale.prior),
)
VARIANCE_PRIOR = Argument("prior", "prior", lambda s: s.variance.prior)
NODES = Argument("nodes", "count", _nodes("rule"))
NOISE = (
    OUTPUTS,
    Argument("noise", "number"),
    Argument("floor", "number", lambda s: s.noise.floor),
    Argument("learn", "flag", lambda s: s.noise.raw.requires_grad),
)
CLASSES_OF = Argument("classes", "count")
DRAWS = (
    Argument("samples", "count", _draws("outer", "training_draws")),
    Argument("eval_samples", "count", _draws("outer", "fixed_draws")),
)

CLASSES: dict[type, Entry] = {
    # kernels
    k.RBF: Entry(k.RBF, STATIONARY),
    k.Matern12: Entry(k.Matern12, STATIONARY),
    k.Matern32: Entry(k.Matern32, STATIONARY),
    k.Matern52: Entry(k.Matern52, STATIONARY),
    k.RationalQuadratic: Entry(k.RationalQuadratic, (*STATIONARY, Argument("alpha", "number"))),
    k.Periodic: Entry(k.Periodic, (*STATIONARY, Argument("period", "number"))),
    k.Hamming: Entry(k.Hamming, STATIONARY),
    k.GeneralisedRBF: Entry(k.GeneralisedRBF, STATIONARY),
    k.Linear: Entry(k.Linear, (DIMS, ARD, VARIANCE, VARIANCE_PRIOR)),
    k.Constant: Entry(k.Constant),
    k.Scale: Entry(k.Scale, (KERNEL, VARIANCE, VARIANCE_PRIOR)),
    k.Sum: Entry(lambda kernels: k.Sum(*kernels), (Argument("kernels", "kernels", list),)),
    k.Product: Entry(lambda kernels: k.Product(*kernels), (Argument("kernels", "kernels", list),)),
    k.ActiveDims: Entry(
        k.ActiveDims,
        (KERNEL, Argument("dims", "columns", lambda s: s.active)),
        lambda given: 1,
    ),
    k.Deep: Entry(
        k.Deep,
        (
            Argument("extractor", "module", lambda s: _user_module(s.extractor)),
            KERNEL,
            Argument("inputs", "count"),
            Argument("features", "count"),
        ),
    ),
    k.GPyTorchKernel: Entry(k.GPyTorchKernel, (Argument("kernel", "module", lambda s: s.gpytorch_kernel),)),
    # likelihoods
    p.GaussianLikelihood: Entry(
        p.GaussianLikelihood, (*NOISE, Argument("prior", "prior", lambda s: s.noise.prior)), _quadrature_cost
    ),
    p.HeteroscedasticGaussianLikelihood: Entry(
        p.HeteroscedasticGaussianLikelihood,
        (*NOISE, NODES, Argument("outer_nodes", "count", _nodes("outer"))),
        _quadrature_cost,
    ),
    p.StudentTLikelihood: Entry(
        p.StudentTLikelihood,
        (
            OUTPUTS,
            Argument("scale", "number"),
            Argument("dof", "number"),
            Argument("scale_floor", "number", lambda s: s.scale.floor),
            Argument("learn_scale", "flag", lambda s: s.scale.raw.requires_grad),
            NODES,
        ),
        _quadrature_cost,
    ),
    p.BernoulliLikelihood: Entry(p.BernoulliLikelihood, (LINK, NODES), _quadrature_cost),
    p.BetaLikelihood: Entry(
        p.BetaLikelihood, (OUTPUTS, LINK, Argument("precision", "number"), NODES), _quadrature_cost
    ),
    p.GammaLikelihood: Entry(
        p.GammaLikelihood, (OUTPUTS, Argument("shape", "number"), NODES), _quadrature_cost
    ),
    p.PoissonLikelihood: Entry(p.PoissonLikelihood, (NODES,), _quadrature_cost),
    p.RobustMaxLikelihood: Entry(
        p.RobustMaxLikelihood,
        (
            CLASSES_OF,
            Argument("epsilon", "number", lambda s: s.epsilon.item()),
            Argument("learn_epsilon", "flag", lambda s: s.epsilon_logit.requires_grad),
            *DRAWS,
        ),
        _draws_cost,
    ),
    p.SoftmaxLikelihood: Entry(
        p.SoftmaxLikelihood,
        (
            CLASSES_OF,
            *DRAWS,
            Argument("inner_samples", "count", _draws("inner", "training_draws")),
            Argument("eval_inner_samples", "count", _draws("inner", "fixed_draws")),
        ),
        _draws_cost,
    ),
    # prior means, networks, priors
    m.Zero: Entry(m.Zero),
    m.ConstantMean: Entry(m.ConstantMean, (Argument("constant", "number", lambda s: s.constant.item()),)),
    m.LinearMean: Entry(m.LinearMean, (Argument("dims", "count", lambda s: s.weights.shape[-1]),)),
    m.ModuleMean: Entry(m.ModuleMean, (Argument("module", "module", lambda s: s.of.module.module),)),
    m.NetworkMean: Entry(m.NetworkMean, (Argument("net", "module"),)),
    MLP: Entry(
        _mlp,
        (
            Argument("inputs", "count"),
            Argument("widths", "counts", lambda s: [layer.weight.shape[-1] for layer in s.layers]),
            Argument("activation", "text"),
            Argument("normalisation", "text"),
            Argument("dropout", "number"),
        ),
        _mlp_cost,
    ),
    nn.Identity: Entry(nn.Identity),
    LogNormalPrior: Entry(LogNormalPrior, (Argument("loc", "number"), Argument("scale", "number"))),
    GammaPrior: Entry(GammaPrior, (Argument("shape", "number"), Argument("rate", "number"))),
}
NAMES = {kind.__name__: entry for kind, entry in CLASSES.items()}


def type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Writer:
    """Values as JSON; ``objects`` collects the places that only a user can fill."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    def write(self, value: Any, place: str) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, list | tuple):
            return [self.write(part, f"{place}.{i}") for i, part in enumerate(value)]
        entry = CLASSES.get(type(value))
        if entry is None:
            # Priors and schedules have had their say when the training is over.
            needed = isinstance(value, nn.Module)
            self.objects[place] = {"type": type_name(value), "required": needed, "repr": repr(value)[:500]}
            return {"object": place}
        out: dict[str, Any] = {"class": type(value).__name__}
        for argument in entry.arguments:
            inner = place if argument.kind == "kernels" else f"{place}.{argument.name}"
            out[argument.name] = self.write(argument.read(value), inner)
        if isinstance(value, nn.Module) and (frozen := _frozen(value)):
            out["frozen"] = frozen
        return out


def _frozen(module: nn.Module) -> list[str]:
    """Parameters of its own, or of its positive parts, that are not to be learned."""
    own = [module, *(child for child in module.children() if isinstance(child, Positive))]
    wanted = {id(p) for part in own for p in part.parameters(recurse=False)}
    return [name for name, p in module.named_parameters() if id(p) in wanted and not p.requires_grad]


class Reader:
    """The inverse of `Writer`: ``listed`` are the places of the manifest, ``given`` the user's objects.

    ``numbers``: how many the file of tensors holds, for so many latent ``functions``. No object may be of an
    entirely different size.
    """

    def __init__(
        self, listed: Mapping[str, Any], given: Mapping[str, Any], numbers: int, functions: int = 1
    ) -> None:
        self.listed, self.given, self.functions = listed, given, functions
        self.budget = FREE_NUMBERS + NUMBERS_EACH * numbers
        unknown = [name for name in given if name not in listed]
        if unknown:
            needs = f"it has places for {', '.join(listed)}" if listed else "it needs none"
            raise SavedModelError(
                f"objects has {', '.join(map(repr, unknown))}, unknown to this model: {needs}"
            )
        missing = {
            name: place
            for name, place in listed.items()
            if name not in given and isinstance(place, Mapping) and place.get("required") is not False
        }
        if missing:
            shown = ", ".join(f"{name!r} (it was a {place.get('type')})" for name, place in missing.items())
            keywords = ", ".join(f"{name!r}: ..." for name in missing)
            raise SavedModelError(
                f"objects of the model are not duogp's own and must be handed over again: {shown}; pass them "
                f"to duogp.load(folder, objects={{{keywords}}}), made as they were for the fit"
            )

    def read(self, value: Any, place: str) -> Any:
        if isinstance(value, list):
            return [self.read(part, place) for part in value]
        if not isinstance(value, Mapping):
            return value
        if "object" in value:
            name = value["object"]
            if not isinstance(name, str) or name not in self.listed:
                raise SavedModelError(f"its manifest has an object in {place!r} that it does not list")
            return self.given.get(name)
        name = value.get("class")
        entry = NAMES.get(name) if isinstance(name, str) else None
        if entry is None:
            raise SavedModelError(f"its manifest has the unknown class {name!r} in {place!r}")
        # An argument that is not there (an older version had none) is left to the constructor.
        present = (a for a in entry.arguments if a.name in value)
        arguments = {a.name: self._argument(a, value[a.name], f"{place}.{a.name}") for a in present}
        try:
            self.budget -= entry.cost(arguments) * (self.functions if "dims" in arguments else 1)
            if self.budget < 0:
                raise ValueError("it would be far larger than the file of tensors")
            out = entry.make(**arguments)
            for frozen in value.get("frozen", ()):
                out.get_parameter(frozen).requires_grad_(False)
        except Exception as error:
            raise SavedModelError(f"its manifest has an impossible {name} in {place!r}: {error}") from error
        return out

    def _argument(self, argument: Argument, value: Any, place: str) -> Any:
        found = self.read(value, place)
        if not KINDS[argument.kind](found):
            raise SavedModelError(f"its manifest has a value for {place!r} that is no {argument.kind}")
        return found
