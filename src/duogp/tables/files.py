"""Table files, by their ending: CSV and TSV (also compressed), Parquet, Arrow and Feather."""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duogp.tables.arrow import arrow, first_line
from duogp.tables.frames import listed, repeated, require_moderate_width

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
COMPRESSED = (".gz", ".bz2", ".zst")
ENDINGS = ".csv, .tsv (also with .gz), .parquet, .arrow or .feather"
#: Cells without a value, beside the defaults of pyarrow ("", "NA", "NaN", "null", …).
MORE_MISSING = ("?", "None", "none", ".")
NOT_UTF8 = "is not UTF-8 text: save it with that encoding, or say which it has (--encoding latin-1)"
#: Bytes of a first line beyond which its columns are not counted.
LONGEST_HEAD = 2**24
#: Rows that are read, predicted and written at once.
CHUNK_ROWS = 65_536


def format_of(path: str | Path) -> str:
    """The format by the ending: "csv", "tsv", "parquet" or "arrow"."""
    endings = [part.lower() for part in Path(path).suffixes]
    if endings and endings[-1] in COMPRESSED:
        endings.pop()
        if not endings or FORMATS.get(endings[-1]) not in ("csv", "tsv"):
            raise ValueError(f"{str(path)!r}: only CSV and TSV may be compressed as a whole ({ENDINGS})")
    if not endings or endings[-1] not in FORMATS:
        raise ValueError(f"{str(path)!r}: the ending does not say what the file is; use {ENDINGS}")
    return FORMATS[endings[-1]]


# -- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextForm:
    """How the text of a CSV file is to be read: its encoding, and the decimal mark of its numbers."""

    encoding: str = "utf-8"
    decimal: str | None = None  # "." or ","; None: "."

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            raise ValueError(
                f"encoding must be one of Python's, such as utf-8, latin-1 or cp1252, got {self.encoding!r}"
            ) from None
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal must be '.' or ',', got {self.decimal!r}")


PLAIN = TextForm()


def read_table(path: str | Path, *, text: Iterable[str] = (), form: TextForm = PLAIN) -> Any:
    """A whole file as an arrow table. ``text``: columns of a CSV to be left as text ("007" stays "007")."""
    kind = _readable(path)
    pa = arrow()
    with _errors_of(path):
        if kind == "parquet":
            with arrow("parquet").ParquetFile(str(path)) as file:
                require_moderate_width(len(file.schema_arrow), repr(str(path)))
            return _sound(arrow("parquet").read_table(str(path), partitioning=None))
        if kind == "arrow":
            with _arrow_reader(path) as reader:
                return _sound(reader.read_all())
        options = _csv_options(path, kind, {name: pa.string() for name in text}, form=form)
        table = arrow("csv").read_csv(str(path), **options)
        _ = table.column_names  # decoded here, where `_errors_of` reports a wrong encoding
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_binary(column.type):
            raise ValueError(_not_text(path, name, column))
    return table


def _not_text(path: str | Path, name: str, column: Any) -> str:
    """The message for bytes that are no UTF-8, with the first of them."""
    for row, cell in enumerate(column.to_pylist()):
        try:
            _ = cell is None or cell.decode()
        except UnicodeDecodeError:
            return (
                f"{str(path)!r}: column {name!r} holds {cell!r} in line {row + 2}, which is not UTF-8: "
                f"--encoding latin-1 would read {cell.decode('latin-1')!r}"
            )
    return f"{str(path)!r}: column {name!r} holds bytes, not text"


def column_names_of(path: str | Path, form: TextForm = PLAIN) -> list[str]:
    """Names of the columns of a file."""
    with _errors_of(path), _batches(path, _readable(path), form=form) as (schema, _):
        return list(schema.names)


def column_types_of(path: str | Path, names: Sequence[str], form: TextForm = PLAIN) -> dict[str, Any]:
    """Arrow types of some columns of a CSV file, which is read to its end; other formats have their own."""
    kind = _readable(path)
    there = column_names_of(path, form)
    names = [name for name in names if name in there]
    if kind in ("parquet", "arrow") or not names:
        return {}
    with _errors_of(path):
        table = arrow("csv").read_csv(str(path), **_csv_options(path, kind, columns=names, form=form))
        return {field.name: field.type for field in table.schema}


