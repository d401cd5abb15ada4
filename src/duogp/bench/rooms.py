"""The rooms of the numerics that a fit runs through, each with a hash: what a row depends on, and no more.

A module that no `Room` names belongs to the core, on which every fit depends; a new module is core until it
is named here. A room is used by some fits only, by their method, settings and device: no regression of a
suite depends on the race of the default, and no fit on a GPU on the direct steps of the CPU. A test fits
every method and every suite's settings and finds no module run that is not in one of its rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from duogp.bench.numerics import Ledger, digest_of, module_hashes

CORE = "core"
#: The version of a room at a commit that does not have its modules.
ABSENT = "none"
#: Hexadecimal digits of a room's hash.
DIGITS = 10
#: Prior means that are part of the model, not cross-fitted beside it.
MODEL_MEANS = ("zero", "constant", "linear", "network")
#: Kernels whose code is core.
STATIONARY = ("matern12", "matern32", "matern52", "rbf", "rq", "periodic", "constant")
#: Modules that hold words only.
WORDS = ("methods/guide.py",)


@dataclass(frozen=True)
class FitTraits:
    """What decides which rooms a fit runs through. ``settings`` are resolved ones, defaults filled in."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    classifies: bool = False  # labels, to which the runner gives a likelihood where none is asked for

    @property
    def known(self) -> Any:
        """The method of the registry; None for "auto" and others."""
        from duogp.methods import METHODS

        return METHODS[self.method] if self.method in METHODS else None  # noqa: SIM401

    def of_method(self, trait: str) -> bool:
        """A trait of the method; a method that is not in the registry may have any."""
        return self.known is None or bool(getattr(self.known, trait))

    def has_basis(self, *modules: str) -> bool:
        """Whether the class of its basis stands in one of these modules of ``bases``."""
        if self.known is None:
            return True
        if self.known.is_baseline:
            return False
        return self.known.recipe.basis.__module__.rpartition(".")[2] in modules

    def solves(self, how: str) -> bool:
        """Whether a solver may be used: the one asked for, or any where the library chooses."""
        return self.settings.get("solver", "auto") in ("auto", how)

    @property
    def is_gaussian(self) -> bool:
        """Whether its likelihood is the Gaussian."""
        return not self.classifies and self.settings.get("likelihood", "gaussian") == "gaussian"

    @property
    def is_on_cpu(self) -> bool:
        return self.device.startswith("cpu")

    @property
    def has_other_kernel(self) -> bool:
        """Whether its kernel is not a sum of stationary ones."""
        kernel = str(self.settings.get("kernel", "matern52"))
        names = [part.strip() for part in kernel.replace("*", "+").split("+")]
        return any(name not in STATIONARY for name in names) or self.of_method("learns_online")

    @property
    def has_network(self) -> bool:
        chosen = any(self.settings.get(name) for name in ("extractor", "mean_extractor"))
        return chosen or self.of_method("has_network") or self.settings.get("mean") == "network"

    @property
    def is_default(self) -> bool:
        """Whether the race of the default, or a mean that is learned beside the GP, may run."""
        return self.known is None or self.settings.get("mean", "constant") not in MODEL_MEANS


@dataclass(frozen=True)
class Room:
    """Modules (patterns of paths below ``src/duogp``) that some fits only run through."""

    name: str
    modules: tuple[str, ...]
    used: Callable[[FitTraits], bool]


