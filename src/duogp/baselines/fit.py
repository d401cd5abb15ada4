"""`fit_neural`: a table to a fitted baseline."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.baselines.descent import mean_nll, train
from duogp.baselines.heads import GaussianHead, Head, SoftmaxHead, log_mean_exp
from duogp.baselines.networks import Committee, DeepEnsemble, MCDropout
from duogp.baselines.noise import calibrate_noise
from duogp.baselines.options import NeuralSettings
from duogp.baselines.predictor import NeuralPredictor, scaled_inputs
from duogp.data.columns import informative_columns
from duogp.data.scaling import Scaler
from duogp.data.targets import Target, raw_target, read_target, with_validation
from duogp.data.validation import as_matrix, as_row_vector, column_names
from duogp.errors import DataWarning
from duogp.training.feed import Table

RowNumbers = NDArray[np.intp]
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
    data = read(X, y, validation, sample_weight, chosen)
    seeds = member_seeds(chosen.random_state, chosen.members if kind == "deep-ensemble" else 1)
    return fit_members(data, kind, chosen, seeds)


@dataclass(frozen=True, eq=False)
class Data:
    """All rows, those given for validation last, and which are trained and which are held out."""

    X: NDArray
    target: Target
    weight: NDArray[np.float64] | None
    train: RowNumbers
    held_out: RowNumbers | None
    names: list[str] | None


def read(X: Any, y: Any, validation: Any, sample_weight: Any, settings: NeuralSettings) -> Data:
    """The arrays, checked and divided into training and validation rows."""
    kind = settings.target
    matrix = as_matrix(X, "X")
    n = len(matrix)
    values = raw_target(y, n, kind)
    if validation is not None:
        matrix, values = with_validation(matrix, values, validation, kind)
    weight, rows = None, np.arange(n)
    if sample_weight is not None:
        weight = as_row_vector(sample_weight, n, "sample_weight", allow_zero=True)
        if not weight.any():
            raise ValueError("sample_weight must not be zero for every row")
        rows = np.flatnonzero(weight)  # a row of no weight must not count anywhere, not even for the scale
        weight = np.concatenate([weight, np.ones(len(matrix) - n)])
    held_out: RowNumbers | None = np.arange(n, len(matrix))
    if validation is None:
        rows, held_out = hold_out(rows, settings)
    return Data(matrix, read_target(values, len(matrix), kind), weight, rows, held_out, column_names(X))


def hold_out(rows: RowNumbers, settings: NeuralSettings) -> tuple[RowNumbers, RowNumbers | None]:
    """Training and validation rows: a tenth held out, but ten where a quarter of the rows is as many."""
    n = len(rows)
    if settings.validation_fraction is not None:
        size = min(round(settings.validation_fraction * n), n - 2)
    else:
        size = 0 if settings.early_stopping is False else max(round(0.1 * n), min(10, n // 4))
    if size < 1:
        return rows, None
    order = np.random.default_rng(settings.random_state).permutation(n)
    return rows[order[size:]], rows[order[:size]]


def member_seeds(random_state: int, members: int) -> list[int]:
    """A seed for each member; two states share none, so that their ensembles have no member in common."""
    children = np.random.SeedSequence(random_state).spawn(members)
    return [int(child.generate_state(1, np.uint64)[0] >> 1) for child in children]


def fit_members(data: Data, kind: str, settings: NeuralSettings, seeds: list[int]) -> NeuralPredictor:
    """The networks of the given seeds, trained, and their density of the validation rows."""
    device, dtype = settings.torch_device, settings.torch_dtype
    columns = informative_columns(data.X[data.train])
    if not columns.all():
        warnings.warn(f"{int((~columns).sum())} constant columns of X are ignored", DataWarning, stacklevel=3)
        columns[0] |= not columns.any()  # nothing varies: a constant can still be learned
    x_scaler = make_scaler(data.X[data.train][:, columns], data, settings.standardize)
    scale_y = settings.standardize and data.target.classes is None
    y_scaler = make_scaler(data.target.values[data.train], data, scale_y)

    def tensor(a: NDArray, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.as_tensor(np.ascontiguousarray(a), dtype=kind, device=device)

    table = Table(
        tensor(scaled_inputs(data.X[:, columns], x_scaler)),
        tensor(y_scaler.transform(data.target.values)),
        weight=None if data.weight is None else tensor(data.weight),
        dtype=dtype,
    )
    rows = tensor(data.train, torch.long)
    held_out = None if data.held_out is None else tensor(data.held_out, torch.long)
    network = make_network(kind, settings, int(columns.sum()), len(rows), data.target, seeds)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    network.to(device)
    history = train(network, table, rows, held_out, settings.plan(len(rows), held_out is not None), seeds)
    if held_out is not None:
        calibrate = kind == "mc-dropout" if settings.calibrate_noise is None else settings.calibrate_noise
        if calibrate and (factor := calibrate_noise(network, table, held_out)) is not None:
            shown = ", ".join(f"{f:.3g}" for f in factor.tolist())
            history.notes.append(f"noise variance × {shown}, chosen on the validation rows")

        def log_density(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return log_mean_exp(network.head.log_prob(network.passes(x).double(), y))

        history.validation_nll = float(mean_nll(log_density, table, held_out, CHUNK))
    return NeuralPredictor(
        network,
        kind=kind,
        settings=settings,
        columns=columns,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        single_output=data.target.single_output,
        history=history,
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


def make_scaler(A: NDArray, data: Data, standardize: bool) -> Scaler:
    """Training rows A to mean 0 and standard deviation 1; integer weights count like repeated rows."""
    if not standardize:
        return Scaler.identity(A.shape[1])
    return Scaler.standard(A) if data.weight is None else Scaler.weighted(A, data.weight[data.train])
