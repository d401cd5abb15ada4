"""Files that do not fit into memory as a source of chunks: a `Schema` of a sample encodes every chunk.

Categories, gaps and dates become numbers as in a table that fits. Medians are those of a uniform sample;
levels of categories, gaps and extremes are those of all rows (`witnesses`). A column of a CSV file that turns
out to be no number, however late, is read as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duogp.data.arrow_source import files_of, is_dataset, open_dataset, record_batches
from duogp.data.labels import MAX_CLASSES, codes_of, encode
from duogp.data.prefetch import ahead
from duogp.data.sources import CHUNK_ROWS, Chunk, place_hashes, require_chunk_rows
from duogp.tables.arrow import arrow, first_line
from duogp.tables.files import PLAIN, TextForm, csv_options, format_of
from duogp.tables.schema import Schema, require_columns
from duogp.tables.target import TargetColumn
from duogp.tables.values import plain
from duogp.tables.witnesses import Witnesses, with_witnesses

#: Rows of the sample that decides what columns become.
SCHEMA_ROWS = 50_000


class TableSource:
    """The rows of a dataset (or of paths, or of a pattern) that have a target, encoded by a schema.

    ``form``: of CSV files; ``options``: those of `Schema.learn`, ``classify`` among them. Making one reads
    the files once, for the sample, and its target once more where it holds class labels.
    """

    single_output = True

    def __init__(
        self,
        files: Any,
        target: str,
        *,
        weights: str | None = None,
        drop: Sequence[str] = (),
        chunk_rows: int = CHUNK_ROWS,
        sample_rows: int = SCHEMA_ROWS,
        seed: int = 0,
        form: TextForm = PLAIN,
        **options: Any,
    ) -> None:
        self.chunk_rows = require_chunk_rows(chunk_rows)
        self.dataset = files if is_dataset(files) else _opened(files_of(files), form)
        there = list(self.dataset.schema.names)
        require_columns([target, *drop, *([] if weights is None else [weights])], there, "asked for")
        read = [name for name in there if name not in drop]
        types: dict[str, Any] = {}
        with _readable():
            while True:
                given = (self.dataset, read, sample_rows, seed, self.chunk_rows)
                try:
                    self.sample, others = sample_and_witnesses(*given)
                    break
                except arrow().ArrowInvalid as error:
                    types |= _wider_type(self.dataset, files, error)
                    self.dataset = _opened(files_of(files), form, types)
        self.schema = Schema.learn(with_witnesses(self.sample, others), target, weights=weights, **options)
        self.schema = replace(self.schema, dropped={**dict.fromkeys(drop, "as asked"), **self.schema.dropped})
        self.names = self.schema.names
        named = [column.name for column in self.schema.columns]
        self._columns = [*named, target, *([] if weights is None else [weights])]
        self.classes: NDArray | None = None
        goal = self.schema.target
        if goal is not None and goal.is_class:
            with _readable():
                self.classes = labels_of(self.dataset, goal, self.chunk_rows)

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        return self._chunks(rank, world)

    def shuffled(self, rank: int, world: int, seed: int) -> Iterator[Chunk]:
        """The chunks of a rank, row groups (or files) in a random order."""
        return self._chunks(rank, world, seed)

    def _chunks(self, rank: int, world: int, seed: int | None = None) -> Iterator[Chunk]:
        given = (self.dataset, self._columns, self.chunk_rows, rank, world, seed)
        with _readable():
            for number, batch in record_batches(*given):
                yield self._chunk(number, arrow().Table.from_batches([batch]))

    def _chunk(self, number: int, table: Any) -> Chunk:
        y, has_target = self.schema.targets(table)
        if self.classes is not None:
            y = codes_of(y, self.classes).astype(np.float64)
        weight = self.schema.row_weights(table)
        chunk = Chunk(self.schema.encode(table).matrix, y[:, None], None, weight, number)
        return chunk if has_target.all() else chunk.take(has_target)


def labels_of(dataset: Any, target: TargetColumn, rows: int) -> NDArray:
    """The sorted class labels [C] of a column, from one pass over it."""
    found: Any = None
    for _, batch in record_batches(dataset, [target.name], rows):
        own = arrow().chunked_array([plain(batch.column(0)).unique()])
        values = target.values(own)[~target.gaps(own)]
        found = values if found is None else np.union1d(found, values)
        if len(found) > MAX_CLASSES:
            raise ValueError(f"the target {target.name!r} has more than {MAX_CLASSES} different labels")
    return encode(found, target.name)[1]


@contextmanager
def _readable() -> Iterator[None]:
    """Errors of pyarrow as ValueErrors."""
    try:
        yield
    except arrow().ArrowException as error:
        raise ValueError(
            f"the files cannot be read in chunks: {first_line(error)}; columns of CSV files have the types "
            "of their first rows"
        ) from None


def _opened(paths: list[str], form: TextForm, types: Mapping[str, Any] | None = None) -> Any:
    """The dataset of files; of CSV files with the delimiter of the first, and the gaps of `read_table`.

    ``types``: of columns of CSV files whose first rows say something else.
    """
    if format_of(paths[0]) not in ("csv", "tsv"):
        return open_dataset(paths)
    if form.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise ValueError(f"files of the encoding {form.encoding!r} are not read in chunks: save as UTF-8")
    formats = arrow("dataset")
    options = csv_options(paths[0], form)
    options["convert_options"].column_types = dict(types or {})
    return formats.dataset(paths, format=formats.CsvFileFormat(**options))


def _wider_type(dataset: Any, files: Any, error: Exception) -> dict[str, Any]:
    """The column of CSV files that has other values than its first rows, and a type that can hold them."""
    place = re.search(r"In CSV column #(\d+).*conversion error", str(error))
    if place is None or is_dataset(files):
        raise error
    column = dataset.schema.field(int(place[1]))
    types = arrow().types
    if types.is_string(column.type):
        raise error
    return {column.name: arrow().float64() if types.is_integer(column.type) else arrow().string()}


def sample_table(dataset: Any, columns: Sequence[str], rows: int, seed: int, chunk_rows: int) -> Any:
    """A uniform sample of the rows of a dataset as a table; all of them where there are no more."""
    return sample_and_witnesses(dataset, columns, rows, seed, chunk_rows)[0]


def sample_and_witnesses(
    dataset: Any, columns: Sequence[str], rows: int, seed: int, chunk_rows: int
) -> tuple[Any, list[Any]]:
    """A uniform sample, and where it does not hold all rows, those that show what it may lack."""
    kept: Any = None
    seen, witnesses = 0, Witnesses()
    priority = np.zeros(0, dtype=np.uint64)
    for number, batch in ahead(record_batches(dataset, columns, chunk_rows)):
        seen += batch.num_rows
        witnesses.see(batch)
        own = place_hashes(number, batch.num_rows, seed)
        if len(priority) >= rows:
            mask = own < priority.max()
            own, batch = own[mask], batch.filter(arrow().array(mask))
        table = arrow().Table.from_batches([batch])
        kept = table if kept is None else arrow().concat_tables([kept, table])
        priority = np.concatenate([priority, own])
        if len(priority) > rows:
            smallest = np.sort(np.argpartition(priority, rows - 1)[:rows])
            priority, kept = priority[smallest], kept.take(arrow().array(smallest))
    if kept is None:
        raise ValueError("the files have no rows")
    return kept.combine_chunks(), witnesses.table() if seen > rows else []
