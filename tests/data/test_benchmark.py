"""Scaling, columns, splits, toy problem and the benchmark files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duogp import data
from duogp.data import PROTOCOLS, Scaler, informative_columns

needs_data = pytest.mark.skipif(data.data_root() is None, reason="DUOGP_DATA is not set: no benchmark files")


def table(n: int = 200, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * [1.0, 50.0, 1e-3][:d] + 5.0
    return X, X[:, 0] + rng.normal(size=n)


# ---- scaling -----------------------------------------------------------------------------------------------


def test_standard_is_mean_and_sample_deviation():
    X, _ = table()
    scaler = Scaler.standard(X)
    np.testing.assert_allclose(scaler.shift, X.mean(0), rtol=1e-13)
    np.testing.assert_allclose(scaler.scale, X.std(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(scaler.inverse(scaler.transform(X)), X, rtol=1e-13)


@pytest.mark.parametrize("size", [1.0, 1e307])
def test_columns_are_scaled_on_a_device_as_they_are_in_memory(size):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1.7, 1.7, 50) * 10 * size, 3 + rng.normal(size=50)])
    X[:2, 0] = 17.9 * size, -17.9 * size  # their distance to any mean but zero is no float
    scaler = Scaler.standard(X)
    found = scaler.on(torch.device("cpu"))(torch.as_tensor(X)).numpy()
    np.testing.assert_allclose(found, scaler.transform(X), rtol=1e-12)
    np.testing.assert_allclose(found.std(0, ddof=1), 1.0, rtol=1e-9)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01, 1e-9])
def test_weights_of_any_unit_have_the_scale_of_their_rows(share):
    """Weights that sum to one, or to less, are no reason for another scale."""
    X, _ = table()
    plain, found = Scaler.standard(X), Scaler.weighted(X, np.full(len(X), share))
    np.testing.assert_allclose(found.shift, plain.shift, rtol=1e-9)
    np.testing.assert_allclose(found.scale, plain.scale, rtol=1e-9)
    twice = Scaler.weighted(X, np.full(len(X), 2.0))  # whole numbers are repeated rows
    np.testing.assert_allclose(twice.scale, Scaler.standard(np.concatenate([X, X])).scale, rtol=1e-9)


def test_minmax_reaches_both_ends():
    X, _ = table()
    Z = Scaler.minmax(X).transform(X)
    np.testing.assert_allclose([Z.min(0), Z.max(0)], [[-1] * 3, [1] * 3], atol=1e-11)


def test_columns_of_the_cube_are_scaled_by_it_and_others_by_their_range():
    # inside and wide; inside and narrow; half outside; wide, not from zero; constant
    X = np.array([[0.1, 0.40, -0.1, 30.0, 0.5], [0.9, 0.45, 0.9, 70.0, 0.5]])
    scaler = Scaler.cube(X)
    np.testing.assert_allclose(scaler.shift, [0.5, 0.425, 0.4, 50.0, 0.5])
    np.testing.assert_allclose(scaler.scale, [0.5, 0.025, 0.5, 20.0, 1.0])
    ends = np.array([[0.0, 0.25], [0.0, 0.0], [1.0, 0.5]])
    np.testing.assert_array_equal(Scaler.cube(ends).scale, [0.5, 0.5])  # ends and a quarter count


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1, 1), min_size=2, max_size=20),
    magnitude=st.sampled_from([5e-324, 1e-310, 1e-200, 1e-12, 1.0, 1e12, 1e200, 1.7e308]),
    kind=st.sampled_from(["standard", "minmax", "cube"]),
)
@example(values=[1.0, -1.0], magnitude=1.7e308, kind="standard")  # deviates by more than a float can hold
@example(values=[1.0, -1.0], magnitude=1.7e308, kind="minmax")
@example(values=[1.0, -1.0], magnitude=1.7e308, kind="cube")
def test_any_magnitude_survives(values, magnitude, kind):
    y = np.array(values) * magnitude
    scaler = getattr(Scaler, kind)(y)
    z = scaler.transform(y)
    assert np.isfinite(z).all()
    assert np.abs(z).max() <= np.sqrt(len(values)) + 1
    if magnitude >= 1e-200 and np.ptp(values) > 1e-6:
        if kind == "cube" and magnitude == 1.0 and min(values) >= 0:
            return  # scaled by [0, 1], where it may be anywhere
        expected = (
            1.0
            if kind in ("minmax", "cube")
            else np.abs(np.array(values) - np.mean(values)).max() / np.std(values, ddof=1)
        )
        if kind == "standard":
            expected *= max(1.0, np.std(values, ddof=1) * (magnitude / np.finfo(np.float64).max))
        assert np.abs(z).max() == pytest.approx(expected, rel=1e-6)


def test_a_small_signal_on_a_large_offset_keeps_its_deviation():
    noise = np.random.default_rng(0).integers(-5, 6, size=1_000).astype(float)
    scaler = Scaler.standard(1e12 + noise)
    assert scaler.scale[0] == pytest.approx(noise.std(ddof=1), rel=1e-9)
    assert abs(scaler.transform(1e12 + noise).mean()) < 1e-3


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1e300, 5e-324])
@pytest.mark.parametrize("kind", ["standard", "minmax", "cube"])
def test_constant_columns_become_zeros_at_scale_one(kind, value):
    y = np.full(7, value)
    scaler = getattr(Scaler, kind)(y)
    assert scaler.scale.tolist() == [1.0]
    np.testing.assert_array_equal(scaler.transform(y), np.zeros(7))
    np.testing.assert_array_equal(scaler.inverse(np.zeros(7)), y)


def test_rounding_noise_is_not_a_signal():
    y = np.array([0.3, 0.1 + 0.2] * 10)
    assert Scaler.standard(y).scale.tolist() == [1.0]


def test_vectors_stay_vectors_and_float32_stays_float32():
    y = np.arange(4, dtype=np.float32)
    scaler = Scaler.standard(y)
    assert scaler.transform(y).shape == (4,)
    assert scaler.transform(y).dtype == np.float32
    assert scaler.transform(np.arange(4)).dtype == np.float64
    assert scaler.transform(y[:, None]).shape == (4, 1)
    np.testing.assert_array_equal(Scaler.identity(1).transform(y), y)
    with pytest.raises(ValueError, match=r"1 column\(s\), got an array of shape \(4, 2\)"):
        scaler.transform(np.zeros((4, 2)))


def test_scalers_round_trip_through_json():
    scaler = Scaler.standard(table()[0])
    again = Scaler.from_dict(json.loads(json.dumps(scaler.to_dict())))
    np.testing.assert_array_equal(again.shift, scaler.shift)
    np.testing.assert_array_equal(again.scale, scaler.scale)


def test_scalers_refuse_what_cannot_be_inverted():
    with pytest.raises(ValueError, match="positive"):
        Scaler(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="one length"):
        Scaler(np.zeros(1), np.ones(2))


# ---- columns -----------------------------------------------------------------------------------------------


def test_informative_columns_are_relative_unless_told_otherwise():
    u = np.linspace(0, 1, 50)
    X = np.column_stack([u, 1e-12 * u, np.full(50, 0.1), np.zeros(50), 1e6 + u, 1e308 * (2 * u - 1) * 1.7])
    assert informative_columns(X).tolist() == [True, True, False, False, True, True]
    assert informative_columns(X[:, :5], absolute=True).tolist() == [True, False, False, False, True]
    assert informative_columns(X, tol=1e-5)[4] == False  # noqa: E712


# ---- splits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"), [("dc", (152, 20, 31)), ("orth", (182, 0, 21)), ("components", (162, 0, 41))]
)
def test_protocols_partition_the_rows(name, sizes):
    X, y = table(203)
    split = PROTOCOLS[name](X, y, seed=3)
    rows = split.rows
    assert (len(rows.train), len(rows.val), len(rows.test)) == sizes
    assert sorted(np.concatenate([rows.train, rows.val, rows.test])) == list(range(203))
    np.testing.assert_allclose(split.x_scaler.inverse(split.X_test), X[rows.test], rtol=1e-12)
    np.testing.assert_allclose(split.y_scaler.inverse(split.y_train), y[rows.train], rtol=1e-12)
    assert split.X_val.shape == (sizes[1], 3)
    np.testing.assert_array_equal(rows.test, PROTOCOLS[name](X, y, seed=3).rows.test)
    assert not np.array_equal(rows.test, PROTOCOLS[name](X, y, seed=4).rows.test)


def test_dc_protocol_is_the_published_one():
    X, y = table()
    X = np.column_stack([X, np.full(200, 3.0)])
    split = data.dc_protocol(X, y, seed=0)
    assert split.columns.tolist() == [True, True, True, False]
    everything = np.concatenate([split.X_train, split.X_val, split.X_test])
    np.testing.assert_allclose([everything.min(0), everything.max(0)], [[-1] * 3, [1] * 3], atol=1e-11)
    targets = np.concatenate([split.y_train, split.y_val, split.y_test])
    assert targets.mean() == pytest.approx(0, abs=1e-12)
    assert targets.std(ddof=1) == pytest.approx(1)


def test_scaling_on_the_training_rows_does_not_see_the_test_rows():
    X, y = table()
    split = data.dc_protocol(X, y, seed=0, scale_on="train")
    assert split.y_train.mean() == pytest.approx(0, abs=1e-12)
    changed = y.copy()
    changed[split.rows.test] += 100
    np.testing.assert_array_equal(
        data.dc_protocol(X, changed, seed=0, scale_on="train").y_train, split.y_train
    )
    with pytest.raises(ValueError, match="scale_on must be 'all' or 'train', got 'test'"):
        data.dc_protocol(X, y, seed=0, scale_on="test")


def test_orth_protocol_adds_its_epsilon():
    X, y = table()
    split = data.orth_protocol(X, y, seed=0)
    np.testing.assert_allclose(split.x_scaler.scale, X.std(0) + 1e-6, rtol=1e-12)


def test_class_numbers_and_several_outputs():
    X, y = table()
    labels = (y > y.mean()).astype(np.int64)
    split = data.components_protocol(X, labels, seed=0, scale_target=False)
    np.testing.assert_array_equal(split.y_test, labels[split.rows.test])
    assert split.y_test.dtype == np.int64
    several = data.dc_protocol(X, np.column_stack([y, 2 * y + 1]), seed=0)
    np.testing.assert_allclose(several.y_train[:, 0], several.y_train[:, 1])
    with pytest.raises(ValueError, match="but X has 200"):
        data.components_protocol(X, labels[:-1], seed=0, scale_target=False)


# ---- toy ---------------------------------------------------------------------------------------------------


def test_the_one_dimensional_toy():
    toy = data.dc_one_dimensional()
    assert (toy.x.shape, toy.y.shape, toy.x_test.shape, toy.f_test.shape) == (
        (100, 1),
        (100,),
        (1000, 1),
        (1000,),
    )
    assert (toy.x[0, 0], toy.x[-1, 0]) == (-2.0, 4.0)
    np.testing.assert_array_equal(toy.y, data.dc_one_dimensional(seed=0).y)
    clean = data.dc_one_dimensional(noise=0.0)
    np.testing.assert_allclose(clean.y, np.exp(-(clean.x[:, 0] + 1)) * np.sin(2 * np.pi * clean.x[:, 0]))
    assert (toy.y - clean.y).std() == pytest.approx(0.1, rel=0.2)


# ---- benchmark files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for task in ("regression", "robot", "images"):
        (tmp_path / task).mkdir()
    X = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.savez(tmp_path / "regression" / "tiny.npz", X=X, y=X[:, 0], test_mask=np.eye(4, dtype=bool))
    np.savez(tmp_path / "regression" / "twin.npz", X=X, y=X[:, 0])
    np.savez(tmp_path / "robot" / "twin.npz", X=X, Y=X, traj=np.zeros(4))
    np.savez(tmp_path / "images" / "px.npz", X=np.full((4, 2), 255, np.uint8), y=np.arange(4, dtype=np.int16))
    np.savez(tmp_path / "images" / "other.npz", split=np.zeros(4))
    monkeypatch.setenv("DUOGP_DATA", str(tmp_path))
    return tmp_path


def test_load_finds_sets_by_short_and_full_name(folder):
    assert data.available() == ["images/px", "regression/tiny", "regression/twin", "robot/twin"]
    tiny = data.load("tiny")
    assert (tiny.name, tiny.task, tiny.y.shape) == ("regression/tiny", "regression", (4,))
    assert tiny.test_mask is not None
    assert tiny.is_test is None
    assert data.load("robot/twin").y.shape == (4, 2)
    assert list(data.load("robot/twin").extra) == ["traj"]
    images = data.load("px")
    assert (images.X == 1).all()
    assert (images.X.dtype, images.y.dtype) == (np.float32, np.int64)


def test_load_says_what_to_do(folder, monkeypatch):
    with pytest.raises(ValueError, match="ambiguous: say one of regression/twin, robot/twin"):
        data.load("twin")
    with pytest.raises(FileNotFoundError, match="did you mean tiny"):
        data.load("tinny")
    monkeypatch.setenv("DUOGP_DATA", str(folder / "missing"))
    with pytest.raises(FileNotFoundError, match="holds no"):
        data.load("tiny")
    monkeypatch.delenv("DUOGP_DATA")
    assert data.available() == []
    with pytest.raises(FileNotFoundError, match="export DUOGP_DATA=<folder>"):
        data.load("tiny")


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "dims"), [("pol", 11250, 26), ("bike", 13034, 17), ("keggundirected", 47706, 26)]
)
def test_training_sizes_are_those_of_the_paper(name, train, dims):  # MATH §2.4
    dataset = data.load(name)
    split = data.dc_protocol(dataset.X, dataset.y, seed=0)
    assert split.X_train.shape == (train, dims)


@needs_data
def test_every_listed_set_loads():
    names = data.available()
    assert "regression/pol" in names
    assert not any(name.startswith("molecules") for name in names)
    for name in ("toy/snelson", "robot/sarcos_test", "classification/mnist-10k"):
        dataset = data.load(name)
        assert dataset.X.ndim == 2
        assert dataset.X.shape[0] == dataset.y.shape[0]
        assert np.isfinite(dataset.X).all()
