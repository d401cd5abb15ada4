"""From a dataset and a plan to models and problems: rows on the device, inducing points, all replicates."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases.inducing import select_inducing
from duogp.data.rows import Rows
from duogp.data.scaling import Scaler
from duogp.fitting.build import build_model
from duogp.fitting.dataset import Dataset
from duogp.fitting.deep import Architecture
from duogp.fitting.factories import initial_kernel
from duogp.fitting.learned import cross_fits, learned_values
from duogp.fitting.plan import Plan
from duogp.fused.table import sums_are_enough
from duogp.kernels import GeneralisedRBF, Scale
from duogp.kernels.generalised import generalised_points
from duogp.means import ConstantMean, CrossFit
from duogp.methods.registry import Method
from duogp.methods.settings import Settings
from duogp.models.deep import DeepModel
from duogp.models.layers import Layer
from duogp.models.model import Batch, Model, take_replicate
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP
from duogp.posterior.learned import LearnedMean
from duogp.training import (
    ClosedForm,
    Evidence,
    History,
    Minibatches,
    Problem,
    Scaling,
    Stochastic,
    Table,
    TableFeed,
)

#: Prior variance of the hidden layers of a deep GP that starts from a shallow one, whose inputs vary by 1.
HIDDEN_VARIANCE = 1e-4
#: Rows that a prior mean starts from.
START_ROWS = 10_000
#: Bytes that closed-form training may hold at once. On a CPU chunks of any size are as fast, but those of a
#: single one are evaluated once a step and not twice: more than a quarter of the time.
CUDA_BYTES, CPU_BYTES = 16 * 2**30, 2**30
CPU_CHUNK_ROWS = 2048
#: Nats a row that further steps must gain for float32 products to be enough: they err by 1e-6 to 1e-5.
QUICK_TOLERANCE = 1e-3
#: Numbers kept for every row and inducing point by one kernel's features and their gradients (measured), and
#: on a CPU where the bound comes from sums (`fused.collapsed`).
FLOATS_PER_FEATURE, FLOATS_OF_SUMS = 20, 8


class Builder:
    """Makes models and problems for all replicates of one fit: row sets × β grid, in that order."""

    def __init__(self, data: Dataset, plan: Plan) -> None:
        self.data, self.plan, self.settings, self.seeds = data, plan, plan.settings, data.seeds
        self.n = plan.train.shape[1]
        self.grid = len(plan.betas)
        self.x_scalers, self.y_scalers = _scalers(data, plan)
        table = _table(data, plan, self.x_scalers, self.y_scalers)
        self.cross_fits: list[CrossFit] | None = None
        self._unseen: list[NDArray[np.float64] | None] | None = None  # of means that were replaced
        if plan.learned:
            if data.offsets is None:
                self.cross_fits = cross_fits(data, plan)
                values = learned_values(data, plan, self.cross_fits, self.y_scalers)
            else:
                values = np.broadcast_to(data.offsets, (len(plan.train), *data.offsets.shape)).copy()
            learned = torch.as_tensor(values, dtype=table.dtype, device=plan.settings.torch_device)
            table = replace(table, learned=learned)
        self.table = self._each_beta(table)
        self.rows = self._row_sets(plan.train)
        self.held_out = None if plan.validation is None else self._row_sets(plan.validation)
        self.betas = torch.tensor(plan.betas, dtype=torch.float64).repeat(len(plan.train), 1)
        self._choose_points(table)

    def model(
        self, method: Method | None = None, *, extra: Tensor | None = None, rows: Tensor | None = None
    ) -> Model:
        """Every replicate of a method, the plan's by default, at its start.

        ``extra``: its second set of points [R, 1, E, d]; ``rows``: its rows [R, n]; the plan's otherwise. Of
        rows there may be several sets for every replicate, one after the other: [R copies, n].
        """
        method = self.plan.method if method is None else method
        extra = self.extra if extra is None else extra
        rows = self.rows if rows is None else rows
        points_are_rows = method.recipe.points_are_rows
        copies = rows.shape[0] // self.rows.shape[0]
        betas = self.betas.repeat_interleave(copies, 0)
        model = build_model(
            method,
            self.settings,
            inducing=self.inducing.repeat_interleave(copies, 0),
            extra=None if extra is None else extra.repeat_interleave(copies, 0),
            outputs=self.table.y.shape[1],
            num_data=rows.shape[1],
            beta1=betas[:, 0],
            beta2=betas[:, 1],
            omega=self.plan.omega,
            fixed_noise=self.table.noise is not None,
            spread=self.spread.repeat_interleave(copies, 0),
            generators=[
                torch.Generator().set_state(state)
                for state in self._states
                for _ in range(self.grid * copies)
            ],
            classes=self.data.num_classes,
            rows=self.table.gather(rows) if points_are_rows else None,
            inputs=self.table.gather(rows[:, :START_ROWS]).x if method.is_deep else None,
            learned=self.plan.learned,
        )
        y = self.table.y[rows[:, :START_ROWS]].mT  # [R, outputs, n]
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
        batches = Minibatches(self.rows, settings.batch_size, shufflers, blocks=blocks)
        return Stochastic(model, TableFeed(self.table, batches))

    def closed_form(
        self, model: Model, *, with_validation: bool = False, sample: int | None = None
    ) -> ClosedForm:
        """The collapsed bound of the training rows, of all rows, or of a sample of them."""
        rows = self.rows if sample is None else self.sample(sample)
        model.basis.use_all_columns()  # nothing is drawn between steps on all rows
        if model.basis.points_are_rows:
            return Evidence(model, self.table, rows)
        if with_validation and self.held_out is not None:
            rows = torch.cat([rows, self.held_out], 1)
        chunk, quick = self._chunk_rows(model, rows.shape[1]), self.settings.tolerance >= QUICK_TOLERANCE
        return ClosedForm(model, self.table, rows, chunk, quick=quick)

    def sample(self, size: int) -> Tensor:
        """So many training rows of every replicate [R, size], the same each time."""
        if size >= self.n:
            return self.rows
        return torch.stack([_sample(own, size, seed) for own, seed in self._each_seed()])

    def validation(self) -> Batch | None:
        return None if self.held_out is None else self.table.gather(self.held_out)

    def fitted(
        self,
        model: Model,
        history: History,
        *,
        method: Method | None = None,
        settings: Settings | None = None,
        replicate: int = 0,
        candidate: int = 0,
    ) -> GP:
        """A trained replicate in the user's units; ``candidate`` is its place in the model."""
        kind = DeepGP if isinstance(model, DeepModel) else GP
        return kind(
            take_replicate(model, candidate),
            method=self.plan.method if method is None else method,
            settings=self.settings if settings is None else settings,
            columns=self.plan.columns,
            x_scaler=self.x_scalers[replicate],
            y_scaler=self.y_scalers[replicate],
            single_output=self.data.target.single_output,
            history=history,
            known_noise=self.data.noise is not None and not getattr(model.likelihood, "learns_noise", True),
            column_names=self.data.names,
            classes=self.data.target.classes,
            learned=None if self.cross_fits is None else self._learned_mean(replicate),
        )

    def _learned_mean(self, replicate: int) -> LearnedMean:
        """The cross-fitted mean of a set of rows; its spread is known where rows have not been seen by it."""
        assert self.cross_fits is not None
        unseen = self._spread_unseen(replicate) if self._unseen is None else self._unseen[replicate]
        return LearnedMean(replace(self.cross_fits[replicate], held_out=None), unseen)

    def _spread_unseen(self, replicate: int) -> NDArray[np.float64] | None:
        """E[s²] of a learned mean over the validation rows."""
        if self.cross_fits is None or self.plan.validation is None:
            return None
        rows = self.data.X[self.plan.validation[replicate]][:, self.plan.columns]
        return self.cross_fits[replicate].at(rows, self.settings.torch_device)[1].mean(0)

    def take_means(self, plan: Plan, fits: list[CrossFit]) -> None:
        """Learned means in the place of those before, fitted to the training rows of another plan."""
        assert self.cross_fits is not None
        if self._unseen is None:  # the means that come have seen the validation rows
            self._unseen = [self._spread_unseen(r) for r in range(len(self.cross_fits))]
        self.cross_fits = fits
        values = learned_values(self.data, plan, fits, self.y_scalers)
        learned = torch.as_tensor(values, dtype=self.table.dtype, device=self.settings.torch_device)
        self.table = replace(self.table, learned=learned.repeat_interleave(self.grid, 0))

    # -- inside ----------------------------------------------------------------------------------------------

    def _choose_points(self, table: Table) -> None:
        """Inducing points for each set of rows; β values share them."""
        plan, settings = self.plan, self.settings
        recipe = plan.method.recipe
        own = settings.extra_init
        spreads: list[Tensor] = []
        points: list[Tensor] = []
        extra: list[Tensor] = []
        self._states = []
        rows = torch.as_tensor(plan.train, device=settings.torch_device)
        for r, seed in enumerate(self.seeds):
            generator = torch.Generator().manual_seed(seed)
            x = _scaled_rows(table, rows, r)
            spreads.append(_spread(x, None if table.weight is None else table.weight[rows[r]].cpu().numpy()))
            kernel = initial_kernel(settings, spreads[-1], learned=plan.learned).to(x.device)
            num, more, name = plan.num_inducing, plan.num_extra, plan.inducing_init
            if recipe.points_are_rows:
                points.append(x)
            elif recipe.has_second_block and own is None and more is not None:
                # Chosen together, so that the blocks keep out of each other's way.
                both = select_inducing(name, x, num + more, kernel=kernel, generator=generator)
                both = both[torch.randperm(num + more, generator=generator).to(both.device)]
                points.append(both[:num])
                extra.append(both[num:])
            else:
                points.append(select_inducing(name, x, num, kernel=kernel, generator=generator))
                if more is not None:
                    extra.append(select_inducing(own or name, x, more, kernel=kernel, generator=generator))
            self._states.append(generator.get_state())
        generalised = any(isinstance(part, GeneralisedRBF) for part in kernel.modules())
        generalised = generalised and not recipe.points_are_rows
        self.inducing = self._stack(points, generalised)
        self.spread = torch.stack(spreads).repeat_interleave(self.grid, 0).unsqueeze(1)  # [R, 1, d]
        self.extra = self._stack(extra, generalised) if extra else None

    def _stack(self, points: list[Tensor], generalised: bool) -> Tensor:
        """[R, 1, M, d]: latent functions share their inducing points."""
        stacked = torch.stack(points).repeat_interleave(self.grid, 0).unsqueeze(1)
        return (generalised_points(stacked) if generalised else stacked).to(self.settings.torch_dtype)

    def _row_sets(self, rows: Rows) -> Tensor:
        return torch.as_tensor(rows, device=self.settings.torch_device).repeat_interleave(self.grid, 0)

    def _each_beta(self, table: Table) -> Table:
        if self.grid > 1 and table.learned is not None:
            table = replace(table, learned=table.learned.repeat_interleave(self.grid, 0))
        if table.scaling is None or self.grid == 1:
            return table
        scaling = Scaling(*(t.repeat_interleave(self.grid, 0) for t in table.scaling))
        return replace(table, scaling=scaling)

    def _each_seed(self) -> Iterator[tuple[Tensor, int]]:
        """Training rows of every replicate with its seed."""
        seeds = [seed for seed in self.seeds for _ in range(self.grid)]
        return zip(self.rows, seeds, strict=True)

    def _chunk_rows(self, model: Model, n: int) -> int:
        """Rows at once in closed form: a block of Ω, or what fits into memory."""
        if model.uses_omega and self.plan.omega != "rows":
            block = self.settings.omega_block or min(1024, max(128, model.basis.q.size))
            return n if self.plan.omega == "full" else min(n, block)
        points = sum(p.shape[-2] for name, p in model.basis.named_parameters() if name.endswith("inducing"))
        kernels, on_cpu = len(model.basis.kernels()), self.settings.torch_device.type == "cpu"
        floats = FLOATS_OF_SUMS if on_cpu and sums_are_enough(model) else FLOATS_PER_FEATURE
        row_bytes = 8 * floats * kernels * points * model.replicates * model.likelihood_outputs
        if on_cpu:
            return n if n * row_bytes <= CPU_BYTES else min(n, CPU_CHUNK_ROWS)
        free, _ = torch.cuda.mem_get_info(self.settings.torch_device)
        return max(min(n, min(CUDA_BYTES, free // 2) // row_bytes), 256)


def _scalers(data: Dataset, plan: Plan) -> tuple[list[Scaler], list[Scaler]]:
    """Of inputs and targets, for every set of training rows."""
    X, y, settings = data.X[:, plan.columns], data.target.values, plan.settings
    scale_y = bool(settings.standardize) and data.target.kind == "real"
    x_scalers, y_scalers = [], []
    for part in plan.train:
        weights = None if data.weights is None else data.weights[part]
        x_scalers.append(make_scaler(X[part], settings.standardize, weights, plan.categorical))
        y_scalers.append(make_scaler(y[part], scale_y, weights))
    return x_scalers, y_scalers


def make_scaler(
    A: NDArray, kind: bool | str, weights: NDArray | None = None, unscaled: Collection[int] = ()
) -> Scaler:
    """The scaler of training rows A [n, d], weights [n]; columns ``unscaled`` (category codes) are left."""
    if not kind:
        return Scaler.identity(A.shape[1])
    if kind in ("minmax", "cube"):
        scaler = Scaler.minmax(A) if kind == "minmax" else Scaler.cube(A)
    else:
        scaler = Scaler.standard(A) if weights is None else Scaler.weighted(A, weights)
    shift, scale = scaler.shift.copy(), scaler.scale.copy()
    shift[list(unscaled)], scale[list(unscaled)] = 0.0, 1.0
    return Scaler(shift, scale)


def _table(data: Dataset, plan: Plan, x_scalers: list[Scaler], y_scalers: list[Scaler]) -> Table:
    """All rows on the device; scaled once in float64 for one set of rows, when they are gathered for many."""
    settings = plan.settings
    device, dtype = settings.torch_device, settings.torch_dtype
    X, y, noise = data.X[:, plan.columns], data.target.values, data.noise

    def tensor(a: NDArray, kind: torch.dtype = torch.float64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(a), dtype=kind, device=device)

    weight = None if data.weights is None else tensor(data.weights)
    if len(plan.train) == 1 or settings.standardize is False:
        xs, ys = x_scalers[0], y_scalers[0]
        row_noise = None if noise is None else tensor(noise / ys.scale**2)
        return Table(
            tensor(xs.transform(X), dtype), tensor(ys.transform(y), dtype), row_noise, weight, None, dtype
        )
    scaling = Scaling(
        *(
            tensor(np.stack([getattr(s, name) for s in scalers])[:, None])
            for scalers in (x_scalers, y_scalers)
            for name in ("shift", "scale")
        )
    )
    row_noise = None if noise is None else tensor(np.broadcast_to(noise, y.shape))
    return Table(tensor(X), tensor(y), row_noise, weight, scaling, dtype)


def _sample(rows: Tensor, size: int, seed: int) -> Tensor:
    chosen = np.random.default_rng(seed).choice(len(rows), size, replace=False)
    return rows[torch.as_tensor(chosen, device=rows.device)]


def _spread(x: Tensor, weights: NDArray | None) -> Tensor:
    """Standard deviation of every column: 1 for standardised inputs, and for constant columns."""
    rows = x.cpu().numpy()
    scaler = Scaler.standard(rows) if weights is None else Scaler.weighted(rows, weights)
    return torch.as_tensor(scaler.scale.clip(1e-140, 1e140))  # lengthscales are divided by, and squared


def _scaled_rows(table: Table, rows: Tensor, r: int) -> Tensor:
    x = table.x[rows[r]].double()
    if table.scaling is not None:
        x = (x - table.scaling.x_shift[r]) / table.scaling.x_scale[r]
    return x if table.learned is None else torch.cat([x, table.learned[r][rows[r]].double()], -1)


@torch.no_grad()
def take_prior(source: Model, target: Model) -> None:
    """Prior mean, noise and kernels of one model for another; its points and q(u) stay."""
    target.mean.load_state_dict(source.mean.state_dict())
    target.likelihood.load_state_dict(source.likelihood.state_dict())
    target.numerics.jitter.copy_(source.numerics.jitter)
    for kernel in target.basis.kernels().values():
        kernel.load_state_dict(source.basis.kernel.state_dict())


@torch.no_grad()
def start_from(source: Model, target: Model) -> None:
    """Start a model where a coupled one ended: same prior mean, noise, kernels, points and q(u).

    With its mean kernel equal to its covariance kernel the conditional basis *is* the coupled one, so the
    target begins at the source's posterior. A deep GP does so where its hidden layers are the identity: their
    q(u) is the prior, which costs nothing, and that prior is narrow.
    """
    take_prior(source, target)
    target.basis.start_from(source.basis)
    for layer in target.hidden if isinstance(target, DeepModel) else ():
        assert isinstance(layer, Layer)
        scales = [kernel for kernel in layer.basis.kernels().values() if isinstance(kernel, Scale)]
        for kernel in scales:
            kernel.variance.set_(HIDDEN_VARIANCE)
        if scales:
            layer.basis.q.shrink(1 / Architecture.hidden_root)
