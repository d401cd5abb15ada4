"""Tables in and out: files, frames, and the schema that turns their columns into numbers.

Pyarrow is imported when a table is met, never before.
"""

from duogp.tables.columns import Boolean, Category, Column, Moment, Number
from duogp.tables.files import column_names_of, format_of, read_chunks, read_table, table_writer, write_table
from duogp.tables.frames import as_arrow
from duogp.tables.schema import Encoded, Schema
from duogp.tables.target import Target

__all__ = [
    "Boolean",
    "Category",
    "Column",
    "Encoded",
    "Moment",
    "Number",
    "Schema",
    "Target",
    "as_arrow",
    "column_names_of",
    "format_of",
    "read_chunks",
    "read_table",
    "table_writer",
    "write_table",
]
