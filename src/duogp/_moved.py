"""Old import paths, which keep working for one release with a DeprecationWarning that names the new one.

`MOVED` is the whole table; a package takes its submodules with it unless they have a line of their own. The
finder returns the module at the new path under the old name, so that classes and functions are the same
objects, also for pickles that were written before.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: Old module → new module (below `duogp` unless it starts with "duogp_"), or several modules among which the
#: names of the old one are distributed now.
MOVED: dict[str, str | tuple[str, ...]] = {
    # numerics
    "linalg": "numerics.factorisation",
    "nets": "numerics.networks",
    "parameters": "numerics.parameters",
    "streams": "numerics.streams",
    "triangles": "numerics.triangles",
    # kernels, variational distributions, bases, fused steps
    "kernels.compose": ("kernels.base", "kernels.warped"),
    "kernels.deep": "kernels.deep_kernel",
    "kernels.finite": ("kernels.base", "kernels.linear"),
    "kernels.hamming": "kernels.stationary",
    "ridge": "variational.ridge",
    "bases.components": "bases.layer_components",
    "bases.linear_form": "bases.frozen",
    "bases.moments": "bases.frozen_products",
    "bases.decoupled_step": "fused.conditional",
    "bases.one_step": "fused.coupled",
    "gram_bound": "fused.collapsed",
    "whitening": ("fused.projections", "numerics.products"),
    # inference and training
    "collapsed": "inference.closed_form",
    "optim": ("inference.natural", "inference.mean_rules", "training.adam"),
    "optim.adam": "training.adam",
    "optim.means": "inference.mean_rules",
    "optim.natural": "inference.natural",
    # models
    "mixing": "models.mixing",
    "model": "models.model",
    # fitting
    "assembly": "fitting.builder",
    "auto": "fitting.auto",
    "build": "fitting.build",
    "case": "fitting.dataset",
    "extractors": "fitting.extractors",
    "inducing": "bases.inducing",
    "planning": ("fitting.plan", "fitting.solver", "fitting.training_plan"),
    "settings": "methods.settings",
    # fitted models
    "gp": "posterior.gp",
    "prediction": "posterior.prediction",
    # deep GPs
    "deep": (
        *("posterior.deep", "models.deep", "models.layers", "models.draws", "models.sample_mixture"),
        *("means.skip", "fitting.deep"),
    ),
    "deep.build": "fitting.deep",
    "deep.draws": "models.draws",
    "deep.gp": "posterior.deep",
    "deep.layers": "models.layers",
    "deep.mixture": "models.sample_mixture",
    "deep.model": "models.deep",
    "deep.sampling": "posterior.sampling",
    "deep.skip": "means.skip",
    # the upper storey
    "neural": "baselines",
    "neural.fitting": "baselines.fit",
    "neural.mixture": "baselines.heads",
    "neural.settings": "baselines.options",
    "neural.training": "baselines.descent",
    "online.recipe": "online.options",
    "online.rows": "online.observations",
    "bo.model": "bo.botorch_model",
    "bo.posterior": "bo.processes",
    "bo.refitting": "bo.refit",
    "estimators": "sklearn",
    "estimators.covariance": "sklearn.regressor",
    "estimators.parameters": "sklearn.fit_keywords",
    "estimators.roots": "numerics.root_finding",
    "estimators.rows": "sklearn.training_rows",
    "estimators.storage": "io.estimators",
    "saving": "io",
    "saving.errors": "errors",
    "saving.neural": "io.baselines",
    "plots.honesty": "plots.calibration",
    "commands": "cli",
    "commands.manners": "cli.errors",
    "commands.models": "cli.model_folder",
    "commands.showing": "cli.output",
    "bench.commands": "cli.bench",
    "bench.course": "bench.learning_curve",
    "bench.tables": "bench.report",
    "examples": "demo",
    "bo.tasks.classics": "bo.tasks.small",
    "bo.tasks.push": "bo.tasks.small",
    "bo.molecules": "duogp_tasks.molecules",
    "bo.tasks.lunar": "duogp_tasks.lunar",
    "bo.tasks.ranolazine": "duogp_tasks.ranolazine",
    "bo.tasks.rover": "duogp_tasks.rover",
}

#: Old name in a package that stays → new module and name, see `moved_name`.
RENAMED = {
    "bases.LinearForm": "bases.FrozenPosterior",
    "fitting.fit": "api.fit",
    "fitting.fit_replicates": "api.fit_replicates",
    "training.Plan": "training.TrainingPlan",
}


def moved_name(package: str, name: str) -> Any:
    """The object that a name of a package stands for now, with a warning: a package's ``__getattr__``."""
    new = RENAMED.get(f"{package.removeprefix('duogp.')}.{name}")
    if new is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, attribute = new.rpartition(".")
    warnings.warn(f"{package}.{name} is now duogp.{new}", DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(f"duogp.{module}"), attribute)


def new_path(name: str) -> tuple[str, ...]:
    """Full names of the modules that an old module has become; none where it has not moved."""
    if not name.startswith("duogp."):
        return ()
    old, rest = name.removeprefix("duogp."), ""
    while old:
        if (found := MOVED.get(old)) is not None:
            if isinstance(found, tuple):
                return () if rest else tuple(f"duogp.{new}" for new in found)
            return (found + rest if found.startswith("duogp_") else f"duogp.{found}{rest}",)
        old, _, last = old.rpartition(".")
        rest = f".{last}{rest}"
    return ()


class MovedFinder:
    """Finder and loader of the modules in `MOVED`.

    It comes first on `sys.meta_path`: a submodule of a moved package would otherwise be found in the folder
    of the new package and be executed a second time.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = new_path(name)
        if not new or (new[0].startswith("duogp_") and PathFinder.find_spec(name, path) is not None):
            return None
        return ModuleSpec(name, self, loader_state=new)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = spec.loader_state
        names = " and ".join(new) if len(new) < 3 else f"{', '.join(new[:-1])} and {new[-1]}"
        warnings.warn(f"{spec.name} has moved to {names}", DeprecationWarning, stacklevel=2)
        if len(new) > 1:
            return _distributed(spec.name, new)
        try:
            module = importlib.import_module(new[0])
        except ModuleNotFoundError as error:
            if not new[0].startswith("duogp_") or error.name not in ("duogp_tasks", new[0]):
                raise
            raise ModuleNotFoundError(
                f"{spec.name} is now {new[0]}, of a distribution of its own: pip install duogp-tasks",
                name=spec.name,
            ) from error
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed again; the import system has put the spec of the old name on the module."""
        assert module.__spec__ is not None
        if isinstance(module.__spec__.loader_state, ModuleSpec):
            module.__spec__ = module.__spec__.loader_state


def _distributed(name: str, new: Sequence[str]) -> ModuleType:
    """A package of the old name, whose names are looked up in the new modules."""
    module = ModuleType(name)
    module.__path__ = []

    def find(attribute: str) -> Any:
        for home in new if not attribute.startswith("__") else ():
            if hasattr(found := importlib.import_module(home), attribute):
                return getattr(found, attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    module.__getattr__ = find  # type: ignore[method-assign]
    return module


def install() -> None:
    """Put the finder on `sys.meta_path`, once."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
