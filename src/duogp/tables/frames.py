"""Arrow tables from frames of other libraries, which are recognised by their attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from duogp.tables.arrow import arrow, first_line

#: Most columns of a table.
MAX_COLUMNS = 50_000


def as_arrow(data: Any) -> Any:
    """A pyarrow table from a pyarrow table or batch, a pandas or polars frame, or a dictionary of columns."""
    pa = arrow()
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas; by position, as labels may repeat
        names = [str(label) for label in data.columns]
        columns = [_of_pandas(data.iloc[:, j]) for j in range(len(names))]
        return _table(
            [(name, _array(column, name, True)) for name, column in zip(names, columns, strict=True)]
        )
    if hasattr(data, "collect") and not hasattr(data, "get_columns"):  # a lazy polars frame
        data = data.collect()
    if hasattr(data, "get_columns") and hasattr(data, "to_arrow"):  # polars
        return data.to_arrow()
    if isinstance(data, Mapping):
        return _table([(str(name), _array(values, str(name))) for name, values in data.items()])
    raise TypeError(
        f"expected a table (pyarrow, pandas, polars or a dictionary of columns), got {type(data).__name__}"
    )


def _of_pandas(column: Any) -> Any:
    """A series of a type that arrow knows: periods as their start, intervals as text, no sparse values."""
    kind = type(column.dtype).__name__
    if kind == "PeriodDtype":
        return column.dt.to_timestamp()
    if kind == "SparseDtype":
        return column.sparse.to_dense()
    of = getattr(column.dtype, "categories", None)  # of a category
    if kind == "IntervalDtype" or type(getattr(of, "dtype", None)).__name__ in (
        "IntervalDtype",
        "PeriodDtype",
    ):
        return column.astype(str).where(column.notna())
    return column


def _table(columns: list[tuple[str, Any]]) -> Any:
    lengths = {len(values) for _, values in columns}
    if len(lengths) > 1:
        raise ValueError(f"columns of one table must have one length, got lengths {sorted(lengths)}")
    return arrow().Table.from_arrays([values for _, values in columns], [name for name, _ in columns])


def _array(values: Any, name: str, from_pandas: bool | None = None) -> Any:
    pa = arrow()
    try:
        array = pa.array(values, from_pandas=from_pandas)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"column {name!r} cannot be read as one type of values ({first_line(error)}): "
            "make it all numbers, all text or all dates"
        ) from None
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def require_moderate_width(columns: int, where: str = "the table") -> None:
    """An error for a table with too many columns, before it takes the memory."""
    if columns > MAX_COLUMNS:
        raise ValueError(
            f"{where} has {columns:,} columns, and a model takes at most {MAX_COLUMNS:,}: choose some, or "
            "reduce them first (sklearn.decomposition.TruncatedSVD); a table that lies on its side must be "
            "transposed"
        )


def repeated(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


def some(names: Iterable[str], most: int = 8) -> str:
    """The first names and the number of the others."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def listed(names: Iterable[str], most: int = 6) -> str:
    """The first names, quoted, and the number of the others, for a message."""
    return some(map(repr, names), most)
