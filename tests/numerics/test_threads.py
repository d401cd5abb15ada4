"""Fewer threads for a while, of torch and of the libraries of numpy and scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import threadpoolctl
import torch

import duogp
from duogp.fitting.race_closed import ClosedRace
from duogp.numerics.threads import at_most


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def pools() -> list[int]:
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]


def test_a_limit_holds_within_and_ends_with_the_block():
    before = pools()
    with at_most(1):
        assert torch.get_num_threads() == 1 and set(pools()) == {1}
    assert torch.get_num_threads() == 2 and pools() == before
    with pytest.raises(KeyError), at_most(1):
        raise KeyError
    assert torch.get_num_threads() == 2 and pools() == before


@pytest.mark.parametrize("limit", [None, 2, 8])
def test_no_limit_and_high_limits_change_nothing(limit):
    before = pools()
    with at_most(limit):
        assert torch.get_num_threads() == 2 and pools() == before


def test_small_tables_race_on_one_thread(monkeypatch):
    seen, candidates = [], ClosedRace.candidates

    def watched(race):
        seen.append(torch.get_num_threads())
        return candidates(race)

    monkeypatch.setattr(ClosedRace, "candidates", watched)
    X = np.random.default_rng(0).normal(size=(60, 2))
    duogp.fit(X, X[:, 0], "auto", random_state=0, device="cpu")
    assert seen == [1] and torch.get_num_threads() == 2
