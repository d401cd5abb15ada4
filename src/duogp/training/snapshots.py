"""The state of a training as tensors and plain values, and back: all that decides what the next step does.

Parameters, buffers, optimisers, the guard's last good states, early stopping, rest and cycles, histories,
the position in the epoch, and the generators: their states now, and those from which the order of this
epoch's rows is made again. The clock is there as the seconds spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.errors import CheckpointError
from duogp.training.checkpoint import Snapshot
from duogp.training.history import History, Record

if TYPE_CHECKING:
    from duogp.models.model import Model
    from duogp.training.lbfgs import Curvature
    from duogp.training.loop import Run
    from duogp.training.validation import BestState

Tensors = dict[str, Tensor]
#: Attributes of a run that are plain values.
COUNTERS = ("step", "at_epoch", "position", "rate")
#: Plain attributes of what watches a run; the run's name of each, and theirs.
WATCHERS = {
    "guard": ("rollbacks", "rate_factor"),
    "best": ("epoch", "waited", "stopped"),
    "rest": ("reached", "at", "_seen"),
    "cycles": ("index", "ended", "slower", "ends", "taken"),
}
#: Types of the fields of histories and their records.
FIELDS: dict[type, dict[str, tuple[type, ...]]] = {
    Record: {
        "epoch": (int,),
        "loss": (float,),
        "seconds": (float,),
        "validation_nll": (float, NoneType),
        "learning_rate": (float, NoneType),
    },
    History: {
        "records": (list,),
        "solver": (str,),
        "best_epoch": (int, NoneType),
        "validation_nll": (float, NoneType),
        "validation_nll_y": (float, NoneType),
        "stopped_early": (bool,),
        "converged": (bool, NoneType),
        "ended_by_clock": (bool,),
        "rollbacks": (int,),
        "jitter": (float, NoneType),
        "seconds": (float,),
        "notes": (list,),
    },
}


def snapshot_of(run: Run) -> Snapshot:
    """A training between two steps."""
    tensors = {
        **_model_tensors(run.model),
        **_listed("backend", run.backend.state()),
        **_named("memory", run.backend.memory()),
        **_listed("newest", run.guard.newest),
        **_listed("good", run.guard.good),
        **_listed("generator", [g.get_state() for g in run.problem.generators]),
        **_listed("epoch generator", run.epoch_generators),
        "loss sum": run.loss_sum,
        "unchecked": run.unchecked,
    }
    for path, basis in _bases(run.model):
        tensors |= _named(f"draws {path}", basis.draw_state())
    for name, state in _states(run).items():
        tensors |= {**_listed(name, state.values), f"{name} nll": state.nll}
    if run.cycles is not None:
        tensors["annealing"] = run.cycles.total
    if run.latest is not None:
        tensors["latest"] = run.latest
    values: dict[str, Any] = {name: getattr(run, name) for name in COUNTERS}
    for owner, names in WATCHERS.items():
        if (watcher := getattr(run, owner)) is not None:
            values[owner] = {name: getattr(watcher, name) for name in names}
    values |= {
        "finished": False,
        "seconds": run.seconds(),
        "histories": [asdict(history) for history in run.histories],
    }
    return Snapshot(tensors, values)


def final_snapshot(
    model: Model, histories: Sequence[History], step: int, curvature: Curvature | None = None
) -> Snapshot:
    """A training that is over, and what it leaves for the next one."""
    values = {"finished": True, "step": step, "histories": [asdict(history) for history in histories]}
    left = {} if curvature is None else _named("curvature", curvature.pairs)
    return Snapshot({**_model_tensors(model), **left}, values)


@torch.no_grad()
def restore(run: Run, snapshot: Snapshot) -> None:
    """Put a run that has taken no step where the snapshot was taken."""
    tensors, values = snapshot
    try:
        _restore_model(run.model, tensors)
        _fill("backend", run.backend.state(), tensors)
        run.backend.recall(_part("memory", tensors))
        run.guard.newest = _copies("newest", run.guard.newest, tensors)
        run.guard.good = _copies("good", run.guard.good, tensors)
        for name, state in _states(run).items():
            _fill(name, state.values, tensors)
            state.nll = tensors[f"{name} nll"].to(state.nll.device)
        device = run.unchecked.device
        run.latest = tensors["latest"].to(device) if "latest" in tensors else None
        run.loss_sum, run.unchecked = tensors["loss sum"].to(device), tensors["unchecked"].to(device)
        if run.cycles is not None:
            run.cycles.total = tensors["annealing"].to(device)
        for name in COUNTERS:
            setattr(run, name, _number_like(values[name], getattr(run, name)))
        _require_possible(run)
        for owner, names in WATCHERS.items():
            if (watcher := getattr(run, owner)) is not None:
                for name in names:
                    setattr(watcher, name, _like(values[owner][name], getattr(watcher, name)))
        run.histories = histories_of(values, run.model.replicates)
        _check_looks(run)
        run.start -= float(values["seconds"])
        _restore_draws(run, tensors)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"a checkpoint does not fit this training: {error}") from error


@torch.no_grad()
def restore_final(model: Model, snapshot: Snapshot, curvature: Curvature | None = None) -> list[History]:
    """The model and the histories of a training that is over."""
    try:
        if curvature is not None:
            curvature.pairs = _part("curvature", snapshot.tensors)
        _restore_model(model, snapshot.tensors)
        return histories_of(snapshot.values, model.replicates)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"a checkpoint does not fit this training: {error}") from error


def histories_of(values: Mapping[str, Any], replicates: int) -> list[History]:
    """Histories of the replicates from the values of a snapshot, checked."""
    found = [
        History(**{**history, "records": [Record(**record) for record in history["records"]]})
        for history in values["histories"]
    ]
    if len(found) != replicates:
        raise ValueError(f"{len(found)} histories of {replicates} replicates")
    for history in found:
        _check_fields(history)
        for record in history.records:
            _check_fields(record)
    return found


def _check_fields(part: History | Record) -> None:
    """An error for a value that is not of the type of its field."""
    for name, kinds in FIELDS[type(part)].items():
        value = getattr(part, name)
        if type(value) not in kinds or (name == "notes" and not all(isinstance(n, str) for n in value)):
            raise TypeError(f"{name} is {value!r}")


def _check_looks(run: Run) -> None:
    """An error for losses that rest and cycles cannot have seen."""
    replicates = run.model.replicates
    if run.rest is not None:
        if not all(type(step) is int for step, _ in run.rest._seen):
            raise TypeError("steps of its losses are no numbers")
        _series([losses for _, losses in run.rest._seen], replicates)
    if run.cycles is not None:
        _series(run.cycles.ends, replicates)
    for name in ("loss_sum", "unchecked", "latest"):
        own = getattr(run, name)
        if own is not None and own.shape != (replicates,):
            raise ValueError(f"{name} has the shape {list(own.shape)}")
    sums = [state.nll for state in _states(run).values()] + ([] if run.cycles is None else [run.cycles.total])
    if any(losses.shape != (replicates,) for losses in sums):
        raise ValueError("its sums of losses have another shape")


def _states(run: Run) -> dict[str, BestState]:
    """States that a run has kept, by the name that they have in a snapshot."""
    found = {"best": run.best, "annealed": None if run.cycles is None else run.cycles.best}
    return {name: state for name, state in found.items() if state is not None}


def _require_possible(run: Run) -> None:
    """An error for a position that no training of this length has."""
    steps = run.problem.steps_per_epoch
    possible = 1 <= run.at_epoch <= run.epochs and 0 <= run.position <= steps
    if not possible or run.step != (run.at_epoch - 1) * steps + run.position or run.step > run.total_steps:
        raise ValueError(f"step {run.step} in epoch {run.at_epoch}")


def _number_like(value: Any, own: Any) -> Any:
    """A number of the type that is there now."""
    if type(value) is not type(own):
        raise TypeError(f"{value!r} is no {type(own).__name__}")
    return value


def _like(value: Any, own: Any) -> Any:
    """A value of the type that is there now; of a list with one entry for each replicate, also its length."""
    if not isinstance(own, list):
        return _number_like(value, own)
    if not isinstance(value, list) or (own and len(value) != len(own)):
        raise TypeError(f"{value!r} is no list of {len(own)}")
    for part, now in zip(value, own, strict=False):
        if type(part) is not type(now) and not (now is None and type(part) is int):
            raise TypeError(f"{value!r} is not like {own!r}")
    return value


def _series(value: list[Any], replicates: int) -> list[list[float]]:
    """Losses [replicates] at several looks."""
    for losses in value:
        if len(losses) != replicates or not all(type(loss) is float for loss in losses):
            raise TypeError(f"{losses!r} are no losses of {replicates} replicates")
    return value


# -- parts ---------------------------------------------------------------------------------------------------


def _model_tensors(model: Model) -> Tensors:
    return _named("model", {**dict(model.named_parameters()), **dict(model.named_buffers())})


def _restore_model(model: Model, tensors: Mapping[str, Tensor]) -> None:
    saved, replicates = _part("model", tensors), model.replicates
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if own.keys() != saved.keys():
        raise KeyError(", ".join(sorted(own.keys() ^ saved.keys())[:3]))
    for name, tensor in own.items():
        value = saved[name].to(tensor)
        if value.shape == tensor.shape:
            tensor.copy_(value)
        elif isinstance(tensor, nn.Parameter) or value.shape != (replicates, *tensor.shape[1:]):
            raise ValueError(f"{name} is {list(tensor.shape)} here, and {list(value.shape)} there")
        else:  # draws of a step have their shape from the first step on
            owner, _, last = name.rpartition(".")
            model.get_submodule(owner)._buffers[last] = value.clone()


def _restore_draws(run: Run, tensors: Mapping[str, Tensor]) -> None:
    """The order of this epoch's rows, then the generators as they were."""
    generators = run.problem.generators
    now, then = _part("generator", tensors), _part("epoch generator", tensors)
    if not len(generators) == len(now) == len(then):
        raise ValueError(f"{len(generators)} generators here, and {len(now)} there")
    run.epoch_generators = [then[str(k)] for k in range(len(generators))]
    if run.position > 0:
        for k, generator in enumerate(generators):
            generator.set_state(then[str(k)])
        run.problem.start_epoch()
    for k, generator in enumerate(generators):
        generator.set_state(now[str(k)])
    for path, basis in _bases(run.model):
        basis.restore_draws(_part(f"draws {path}", tensors), generators)


def _bases(model: Model) -> Iterator[tuple[str, Basis]]:
    return ((path, part) for path, part in model.named_modules() if isinstance(part, Basis))


def _named(group: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{group}/{name}": t for name, t in tensors.items()}


def _listed(group: str, tensors: Sequence[Tensor]) -> Tensors:
    return {f"{group}/{i}": t for i, t in enumerate(tensors)}


def _part(group: str, tensors: Mapping[str, Tensor]) -> Tensors:
    start = group + "/"
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def _fill(group: str, own: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> None:
    for i, t in enumerate(own):
        t.copy_(_of_shape(tensors[f"{group}/{i}"], t))


def _copies(group: str, own: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [_of_shape(tensors[f"{group}/{i}"], t).to(t).clone() for i, t in enumerate(own)]


def _of_shape(value: Tensor, like: Tensor) -> Tensor:
    if value.shape != like.shape:
        raise ValueError(f"a tensor is {list(like.shape)} here, and {list(value.shape)} there")
    return value
