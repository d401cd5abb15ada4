"""How a basis of a fit is built, and its traits: one recipe for each row of the table of bases.

A recipe turns `Parts` (points, kernels, q(u), options) into a basis; shallow models and layers of deep GPs
are built by the same recipes. A `Basis` class of one's own is a recipe by itself (`Recipe.of`): its traits
are its class attributes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from duogp.bases.base import Basis
from duogp.bases.conditional import Conditional
from duogp.bases.coupled import Coupled
from duogp.bases.exact import Exact
from duogp.bases.hybrid import Hybrid
from duogp.bases.layer_components import LayerComponents, residual_points
from duogp.bases.separate import Separate
from duogp.bases.subspace import Subspace
from duogp.bases.two_block import TwoBlock
from duogp.kernels.base import Kernel
from duogp.likelihoods.base import Likelihood
from duogp.variational import BlockQ, Q, ShrunkQ

#: A second set of points: none, one that may be left out (then a copy of the first), or a block of its own
#: that is chosen together with the first.
Extra = Literal["none", "optional", "block"]


@dataclass(frozen=True)
class Parts:
    """What a basis, or one layer of a deep GP, is made of. Parameters lead with [replicate, latent]."""

    inducing: Tensor  # Z [R, 1, M, d]
    batch_shape: tuple[int, int]  # (replicates, latents)
    kernel_factory: Callable[[str], Kernel]  # of a role: "covariance" or "mean"
    q_factory: Callable[..., Q]  # (size, mean_size=None) → q(u)
    extra: Tensor | None = None  # second set of points [R, 1, E, d]
    options: Mapping[str, Any] = field(default_factory=dict)  # the settings named by `Recipe.options`
    generators: Sequence[torch.Generator] = ()  # one a replicate
    layer: int = 0  # of a deep GP; 0 the first, or the only one
    likelihood: Likelihood | None = None  # of the model, with a leading [R]
    rows: Any = None  # the training rows (x, noise, weight), where the points are the rows

    def new_kernel(self, role: str = "covariance") -> Kernel:
        """A kernel of its own for this role, at its initial values."""
        return self.kernel_factory(role)

    def new_q(self, size: int | None = None, mean_size: int | None = None) -> Q:
        """q(u) over so many points, M by default; its mean over ``mean_size`` where that differs."""
        size = self.inducing.shape[-2] if size is None else size
        return self.q_factory(size) if mean_size is None else self.q_factory(size, mean_size)

    @property
    def block(self) -> Tensor:
        """The points of the second block, [R, 1, E, d]."""
        assert self.extra is not None
        return self.extra

    @property
    def mean_points(self) -> Tensor:
        """The second set of points [R, 1, E, d], a copy of the first where none was asked for."""
        return self.inducing.clone() if self.extra is None else self.extra


@dataclass(frozen=True)
class Recipe:
    """A named way to build a basis. Traits that are not given are those of the class."""

    name: str
    basis: type[Basis]
    build: Callable[[Parts], Basis]
    options: tuple[str, ...] = ()  #: settings of a fit that it reads
    extra: Extra = "none"
    mean_size: str = "M"  #: parameters of the mean: "M", "E" or "M + E"
    has_second_covariance: bool = False  #: whether q has a covariance on the second block too
    binds_q: bool = False  #: whether q(u) may have a covariance that depends on the points (ridge)
    can_be_layer: bool = True  #: whether layers of a deep GP may be built of it

    @classmethod
    def of(cls, basis: type[Basis]) -> Recipe:
        """The recipe of a class, by its `build` and class attributes."""
        return cls(
            basis.__name__,
            basis,
            basis.build,
            basis.options,
            basis.extra_points,
            basis.mean_size,
            basis.has_second_covariance,
            binds_q=basis.q_of is not Basis.q_of,
            can_be_layer=basis.can_be_layer,
        )

    def __getattr__(self, name: str) -> Any:
        """Traits of the class: has_closed_form, has_omega, points_are_rows and others."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.basis, name)

    @property
    def has_extra_points(self) -> bool:
        return self.extra != "none"

    @property
    def has_second_block(self) -> bool:
        return self.extra == "block"


def _coupled(parts: Parts) -> Basis:
    return Coupled(parts.new_kernel(), parts.inducing, parts.new_q())


def _separate(parts: Parts) -> Basis:
    points = parts.mean_points
    return Separate(parts.new_kernel(), points, parts.inducing, parts.new_q(mean_size=points.shape[-2]))


def _conditional(parts: Parts) -> Basis:
    return Conditional(
        parts.new_kernel("covariance"),
        parts.new_kernel("mean"),
        parts.inducing,
        parts.new_q(),
        **{k: parts.options[k] for k in ("whitening", "omega", "mean_jitter") if k in parts.options},
    )


def _solve(parts: Parts) -> Basis:
    """q(u) q(v), both learned."""
    return _two_block(parts, parts.new_q(parts.block.shape[-2]))


