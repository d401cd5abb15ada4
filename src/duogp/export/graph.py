"""Fitted models as functions of tensors: rows in the units of X ↦ all that `predict` tells, scaling included.

    numbers   mean, residual, explained, noise, disagreement [n(, outputs)]; quantiles [n(, outputs), levels]
    classes   probabilities [n, C]; latent_mean, residual, explained, disagreement [n, latents]

Everything that does not depend on the rows is a constant of the graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from duogp.data.scaling import Scaler
from duogp.export.mixtures import mixture_quantiles
from duogp.export.trees import CrossFitGraph
from duogp.likelihoods import Density
from duogp.means.crossfit import LARGEST
from duogp.numerics.lognormal import LEAST_RATIO, LogScale
from duogp.numerics.rounding import Rounding
from duogp.posterior.gp import GP
from duogp.posterior.incoming import FARTHEST
from duogp.posterior.laws import EXCESS_BOUNDS, LADDER, LEAST, ClassLaw, MixtureLaw
from duogp.posterior.learned import LearnedOnly
from duogp.posterior.log_target import MOST_AWAY, MOST_STD, LogTargetGP, LogUnits
from duogp.posterior.stack import Stack
from duogp.sklearn.quantiles import gaussian_components

#: Parts of a prediction of numbers, and of classes.
NUMBERS = ("mean", "residual", "explained", "noise", "disagreement")
CLASSES = ("probabilities", "latent_mean", "residual", "explained", "disagreement")


class Components(NamedTuple):
    """A mixture of Gaussians in the units of the targets, [k, outputs, n]; weights [k, outputs or 1, 1].

    ``logs``: where the Gaussians are of the logarithm of one target, its scale; ``roundings``: of every
    output the grid that its target is on, or None.
    """

    mean: Tensor
    std: Tensor
    weights: Tensor
    logs: LogScale | None = None
    roundings: tuple[Rounding | None, ...] = ()


class Told(NamedTuple):
    """Parts of a prediction, each [outputs, n], and the mixture that y is, where it is one."""

    parts: list[Tensor]
    components: Components | None


class Scaling(nn.Module):
    """`Scaler.transform`: (x − shift) / scale."""

    def __init__(self, scaler: Scaler) -> None:
        super().__init__()
        self.shift, self.scale = (torch.as_tensor(v) for v in (scaler.shift, scaler.scale))
        self.apply_to = scaler.on(torch.device("cpu"))

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_to(x)


def moderate(values: Tensor) -> Tensor:
    """As `means.crossfit.moderate`."""
    return torch.where(values.isnan(), 0.0, values).clamp(-LARGEST, LARGEST)


class GPGraph(nn.Module):
    """A `GP` or a deep one: rows [n, d] in the units of X ↦ `Told`."""

    def __init__(self, gp: GP) -> None:
        super().__init__()
        self.gp = gp
        self.columns = _chosen(gp.columns)
        self.scale_x, self.scale_y = Scaling(gp.x_scaler), Scaling(gp.y_scaler)
        self.learned = None if gp.learned is None else CrossFitGraph(gp.learned.fit)

    def forward(self, rows: Tensor) -> Told:
        gp, own = self.gp, None
        rows = rows if self.columns is None else rows.index_select(1, self.columns)
        x = self.scale_x(rows)
        if self.learned is not None:
            value, spread = self.learned(rows)
            if gp._learned_scale is not None:
                value = moderate(self.scale_y(value))
                spread = moderate(spread / torch.as_tensor(gp._learned_scale).square())
            x, own = torch.cat([x, value], 1), self._disagreement(spread)
        f = gp._marginals_at(x.clamp(-FARTHEST, FARTHEST))
        if own is not None:
            f = f._replace(**{f._fields[-1]: f[-1] + own})
        density = gp._density(None, 0, 0)
        parts = gp._reports(f, density, own)
        if own is None:
            parts = [*parts, torch.zeros_like(parts[-1])]
        components = self._components(density, f)
        if isinstance(gp, LogTargetGP):
            parts = _of_target(gp.units, parts)
            components = None if components is None else components._replace(logs=gp.units.scale)
        return Told(parts, components)

    def _disagreement(self, spread: Tensor) -> Tensor:
        """As `LearnedMean.disagreement`, of a spread in scaled units: [1, latents, n]."""
        slope = self.gp._slope
        own = (spread.mT / self.learned.folds)[None]  # type: ignore[union-attr]
        missing = slope.shape[-1] - own.shape[-2]
        if missing:
            own = torch.cat([own, own.new_zeros(1, missing, 1).expand(-1, -1, own.shape[-1])], -2)
        return slope.double().square().unsqueeze(-1) * own

    def _components(self, density: Density, f: Any) -> Components | None:
        if self.gp.classes is not None or self.gp.known_noise:
            return None
        found = gaussian_components(density, f.mean, f.variance)
        if found is None:
            return None
        scale, shift = self.gp._units
        return Components(found[0] * scale + shift, found[1] * scale, found[2])


def _of_target(units: LogUnits, parts: list[Tensor]) -> list[Tensor]:
    """`LogTargetGP.predict` from the parts of the prediction of log y."""
    mean, *variances = parts
    total = torch.stack(torch.broadcast_tensors(*variances)).sum(0)
    reach = MOST_AWAY * units.spread
    mu = mean.clamp(units.centre - reach, units.centre + reach)
    v = total.clamp_max((MOST_STD * units.spread) ** 2)
    above = (mu + 0.5 * v).exp()
    ratio = above.square() * v.expm1() / total.clamp_min(torch.finfo(total.dtype).tiny)
    return [above - units.scale.shift, *(part * ratio for part in variances)]


def _moments_of_logs(scale: LogScale, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """As `LogScale.moments_of_logs`."""
    above = torch.maximum(mean + scale.shift, LEAST_RATIO * variance.sqrt())
    v = (variance / above.square()).log1p()
    return above.log() - 0.5 * v, v


class LearnedOnlyGraph(nn.Module):
    """A cross-fitted classifier as a member of a stack."""

    def __init__(self, member: LearnedOnly) -> None:
        super().__init__()
        self.columns = _chosen(member.columns)
        self.learned = CrossFitGraph(member.learned.fit)

    def forward(self, rows: Tensor) -> Told:
        value, spread = self.learned(rows if self.columns is None else rows.index_select(1, self.columns))
        if value.shape[1] > 1:
            probabilities = value.softmax(1)
        else:
            p = value.sigmoid()
            probabilities = torch.cat([1 - p, p], 1)
        zero = torch.zeros_like(value)
        parts = [probabilities, value, zero, zero, spread / self.learned.folds]
        return Told([part.mT for part in parts], None)


class StackGraph(nn.Module):
    """A `Stack`: rows [n, d] in the units of X ↦ `Told`."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.law = stack.law
        self.columns = _chosen(stack.columns)
        self.members = nn.ModuleList(
            LearnedOnlyGraph(m) if isinstance(m, LearnedOnly) else GPGraph(m) for m in stack.members
        )
        self.excess = None if stack.excess is None else CrossFitGraph(stack.excess)

    def forward(self, rows: Tensor) -> Told:
        found = [member(rows) for member in self.members]
        each = [
            torch.stack(torch.broadcast_tensors(*parts))
            for parts in zip(*(t.parts for t in found), strict=True)
        ]
        if isinstance(self.law, ClassLaw):
            return Told(_class_parts(self.law, each), None)
        mean, *variances = each  # [K, outputs, n]
        if not isinstance(self.law, list):
            weights = torch.as_tensor(self.law)[:, None, None]
            point = (weights * mean).sum(0)
            return Told(_moments(mean, variances, point, weights, weights), None)
        return self._mixture(rows, mean, variances, self.law)

    def _mixture(self, rows: Tensor, mean: Tensor, variances: list[Tensor], laws: list[MixtureLaw]) -> Told:
        """A mixture of Gaussians: `Stack._numbers` and `MixtureLaw.components`."""
        g = self._log_excess(rows, len(laws))
        total = torch.stack(variances).sum(0)
        outputs = [_LawAt(law, mean[:, p], total[:, p], g[p]) for p, law in enumerate(laws)]
        point = torch.stack([own.point for own in outputs])
        centres = torch.stack([own.centres for own in outputs], 1)
        shares = torch.stack([own.shares for own in outputs], 1)  # [K, outputs, 1]
        scaled = shares * torch.stack([own.mean_factor for own in outputs], 1)
        parts = _moments(centres, variances, point, shares, scaled)
        most = max(len(own.weights) for own in outputs)
        columns = [[_padded(part, most, i == 1) for i, part in enumerate(own.components)] for own in outputs]
        means, stds, weights = (torch.stack(part, 1) for part in zip(*columns, strict=True))
        roundings = tuple(law.rounding for law in laws)
        return Told(parts, Components(means, stds, weights, laws[0].logs, roundings))  # logs: of one target

    def _log_excess(self, rows: Tensor, outputs: int) -> Tensor:
        """g, [outputs, n]."""
        if self.excess is None:
            return rows.new_zeros(outputs, 1).expand(-1, rows.shape[0])
        value, _ = self.excess(rows if self.columns is None else rows.index_select(1, self.columns))
        low, high = np.log(EXCESS_BOUNDS)
        return value.clamp(float(low), float(high)).mT


