"""Rows of a stream, checked: all calls must agree in columns, outputs and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.data.columns import rows_of_the_fit
from duogp.data.labels import codes_of, encode
from duogp.data.targets import Target, raw_target, require_support
from duogp.data.validation import as_matrix, as_row_vector, column_names


class Observations(NamedTuple):
    """Checked rows in the units of the user."""

    X: NDArray
    y: NDArray[np.float64]  # [n, outputs], class numbers for labels
    weight: NDArray[np.float64] | None

    @property
    def size(self) -> int:
        return len(self.X)

    def take(self, index: NDArray[np.intp]) -> Observations:
        return Observations(self.X[index], self.y[index], None if self.weight is None else self.weight[index])

    def pieces(self, most: int, rng: np.random.Generator) -> Iterator[Observations]:
        """Pieces of nearly one size, at most ``most``; shuffled first where there are several."""
        pieces = -(-self.size // most)
        if pieces == 1:
            yield self
            return
        for index in np.array_split(rng.permutation(self.size), pieces):
            yield self.take(index)

    @staticmethod
    def join(parts: Sequence[Observations]) -> Observations:
        weight = None
        if any(part.weight is not None for part in parts):
            weight = np.concatenate([np.ones(p.size) if p.weight is None else p.weight for p in parts])
        X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return Observations(X, y, weight)


class Reader:
    """Checks the calls of one stream; the first call fixes columns, outputs and, unless given, labels."""

    def __init__(self, kind: str, classes: NDArray | None = None) -> None:
        self.kind = kind  # of the targets, see `duogp.data.targets`
        self.classes = classes
        self.names: list[str] | None = None  # of the columns
        self.dims: int | None = None
        self.outputs = 0
        self.single_output = True

    def read(self, X: Any, y: Any, sample_weight: Any = None) -> Observations:
        """The rows of one call; rows of weight zero are left out."""
        first = self.dims is None
        matrix = (
            as_matrix(X, "X", min_rows=1) if self.dims is None else rows_of_the_fit(X, self.names, self.dims)
        )
        values = raw_target(y, len(matrix), self.kind)
        if self.kind == "classes":
            target = self._encode(values)
        else:
            target = values.reshape(len(matrix), -1).astype(np.float64)
            require_support(target, self.kind)
        outputs = target.shape[1]
        if not first and outputs != self.outputs:
            raise ValueError(f"y has {outputs} outputs, but the stream so far had {self.outputs}")
        weight = None
        if sample_weight is not None:
            weight = as_row_vector(sample_weight, len(matrix), "sample_weight", allow_zero=True)
        if first:
            self.dims, self.outputs, self.names = matrix.shape[1], outputs, column_names(X)
            self.single_output = self.kind == "classes" or values.ndim == 1
        rows = Observations(matrix, target, weight)
        return rows if weight is None or weight.all() else rows.take(np.flatnonzero(weight))

    def target(self, rows: Observations) -> Target:
        return Target(rows.y, self.single_output, self.kind, self.classes)

    def _encode(self, labels: NDArray) -> NDArray[np.float64]:
        """Class numbers [n, 1]; labels must be among those given or seen in the first call."""
        classes = self.classes
        if classes is None:
            _, classes = encode(labels)
            if len(classes) < 2:
                raise ValueError(
                    f"the first rows have only one class ({classes[0]!r}): name all that may come by classes="
                )
        codes = codes_of(labels, classes)
        if (codes < 0).any():
            unknown = np.unique(labels[codes < 0])[:5].tolist()
            raise ValueError(
                f"y holds labels that were not announced: {unknown}; the classes, given or seen in the first "
                f"call, are {classes.tolist()}"
            )
        self.classes = classes
        return codes[:, None].astype(np.float64)
