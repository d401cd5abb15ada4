"""Tables that nobody would send, and that somebody will: a model with finite answers, or a clear error.

`make test` draws 60 tables and `make test-all` 200, always the same; `make fuzz` 2,000 new ones
(DUOGP_FUZZ_TABLES says how many).
"""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from duogp import GPClassifier, GPRegressor

pl = pytest.importorskip("polars")

TABLES = int(os.environ.get("DUOGP_FUZZ_TABLES", "200"))
PATIENCE = 30  # seconds of the processor, after which a fit of a few steps hangs
fuzzed = settings(
    max_examples=TABLES // 2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)

# -- columns -------------------------------------------------------------------------------------------------


def objects(rng, n, make):
    return np.array([make(int(v)) for v in rng.integers(-9, 9, size=n)], dtype=object)


def with_gaps(rng, n):
    return pd.Series(rng.choice(np.array([1, 2, None], dtype=object), size=n), dtype="Int64")


COLUMNS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "large": lambda rng, n: rng.normal(size=n) * 1e30,
    "huge": lambda rng, n: rng.normal(size=n) * 1e307,
    "small": lambda rng, n: rng.normal(size=n) * 1e-30,
    "subnormal": lambda rng, n: rng.integers(0, 5, size=n) * 5e-324,
    "shifted": lambda rng, n: 1e9 + rng.normal(size=n),
    "all scales": lambda rng, n: rng.choice([-1, 1], size=n) * 10.0 ** rng.uniform(-300, 300, size=n),
    "outlier": lambda rng, n: np.where(np.arange(n) == 0, 1e20, rng.normal(size=n)),
    "heavy": lambda rng, n: rng.standard_cauchy(size=n),
    "integers": lambda rng, n: rng.integers(-5, 5, size=n),
    "unsigned": lambda rng, n: rng.integers(0, 255, size=n).astype(np.uint8),
    "long": lambda rng, n: rng.integers(-(2**62), 2**62, size=n),
    "half": lambda rng, n: rng.normal(size=n).astype(np.float16),
    "single": lambda rng, n: rng.normal(size=n).astype(np.float32),
    "flags": lambda rng, n: rng.random(n) > 0.5,
    "constant": lambda rng, n: np.full(n, 3.7),
    "zero": lambda rng, n: np.zeros(n),
    "signed zero": lambda rng, n: rng.choice([0.0, -0.0], size=n),
    "nearly constant": lambda rng, n: 1 + 1e-15 * rng.normal(size=n),
    "one different": lambda rng, n: (np.arange(n) == 0).astype(float),
    "index": lambda rng, n: np.arange(n),
}
ODD_COLUMNS = {
    "gaps": lambda rng, n: np.where(rng.random(n) > 0.5, np.nan, rng.normal(size=n)),
    "infinite": lambda rng, n: np.where(rng.random(n) > 0.5, np.inf, rng.normal(size=n)),
    "text": lambda rng, n: np.array(rng.choice(["", "a", "1.5", "ü\n"], size=n).tolist(), dtype=object),
    "none": lambda rng, n: np.array([None] * n, dtype=object),
    "objects": lambda rng, n: objects(rng, n, int),
    "decimals": lambda rng, n: objects(rng, n, lambda v: Decimal(v) / 7),
    "fractions": lambda rng, n: objects(rng, n, lambda v: Fraction(v, 7)),
    "beyond floats": lambda rng, n: objects(rng, n, lambda v: 10 ** abs(40 * v)),
    "dates": lambda rng, n: np.datetime64("2020-01-01") + rng.integers(0, 99, size=n).astype("m8[D]"),
    "durations": lambda rng, n: rng.integers(0, 99, size=n).astype("m8[s]"),
    "complex": lambda rng, n: rng.normal(size=n) + 1j,
    "mixed": lambda rng, n: np.array([*[1.0, "b", None, True, [1], {}], *[0.5] * n][:n], dtype=object),
}
NAMES = st.sampled_from(
    ["x", "", " ", "a b", "ü", "\n", "0", "None", "x" * 300, "noise", "🙂", "columns", "T"]
)
CONTAINERS = ["array", "fortran", "readonly", "list", "pandas", "polars", "arrow", "tensor", "masked", "rows"]


