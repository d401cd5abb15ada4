"""`NeuralSettings`, the options of the baselines: some shared with `duogp.Settings`, some of their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from duogp.baselines.descent import NetworkPlan
from duogp.errors import DataWarning
from duogp.fitting.dataset import with_seed
from duogp.fitting.factories import likelihood_name, target_kind
from duogp.methods.settings import (
    INTEGER,
    NOT_NEGATIVE,
    SEED,
    SHARE,
    CheckedSettings,
    Settings,
    unknown_setting,
)
from duogp.training.schedules import make_schedule

KINDS = ("deep-ensemble", "mc-dropout")
#: Settings that only one of the kinds has.
OWN = {"deep-ensemble": ("members",), "mc-dropout": ("passes", "dropout")}
#: Optimiser steps by default, and the least and most epochs that they may make.
STEPS, EPOCHS = 6000, (30, 300)
#: Rows of a minibatch: about a fiftieth of all, within these bounds.
BATCH = (64, 1024)
#: Learning rate times √(widest layer). Measured best of {1, 3, 5, 10}·1e-3: 1e-2 at 100 units, 5e-3 at 500,
#: 3e-3 at 1000 (UCI boston, concrete, energy, kin40k).
RATE = 0.1
#: Hidden layers by the number of training rows: those of the first deep kernels, without their features.
WIDTHS = ((20_000, (1000, 500, 50)), (4_000, (500, 250, 50)), (0, (100, 50)))


@dataclass(frozen=True)
class NeuralSettings(CheckedSettings):
    """Options of `fit_neural`. ``None`` means: chosen from the kind and the data."""

    # the networks
    members: int = 5  #: networks of an ensemble
    passes: int = 50  #: of MC dropout at prediction
    dropout: Annotated[float, SHARE] = 0.05  #: share of the hidden units left out
    widths: Sequence[int] | None = None  #: of the hidden layers; by the number of rows, as for deep kernels
    activation: Literal["relu", "silu", "tanh", "gelu"] = "silu"
    normalisation: Literal["none", "layer", "spectral", "batch"] = (
        "none"  #: "none", "layer", "spectral" or "batch" (running moments)
    )
    likelihood: str = "gaussian"  #: "gaussian"; "classes" or another of labels: softmax
    heteroscedastic: bool | None = None  #: noise that depends on x; on for ensembles
    noise_floor: float = 1e-6  #: the noise variance stays above it, in scaled units
    calibrate_noise: bool | None = None  #: its level chosen on validation rows; on for MC dropout

    # how
    epochs: int | None = None  #: as many as make 6000 steps, but from 30 to 300
    steps: int | None = None  #: optimiser steps in all, instead of epochs
    batch_size: int | None = None  #: about a fiftieth of the rows, from 64 to 1024
    learning_rate: float | None = None  #: 0.1 / √(widest layer)
    schedule: Any = "cosine"  #: "constant", "multistep", "cosine" or a function of the fraction done
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-4  #: decoupled
    clip: float = 1.0  #: largest norm of a network's gradient
    validation_fraction: Annotated[float | None, SHARE] = None  #: 0.1, but ten rows where a quarter has them
    early_stopping: bool | None = None  #: where there are validation rows
    patience: int | None = None  #: evaluations without improvement before stopping; a fifth of the epochs
    evaluate_every: int = 1  #: epochs between looks at the validation rows
    standardize: bool = True

    # where
    device: str | None = None  #: "cpu", "cuda", ...; None: CUDA where there is one
    dtype: Literal["float32", "float64"] = "float32"
    random_state: Annotated[int, INTEGER, SEED] = 0
    verbose: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps both say how long to train: give one of them")
        if self.target != "classes" and likelihood_name(self.likelihood) != "gaussian":
            raise ValueError(
                "networks have a Gaussian or a softmax head: likelihood must be 'gaussian' or 'classes', got "
                f"{self.likelihood!r}"
            )
        make_schedule(self.schedule)

    @property
    def shared(self) -> Settings:
        """The options that fits of Gaussian processes have too."""
        own = {f.name for f in fields(self)}
        values = {f.name: getattr(self, f.name) for f in fields(Settings) if f.name in own}
        return Settings(**{name: value for name, value in values.items() if value is not None})

    @property
    def target(self) -> str:
        """Kind of the targets: "real" or "classes"."""
        return target_kind(self.likelihood)

    def hidden_widths(self, rows: int) -> tuple[int, ...]:
        """Widths of the hidden layers: those given, or by the number of rows."""
        if self.widths is not None:
            return tuple(self.widths)
        return next(widths for least, widths in WIDTHS if rows >= least)

    def plan(self, rows: int, has_validation: bool) -> NetworkPlan:
        """Length and rate of a training on so many rows."""
        smallest, largest = BATCH
        batch_size = min(self.batch_size or min(largest, max(smallest, _power_of_two(rows / 50))), rows)
        per_epoch = -(-rows // batch_size)
        least, most = EPOCHS
        epochs = self.epochs or min(most, max(least, -(-STEPS // per_epoch)))
        if self.steps is not None:
            epochs = -(-self.steps // per_epoch)
        early = has_validation if self.early_stopping is None else self.early_stopping
        if early and not has_validation:
            raise ValueError(
                "early_stopping needs validation rows: set validation_fraction above 0 or pass validation="
            )
        looks = max(1, epochs // self.evaluate_every)
        return NetworkPlan(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=self.learning_rate or RATE / math.sqrt(max(self.hidden_widths(rows))),
            steps=self.steps,
            schedule=make_schedule(self.schedule),
            weight_decay=self.weight_decay,
            clip=self.clip,
            evaluate_every=self.evaluate_every,
            patience=(self.patience or max(10, looks // 5)) if early else None,
            restore_best=early,
            verbose=self.verbose,
        )

    @classmethod
    def of(cls, kind: str, given: Mapping[str, Any]) -> NeuralSettings:
        """Settings from keywords. Those of Gaussian processes are ignored with a warning."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        mine, theirs = _names(cls), _names(Settings)
        for name in given:
            if name not in mine and name not in theirs:
                raise unknown_setting(name, mine)
        idle = [name for other, own in OWN.items() if other != kind for name in own]
        idle = [name for name in idle if name in given and given[name] != getattr(cls, name)]
        if unused := [name for name in given if name not in mine or name in idle]:
            warnings.warn(f"{kind!r} has no use for {', '.join(unused)}: ignored", DataWarning, stacklevel=3)
        return cls(**with_seed({name: value for name, value in given.items() if name not in unused}))


def _names(settings: Any) -> list[str]:
    return [f.name for f in fields(settings)]


def _power_of_two(value: float) -> int:
    """The largest power of two up to a value."""
    return 1 << max(0, int(value).bit_length() - 1)