class _LawAt:
    """A `MixtureLaw` at rows whose members have these moments [K, n] and log excess g [n]."""

    def __init__(self, law: MixtureLaw, mean: Tensor, variance: Tensor, g: Tensor) -> None:
        # Constants by numpy, in float64: a member of the mean alone has no share, and 0/0 is no number.
        shares = law.weights.sum(1, keepdims=True)  # [K, 1]
        relative = law.weights / np.maximum(shares, np.finfo(np.float64).tiny)
        self.shares = torch.as_tensor(shares)
        factor = (torch.as_tensor(law.log_scale)[:, None] + torch.as_tensor(law.power)[:, None] * g).exp()
        ladder = torch.tensor(LADDER, dtype=torch.float64)
        self.mean_factor = factor * torch.as_tensor(relative @ np.square(LADDER))[:, None]
        self.point = torch.as_tensor(law.mean_weights) @ mean
        self.centres = (1 - law.shared) * mean + law.shared * self.point
        which, scale = (torch.as_tensor(places) for places in np.nonzero(law.weights > 0))
        self.weights = torch.as_tensor(law.weights[law.weights > 0])
        centres = self.centres
        if law.logs is not None:
            centres, variance = _moments_of_logs(law.logs, centres, variance)
        std = (variance * factor).sqrt().index_select(0, which) * ladder[scale][:, None]
        self.components = (centres.index_select(0, which), std, self.weights[:, None])


