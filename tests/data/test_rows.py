"""Rows drawn at random: the same for a seed, and others for other purposes of one seed."""

from __future__ import annotations

import numpy as np

from duogp.data.rows import groups_of_inputs, hold_out


def test_every_row_is_in_one_part_and_a_seed_draws_the_same_rows():
    rows = np.arange(10, 60)
    rest, held = hold_out(rows, 15, 3)
    assert len(held) == 15 and sorted([*rest, *held]) == rows.tolist()
    np.testing.assert_array_equal(held, hold_out(rows, 15, 3)[1])
    np.testing.assert_array_equal(held, rows[np.random.default_rng(3).permutation(50)[:15]])


def test_purposes_of_one_seed_draw_different_rows():
    drawn = [tuple(hold_out(np.arange(50), 15, seed)[1]) for seed in (3, (3, 1), (3, 2))]
    assert len(set(drawn)) == 3


def test_rows_of_equal_inputs_are_one_group_where_they_have_weights():
    X = np.array([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [2.0, 3.0]])
    groups = groups_of_inputs(X, np.ones(4))
    assert groups is not None and groups[0] == groups[2] and len(set(groups)) == 3
    assert groups_of_inputs(X, None) is None  # rows that were not joined
    assert groups_of_inputs(X[:2], np.ones(2)) is None  # nothing is equal


def test_groups_are_held_out_together_but_for_one():
    groups = np.repeat(np.arange(20), 3)
    rest, held = hold_out(np.arange(60), 14, 0, groups)
    assert len(held) == 14 and sorted([*rest, *held]) == list(range(60))
    assert len(set(groups[held]) & set(groups[rest])) == 1