def read_chunks(
    path: str | Path,
    types: Mapping[str, Any],
    *,
    keep: Sequence[str] = (),
    rows: int = CHUNK_ROWS,
    form: TextForm = PLAIN,
) -> Iterator[Any]:
    """Tables of at most ``rows`` rows with some columns of a file.

    ``types``: the columns and the arrow type that each has in a CSV file (types cannot be inferred from a
    stream). ``keep``: further columns as they are; in a CSV file, as text. Columns that the file lacks are
    left out.
    """
    kind = _readable(path)
    names = column_names_of(path, form)
    wanted = [name for name in dict.fromkeys([*types, *keep]) if name in names]
    if twice := repeated(name for name in names if name in wanted):
        raise ValueError(f"{str(path)!r}: two columns have the same name: {listed(twice)}")
    text = arrow().string()
    types = {name: types.get(name, text) for name in wanted}
    with _errors_of(path, names), _batches(path, kind, types, wanted, rows, form) as (_, batches):
        for batch in batches:
            table = arrow().Table.from_batches([batch])
            for start in range(0, table.num_rows, rows):
                yield table.slice(start, rows)


@contextmanager
def _batches(
    path: str | Path,
    kind: str,
    types: Mapping[str, Any] | None = None,
    columns: list[str] | None = None,
    rows: int = CHUNK_ROWS,
    form: TextForm = PLAIN,
) -> Iterator[tuple[Any, Iterable[Any]]]:
    """The schema of an open file, and its batches of rows with all or some columns."""
    if kind == "parquet":
        with arrow("parquet").ParquetFile(str(path)) as file:
            yield file.schema_arrow, map(_sound, file.iter_batches(batch_size=rows, columns=columns))
    elif kind == "arrow":
        with _arrow_reader(path) as reader:
            is_file = hasattr(reader, "num_record_batches")
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield reader.schema, (_sound(batch).select(columns) for batch in batches)
    else:
        with arrow("csv").open_csv(str(path), **_csv_options(path, kind, types, columns, form)) as reader:
            yield reader.schema, reader


def _readable(path: str | Path) -> str:
    """The format of a file that is there and not empty."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder, expected a table ({ENDINGS})")
    kind = format_of(path)
    if path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty")
    return kind


def _csv_options(
    path: str | Path,
    kind: str,
    types: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    form: TextForm = PLAIN,
) -> dict[str, Any]:
    formats = arrow("csv")
    missing = [*formats.ConvertOptions().null_values, *MORE_MISSING]
    head = _head(path)
    delimiter = "\t" if kind == "tsv" else _delimiter(head)
    require_moderate_width(head.count(delimiter.encode()) + 1, repr(str(path)))
    # Numbers with the delimiter in them stand in quotes, and are read as text.
    decimal = form.decimal if form.decimal not in (None, delimiter) else "."
    return {
        "read_options": formats.ReadOptions(block_size=8 * 2**20, encoding=form.encoding),
        "parse_options": formats.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        "convert_options": formats.ConvertOptions(
            column_types=types or {},
            null_values=missing,
            strings_can_be_null=True,
            include_columns=columns,
            decimal_point=decimal,
        ),
    }


def csv_options(path: str | Path, form: TextForm = PLAIN) -> dict[str, Any]:
    """Options by which pyarrow.dataset reads files like this one."""
    return _csv_options(path, format_of(path), form=form)


def _head(path: str | Path) -> bytes:
    """The first line, or the beginning of a very long one."""
    with arrow().input_stream(str(path), compression="detect") as stream:
        head: bytes = stream.read(2**16)
        while b"\n" not in head and len(head) < LONGEST_HEAD and (more := stream.read(2**20)):
            head += more
    return head.split(b"\n", 1)[0]


def _delimiter(head: bytes) -> str:
    """A comma or, where the first line has none, a semicolon or tab that it has."""
    return next((mark for mark in (",", ";", "\t") if mark.encode() in head), ",")


def _sound(rows: Any) -> Any:
    """A table or batch of an Arrow or Parquet file, whose buffers are what they claim to be.

    Arrow's format is memory as it lies: a wrong offset would be followed to wherever it points. Text of
    Parquet files is not looked at when it is read: what is no UTF-8 would fail later, without a file's name.
    """
    rows.validate(full=True)
    return rows


@contextmanager
def _arrow_reader(path: str | Path) -> Iterator[Any]:
    """A reader of the Arrow file format (which is Feather 2) or, failing that, of the stream format."""
    pa = arrow()
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
        with reader:
            yield reader


@contextmanager
def _errors_of(path: str | Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Errors of pyarrow as ValueErrors that name the file."""
    pa = arrow()
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} {NOT_UTF8}") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise
        raise ValueError(f"{str(path)!r} cannot be read: {_in_words(first_line(error), names)}") from None