def _moments(
    mean: Tensor, variances: list[Tensor], point: Tensor, shares: Tensor, scaled: Tensor
) -> list[Tensor]:
    """Parts of the prediction of a mixture, `Stack._moments_of`; tensors [K, outputs, n]."""
    parts = [(scaled * v).sum(0) for v in variances]
    parts[-1] = parts[-1] + (shares * (mean - point).square()).sum(0)
    return [point, *parts]


def _class_parts(law: ClassLaw, each: list[Tensor]) -> list[Tensor]:
    """`Stack._classes` and `ClassLaw.probabilities`; tensors [K, C or latents, n]."""
    members, mean, residual, explained, own = each
    temperature, weights = (torch.as_tensor(v) for v in (law.temperature, law.weights))
    logs = members.clamp_min(LEAST).log() / temperature[:, None, None]
    tempered = logs.softmax(1)
    frequencies = torch.as_tensor(law.frequencies)[:, None]
    probabilities = weights[0] * frequencies + (weights[1:, None, None] * tempered).sum(0)
    shares = torch.as_tensor(law.of_members / max(law.of_members.sum(), LEAST))[:, None, None]
    centre = (shares * mean).sum(0)
    between = (shares * (own + (mean - centre).square())).sum(0)
    return [probabilities, centre, (shares * residual).sum(0), (shares * explained).sum(0), between]


def _padded(part: Tensor, most: int, ones: bool) -> Tensor:
    """Components [k, n] with further ones of weight zero, up to ``most``."""
    missing = most - part.shape[0]
    if not missing:
        return part
    filler = part.new_ones(missing, 1) if ones else part.new_zeros(missing, 1)
    return torch.cat([part, filler.expand(-1, part.shape[1])])


def _chosen(columns: Any) -> Tensor | None:
    """The places of the used columns; None where all are used."""
    mask = np.asarray(columns, dtype=bool)
    return None if mask.all() else torch.as_tensor(np.flatnonzero(mask))


