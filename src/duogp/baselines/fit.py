"""`fit_neural`: a table to a fitted baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.baselines.descent import train
from duogp.baselines.heads import GaussianHead, Head, SoftmaxHead, log_mean_exp
from duogp.baselines.networks import Committee, DeepEnsemble, MCDropout
from duogp.baselines.noise import calibrate_noise
from duogp.baselines.options import NeuralSettings
from duogp.baselines.predictor import NeuralPredictor, scaled_inputs
from duogp.data.rows import Rows, hold_out
from duogp.data.targets import Target
from duogp.fitting.builder import make_scaler
from duogp.fitting.dataset import Dataset
from duogp.fitting.plan import used_columns
from duogp.models.model import Batch
from duogp.training.feed import Table
from duogp.training.validation import weighted_nll

#: Rows evaluated at once by all passes.
CHUNK = 1024


def fit_neural(
    X: Any,
    y: Any,
    kind: str,
    *,
    validation: tuple[Any, Any] | None = None,
    sample_weight: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> NeuralPredictor:
    """A "deep-ensemble" or "mc-dropout" fitted to a table.

    ``X`` [n, d], ``y`` [n] (or [n, outputs]), or labels of any type with ``likelihood="classes"``.
    ``validation``: rows to stop early and to choose the noise level on; otherwise a share of the rows.
    ``settings`` are those of `NeuralSettings`.
    """
    chosen = NeuralSettings.of(kind, settings or {})
    data = Dataset.of_table(X, y, chosen.shared, validation=validation, sample_weight=sample_weight)
    seeds = member_seeds(chosen.random_state, chosen.members if kind == "deep-ensemble" else 1)
    return fit_members(data, kind, chosen, seeds)


def split(data: Dataset, settings: NeuralSettings) -> tuple[Rows, Rows | None]:
    """Training and validation rows: those given, or a tenth held out, but ten where a quarter is as many."""
    (rows,) = data.rows
    if data.validation_rows is not None:
        return rows, data.validation_rows[0]
    n = len(rows)
    if settings.validation_fraction is not None:
        size = min(round(settings.validation_fraction * n), n - 2)
    else:
        size = 0 if settings.early_stopping is False else max(round(0.1 * n), min(10, n // 4))
    return (rows, None) if size < 1 else hold_out(rows, size, settings.random_state)


def member_seeds(random_state: int, members: int) -> list[int]:
    """A seed for each member; two states share none, so that their ensembles have no member in common."""
    children = np.random.SeedSequence(random_state).spawn(members)
    return [int(child.generate_state(1, np.uint64)[0] >> 1) for child in children]


def fit_members(data: Dataset, kind: str, settings: NeuralSettings, seeds: list[int]) -> NeuralPredictor:
    """The networks of the given seeds, trained, and their density of the validation rows."""
    device, dtype = settings.torch_device, settings.torch_dtype
    train_rows, validation_rows = split(data, settings)
    columns = used_columns(data, settings.shared, train_rows[None])
    X, y, weights = data.X[:, columns], data.target.values, data.weights
    own = None if weights is None else weights[train_rows]
    x_scaler = make_scaler(X[train_rows], settings.standardize, own)
    y_scaler = make_scaler(y[train_rows], settings.standardize and data.num_classes is None, own)

    def tensor(a: NDArray, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.as_tensor(np.ascontiguousarray(a), dtype=kind, device=device)

    weight = None if weights is None else tensor(weights)
    table = Table(
        tensor(scaled_inputs(X, x_scaler)), tensor(y_scaler.transform(y)), weight=weight, dtype=dtype
    )
    rows = tensor(train_rows, torch.long)
    held_out = None if validation_rows is None else tensor(validation_rows, torch.long)
    validation = None if held_out is None else table.gather(held_out.unsqueeze(0))
    network = make_network(kind, settings, int(columns.sum()), len(rows), data.target, seeds)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    network.to(device)
    history = train(network, table, rows, validation, settings.plan(len(rows), held_out is not None), seeds)
    if held_out is not None and validation is not None:
        calibrate = kind == "mc-dropout" if settings.calibrate_noise is None else settings.calibrate_noise
        if calibrate and (factor := calibrate_noise(network, table, held_out)) is not None:
            shown = ", ".join(f"{f:.3g}" for f in factor.tolist())
            history.notes.append(f"noise variance × {shown}, chosen on the validation rows")

        def log_density(batch: Batch) -> torch.Tensor:
            return log_mean_exp(network.head.log_prob(network.passes(batch.x[0]).double(), batch.y[0]))

        history.validation_nll = float(weighted_nll(log_density, validation, CHUNK))
    return NeuralPredictor(
        network,
        kind=kind,
        settings=settings,
        columns=columns,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        single_output=data.target.single_output,
        history=history.in_units_of(y_scaler.scale),
        column_names=data.names,
        classes=data.target.classes,
    )


def make_network(
    kind: str, settings: NeuralSettings, inputs: int, rows: int, target: Target, seeds: list[int]
) -> Committee:
    """The networks of a kind at their first weights; ``rows`` choose the widths where none are given."""
    head: Head
    if target.classes is not None:
        head = SoftmaxHead(len(target.classes))
    else:
        varies = kind == "deep-ensemble" if settings.heteroscedastic is None else settings.heteroscedastic
        head = GaussianHead(target.outputs, heteroscedastic=varies, floor=settings.noise_floor)
    widths = settings.hidden_widths(rows)
    look: dict[str, Any] = {"activation": settings.activation, "normalisation": settings.normalisation}
    if kind == "deep-ensemble":
        return DeepEnsemble(inputs, widths, head, seeds, **look)
    (seed,) = seeds
    return MCDropout(inputs, widths, head, seed, dropout=settings.dropout, passes=settings.passes, **look)
