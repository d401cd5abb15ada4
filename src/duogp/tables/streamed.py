"""Files that do not fit into memory as a source of chunks: a `Schema` of a sample encodes every chunk.

Categories, gaps and dates become numbers as in a table that fits; levels, medians and spans of dates are
those of a uniform sample of the rows. A level that the sample lacks is encoded as an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from duogp.data.arrow_source import files_of, is_dataset, open_dataset, record_batches
from duogp.data.sources import CHUNK_ROWS, Chunk, place_hashes, require_chunk_rows
from duogp.tables.arrow import arrow, first_line
from duogp.tables.files import PLAIN, TextForm, csv_options, format_of
from duogp.tables.schema import Schema, require_columns

#: Rows of the sample that decides what columns become.
SCHEMA_ROWS = 50_000


class TableSource:
    """The rows of a dataset (or of paths, or of a pattern) that have a target, encoded by a schema.

    ``form``: of CSV files; ``options``: those of `Schema.learn`. Making one reads the files once, for the
    sample.
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
        with _readable():
            self.sample = sample_table(self.dataset, read, sample_rows, seed, self.chunk_rows)
        self.schema = Schema.learn(self.sample, target, weights=weights, **options)
        self.schema = replace(self.schema, dropped={**dict.fromkeys(drop, "as asked"), **self.schema.dropped})
        if self.schema.target is None or self.schema.target.is_class:
            raise ValueError(
                f"the target {target!r} holds class labels: only numbers are learned from files in chunks"
            )
        self.names = self.schema.names
        named = [column.name for column in self.schema.columns]
        self._columns = [*named, target, *([] if weights is None else [weights])]

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        with _readable():
            for number, batch in record_batches(self.dataset, self._columns, self.chunk_rows, rank, world):
                yield self._chunk(number, arrow().Table.from_batches([batch]))

    def _chunk(self, number: int, table: Any) -> Chunk:
        y, has_target = self.schema.targets(table)
        weight = self.schema.row_weights(table)
        chunk = Chunk(self.schema.encode(table).matrix, y[:, None], None, weight, number)
        return chunk if has_target.all() else chunk.take(has_target)


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


def _opened(paths: list[str], form: TextForm) -> Any:
    """The dataset of files; of CSV files with the delimiter of the first, and the gaps of `read_table`."""
    if format_of(paths[0]) not in ("csv", "tsv"):
        return open_dataset(paths)
    if form.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise ValueError(f"files of the encoding {form.encoding!r} are not read in chunks: save as UTF-8")
    formats = arrow("dataset")
    return formats.dataset(paths, format=formats.CsvFileFormat(**csv_options(paths[0], form)))


def sample_table(dataset: Any, columns: Sequence[str], rows: int, seed: int, chunk_rows: int) -> Any:
    """A uniform sample of the rows of a dataset as a table; all of them where there are no more."""
    kept: Any = None
    priority = np.zeros(0, dtype=np.uint64)
    for number, batch in record_batches(dataset, columns, chunk_rows):
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
    return kept.combine_chunks()