ROOMS = (
    Room("auto", (
        "fitting/auto.py", "fitting/race*.py", "fitting/stacking.py", "posterior/stack.py",
        "posterior/log_target.py", "posterior/learned.py", "numerics/lognormal.py", "numerics/mixtures.py",
        "numerics/rounding.py", "inference/leave_one_out.py", "inference/row_*.py", "means/affine.py",
        "means/bagging.py", "means/columns.py", "means/crossfit.py", "means/forest.py", "means/offset.py",
        "means/rounds.py",
    ), lambda fit: fit.is_default),
    Room("online", ("online/*.py",), lambda fit: fit.of_method("learns_online")),
    Room("baselines", ("baselines/*.py",), lambda fit: fit.of_method("is_baseline")),
    Room("deep", (
        "models/deep.py", "models/layers.py", "models/draws.py", "models/sample_mixture.py",
        "fitting/deep.py", "posterior/deep.py", "means/skip.py", "bases/layer_components.py",
    ), lambda fit: fit.of_method("is_deep")),
    Room("conditional", ("bases/conditional.py", "fused/conditional.py"),
         lambda fit: fit.has_basis("conditional")),
    Room("two blocks", ("bases/two_block.py", "fused/two_block*.py", "variational/blocks.py"),
         lambda fit: fit.has_basis("two_block", "layer_components")),
    Room("hybrid", ("bases/hybrid.py", "fused/hybrid.py"), lambda fit: fit.has_basis("hybrid")),
    Room("separate", ("bases/separate.py",), lambda fit: fit.has_basis("separate")),
    Room("subspace", ("bases/subspace*.py",), lambda fit: fit.has_basis("subspace")),
    Room("exact", ("bases/exact.py", "numerics/evidence.py"), lambda fit: fit.has_basis("exact")),
    Room("ridge", ("variational/ridge.py",), lambda fit: fit.known is None or fit.known.q_name == "ridge"),
    Room("closed form", (
        "inference/closed_form*.py", "inference/optimal_q.py", "inference/sufficient.py",
        "fused/collapsed*.py",
    ), lambda fit: fit.solves("closed-form") or bool(fit.settings.get("warm_start"))),
    Room("natural gradients", ("inference/natural.py", "inference/mean_rules.py"),
         lambda fit: fit.solves("natural") or fit.of_method("learns_online")),
    Room("direct steps", ("fused/direct*.py", "models/direct.py", "numerics/blocks.py"),
         lambda fit: fit.is_on_cpu),
    Room("float32 predictions", ("numerics/split_*.py", "kernels/fused_columns*.py"),
         lambda fit: fit.settings.get("predict_precision", "float64") == "float32"),
    Room("likelihoods", (
        "likelihoods/bernoulli.py", "likelihoods/beta.py", "likelihoods/classes.py", "likelihoods/density.py",
        "likelihoods/gamma.py", "likelihoods/heteroscedastic.py", "likelihoods/links.py",
        "likelihoods/poisson.py", "likelihoods/quadrature.py", "likelihoods/robust_max.py",
        "likelihoods/softmax.py", "likelihoods/student_t.py", "data/labels.py",
    ), lambda fit: not fit.is_gaussian),
    Room("monte carlo", ("likelihoods/monte_carlo.py",),
         lambda fit: not fit.is_gaussian or fit.of_method("is_deep")),
    Room("networks", (
        "numerics/networks.py", "kernels/deep_kernel.py", "kernels/warped.py", "fitting/extractors.py",
    ), lambda fit: fit.has_network),
    Room("other kernels", (
        "kernels/foreign.py", "kernels/generalised.py", "kernels/linear.py", "kernels/tanimoto.py",
    ), lambda fit: fit.has_other_kernel),
    Room("streamed tables", (
        "fitting/streamed.py", "fitting/streamed_rows.py", "training/stream.py",
    ), lambda fit: False),  # the runner fits arrays
)  # fmt: skip


def room_of(module: str) -> str | None:
    """The name of the room of a module, `CORE` unless one names it; None for words."""
    if module in WORDS:
        return None
    for room in ROOMS:
        if any(fnmatchcase(module, pattern) for pattern in room.modules):
            return room.name
    return CORE


def rooms_of(fit: FitTraits) -> list[str]:
    """The rooms that a fit runs through, the core first."""
    return [CORE, *(room.name for room in ROOMS if room.used(fit))]


def room_hashes(modules: Mapping[str, str]) -> dict[str, str]:
    """The hash of every room, from the hashes of modules."""
    parts: dict[str, dict[str, str]] = {}
    for module, value in modules.items():
        if (room := room_of(module)) is not None:
            parts.setdefault(room, {})[module] = value
    return {room: digest_of(own, DIGITS) for room, own in parts.items()}


@lru_cache(maxsize=1)
def rooms_now() -> dict[str, str]:
    """The hash of every room of the source that runs."""
    return room_hashes(module_hashes())


def versions_of(fit: FitTraits, rooms: Mapping[str, str] | None = None) -> dict[str, str]:
    """Room → hash of those that a fit runs through, by default of the source that runs."""
    known = rooms_now() if rooms is None else rooms
    return {name: known[name] for name in rooms_of(fit) if name in known}


def label(room: str, version: str) -> str:
    """The name of a room's version in the ledger: ``closed form:0123456789``."""
    return f"{room}:{version}"


def changed_rooms(then: Mapping[str, str], now: Mapping[str, str], ledger: Ledger) -> list[str]:
    """The rooms of a fit whose code is another one today and was not shown to give the same numbers."""
    return [
        room for room in now if not ledger.same(label(room, then.get(room, ABSENT)), label(room, now[room]))
    ]
