"""Tables in and out: files, frames, and the schema that turns their columns into numbers.

Pyarrow is imported at the first table.
"""

from duogp.tables.columns import Boolean, Category, Column, DateTime, Number
from duogp.tables.files import (
    TextForm,
    column_names_of,
    format_of,
    read_chunks,
    read_table,
    table_writer,
    write_table,
)
from duogp.tables.frames import as_arrow
from duogp.tables.schema import Encoded, Schema
from duogp.tables.target import TargetColumn

Moment, Target = DateTime, TargetColumn  # names up to 0.1

__all__ = [
    "Boolean",
    "Category",
    "Column",
    "DateTime",
    "Encoded",
    "Moment",
    "Number",
    "Schema",
    "Target",
    "TargetColumn",
    "TextForm",
    "as_arrow",
    "column_names_of",
    "format_of",
    "read_chunks",
    "read_table",
    "table_writer",
    "write_table",
]
