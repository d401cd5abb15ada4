"""From arrays and decisions to what the training loop takes: a table on the device, a model, a problem."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases import Coupled, Exact, Hybrid, Separate, Subspace
from duogp.data.scaling import Scaler
from duogp.data.targets import Target
from duogp.errors import DataWarning
from duogp.fitting.build import build_model, initial_kernel
from duogp.fitting.inducing import select_inducing
from duogp.fitting.planning import Decisions, Splits
from duogp.kernels import GeneralisedRBF, generalised_points
from duogp.means import ConstantMean
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.models.model import Batch, Model
from duogp.training import ClosedForm, Evidence, Minibatches, Problem, Scaling, Stochastic, Table

#: Inducing points unless the user says how many.
NUM_INDUCING = 500
#: Rows that a prior mean starts from.
START_ROWS = 10_000
#: Bytes that closed-form training may hold at once on a GPU; on a CPU small chunks are as fast as large ones.
CUDA_BYTES = 16 * 2**30
CPU_CHUNK_ROWS = 2048
#: Numbers kept for every row and inducing point by one kernel's features and their gradients (measured).
FLOATS_PER_FEATURE = 20


@dataclass(frozen=True)
class Prepared:
    columns: NDArray[np.bool_]  # those of X that are used
    table: Table
    x_scalers: list[Scaler]
    y_scalers: list[Scaler]
    classes: int | None = None  # of class labels


def prepare(
    X: NDArray,
    columns: NDArray[np.bool_],
    target: Target,
    noise: NDArray | None,
    weights: NDArray | None,
    splits: Splits,
    settings: Settings,
) -> Prepared:
    device, dtype = settings.torch_device, settings.torch_dtype
    X = X[:, columns]
    y, classes = target.values, None if target.classes is None else len(target.classes)
    scale_y = bool(settings.standardize) and target.kind == "real"
    x_scalers, y_scalers = [], []
    categorical = initial_kernel(settings, torch.ones(X.shape[1])).categorical_columns(X.shape[1])
    for part in splits.train:
        w = None if weights is None else weights[part]
        x_scalers.append(_scaler(X[part], settings.standardize, w, categorical))
        y_scalers.append(_scaler(y[part], scale_y, w))

    def tensor(a: NDArray, kind: torch.dtype = torch.float64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(a), dtype=kind, device=device)

    weight = None if weights is None else tensor(weights)
    if len(splits.train) == 1 or settings.standardize is False:
        # Scaled once, in float64, before anything is rounded.
        xs, ys = x_scalers[0], y_scalers[0]
        row_noise = None if noise is None else tensor(noise[:, None] / ys.scale**2)
        table = Table(
            tensor(xs.transform(X), dtype), tensor(ys.transform(y), dtype), row_noise, weight, None, dtype
        )
    else:
        scaling = Scaling(
            *(
                tensor(np.stack([getattr(s, name) for s in scalers])[:, None])
                for scalers in (x_scalers, y_scalers)
                for name in ("shift", "scale")
            )
        )
        row_noise = None if noise is None else tensor(np.repeat(noise[:, None], y.shape[1], 1))
        table = Table(tensor(X), tensor(y), row_noise, weight, scaling, dtype)
    return Prepared(columns, table, x_scalers, y_scalers, classes)


def _scaler(
    A: NDArray, kind: bool | str, weights: NDArray | None = None, unscaled: Collection[int] = ()
) -> Scaler:
    """Category codes are names, not quantities: their columns are left as they are."""
    if not kind:
        return Scaler.identity(A.shape[1])
    if kind == "minmax":
        scaler = Scaler.minmax(A)
    else:
        scaler = Scaler.standard(A) if weights is None else Scaler.weighted(A, weights)
    shift, scale = scaler.shift.copy(), scaler.scale.copy()
    shift[list(unscaled)], scale[list(unscaled)] = 0.0, 1.0
    return Scaler(shift, scale)


class Workshop:
    """Makes models and problems for all replicates of one fit: row sets × β grid, in that order."""

    def __init__(
        self,
        method: Method,
        settings: Settings,
        plan: Decisions,
        splits: Splits,
        data: Prepared,
        seeds: list[int],
    ) -> None:
        self.method = method
        self.settings, self.plan, self.seeds = settings, plan, seeds
        self.n = splits.train.shape[1]
        self.grid = len(plan.betas)
        self.classes = data.classes
        self.table = self._each_beta(data.table)
        self.rows = self._row_sets(splits.train)
        self.held_out = None if splits.validation is None else self._row_sets(splits.validation)
        self.betas = torch.tensor(plan.betas, dtype=torch.float64).repeat(len(splits.train), 1)
        self._choose_points(data.table, torch.as_tensor(splits.train, device=settings.torch_device))

    def model(self, method: Method) -> Model:
        """Every replicate of a method at its start."""
        model = build_model(
            method,
            self.settings,
            inducing=self.inducing.clone(),
            extra=None if self.extra is None else self.extra.clone(),
            outputs=self.table.y.shape[1],
            num_data=self.n,
            beta1=self.betas[:, 0],
            beta2=self.betas[:, 1],
            omega=self.plan.omega,
            fixed_noise=self.table.noise is not None,
            spread=self.spread,
            generators=[
                torch.Generator().set_state(state) for state in self._states for _ in range(self.grid)
            ],
            classes=self.classes,
            rows=self.table.gather(self.rows) if method.basis == "exact" else None,
            inputs=self.table.gather(self.rows[:, :START_ROWS]).x if method.is_deep else None,
        )
        y = self.table.y[self.rows[:, :START_ROWS]].mT  # [R, outputs, n]
        start = model.likelihood.initial_latent(y)
        if start is not None and isinstance(model.mean, ConstantMean) and model.mixing is None:
            model.mean.constant.data.copy_(start)
        return model

    def problem(self, model: Model) -> Problem:
        """What the plan's solver trains."""
        if self.plan.solver == "closed-form":
            return self.closed_form(model)
        device, settings = self.settings.torch_device, self.settings
        shufflers = [torch.Generator(device).manual_seed(s + 1) for s in self.seeds for _ in range(self.grid)]
        blocks = self.plan.omega == "blocks" and model.uses_omega
        return Stochastic(
            model, self.table, Minibatches(self.rows, settings.batch_size, shufflers, blocks=blocks)
        )

    def closed_form(
        self, model: Model, *, with_validation: bool = False, sample: int | None = None
    ) -> ClosedForm:
        """The collapsed bound of the training rows, of all rows, or of a sample of them."""
        rows = self.rows
        if sample is not None and sample < self.n:
            rows = torch.stack([self._sample(own, sample, seed) for own, seed in self._each_seed()])
        if isinstance(model.basis, Hybrid):
            model.basis.columns_index = None  # nothing is drawn between steps on all rows: all columns then
        if isinstance(model.basis, Exact):
            return Evidence(model, self.table, rows)
        if with_validation and self.held_out is not None:
            rows = torch.cat([rows, self.held_out], 1)
        return ClosedForm(model, self.table, rows, self._chunk_rows(model, rows.shape[1]))

    def _each_seed(self) -> Iterator[tuple[Tensor, int]]:
        """Training rows of every replicate with its seed."""
        seeds = [seed for seed in self.seeds for _ in range(self.grid)]
        return zip(self.rows, seeds, strict=True)

    @staticmethod
    def _sample(rows: Tensor, size: int, seed: int) -> Tensor:
        chosen = np.random.default_rng(seed).choice(len(rows), size, replace=False)
        return rows[torch.as_tensor(chosen, device=rows.device)]

    def validation(self) -> Batch | None:
        return None if self.held_out is None else self.table.gather(self.held_out)

    # -- inside ----------------------------------------------------------------------------------------------

    def _choose_points(self, table: Table, rows: Tensor) -> None:
        """Inducing points for each set of rows; β values share them."""
        settings, dims = self.settings, table.x.shape[1]
        for name in ("num_inducing", "num_extra"):
            if (asked := getattr(settings, name)) is not None and asked > self.n:
                message = f"{name} is {asked}, but there are {self.n} training rows: using no more than those"
                warnings.warn(message, DataWarning, stacklevel=5)
        asked = (settings.num_inducing or 0) + (settings.num_extra or 0)
        if self.method.has_second_block and settings.extra_init is None and asked > self.n:
            message = f"{asked} points in two blocks were asked for, of {self.n} training rows: shared out"
            warnings.warn(message, DataWarning, stacklevel=5)
        prior = initial_kernel(settings, torch.ones(dims))
        codes = prior.categorical_columns(dims)
        self._points_have_lengthscales = any(isinstance(part, GeneralisedRBF) for part in prior.modules())
        name = settings.inducing_init or ("random" if codes else "kmeans")  # means of codes are no categories
        spreads: list[Tensor] = []
        points: list[Tensor] = []
        extra: list[Tensor] = []
        self._states = []
        for r, seed in enumerate(self.seeds):
            generator = torch.Generator().manual_seed(seed)
            x = _scaled_rows(table, rows, r)
            spreads.append(_spread(x, None if table.weight is None else table.weight[rows[r]].cpu().numpy()))
            kernel = initial_kernel(settings, spreads[-1]).to(x.device)
            if self.method.basis == "exact":  # every row is one
                points.append(x)
                self._states.append(generator.get_state())
                continue
            num = min(settings.num_inducing or NUM_INDUCING, self.n)
            more = None if settings.num_extra is None else min(settings.num_extra, self.n)
            if self.method.has_second_block and settings.extra_init is None:
                # Chosen together, so that the blocks keep out of each other's way.
                num, more = _share_rows(num, more or num, self.n)
                both = select_inducing(name, x, num + more, kernel=kernel, generator=generator)
                both = both[torch.randperm(num + more, generator=generator).to(both.device)]
                points.append(both[:num])
                extra.append(both[num:])
            else:
                points.append(select_inducing(name, x, num, kernel=kernel, generator=generator))
                if self.method.has_second_block:
                    more = more or num
                if more is not None:
                    own = settings.extra_init or name
                    extra.append(select_inducing(own, x, more, kernel=kernel, generator=generator))
            self._states.append(generator.get_state())
        self.inducing = self._stack(points)
        self.spread = torch.stack(spreads).repeat_interleave(self.grid, 0).unsqueeze(1)  # [R, 1, d]
        self.extra = self._stack(extra) if extra else None

    def _stack(self, points: list[Tensor]) -> Tensor:
        """[R, 1, M, d]: latent functions share their inducing points."""
        stacked = torch.stack(points).repeat_interleave(self.grid, 0).unsqueeze(1)
        if self._points_have_lengthscales and self.method.basis != "exact":
            stacked = generalised_points(stacked)
        return stacked.to(self.settings.torch_dtype)

    def _row_sets(self, rows: NDArray[np.intp]) -> Tensor:
        return torch.as_tensor(rows, device=self.settings.torch_device).repeat_interleave(self.grid, 0)

    def _each_beta(self, table: Table) -> Table:
        if table.scaling is None or self.grid == 1:
            return table
        scaling = Scaling(*(t.repeat_interleave(self.grid, 0) for t in table.scaling))
        return replace(table, scaling=scaling)

    def _chunk_rows(self, model: Model, n: int) -> int:
        """Rows at once in closed form: a block of Ω, or what fits into memory."""
        if model.uses_omega and self.plan.omega != "rows":
            block = self.settings.omega_block or min(1024, max(128, model.basis.q.size))
            return n if self.plan.omega == "full" else min(n, block)
        if self.settings.torch_device.type == "cpu":
            return min(n, CPU_CHUNK_ROWS)
        points = sum(p.shape[-2] for name, p in model.basis.named_parameters() if name.endswith("inducing"))
        kernels = 2 if model.basis.has_omega else 1
        row_bytes = 8 * FLOATS_PER_FEATURE * kernels * points * model.replicates * model.likelihood_outputs
        free, _ = torch.cuda.mem_get_info(self.settings.torch_device)
        return max(min(n, min(CUDA_BYTES, free // 2) // row_bytes), 256)


def _share_rows(num: int, more: int, n: int) -> tuple[int, int]:
    """Sizes of two blocks of different rows: as asked; where those are too many, the larger gives way."""
    if num + more > n and num <= n // 2:
        return num, n - num
    if num + more > n:
        more = min(more, n // 2)
        return n - more, more
    return num, more


def _spread(x: Tensor, weights: NDArray | None) -> Tensor:
    """Standard deviation of every column: 1 for standardised inputs, and for constant columns."""
    rows = x.cpu().numpy()
    scaler = Scaler.standard(rows) if weights is None else Scaler.weighted(rows, weights)
    return torch.as_tensor(scaler.scale.clip(1e-140, 1e140))  # lengthscales are divided by, and squared


def _scaled_rows(table: Table, rows: Tensor, r: int) -> Tensor:
    x = table.x[rows[r]].double()
    if table.scaling is None:
        return x
    return (x - table.scaling.x_shift[r]) / table.scaling.x_scale[r]


@torch.no_grad()
def transplant(source: Model, target: Model) -> None:
    """Start a model where a coupled one ended: same prior mean, noise, kernel(s), inducing points and q(u).

    With its mean kernel equal to its covariance kernel the conditional basis *is* the coupled one, so the
    target begins at the source's posterior.
    """
    assert isinstance(source.basis, Coupled)
    target.mean.load_state_dict(source.mean.state_dict())
    target.likelihood.load_state_dict(source.likelihood.state_dict())
    target.numerics.jitter.copy_(source.numerics.jitter)
    for name in ("kernel", "mean_kernel"):
        if hasattr(target.basis, name):
            getattr(target.basis, name).load_state_dict(source.basis.kernel.state_dict())
    if isinstance(target.basis, Exact):  # its points are the rows
        return
    points = source.basis.inducing
    # A second block of points that keeps out of the first one's way has nothing to gain from a copy of it.
    names = ("inducing", "mean_inducing") if isinstance(target.basis, Separate) else ("inducing",)
    for name in names:
        own = getattr(target.basis, name, None)
        if own is not None and own.shape == points.shape:
            own.copy_(points)
    if isinstance(target.basis, Subspace):  # its coefficients are of another kind
        return
    q, (first, _) = source.basis.q, target.basis.q.parts()[0]  # a second block starts at its prior
    fits = first.size == q.size and (target.basis.mean_shares_features or first.mean.shape == q.mean.shape)
    if fits:
        mean = torch.zeros_like(first.mean)
        mean[..., : q.size] = q.mean
        first.set_(mean, q.root())
