"""What users pass: everything numeric is taken, everything else is named."""

from __future__ import annotations

import decimal
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from duogp.data import validation
from duogp.data.validation import as_matrix, as_row_vector, as_target

EXPECTED = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 1.0]])


def frames():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": [1, 2, 3], "b": [False, True, True]})


class Duck:
    """A polars frame as far as we can tell: columns that know their name and `to_numpy`."""

    class Column:
        def __init__(self, name, values):
            self.name, self._values = name, values

        def to_numpy(self):
            return np.asarray(self._values)

    def get_columns(self):
        return [self.Column("a", [1, 2, 3]), self.Column("b", [False, True, True])]


@pytest.mark.parametrize(
    "X",
    [
        EXPECTED.tolist(),
        tuple(map(tuple, EXPECTED.tolist())),
        *(EXPECTED.astype(t) for t in ("int8", "uint64", "float16", "float32", "longdouble", "object")),
        np.asfortranarray(EXPECTED),
        np.ma.masked_array(EXPECTED),
        torch.tensor(EXPECTED, requires_grad=True),
        torch.tensor(EXPECTED, dtype=torch.bfloat16),
        torch.tensor(EXPECTED, dtype=torch.int32),
        [[decimal.Decimal(1), 0], [2, True], [np.float32(3), 1]],
        Duck(),
    ],
    ids=lambda X: f"{type(X).__name__}-{getattr(X, 'dtype', '')}",
)
def test_every_container_gives_the_same_matrix(X):
    out = as_matrix(X)
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out, EXPECTED)


def test_pandas_frames_of_mixed_and_nullable_dtypes():
    frame = frames()
    np.testing.assert_array_equal(as_matrix(frame), EXPECTED)
    np.testing.assert_array_equal(as_matrix(frame.astype({"a": "Int64", "b": "boolean"})), EXPECTED)
    np.testing.assert_array_equal(as_target(frame["a"], 3), EXPECTED[:, 0])
    repeated = frame.set_axis(["a", "a"], axis=1)
    np.testing.assert_array_equal(as_matrix(repeated), EXPECTED)


def test_pandas_errors_name_the_column():
    frame = frames()
    with pytest.raises(TypeError, match=r"X, column 'c': found 'u' of type str in row 0"):
        as_matrix(frame.assign(c=["u", "v", "w"]))
    with pytest.raises(TypeError, match=r"column 'when': dtype datetime64.*not numeric"):
        as_matrix(frame.assign(when=np.array(["2020", "2021", "2022"], dtype="datetime64[s]")))
    with pytest.raises(ValueError, match=r"1 value\(s\) that are NaN or inf.*row 1, column 'a'"):
        as_matrix(frame.astype({"a": "Int64"}).replace(2, None))
    with pytest.raises(TypeError, match=r"column 'k': found 'x'"):
        as_matrix(frame.assign(k=["x", "y", "x"]).astype({"k": "category"}))
    with pytest.raises(ValueError, match=r"0 feature\(s\) \(shape=\(3, 0\)\)"):
        as_matrix(frame[[]])


def test_pyarrow_tables():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1, 2, 3], "b": [False, True, True]})
    np.testing.assert_array_equal(as_matrix(table), EXPECTED)
    np.testing.assert_array_equal(as_matrix(table.to_batches()[0]), EXPECTED)
    np.testing.assert_array_equal(as_target(table.column("a"), 3), EXPECTED[:, 0])
    with pytest.raises(ValueError, match="row 1, column 'a'"):
        as_matrix(pyarrow.table({"a": [1, None, 3]}))
    with pytest.raises(TypeError, match="column 's'"):
        as_matrix(pyarrow.table({"s": ["x", "y"]}))


