"""A `pyarrow.dataset` as a source of rows: Parquet, Arrow or CSV, one file or thousands."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.labels import MAX_CLASSES, as_labels, encode
from duogp.data.sources import CHUNK_ROWS, Chunk, Floats, require_chunk_rows

#: File endings and the formats that pyarrow.dataset knows them by.
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "feather",
    ".csv": "csv",
}


class ArrowSource:
    """Columns of numbers of a `pyarrow.dataset`, a record batch at a time.

    ``dataset``: a dataset of pyarrow, a path, a pattern such as ``"data/*.parquet"``, or a list of paths.
    ``target``: the name of the column (or names of the columns) to predict; ``columns``: those to predict
    from, all others by default; ``weight``, ``noise``: columns of row weights and known noise variances.

    Row groups of Parquet files, or whole files of the other formats, are dealt to the ranks in turn; where
    there are fewer of them than ranks, every rank reads all and keeps its share of the batches. Text and gaps
    are refused by an error that names the column. ``labels``: the target holds class labels of any type; one
    pass over that column finds them.
    """

    def __init__(
        self,
        dataset: Any,
        target: str | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        weight: str | None = None,
        noise: str | None = None,
        chunk_rows: int = CHUNK_ROWS,
        labels: bool = False,
    ) -> None:
        self.chunk_rows = require_chunk_rows(chunk_rows)
        self.dataset = dataset if is_dataset(dataset) else open_dataset(dataset)
        self.single_output = isinstance(target, str)
        self.targets = [target] if isinstance(target, str) else list(target)
        self.weight, self.noise = weight, noise
        apart = {*self.targets, weight, noise}
        found = list(self.dataset.schema.names)
        self.names = [name for name in found if name not in apart] if columns is None else list(columns)
        if not self.targets or not self.names:
            raise ValueError("a source needs at least one target and one column to predict from")
        self._columns = list(
            dict.fromkeys([*self.names, *self.targets, *(c for c in (weight, noise) if c is not None)])
        )
        if missing := [name for name in self._columns if name not in found]:
            raise ValueError(
                f"the dataset has no column {missing[0]!r}; it has {', '.join(map(repr, found))}"
            )
        if both := set(self.names) & apart:
            raise ValueError(f"column {min(map(str, both))!r} cannot be an input and something else as well")
        for name in self._columns:
            if not (labels and name in self.targets):
                self._require_numbers(name)
        self.classes: NDArray | None = None
        if labels:
            if len(self.targets) > 1:
                raise ValueError(f"class labels are one column, got {', '.join(map(repr, self.targets))}")
            self.classes, self._labels = find_classes(self.dataset, self.targets[0], self.chunk_rows)

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        return self._chunks(rank, world)

    def shuffled(self, rank: int, world: int, seed: int) -> Iterator[Chunk]:
        """The chunks of a rank, row groups (or files) in a random order."""
        return self._chunks(rank, world, seed)

    def _chunks(self, rank: int, world: int, seed: int | None = None) -> Iterator[Chunk]:
        for number, batch in record_batches(self.dataset, self._columns, self.chunk_rows, rank, world, seed):
            yield self._chunk(batch, number)

    def _chunk(self, batch: Any, number: int) -> Chunk:
        names = batch.schema.names
        columns = {name: batch.column(names.index(name)) for name in self._columns}
        if self.classes is not None:
            columns |= {name: codes_in(columns[name], self._labels) for name in self.targets}
        weight = None if self.weight is None else _matrix(columns, [self.weight])[:, 0]
        noise = None if self.noise is None else _matrix(columns, [self.noise])
        if weight is not None and (weight < 0).any():
            raise ValueError(f"the weights in column {self.weight!r} must not be negative")
        if noise is not None and (noise <= 0).any():
            raise ValueError(f"the noise variances in column {self.noise!r} must be positive")
        return Chunk(_matrix(columns, self.names), _matrix(columns, self.targets), noise, weight, number)

    def _require_numbers(self, name: str) -> None:
        import pyarrow.types as types

        kind = self.dataset.schema.field(name).type
        if not (
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_boolean(kind)
            or types.is_decimal(kind)
            or types.is_null(kind)  # refused with its gaps
        ):
            raise ValueError(
                f"column {name!r} holds {kind}: a source of chunks reads numbers only; name the columns to "
                "read with columns=, or turn it into numbers first"
            )


def record_batches(
    dataset: Any,
    columns: Sequence[str],
    rows: int,
    rank: int = 0,
    world: int = 1,
    seed: int | None = None,
) -> Iterator[tuple[int, Any]]:
    """Record batches of at most so many rows that belong to a rank, with numbers that all ranks agree on.

    Few are read ahead, so that memory is bounded. With a ``seed`` the pieces come in a random order.
    """
    pieces = _pieces(dataset)
    by_piece = len(pieces) >= world
    own = np.arange(rank, len(pieces), world) if by_piece else np.arange(len(pieces))
    if seed is not None:
        own = np.random.default_rng((seed, rank)).permutation(own)
    for i in own.tolist():
        batches = pieces[i].to_batches(
            schema=dataset.schema,
            columns=list(columns),
            batch_size=rows,
            batch_readahead=1,
            fragment_readahead=1,
        )
        for place, batch in enumerate(batches):
            if batch.num_rows and (by_piece or (i + place) % world == rank):
                yield (i << 32) + place, batch


def find_classes(dataset: Any, name: str, rows: int = CHUNK_ROWS) -> tuple[NDArray, Any]:
    """The sorted class labels of a column, from one pass over it: as numpy has them, and as pyarrow does."""
    import pyarrow
    import pyarrow.compute as compute

    found: Any = None
    for _, batch in record_batches(dataset, [name], rows):
        own = _decoded(batch.column(0)).unique()
        found = own if found is None else compute.unique(pyarrow.concat_arrays([found, own]))
        if found.null_count:
            raise ValueError(f"column {name!r} has rows without a label")
        if len(found) > MAX_CLASSES:
            raise ValueError(f"column {name!r} has more than {MAX_CLASSES} different labels")
    if found is None:
        raise ValueError("the dataset has no rows")
    codes, classes = encode(as_labels(found.to_numpy(zero_copy_only=False), len(found), name), name)
    return classes, found.take(pyarrow.array(np.argsort(codes)))


def codes_in(column: Any, labels: Any) -> Any:
    """The places of a column's values among labels, as an arrow column."""
    import pyarrow.compute as compute

    return compute.index_in(_decoded(column), value_set=labels)


