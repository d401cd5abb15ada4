"""The `state_dict` of a BoTorch model: training rows belong to its constructor, all else to its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duogp.bo.fitted_model import FittedModel

#: State of an exact GP that is its data, which a constructor is given: no part of `state_dict`.
OF_ROWS = ("basis.inducing", "basis.q.mean", "basis.row_noise", "basis.weight", "num_data")


def without_rows(model: FittedModel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Hook of `state_dict`: leaves out what of an exact GP is its training rows."""
    for name in _names_of_rows(model, prefix):
        state.pop(name, None)


def with_own_rows(model: FittedModel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Hook before `load_state_dict`: an exact GP keeps its own training rows."""
    own = dict(model.cores.named_parameters()) | dict(model.cores.named_buffers())
    for name in _names_of_rows(model, prefix):
        short = name.removeprefix(f"{prefix}cores.")
        if short in own:
            state[name] = own[short]


def _names_of_rows(model: FittedModel, prefix: str) -> list[str]:
    each = enumerate(gp.model.basis.points_are_rows for gp in model.gps)
    return [f"{prefix}cores.{i}.{name}" for i, are_rows in each if are_rows for name in OF_ROWS]


def after_loading(model: FittedModel, _: Any) -> None:
    """The hook that torch calls after `load_state_dict`: caches of the model are made anew."""
    model._after_loading()
