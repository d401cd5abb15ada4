"""Bayesian optimisation: a BoTorch model over every GP of the registry, and TuRBO around it.

`optimise` needs the core alone. `DuoGPModel`, `Paths` and `thompson` need BoTorch, and are imported at their
first use.
"""

from typing import TYPE_CHECKING, Any

from duogp.bo.loop import make_strategy, optimise, result_of
from duogp.bo.regions import TrustRegion
from duogp.bo.results import Result
from duogp.bo.spaces import Categorical, Integer, Real, Space, read_space
from duogp.bo.strategies import Proposal, RandomSearch, Strategy
from duogp.bo.studies import Study, Trial
from duogp.bo.surrogates import GPSurrogate, Surrogate
from duogp.bo.turbo import Turbo

if TYPE_CHECKING:
    from duogp.bo.botorch_model import DuoGPModel, Paths
    from duogp.bo.pathwise import thompson

__all__ = [
    "Categorical",
    "DuoGPModel",
    "GPSurrogate",
    "Integer",
    "Paths",
    "Proposal",
    "RandomSearch",
    "Real",
    "Result",
    "Space",
    "Strategy",
    "Study",
    "Surrogate",
    "Trial",
    "TrustRegion",
    "Turbo",
    "make_strategy",
    "optimise",
    "read_space",
    "result_of",
    "thompson",
]

_FROM_BOTORCH = ("DuoGPModel", "Paths", "thompson")


def __getattr__(name: str) -> Any:
    if name not in _FROM_BOTORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from duogp.bo import botorch_model, pathwise
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("botorch", "gpytorch"):
            raise
        raise ModuleNotFoundError(
            f"duogp.bo.{name} needs BoTorch: pip install 'duogp[bo]'", name=error.name
        ) from error
    return getattr(pathwise if name == "thompson" else botorch_model, name)