def _decoded(column: Any) -> Any:
    import pyarrow.types as types

    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _pieces(dataset: Any) -> list[Any]:
    """Row groups of Parquet files, files of other formats; sorted by path, so that every rank agrees."""
    fragments = list(dataset.get_fragments())
    if all(hasattr(fragment, "path") for fragment in fragments):
        fragments.sort(key=lambda fragment: str(fragment.path))
    out: list[Any] = []
    for fragment in fragments:
        split = getattr(fragment, "split_by_row_group", None)
        out += [fragment] if split is None else split()
    return out


def is_dataset(value: Any) -> bool:
    """Whether this is a dataset of pyarrow; pyarrow is not imported to find out."""
    return any(
        cls.__module__ == "pyarrow._dataset" and cls.__name__ == "Dataset" for cls in type(value).__mro__
    )


def open_dataset(paths: Any) -> Any:
    """The dataset of a path, a pattern, a folder, or several paths; the format is that of the first file."""
    try:
        import pyarrow.dataset as arrow_dataset
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "reading files needs pyarrow: pip install pyarrow", name="pyarrow"
        ) from None
    found = files_of(paths)
    kind = FORMATS.get(Path(found[0]).suffix.lower())
    if kind is None:
        raise ValueError(f"{found[0]}: unknown ending; known are {', '.join(FORMATS)}")
    if wrong := [path for path in found if FORMATS.get(Path(path).suffix.lower()) != kind]:
        raise ValueError(f"{wrong[0]}: the files of one dataset have one format, and {found[0]} is {kind}")
    return arrow_dataset.dataset(found, format=kind)


def files_of(paths: Any) -> list[str]:
    """The files that a path, a pattern, a folder, or a list of them stands for, sorted."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    out: list[str] = []
    for entry in (os.fspath(path) for path in given):
        if os.path.isdir(entry):
            inside = (os.path.join(folder, name) for folder, _, names in os.walk(entry) for name in names)
            found = [path for path in inside if Path(path).suffix.lower() in FORMATS]
        else:
            found = [entry] if os.path.isfile(entry) else glob.glob(entry, recursive=True)
        if not found:
            raise FileNotFoundError(f"no such file, and no file that fits: {entry}")
        out += sorted(found)
    return out


def _matrix(columns: Mapping[str, Any], names: Sequence[str]) -> Floats:
    """Columns of a record batch as finite float64, [n, columns]."""
    out = np.empty((len(columns[names[0]]), len(names)))  # rows as they lie in memory: a sixth of the time
    for j, name in enumerate(names):
        _numbers(columns[name], name, out[:, j])
    with np.errstate(all="ignore"):
        sound = np.isfinite(out.sum())  # one number instead of a mask; a sum may also overflow
    if not sound and not (finite := np.isfinite(out).all(0)).all():
        bad = names[int(np.argmin(finite))]
        raise ValueError(f"column {bad!r} has values that are not finite (NaN or infinity)")
    return out


def _numbers(column: Any, name: str, out: Floats) -> None:
    """Write the numbers of a column of a record batch."""
    import pyarrow

    if column.null_count:
        raise ValueError(
            f"column {name!r} has missing values: a source of chunks reads numbers only; fill them in, or "
            "leave the column out with columns="
        )
    types = pyarrow.types
    if types.is_boolean(column.type):
        column = column.cast(pyarrow.uint8())
    elif not (types.is_integer(column.type) or types.is_floating(column.type)):
        column = column.cast(pyarrow.float64(), safe=False)
    out[:] = column.to_numpy(zero_copy_only=False)
