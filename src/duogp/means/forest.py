"""Boosted trees as arrays: what is left of scikit-learn's when a model is saved, or predicts on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

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

    @property
    def outputs(self) -> int:
        return len(self.baseline)

    def to(self, device: torch.device) -> Forest:
        moved: dict[str, Any] = {name: values.to(device) for name, values in self.arrays().items()}
        return Forest(**moved, depth=self.depth, inputs=self.inputs)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, outputs] at rows x [n, d], float64, where the forest is."""
        out = self.baseline.expand(len(x), -1).clone()
        if not len(self.root):
            return out
        size = max(1, SLAB // len(self.root))
        for begin in range(0, len(x), size):
            rows = x[begin : begin + size]
            node = self.root.expand(len(rows), -1)  # [n, trees]
            for _ in range(self.depth):
                entry = rows.gather(1, self.feature[node])
                goes_left = torch.where(entry.isnan(), self.missing_left[node], entry <= self.threshold[node])
                node = torch.where(goes_left, self.left[node], self.right[node])
            out[begin : begin + size].index_add_(1, self.output, self.value[node])
        return out

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Tensor]:
        """Everything but `depth` and `inputs`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("depth", "inputs")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], depth: int, inputs: int) -> Forest:
        """A forest of saved arrays; a ValueError where they are none."""
        names = [f.name for f in fields(cls) if f.name not in ("depth", "inputs")]
        if arrays.keys() != set(names) or any(a.dim() != 1 for a in arrays.values()):
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
        numbers = {name: arrays[name].double() for name in ("threshold", "value", "baseline")}
        return cls(**whole, **numbers, missing_left=arrays["missing_left"].bool(), depth=depth, inputs=inputs)
