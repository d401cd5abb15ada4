"""Trees as arrays: what is left of scikit-learn's when a model is saved, or predicts on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Node indices held at once while rows descend.
SLAB = 2**22


@dataclass(frozen=True, eq=False)
class Forest:
    """Sums of binary trees: rows [n, d] ↦ [n, outputs].

        F_c(x) = baseline_c + Σ_{trees t of output c} value[leaf of t that x falls into]

    Nodes of all trees stand one after the other. In node i a row goes to ``left[i]`` where
    x[feature[i]] ≤ threshold[i], or where that entry is missing and ``missing_left[i]``; otherwise to
    ``right[i]``. A leaf is its own child, so that every row may take ``depth`` steps.
    """

    feature: Tensor  # [nodes] int64
    threshold: Tensor  # [nodes] float64
    missing_left: Tensor  # [nodes] bool
    left: Tensor  # [nodes] int64
    right: Tensor  # [nodes] int64
    value: Tensor  # [nodes] float64
    root: Tensor  # [trees] int64
    output: Tensor  # [trees] int64: which sum a tree belongs to
    baseline: Tensor  # [outputs] float64
    depth: int
    inputs: int  # columns of x

    value_dim: ClassVar[int] = 1

    @classmethod
    def of(cls, model: Any) -> Forest | None:
        """The trees of a fitted HistGradientBoosting model without categorical splits; None for others."""
        predictors = getattr(model, "_predictors", None)
        if not predictors or getattr(model, "_preprocessor", None) is not None:
            return None
        nodes, roots, outputs, start, depth = [], [], [], 0, 0
        for iteration in predictors:
            for output, tree in enumerate(iteration):
                own = tree.nodes
                if own["is_categorical"].any():
                    return None
                nodes.append((own, start))
                roots.append(start)
                outputs.append(output)
                start, depth = start + len(own), max(depth, int(own["depth"].max()))

        def joined(name: str) -> NDArray:
            return np.concatenate([own[name] for own, _ in nodes])

        def children(name: str) -> NDArray:
            leaves = [own["is_leaf"].astype(bool) for own, _ in nodes]
            own_places = [np.arange(len(own)) for own, _ in nodes]
            return np.concatenate(
                [
                    begin + np.where(leaf, place, own[name].astype(np.int64))
                    for (own, begin), leaf, place in zip(nodes, leaves, own_places, strict=True)
                ]
            )

        return cls(
            torch.from_numpy(joined("feature_idx").astype(np.int64)),
            torch.from_numpy(joined("num_threshold").astype(np.float64)),
            torch.from_numpy(joined("missing_go_to_left").astype(bool)),
            torch.from_numpy(children("left")),
            torch.from_numpy(children("right")),
            torch.from_numpy(joined("value").astype(np.float64)),
            torch.tensor(roots),
            torch.tensor(outputs),
            torch.as_tensor(np.ravel(model._baseline_prediction), dtype=torch.float64),
            depth,
            int(model.n_features_in_),
        )

    @classmethod
    def of_bagged(cls, models: Sequence[Any], unit: float = 1.0) -> Forest:
        """The average of the trees of scikit-learn's fitted forests of regressors, times ``unit``."""
        trees = [own.tree_ for model in models for own in model.estimators_]
        parts = _bagged_parts(trees)
        value = np.concatenate([tree.value[:, 0, 0] for tree in trees]) * (unit / len(trees))
        value[_inner(trees)] = 0.0
        return cls(
            **parts,
            value=torch.from_numpy(value),
            output=torch.zeros(len(trees), dtype=torch.int64),
            baseline=torch.zeros(1, dtype=torch.float64),
            depth=max(tree.max_depth for tree in trees),
            inputs=int(models[0].n_features_in_),
        )

    @property
    def outputs(self) -> int:
        return len(self.baseline)

    def to(self, device: torch.device) -> Forest:
        moved: dict[str, Any] = {name: values.to(device) for name, values in self.arrays().items()}
        return type(self)(**moved, depth=self.depth, inputs=self.inputs)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, outputs] at rows x [n, d], float64, where the forest is."""
        out = self.baseline.expand(len(x), -1).clone()
        if not len(self.root):
            return out
        size = max(1, SLAB // len(self.root))
        for begin in range(0, len(x), size):
            leaf = self.leaves(x[begin : begin + size])
            out[begin : begin + size].index_add_(1, self.output, self.value[leaf])
        return out

    def leaves(self, rows: Tensor) -> Tensor:
        """The leaf that each row falls into in each tree, [n, trees]."""
        node = self.root.expand(len(rows), -1)
        for _ in range(self.depth):
            entry = rows.gather(1, self.feature[node])
            goes_left = torch.where(entry.isnan(), self.missing_left[node], entry <= self.threshold[node])
            node = torch.where(goes_left, self.left[node], self.right[node])
        return node

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Tensor]:
        """Everything but `depth` and `inputs`, by name: [nodes, ...], [trees] or [outputs], as the fields."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("depth", "inputs")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], depth: int, inputs: int) -> Forest:
        """A forest of saved arrays [nodes, ...], [trees], [outputs]; a ValueError where they are none."""
        names = [f.name for f in fields(cls) if f.name not in ("depth", "inputs")]
        if arrays.keys() != set(names) or any(
            a.dim() != (cls.value_dim if name == "value" else 1) for name, a in arrays.items()
        ):
            raise ValueError(f"a forest has the vectors {', '.join(names)}")
        whole = {name: arrays[name].long() for name in ("feature", "left", "right", "root", "output")}
        nodes, outputs = len(arrays["value"]), len(arrays["baseline"])
        sizes = {len(arrays[name]) for name in ("feature", "threshold", "missing_left", "left", "right")}
        limits = {"feature": inputs, "left": nodes, "right": nodes, "root": nodes, "output": outputs}
        inside = all(
            not len(whole[name]) or (whole[name].min() >= 0 and whole[name].max() < limit)
            for name, limit in limits.items()
        )
        if sizes != {nodes} or len(arrays["root"]) != len(arrays["output"]) or not inside:
            raise ValueError("the arrays of a forest do not fit together")
        if not 0 <= depth <= max(nodes, 1) or inputs < 1:
            raise ValueError(f"a forest of {nodes} nodes cannot be {depth} deep")
        numbers = {name: arrays[name].double() for name in ("threshold", "baseline")}
        numbers["value"] = arrays["value"].double() if cls.value_dim == 1 else arrays["value"].float()
        return cls(**whole, **numbers, missing_left=arrays["missing_left"].bool(), depth=depth, inputs=inputs)


