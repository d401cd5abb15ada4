"""The table of this library's classes that may stand in a manifest: saved name, constructor, arguments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import duogp.kernels as k
import duogp.likelihoods as p
import duogp.means as m
from duogp.kernels.foreign import Foreign
from duogp.likelihoods.monte_carlo import PATTERN
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import GammaPrior, LogNormalPrior, Prior


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(check(v) for v in value)


#: Types of arguments: the check of a value that was read, and the arguments that have it in every class.
TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "count": (
        _is_count,
        "dims inputs features outputs classes nodes outer_nodes "
        "samples eval_samples inner_samples eval_inner_samples",
    ),
    "counts": (lambda v: _is_list(v, _is_count), "widths"),
    "columns": (lambda v: _is_list(v, lambda c: isinstance(c, int) and c >= 0), ""),
    "flag": (lambda v: isinstance(v, bool), "ard learn learn_scale learn_epsilon"),
    "number": (
        lambda v: _is_number(v) or _is_list(v, _is_number),
        "lengthscale alpha period variance noise floor scale scale_floor dof precision shape epsilon "
        "constant dropout loc rate",
    ),
    "text": (lambda v: isinstance(v, str), "link activation normalisation"),
    "kernel": (lambda v: isinstance(v, k.Kernel), "kernel"),
    "kernels": (lambda v: _is_list(v, lambda part: isinstance(part, k.Kernel)), "kernels"),
    "module": (lambda v: isinstance(v, nn.Module), "extractor module net"),
    "prior": (lambda v: v is None or isinstance(v, Prior), "prior"),
}
TYPE_OF = {name: kind for kind, (_, names) in TYPES.items() for name in names.split()}


@dataclass(frozen=True)
class Entry:
    """A class of this library.

    ``arguments``: names of the constructor's arguments, "name:type" where the type is not that of `TYPE_OF`.
    ``read``: how to get an argument from an object, where it is not the attribute of the same name.
    ``make``: the constructor, where it is not the class. ``cost``: about how many numbers an object holds.
    """

    cls: Any
    arguments: str = ""
    read: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    make: Callable[..., Any] | None = None
    cost: Callable[[Mapping[str, Any]], int] = lambda given: given.get("dims", 1)

    @property
    def types(self) -> dict[str, str]:
        split = (argument.partition(":") for argument in self.arguments.split())
        return {name: kind or TYPE_OF[name] for name, _, kind in split}

    def argument(self, thing: Any, name: str) -> Any:
        return self.read[name](thing) if name in self.read else getattr(thing, name)


def _nodes(of: str) -> Callable[[Any], int]:
    return lambda likelihood: getattr(likelihood, of).nodes.numel()


def _draws(of: str, which: str) -> Callable[[Any], int]:
    return lambda likelihood: getattr(getattr(likelihood, of), which).shape[1]


def _prior(of: str) -> dict[str, Callable[[Any], Any]]:
    return {"prior": lambda thing: getattr(thing, of).prior}


def _module(module: nn.Module) -> nn.Module:
    """The user's module inside our wrapper."""
    return module.module if isinstance(module, Foreign) else module


def _mlp(inputs: int, widths: list[int], **look: Any) -> MLP:
    """The generator leaves the random numbers of the process as they are."""
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


STATIONARY = "dims ard lengthscale prior"
NODES: dict[str, Callable[[Any], Any]] = {"nodes": _nodes("rule")}
NOISE: dict[str, Callable[[Any], Any]] = {
    "floor": lambda s: s.noise.floor,
    "learn": lambda s: s.noise.raw.requires_grad,
}
DRAWS = {
    "samples": _draws("outer", "training_draws"),
    "eval_samples": _draws("outer", "fixed_draws"),
    "inner_samples": _draws("inner", "training_draws"),
    "eval_inner_samples": _draws("inner", "fixed_draws"),
}

