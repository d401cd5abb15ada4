"""Rows drawn at random: the same for a seed, and others for other purposes of one seed."""

from __future__ import annotations

import numpy as np

from duogp.data.rows import hold_out


def test_every_row_is_in_one_part_and_a_seed_draws_the_same_rows():
    rows = np.arange(10, 60)
    rest, held = hold_out(rows, 15, 3)
    assert len(held) == 15 and sorted([*rest, *held]) == rows.tolist()
    np.testing.assert_array_equal(held, hold_out(rows, 15, 3)[1])
    np.testing.assert_array_equal(held, rows[np.random.default_rng(3).permutation(50)[:15]])


def test_purposes_of_one_seed_draw_different_rows():
    drawn = [tuple(hold_out(np.arange(50), 15, seed)[1]) for seed in (3, (3, 1), (3, 2))]
    assert len(set(drawn)) == 3
