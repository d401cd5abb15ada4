"""Rows that arrive and results that leave piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from duogp.data.arriving import Arriving, Leaving

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pieces_are_the_matrix(device, dtype):
    X = np.random.default_rng(0).normal(size=(23, 3)).astype(dtype)
    X.setflags(write=False)
    rows = Arriving(X[:, ::-1], torch.device(device), lambda x: 2 * x)
    pieces = list(rows.split(5))
    assert [len(piece) for piece in pieces] == ([5, 5, 5, 5, 3] if device == "cpu" else [1, 5, 5, 5, 5, 2])
    assert len(rows) == 23
    assert all(piece.dtype == torch.float64 and piece.device.type == device for piece in pieces)
    np.testing.assert_array_equal(torch.cat(pieces).cpu(), 2.0 * X[:, ::-1])
    np.testing.assert_array_equal(rows.together().cpu(), 2.0 * X[:, ::-1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", [1, 2])
def test_results_come_home_in_order(device, outputs):
    values = torch.arange(10.0 * outputs, device=device).reshape(outputs, 10)
    leaving, same = Leaving(10), Leaving(10)
    for piece in values.split(4, dim=1):
        leaving.add(piece)
        same.add(piece.new_full((outputs, 1), 3.0).expand(outputs, piece.shape[1]))
    found = leaving.all()
    assert found.dtype == np.float64 and found.flags.writeable
    np.testing.assert_array_equal(found, values.cpu().T)
    np.testing.assert_array_equal(same.all(), np.full((10, outputs), 3.0))
