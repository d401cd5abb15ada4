"""Training: the loop, what a step computes, how it is executed, recovery from numerical failures."""

from typing import Any

from duogp._moved import moved_name
from duogp.training.checkpoint import CheckpointOptions, Checkpoints, opened
from duogp.training.feed import Feed, Minibatches, Scaling, Table, TableFeed, chunks
from duogp.training.history import History, Record
from duogp.training.lbfgs import Curvature
from duogp.training.loop import Callback, Progression, TrainingPlan, conditions, in_epochs, settle, train
from duogp.training.problems import ClosedForm, Evidence, Problem, Stochastic
from duogp.training.schedules import SCHEDULES, make_schedule

__all__ = [
    "SCHEDULES",
    "Callback",
    "CheckpointOptions",
    "Checkpoints",
    "ClosedForm",
    "Curvature",
    "Evidence",
    "Feed",
    "History",
    "Minibatches",
    "Problem",
    "Progression",
    "Record",
    "Scaling",
    "Stochastic",
    "Table",
    "TableFeed",
    "TrainingPlan",
    "chunks",
    "conditions",
    "in_epochs",
    "make_schedule",
    "opened",
    "settle",
    "train",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
