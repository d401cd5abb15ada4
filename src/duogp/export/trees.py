"""A cross-fitted mean as operations on tensors: rows descend all trees at once, `depth` gathers in all.

Trees of all folds stand in one forest, whose sums are told apart by the product with an indicator matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from duogp.means import CrossFit
from duogp.means.affine import Affine
from duogp.means.crossfit import TINY, Goal, as_arrays
from duogp.means.forest import Forest, LogAverage


class Descent(nn.Module):
    """The leaf of each row in each tree of several forests: rows [n, d] ↦ places [n, trees] in `order`.

    The two children of a node stand side by side, so that a level of all trees is a comparison and a sum:

        node ← first[node] + (entry > threshold[node])

    There are three copies of the rows, and ``feature`` points into the one that sends a missing entry where
    the node does: it is −∞ in the first, ∞ in the second, and the third says whether it is missing, for
    nodes that ask nothing else (a threshold of ∞). A leaf is its own first child, with a threshold that
    nothing exceeds. Of the nodes' five vectors three are left to look into on every level.
    """

    feature: Tensor
    threshold: Tensor
    first: Tensor

    def __init__(self, forests: Sequence[Forest]) -> None:
        super().__init__()
        begins = np.cumsum([0, *(len(own.value) for own in forests)])[:-1]
        left, right, root = (
            torch.cat([getattr(own, name) + int(begin) for own, begin in zip(forests, begins, strict=True)])
            for name in ("left", "right", "root")
        )
        feature, threshold, missing_left = (
            torch.cat([getattr(own, name) for own in forests])
            for name in ("feature", "threshold", "missing_left")
        )
        inner = (left != torch.arange(len(left))).nonzero().squeeze(1)
        self.order = torch.cat([root, torch.stack([left[inner], right[inner]], 1).flatten()])
        if len(self.order) != len(left):
            raise ValueError("the trees of this model have nodes that are not the child of one node")
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(self.order))
        first = place.clone()  # of a leaf
        first[inner] = place[left[inner]]
        leaf, asks_for_gaps = first == place, threshold.isposinf() & ~missing_left
        copy = torch.where(missing_left | leaf, 0, torch.where(asks_for_gaps, 2, 1))
        threshold = torch.where(leaf, torch.inf, torch.where(asks_for_gaps, 0.5, threshold))
        feature = torch.where(leaf, 0, feature) + copy * forests[0].inputs
        self.register_buffer("feature", feature[self.order])
        self.register_buffer("threshold", threshold[self.order])
        self.register_buffer("first", first[self.order])
        self.trees, self.depth = len(root), max(own.depth for own in forests)

    def forward(self, x: Tensor) -> Tensor:
        n, missing, device = x.shape[0], x.isnan(), x.device
        low, high = (x.masked_fill(missing, end) for end in (-torch.inf, torch.inf))
        copies = torch.cat([low, high, missing.to(x.dtype)], 1)
        entries = copies.flatten()
        row = (torch.arange(n, device=device) * copies.shape[1]).unsqueeze(1).expand(-1, self.trees).flatten()
        node = torch.arange(self.trees, device=device).unsqueeze(0).expand(n, -1).flatten()
        for _ in range(self.depth):
            entry = entries.index_select(0, self.feature.index_select(0, node) + row)
            beyond = entry > self.threshold.index_select(0, node)
            node = self.first.index_select(0, node) + beyond.long()
        return node.unflatten(0, (n, self.trees))


class TreeSums(nn.Module):
    """The sums of several forests, side by side: rows [n, d] ↦ [n, forests · outputs]."""

    value: Tensor
    of_column: Tensor
    baseline: Tensor

    def __init__(self, forests: Sequence[Forest]) -> None:
        super().__init__()
        self.leaves = Descent(forests)
        self.register_buffer("value", torch.cat([own.value for own in forests])[self.leaves.order])
        outputs = forests[0].outputs
        columns = torch.cat([own.output + i * outputs for i, own in enumerate(forests)])
        self.register_buffer("of_column", torch.eye(len(forests) * outputs, dtype=torch.float64)[columns])
        self.register_buffer("baseline", torch.cat([own.baseline for own in forests]))

    def forward(self, x: Tensor) -> Tensor:
        if not self.leaves.trees:
            return self.baseline.expand(x.shape[0], -1)
        return self.value[self.leaves(x)] @ self.of_column + self.baseline


class LogAverages(nn.Module):
    """`LogAverage` of a forest of classifiers: rows [n, d] ↦ [n, outputs]."""

    value: Tensor

    def __init__(self, forest: LogAverage) -> None:
        super().__init__()
        self.leaves = Descent([forest])
        self.register_buffer("value", forest.value.double()[self.leaves.order])
        self.latent, self.trees = forest.latent, len(forest.root)

    def forward(self, x: Tensor) -> Tensor:
        return self.latent(self.value[self.leaves(x)].mean(1), self.trees)


class AffineMaps(nn.Module):
    """Affine maps side by side: rows [n, d] ↦ [n, maps · outputs]."""

    def __init__(self, maps: Sequence[Affine]) -> None:
        super().__init__()
        self.maps = list(maps)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([own(x) for own in self.maps], 1)


class CrossFitGraph(nn.Module):
    """`CrossFit.at`: rows [n, d] ↦ t̄ and s², each [n, columns] in the units of the models."""

    share: Tensor

    def __init__(self, fit: CrossFit) -> None:
        super().__init__()
        forms = [[_form(model) for model in fold] for fold in fit.models]
        self.goal, self.folds = fit.goal, fit.folds
        # Of scikit-learn's classifiers logs are taken after probabilities were kept away from zero.
        own = all(isinstance(model, Forest | Affine) for fold in fit.models for model in fold)
        self.bounded = fit.goal.kind == "classes" and not own
        self.parts = nn.ModuleList(_side_by_side(each) for each in zip(*forms, strict=True))
        self.bagged = None
        if fit.bagged is not None and fit.share is not None:
            self.bagged = nn.ModuleList(_side_by_side([form]) for form in fit.bagged)
            self.register_buffer("share", torch.as_tensor(fit.share, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # [n, folds, outputs of the part], parts one after the other
        raw = torch.cat([part(x).unflatten(1, (self.folds, -1)) for part in self.parts], -1)
        values = _latent_values(raw, self.goal, self.bounded)
        mean = values.mean(1)
        if self.folds > 1:
            spread = (values - mean.unsqueeze(1)).square().sum(1) / (self.folds - 1)
        else:
            spread = torch.zeros_like(mean)
        if self.bagged is None:
            return mean, spread
        bagged = _latent_values(torch.cat([part(x) for part in self.bagged], 1), self.goal, False)
        return (1 - self.share) * mean + self.share * bagged, (1 - self.share).square() * spread


def _form(model: Any) -> Forest | Affine:
    form = as_arrays(model)
    if form is None:
        raise ValueError(
            f"the prior mean of this model is learned by {type(model).__name__}, which has no form as "
            "arrays; trees (mean='trees') have one"
        )
    return form


def _side_by_side(forms: Sequence[Forest | Affine]) -> nn.Module:
    """Models of the folds of one output as one module; their outputs stand fold after fold."""
    if isinstance(forms[0], LogAverage):
        return _Joined([LogAverages(form) for form in forms if isinstance(form, LogAverage)])
    if isinstance(forms[0], Affine):
        return AffineMaps([form for form in forms if isinstance(form, Affine)])
    return TreeSums([form for form in forms if isinstance(form, Forest)])


class _Joined(nn.Module):
    """Modules side by side."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


def _latent_values(raw: Tensor, goal: Goal, bounded: bool) -> Tensor:
    """Sums of trees as latent values, on the last axis; see `means.crossfit.latent_values`."""
    if goal.kind in ("count", "positive"):
        return raw.clamp(float(np.log(TINY)), -float(np.log(TINY)))
    classes = goal.classes or 0
    if bounded and classes == 2:
        return raw.sigmoid().clamp(TINY, 1.0).log() - (-raw).sigmoid().clamp(TINY, 1.0).log()
    if bounded:
        raw = raw.softmax(-1).clamp(TINY, 1.0).log()
    return raw - raw.mean(-1, keepdim=True) if classes > 2 else raw