def test_only_large_float32_keeps_its_dtype(monkeypatch):
    X = EXPECTED.astype(np.float32)
    assert as_matrix(X).dtype == np.float64
    monkeypatch.setattr(validation, "KEEP_FLOAT32_ABOVE", 5)
    assert as_matrix(X).dtype == np.float32


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (scipy.sparse.csr_matrix(EXPECTED), TypeError, r"X: sparse data.*toarray"),
        (torch.eye(3).to_sparse(), TypeError, "X: sparse data"),
        (EXPECTED.astype(complex), TypeError, "X: Complex data not supported"),
        (EXPECTED.astype(complex), ValueError, "Complex data not supported"),
        ([[1.0, "red"], [2.0, "blue"]], TypeError, "X, column 1: found 'red' of type str in row 0"),
        (np.array([["1", "2"], ["3", "4"]]), TypeError, "X, column 0: found '1'"),
        (
            [[1.0, {"a": 1}], [2.0, 3.0]],
            TypeError,
            "X, column 1: row 0: .*argument must be .* string.* number",
        ),
        (np.array([["2020"], ["2021"]], dtype="datetime64[D]"), TypeError, "X: dtype datetime64"),
        ([[1.0, 2.0], [3.0]], ValueError, "X: rows of unequal length"),
        ([1.0, 2.0, 3.0], ValueError, r"X: expected a 2D array.*1D.*\(3,\).*Reshape your data"),
        (3.0, ValueError, "X: expected a 2D array.*0D"),
        (np.zeros((2, 2, 2)), ValueError, r"got shape \(2, 2, 2\)"),
        (np.zeros((0, 2)), ValueError, "X: found no samples"),
        (np.zeros((1, 2)), ValueError, "X: found 1 sample.*at least 2"),
        (
            np.zeros((5, 0)),
            ValueError,
            r"0 feature\(s\) \(shape=\(5, 0\)\) while a minimum of 1 is required\.",
        ),
        ([[1.0, 2.0], [np.nan, np.inf]], ValueError, r"X contains 2 value\(s\).*\(nan\) at row 1, column 0"),
        ([[1.0, 2.0], [3.0, -np.inf]], ValueError, r"\(-inf\) at row 1, column 1"),
        ([[1.0, None], [3.0, 4.0]], ValueError, "NaN.*row 0, column 1"),
        ([[10**400], [1]], ValueError, "inf.*row 0"),
        (np.ma.masked_array(EXPECTED, mask=EXPECTED == 3), ValueError, "NaN.*row 2, column 0"),
    ],
)
def test_inputs_that_are_refused(X, error, message):
    with pytest.raises(error, match=message):
        as_matrix(X)


def test_the_name_of_the_argument_is_the_callers():
    with pytest.raises(ValueError, match=r"^X_new: expected a 2D"):
        as_matrix([1.0], "X_new")
    assert as_matrix([[1.0, 2.0]], min_rows=1).shape == (1, 2)


def test_targets():
    assert as_target([1, 2, 3], 3).shape == (3,)
    assert as_target(EXPECTED, 3).shape == (3, 2)
    assert as_target(torch.ones(3, 1), 3).shape == (3, 1)
    with pytest.raises(ValueError, match="y has 2 rows but X has 3"):
        as_target([1.0, 2.0], 3)
    with pytest.raises(ValueError, match=r"y contains 1 value\(s\).*row 2"):
        as_target([1.0, 2.0, np.nan], 3)
    with pytest.raises(ValueError, match="requires y to be passed"):
        as_target(None, 3)
    with pytest.raises(TypeError, match="y: found 'a' of type str in row 1"):
        as_target([1.0, "a", 2.0], 3)
    with pytest.raises(ValueError, match=r"y: expected shape \[n\] or \[n, P\], got \(\)"):
        as_target(1.0, 3)


def test_row_vectors():
    np.testing.assert_array_equal(as_row_vector([1, 2, 3], 3), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(as_row_vector(0.5, 2), [0.5, 0.5])
    np.testing.assert_array_equal(as_row_vector([0, 1], 2, allow_zero=True), [0.0, 1.0])
    with pytest.raises(ValueError, match="noise must be positive: 1 of 2 are not, first row 1"):
        as_row_vector([1.0, 0.0], 2, "noise")
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        as_row_vector([1.0, -1.0], 2, allow_zero=True)
    with pytest.raises(ValueError, match="sample_weight has 3 rows but X has 2"):
        as_row_vector([1.0, 1.0, 1.0], 2)
    with pytest.raises(ValueError, match=r"one number per row, shape \(2,\), got shape \(2, 1\)"):
        as_row_vector([[1.0], [1.0]], 2)


@pytest.mark.slow
def test_the_core_imports_without_the_frame_libraries():
    # None in sys.modules makes an import fail
    block = "import sys; sys.modules.update(dict.fromkeys(['pandas', 'polars', 'pyarrow']));"
    code = "import duogp.data, duogp.metrics, duogp.bases.inducing; duogp.data.as_matrix([[1.0], [2.0]])"
    subprocess.run([sys.executable, "-c", block + code], check=True)