def _shrunk(epsilon: float | None) -> Callable[[Parts], Basis]:
    """v ~ N(0, εI); ε = 0 forgets its divergence from the prior. None: the option ``epsilon``."""

    def build(parts: Parts) -> Basis:
        value = parts.options["epsilon"] if epsilon is None else epsilon
        return _two_block(parts, ShrunkQ(parts.block.shape[-2], parts.batch_shape, epsilon=value))

    return build


def _two_block(parts: Parts, q_v: Q) -> Basis:
    return TwoBlock(parts.new_kernel(), parts.inducing, parts.block, BlockQ(parts.new_q(), q_v))


def _orthogonal(parts: Parts) -> Basis:
    """v learns a mean only."""
    size = parts.inducing.shape[-2] + parts.block.shape[-2]
    q = parts.new_q(mean_size=size)
    return TwoBlock(parts.new_kernel(), parts.inducing, parts.block, q, mean_only=True)


def _layer_components(parts: Parts) -> Basis:
    """Both sets explain the inputs of the first layer; in later layers a few β are enough."""
    if parts.layer == 0:
        return _shrunk(parts.options.get("first_epsilon", 0.0))(parts)
    num = min(parts.options.get("num_residual", 10), parts.inducing.shape[-2])
    residual = residual_points(parts.inducing, num, parts.generators)
    printed = parts.options.get("printed_kl", False)
    return LayerComponents(parts.new_kernel(), parts.inducing, residual, parts.new_q(), printed_kl=printed)


def _hybrid(*, orthogonal: bool) -> Callable[[Parts], Basis]:
    """Mean points with plain coefficients; ``orthogonal``: in ORTH's coordinates."""

    def build(parts: Parts) -> Basis:
        columns = parts.options.get("mean_columns")
        points, q = parts.block, parts.new_q()
        return Hybrid(parts.new_kernel(), parts.inducing, points, q, orthogonal=orthogonal, columns=columns)

    return build


def _subspace(parts: Parts) -> Basis:
    return Subspace(
        parts.new_kernel(),
        parts.mean_points,
        parts.inducing,
        parts.batch_shape,
        preconditioner=parts.options.get("preconditioner", "jacobi"),
        columns=parts.options.get("mean_columns"),
    )


def _exact(parts: Parts) -> Basis:
    """All training rows, and their noise."""
    rows: Any = parts.rows
    likelihood: Any = parts.likelihood
    x = rows.x.unsqueeze(1)
    return Exact(parts.new_kernel(), x, parts.batch_shape, likelihood, rows.noise, rows.weight)


OMEGA = ("whitening", "omega", "omega_block", "mean_jitter", "beta2")
#: A second block without parameters of its own, and one with a mean.
BLOCK: dict[str, Any] = {"extra": "block", "binds_q": True}
MEAN_BLOCK: dict[str, Any] = {"extra": "block", "mean_size": "M + E"}
OWN_POINTS: dict[str, Any] = {"extra": "optional", "mean_size": "E"}
NO_LAYER: dict[str, Any] = OWN_POINTS | {"can_be_layer": False}

# fmt: off
#: Recipes by name.
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (
    Recipe("coupled",          Coupled,         _coupled, binds_q=True),
    Recipe("conditional",      Conditional,     _conditional, OMEGA),
    Recipe("separate",         Separate,        _separate, **OWN_POINTS),
    Recipe("solve",            TwoBlock,        _solve, has_second_covariance=True, **MEAN_BLOCK),
    Recipe("orthogonal",       TwoBlock,        _orthogonal, binds_q=True, **MEAN_BLOCK),
    Recipe("components",       TwoBlock,        _shrunk(0.0), **BLOCK),
    Recipe("components-eps",   TwoBlock,        _shrunk(None), ("epsilon",), **BLOCK),
    Recipe("layer-components", LayerComponents, _layer_components, ("num_residual", "printed_kl"), **BLOCK),
    Recipe("hybrid",           Hybrid,          _hybrid(orthogonal=False), ("mean_columns",), **MEAN_BLOCK),
    Recipe("orthogonal-a",     Hybrid,          _hybrid(orthogonal=True), ("mean_columns",), **MEAN_BLOCK),
    Recipe("subspace",         Subspace,        _subspace, ("preconditioner", "mean_columns"), **NO_LAYER),
    Recipe("exact",            Exact,           _exact, can_be_layer=False),
)}
# fmt: on


def recipe_of(basis: str | type[Basis]) -> Recipe:
    """The recipe of that name, or that of a class of one's own."""
    if isinstance(basis, type):
        return Recipe.of(basis)
    if basis not in RECIPES:
        near = difflib.get_close_matches(basis, RECIPES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"unknown basis {basis!r}{hint} The bases are {', '.join(RECIPES)}")
    return RECIPES[basis]