def _in_words(message: str, names: Sequence[str]) -> str:
    """The message "In CSV column #2: CSV conversion error …" of arrow with the name of the column."""
    if "invalid UTF8" in message:
        return NOT_UTF8
    found = re.match(r"In CSV column #(\d+):(?: Row #(\d+):)? CSV conversion error to (\S+): (.*)", message)
    if not found or int(found[1]) >= len(names):
        return message
    wanted = {"double": "a number", "bool": "true or false"}.get(found[3], found[3])
    place = f" in line {int(found[2])}" if found[2] else ""
    return f"column {names[int(found[1])]!r} holds an {found[4]}{place}, expected {wanted}"


# -- writing -----------------------------------------------------------------------------------------------


def write_table(table: Any, path: str | Path | None) -> None:
    """A table as a file of the format its ending names; None: CSV on standard output."""
    with table_writer(path) as write:
        write(table)


@contextmanager
def table_writer(path: str | Path | None) -> Iterator[Callable[[Any], None]]:
    """A function that appends tables of one schema to a file, which gets its name when it is complete.

    Without a path, CSV on standard output.
    """
    if path is None:
        with _appending(arrow().PythonFile(sys.stdout.buffer, "w"), "csv") as write:
            yield write
        sys.stdout.buffer.flush()
        return
    path = Path(path)
    kind = format_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder, expected the name of a file ({ENDINGS})")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    part = path.with_name(f".{path.name}.part{path.suffix}")  # with the ending, which decides the compression
    compression = "detect" if kind in ("csv", "tsv") else None
    try:
        stream = arrow().output_stream(str(part), compression=compression)
        with stream, _appending(stream, kind, path) as write:
            yield write
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _appending(stream: Any, kind: str, path: Path | None = None) -> Iterator[Callable[[Any], None]]:
    """A function that appends tables to a stream; the first decides the schema."""
    writer: Any = None
    schema: Any = None

    def write(table: Any) -> None:
        nonlocal writer, schema
        if writer is None:
            schema = table.schema
            writer = _writer(stream, kind, schema)
        writer.write_table(table.cast(schema))

    yield write
    if writer is not None:
        writer.close()
    elif path is not None:
        raise ValueError(f"there are no rows to write to {str(path)!r}")


def _writer(stream: Any, kind: str, schema: Any) -> Any:
    """A pyarrow writer; of CSV, after a head by the csv module, which quotes only where it must."""
    if kind == "parquet":
        # Numbers with a point hardly repeat: their dictionaries take six times as long, and more room.
        repeating = [field.name for field in schema if not arrow().types.is_floating(field.type)]
        return arrow("parquet").ParquetWriter(stream, schema, use_dictionary=repeating or False)
    if kind == "arrow":
        return arrow("ipc").new_file(stream, schema)
    delimiter = "\t" if kind == "tsv" else ","
    head = io.StringIO()
    csv.writer(head, delimiter=delimiter, lineterminator="\n").writerow(schema.names)
    stream.write(head.getvalue().encode())
    options = arrow("csv").WriteOptions(include_header=False, delimiter=delimiter)
    return arrow("csv").CSVWriter(stream, schema, write_options=options)