# fmt: off
#: Classes by the name under which they are saved, whatever they are called in the code.
CLASSES: dict[str, Entry] = {
    # kernels
    **{
        cls.__name__: Entry(cls, STATIONARY, _prior("lengthscale"))
        for cls in (k.RBF, k.Matern12, k.Matern32, k.Matern52, k.Hamming, k.GeneralisedRBF)
    },
    "RationalQuadratic": Entry(k.RationalQuadratic, f"{STATIONARY} alpha", _prior("lengthscale")),
    "Periodic": Entry(k.Periodic, f"{STATIONARY} period", _prior("lengthscale")),
    "Linear": Entry(k.Linear, "dims ard variance prior", _prior("variance")),
    "Constant": Entry(k.Constant),
    "Scale": Entry(k.Scale, "kernel variance prior", _prior("variance")),
    "Sum": Entry(k.Sum, "kernels", {"kernels": list}, lambda kernels: k.Sum(*kernels)),
    "Product": Entry(k.Product, "kernels", {"kernels": list}, lambda kernels: k.Product(*kernels)),
    "ActiveDims": Entry(k.ActiveDims, "kernel dims:columns", {"dims": lambda s: s.active}, cost=lambda _: 1),
    "Deep": Entry(k.Deep, "extractor kernel inputs features", {"extractor": lambda s: _module(s.extractor)}),
    "GPyTorchKernel": Entry(k.GPyTorchKernel, "kernel:module", {"kernel": lambda s: s.gpytorch_kernel}),
    # likelihoods
    "GaussianLikelihood": Entry(
        p.GaussianLikelihood, "outputs noise floor learn prior", NOISE | _prior("noise"),
        cost=_quadrature_cost,
    ),
    "HeteroscedasticGaussianLikelihood": Entry(
        p.HeteroscedasticGaussianLikelihood, "outputs noise floor learn nodes outer_nodes",
        {**NOISE, **NODES, "outer_nodes": _nodes("outer")}, cost=_quadrature_cost,
    ),
    "StudentTLikelihood": Entry(
        p.StudentTLikelihood, "outputs scale dof scale_floor learn_scale nodes",
        {
            "scale_floor": lambda s: s.scale.floor,
            "learn_scale": lambda s: s.scale.raw.requires_grad,
            **NODES,
        },
        cost=_quadrature_cost,
    ),
    "BernoulliLikelihood": Entry(p.BernoulliLikelihood, "link nodes", NODES, cost=_quadrature_cost),
    "BetaLikelihood": Entry(p.BetaLikelihood, "outputs link precision nodes", NODES, cost=_quadrature_cost),
    "GammaLikelihood": Entry(p.GammaLikelihood, "outputs shape nodes", NODES, cost=_quadrature_cost),
    "PoissonLikelihood": Entry(p.PoissonLikelihood, "nodes", NODES, cost=_quadrature_cost),
    "RobustMaxLikelihood": Entry(
        p.RobustMaxLikelihood, "classes epsilon learn_epsilon samples eval_samples",
        {
            "epsilon": lambda s: s.epsilon.item(),
            "learn_epsilon": lambda s: s.epsilon_logit.requires_grad,
            **DRAWS,
        },
        cost=_draws_cost,
    ),
    "SoftmaxLikelihood": Entry(
        p.SoftmaxLikelihood, "classes samples eval_samples inner_samples eval_inner_samples", DRAWS,
        cost=_draws_cost,
    ),
    # prior means, networks, priors
    "Zero": Entry(m.Zero),
    "ConstantMean": Entry(m.ConstantMean, "constant", {"constant": lambda s: s.constant.item()}),
    "LinearMean": Entry(m.LinearMean, "dims", {"dims": lambda s: s.weights.shape[-1]}),
    "ModuleMean": Entry(m.ModuleMean, "module", {"module": lambda s: s.of.module.module}),
    "NetworkMean": Entry(m.NetworkMean, "net"),
    "MLP": Entry(
        MLP, "inputs widths activation normalisation dropout",
        {"widths": lambda s: [layer.weight.shape[-1] for layer in s.layers]}, _mlp, _mlp_cost,
    ),
    "Identity": Entry(nn.Identity),
    "LogNormalPrior": Entry(LogNormalPrior, "loc scale"),
    "GammaPrior": Entry(GammaPrior, "shape rate"),
}
# fmt: on
NAMES = {entry.cls: name for name, entry in CLASSES.items()}
#: Entries by constructor, for classes of others that inherit it.
CONSTRUCTORS: dict[Any, Entry] = {object.__init__: Entry(object)}
CONSTRUCTORS |= {known.cls.__init__: known for known in CLASSES.values() if known.make is None}