class Predictor(nn.Module):
    """A fitted model: rows [n, d] ↦ the tensors named by `names`, shaped as `predict` shapes them.

    ``levels``: of the quantiles; ``reach``: bounds of every column, rows beyond are taken for rows on them.
    `unfinished`: instead of the quantiles of several components, the last three outputs are these components.
    """

    def __init__(self, model: GP | Stack, levels: list[float], reach: tuple[Any, Any] | None = None) -> None:
        super().__init__()
        self.model = StackGraph(model) if isinstance(model, Stack) else GPGraph(model)
        self.is_classifier, self.single = model.classes is not None, bool(model.single_output)
        self.outputs, self.levels = len(model.y_scaler.scale), levels
        self.reach = None if reach is None else tuple(torch.as_tensor(end) for end in reach)
        self.names: tuple[str, ...] = CLASSES if self.is_classifier else NUMBERS
        self.inputs, self.unfinished = len(model.columns), False
        self.logs, self.roundings = _log_scale(model), _roundings(model)
        self._no_quantiles = _why_no_quantiles(model)
        with torch.no_grad():  # what is computed once and kept, before the graph is traced
            self(torch.zeros(2, self.inputs, dtype=torch.float64))

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        if self.reach is not None:
            rows = torch.minimum(torch.maximum(rows, self.reach[0]), self.reach[1])
        told = self.model(rows)
        if self.is_classifier:
            return tuple(part.mT for part in told.parts)
        out = [self._shaped(part.expand(self.outputs, -1).mT) for part in told.parts]
        if "quantiles" in self.names and told.components is not None:
            several = self.unfinished and told.components.mean.shape[0] > 1
            out += self._components(told.components) if several else [self._quantiles(told.components)]
        return tuple(out)

    def _quantiles(self, components: Components) -> Tensor:
        found = mixture_quantiles(self.levels, *components[:3])  # [levels, outputs, n]
        if components.logs is not None:
            found = found.exp() - components.logs.shift
        found = found.expand(len(self.levels), self.outputs, -1)
        if any(components.roundings):
            each = zip(found.unbind(1), components.roundings, strict=True)
            found = torch.stack([_rounded(own, rounding) for own, rounding in each], 1)
        return found[:, 0].mT if self.single else found.movedim((0, 1, 2), (2, 1, 0))

    def _components(self, components: Components) -> list[Tensor]:
        """[k, outputs, n], and weights as a function of the rows, as an output of a graph must be."""
        mean, std, weights = components[:3]
        shape = mean.shape[0], self.outputs, -1
        return [mean.expand(shape), std.expand(shape), (weights + 0.0 * mean[:, :, :1]).expand(*shape[:2], 1)]

    def _shaped(self, part: Tensor) -> Tensor:
        return part[:, 0] if self.single else part

    @torch.no_grad()
    def add_quantiles(self) -> str | None:
        """Let quantiles be the last output; where they cannot be in the graph, the reason is returned."""
        told = self.model(torch.zeros(2, self.inputs, dtype=torch.float64))
        if told.components is None:
            return self._no_quantiles
        self.names = (*NUMBERS, "quantiles")
        return None


def _log_scale(model: GP | Stack) -> LogScale | None:
    """The scale on which the components of a model are Gaussian, where it is not that of the target."""
    if isinstance(model, LogTargetGP):
        return model.units.scale
    return model.law[0].logs if isinstance(model, Stack) and isinstance(model.law, list) else None


def _roundings(model: GP | Stack) -> tuple[Rounding | None, ...]:
    """The grids that the targets are on; none where no output has one."""
    laws = model.law if isinstance(model, Stack) and isinstance(model.law, list) else []
    found = tuple(law.rounding for law in laws)
    return found if any(found) else ()


def _rounded(y: Tensor, rounding: Rounding | None) -> Tensor:
    """`Rounding.nearest`, [...]."""
    if rounding is None:
        return y
    values, edges = (torch.as_tensor(v, dtype=y.dtype) for v in (rounding.values, rounding.edges))
    return values[(y.unsqueeze(-1) > edges).sum(-1)]


def _why_no_quantiles(model: GP | Stack) -> str:
    """The reason why a model of numbers that is no mixture of Gaussians has no quantiles in its graph."""
    if model.known_noise:
        return "the noise of every row was given to the fit, so the graph predicts the function"
    return (
        f"an observation of {type(model.model.likelihood).__name__} is no finite mixture of Gaussians: the "
        "graph has mean and variances, quantiles need duogp itself"
    )