class LogAverage(Forest):
    """Averages of probabilities of classes, as latent values: ``value`` [nodes, C] are those of the leaves.

        l_c(x) = log((T p_c(x) + 1/C) / (T + 1))      of T trees, less the mean over c; of two classes l₁ − l₀

    ``baseline`` holds a zero for each class.
    """

    value_dim: ClassVar[int] = 2

    @classmethod
    def of_labels(cls, models: Sequence[Any], classes: int) -> LogAverage:
        """The trees of fitted forests of classifiers, whose labels are numbers below ``classes``."""
        trees = [own.tree_ for model in models for own in model.estimators_]
        present = models[0].classes_.astype(int)
        raw = np.concatenate([tree.value[:, 0, :] for tree in trees])
        p = np.zeros((len(raw), classes), dtype=np.float32)
        p[:, present] = raw / raw.sum(1, keepdims=True)
        p[_inner(trees)] = 0.0
        return cls(
            **_bagged_parts(trees),
            value=torch.from_numpy(p),
            output=torch.zeros(len(trees), dtype=torch.int64),
            baseline=torch.zeros(p.shape[1], dtype=torch.float64),
            depth=max(tree.max_depth for tree in trees),
            inputs=int(models[0].n_features_in_),
        )

    @property
    def outputs(self) -> int:
        return 1 if len(self.baseline) == 2 else len(self.baseline)

    def __call__(self, x: Tensor) -> Tensor:
        trees, classes = len(self.root), len(self.baseline)
        p = self.baseline.expand(len(x), -1).clone()
        size = max(1, SLAB // (trees * classes))
        for begin in range(0, len(x), size):
            leaf = self.leaves(x[begin : begin + size])
            p[begin : begin + size] = self.value[leaf].mean(1, dtype=torch.float64)
        return self.latent(p, trees)

    def latent(self, p: Tensor, trees: float) -> Tensor:
        """Latent values of averages p [n, C] of so many trees."""
        logs = ((trees * p + 1 / p.shape[-1]) / (trees + 1)).log()
        return logs[:, 1:] - logs[:, :1] if p.shape[-1] == 2 else logs - logs.mean(1, keepdim=True)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], depth: int, inputs: int) -> LogAverage:
        made = super().from_arrays(arrays, depth, inputs)
        p = arrays["value"]
        if p.shape[1:] != arrays["baseline"].shape or not len(arrays["root"]):
            raise ValueError("a forest of classes has a probability for each of them in every node")
        if not ((p >= 0) & (p <= 1)).all():
            raise ValueError("the probabilities of a forest must lie between zero and one")
        assert isinstance(made, cls)
        return made


def _inner(trees: Sequence[Any]) -> NDArray[np.bool_]:
    """Nodes that are no leaves, of all trees one after the other."""
    return np.concatenate([tree.children_left >= 0 for tree in trees])


def _bagged_parts(trees: Sequence[Any]) -> dict[str, Tensor]:
    """Splits of scikit-learn's trees (their ``tree_``), whose thresholds hold for inputs in float32."""
    begins = np.cumsum([0, *(tree.node_count for tree in trees)])
    inner = _inner(trees)
    here = np.arange(begins[-1])

    def joined(name: str) -> NDArray:
        return np.concatenate([getattr(tree, name) for tree in trees])

    def children(name: str) -> Tensor:
        moved = np.concatenate([getattr(t, name) + b for t, b in zip(trees, begins[:-1], strict=True)])
        return torch.from_numpy(np.where(inner, moved, here).astype(np.int64))

    return {
        "feature": torch.from_numpy(np.where(inner, joined("feature"), 0).astype(np.int64)),
        "threshold": torch.from_numpy(np.where(inner, joined("threshold"), 0.0)),
        "missing_left": torch.from_numpy(joined("missing_go_to_left").astype(bool)),
        "left": children("children_left"),
        "right": children("children_right"),
        "root": torch.from_numpy(begins[:-1].astype(np.int64)),
    }
