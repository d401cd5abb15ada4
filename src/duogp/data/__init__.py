"""Data: checked arrays from frames and tables, scaling, benchmark sets and their splits."""

from duogp.data.benchmark import Dataset, available, data_root, load
from duogp.data.columns import informative_columns
from duogp.data.scaling import Scaler
from duogp.data.splits import PROTOCOLS, Split, SplitRows, components_protocol, dc_protocol, orth_protocol
from duogp.data.toy import ToyProblem, dc_one_dimensional
from duogp.data.validation import as_matrix, as_row_vector, as_target

__all__ = [
    "PROTOCOLS",
    "Dataset",
    "Scaler",
    "Split",
    "SplitRows",
    "ToyProblem",
    "as_matrix",
    "as_row_vector",
    "as_target",
    "available",
    "components_protocol",
    "data_root",
    "dc_one_dimensional",
    "dc_protocol",
    "informative_columns",
    "load",
    "orth_protocol",
]