@st.composite
def tables(draw):
    """X as the model gets it, its number of rows, and a generator for what belongs to them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(2, 25), st.sampled_from([0, 1, 2, 3, 60])))
    d = draw(st.one_of(st.integers(1, 4), st.sampled_from([0, 30])))
    kinds = draw(st.lists(st.sampled_from([*COLUMNS]), min_size=d, max_size=d))
    odd = draw(st.sampled_from([*[None] * 12, *ODD_COLUMNS]))
    if odd is not None and d > 0:
        kinds[0] = odd
    columns = [(COLUMNS | ODD_COLUMNS)[kind](rng, n) for kind in kinds]
    if n > 3 and draw(st.integers(0, 4)) == 0:  # rows that come again
        again = rng.integers(0, 3, size=n)
        columns = [column[again] for column in columns]
    container = draw(st.sampled_from(CONTAINERS))
    names = draw(st.one_of(st.none(), st.lists(NAMES, min_size=d, max_size=d)))
    return contained(columns, n, container, names, draw(st.integers(0, 5))), n, rng


def framed(columns, n, container, names, variant):
    d = len(columns)
    if container == "pandas":
        frame = pd.concat([pd.Series(c) for c in columns], axis=1) if d else pd.DataFrame(index=range(n))
        odd = [list(range(d)), [(i, "a") for i in range(d)], [None] * d]
        frame.columns = odd[variant] if variant < 3 else names
        return frame.convert_dtypes() if variant == 4 else frame.astype("category") if variant == 5 else frame
    once = [f"{name}{j}" if names.count(name) > 1 else name for j, name in enumerate(names)]
    values = dict(zip(once, columns, strict=True))
    if container == "polars":
        return pl.DataFrame(values, strict=False)
    return pa.table({name: pa.array(column) for name, column in values.items()})


def contained(columns, n, container, names, variant):
    """The columns in a container; what that cannot hold comes as an array."""
    d = len(columns)
    names = [f"x{j}" for j in range(d)] if names is None else names
    if container in ("pandas", "polars", "arrow"):
        try:
            return framed(columns, n, container, names, variant)
        except Exception:  # their own limits, not ours
            container = "array"
    kinds = {c.dtype.kind for c in columns}
    mixed = bool(kinds & set("OMmc"))
    array = np.empty((n, d), dtype=object if mixed else np.float64)
    for j, column in enumerate(columns):
        array[:, j] = column.tolist() if mixed and len(kinds) > 1 else column
    if container == "fortran":
        return np.asfortranarray(array)
    if container == "readonly":
        array.setflags(write=False)
    elif container == "list":
        return array.tolist()
    elif container == "rows":
        return [tuple(row) for row in array.tolist()]
    elif container == "tensor" and not mixed:
        with np.errstate(over="ignore"):
            return torch.tensor(array.astype(np.float32 if variant % 2 else np.float64))
    elif container == "masked" and not mixed:
        return np.ma.masked_array(array, mask=np.zeros(array.shape) > variant)
    return array


# -- targets -------------------------------------------------------------------------------------------------

LABELS = {
    "two": lambda rng, n: rng.integers(0, 2, size=n),
    "three": lambda rng, n: rng.choice(["", "b", "ü b"], size=n),
    "objects": lambda rng, n: rng.choice(["x", "y"], size=n).astype(object),
    "flags": lambda rng, n: rng.random(n) > 0.5,
    "whole floats": lambda rng, n: rng.integers(-2, 2, size=n).astype(float),
    "floats": lambda rng, n: rng.normal(size=n),
    "huge": lambda rng, n: rng.choice([-(2**62), 2**62], size=n),
    "one": lambda rng, n: np.zeros(n),
    "each its own": lambda rng, n: np.arange(n),
    "rare": lambda rng, n: (np.arange(n) == 0).astype(int),
    "bytes": lambda rng, n: rng.choice([b"a", b"b"], size=n),
    "dates": lambda rng, n: np.datetime64("2020-01-01") + rng.integers(0, 3, size=n).astype("m8[D]"),
    "no dates": lambda rng, n: rng.choice(np.array(["2020-01-01", "NaT"], dtype="M8[D]"), size=n),
    "times": lambda rng, n: objects(rng, n, lambda v: datetime(2020, 1, 1) + timedelta(v // 5)),
    "gaps": lambda rng, n: rng.choice(np.array(["a", None, np.nan], dtype=object), size=n),
    "mixed": lambda rng, n: rng.choice(np.array(["a", 1, 2.5], dtype=object), size=n),
    "flags and numbers": lambda rng, n: rng.choice(np.array([True, 2, 3.0], dtype=object), size=n),
    "tuples": lambda rng, n: [(1, "a"), (2, "b")] * (n // 2) + [(1, "a")] * (n % 2),
    "dicts": lambda rng, n: [{}] * n,
    "categories": lambda rng, n: pd.Series(rng.choice(["u", "v"], size=n), dtype="category"),
    "nullable": with_gaps,
    "strings": lambda rng, n: pd.Series(rng.choice(["u", "v"], size=n), dtype="string"),
    "polars": lambda rng, n: pl.Series(rng.choice(["u", "v"], size=n).tolist(), dtype=pl.String),
    "complex": lambda rng, n: rng.normal(size=n) + 1j,
    "column": lambda rng, n: rng.integers(0, 2, size=(n, 1)),
    "two columns": lambda rng, n: rng.integers(0, 2, size=(n, 2)),
    "short": lambda rng, n: rng.integers(0, 2, size=max(n - 1, 0)),
    "nothing": lambda rng, n: None,
}
TARGETS = (
    COLUMNS
    | ODD_COLUMNS
    | {
        "two outputs": lambda rng, n: rng.normal(size=(n, 2)) * [1, 1e9],
        "column": lambda rng, n: rng.normal(size=(n, 1)),
        "positive": lambda rng, n: rng.gamma(1.0, size=n),
        "shares": lambda rng, n: rng.uniform(size=n),
        "counts": lambda rng, n: rng.poisson(3.0, size=n),
        "many counts": lambda rng, n: rng.poisson(1e6, size=n),
        "short": lambda rng, n: rng.normal(size=max(n - 1, 0)),
        "cube": lambda rng, n: rng.normal(size=(n, 1, 1)),
        "nothing": lambda rng, n: None,
        "nullable": with_gaps,
    }
)
WEIGHTS = {
    "ones": lambda rng, n: np.ones(n),
    "counts": lambda rng, n: rng.integers(0, 3, size=n),
    "zeros": lambda rng, n: np.zeros(n),
    "single": lambda rng, n: (np.arange(n) == 0).astype(float),
    "wild": lambda rng, n: 10.0 ** rng.uniform(-20, 20, size=n),
    "negative": lambda rng, n: -np.ones(n),
    "gaps": lambda rng, n: np.full(n, np.nan),
    "number": lambda rng, n: 2.0,
    "long": lambda rng, n: np.ones(n + 1),
}
METHODS = ["auto", "auto", "svgp", "dcsvgp", "ppgpr-mf", "odsvgp", "exact", "map"]
LIKELIHOODS = [*[None] * 6, "student-t", "heteroscedastic", "poisson", "gamma", "beta"]


def model_settings(draw):
    return {
        "method": draw(st.sampled_from(METHODS)),
        "epochs": 2,
        "num_inducing": draw(st.sampled_from([None, 1, 4])),
        "standardize": draw(st.sampled_from([True, True, True, "minmax", "cube", False])),
        "dtype": draw(st.sampled_from(["float64", "float64", "float32"])),
        "calibration_fraction": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "random_state": 0,
    }


@st.composite
def problems(draw, targets):
    X, n, rng = draw(tables())
    y = targets[draw(st.sampled_from([*targets]))](rng, n)
    weight = draw(st.sampled_from([*[None] * 9, *WEIGHTS]))
    return X, y, None if weight is None else WEIGHTS[weight](rng, n), model_settings(draw)


# -- what must hold ------------------------------------------------------------------------------------------


class Hangs(Exception):
    """A fit of two epochs that does not end."""


@contextmanager
def patience():
    def ring(*_):
        raise Hangs

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fitted_or_refused(model, X, y, weight):
    """The model, or None where it was refused in an acceptable way."""
    with warnings.catch_warnings(), patience():
        warnings.simplefilter("ignore")
        try:
            return model.fit(X, y, sample_weight=weight)
        except (ValueError, TypeError) as error:
            if len(str(error)) < 10:
                raise AssertionError("an error must say what is wrong") from error
            return None


def finite(*arrays):
    return all(np.isfinite(a).all() for a in arrays)


@fuzzed
@given(problems(TARGETS), st.sampled_from(LIKELIHOODS))
def test_any_table_of_numbers_is_fitted_or_refused(problem, likelihood):
    X, y, weight, chosen = problem
    model = fitted_or_refused(GPRegressor(likelihood=likelihood, **chosen), X, y, weight)
    if model is None:
        return
    with warnings.catch_warnings(), patience():
        warnings.simplefilter("ignore")
        mean, std = model.predict(X, return_std=True)
        assert finite(mean, std) and (std >= 0).all()
        assert finite(*model.predict_interval(X))
        parts = model.explain_variance(X)
        assert finite(*parts) and all((part >= 0).all() for part in parts)
        assert not np.isnan(model.predict_interval(X, kind="conformal") if model.calibration_ else 0.0).any()
        if getattr(model, "schema_", None) is None:  # a frame's columns may hold no such numbers
            assert finite(model.predict(np.zeros((1, model.n_features_in_))))
            assert finite(model.predict(np.full((2, model.n_features_in_), 1e300)))
        assert finite(model.sample_y(X, 2))


@fuzzed
@given(problems(LABELS))
def test_any_table_of_labels_is_fitted_or_refused(problem):
    X, y, weight, chosen = problem
    if chosen["method"] == "exact":
        chosen["method"] = "svgp"
    model = fitted_or_refused(GPClassifier(**chosen), X, y, weight)
    if model is None:
        return
    with warnings.catch_warnings(), patience():
        warnings.simplefilter("ignore")
        p = model.predict_proba(X)
        assert finite(p, model.decision_function(X)) and np.allclose(p.sum(1), 1)
        assert set(model.predict(X).tolist()) <= set(model.classes_.tolist())
        if getattr(model, "schema_", None) is None:  # a frame's columns may hold no such numbers
            assert finite(model.predict_proba(np.full((2, model.n_features_in_), 1e300)))
        assert set(model.sample_y(X, 2).ravel().tolist()) <= set(model.classes_.tolist())


PLAIN = [kind for kind in COLUMNS if kind not in ("huge", "all scales")]


@settings(max_examples=max(TABLES // 10, 1), deadline=None)
@given(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3), st.sampled_from(PLAIN), st.integers(2, 30))
@example(["constant"], "constant", 2)
def test_finite_tables_are_never_refused(kinds, target, n):
    rng = np.random.default_rng(0)
    X = np.column_stack([COLUMNS[kind](rng, n) for kind in kinds])
    with warnings.catch_warnings(), patience():
        warnings.simplefilter("ignore")
        model = GPRegressor(epochs=2, num_inducing=4, random_state=0).fit(X, COLUMNS[target](rng, n))
        assert finite(*model.predict(X, return_std=True))
