"""Forests as graphs give what forests give, missing entries included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor

from duogp.export.trees import Descent, LogAverages, TreeSums
from duogp.means.forest import Forest, LogAverage

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def rows():
    """Rows with gaps, which tell something of the target."""
    X = RNG.normal(size=(400, 4))
    X[RNG.random(X.shape) < 0.15] = np.nan
    y = 2 * np.nan_to_num(X[:, 0]) + 3 * np.isnan(X[:, 1]) + 0.1 * RNG.normal(size=len(X))
    return X, y


def boosted(X, y, seed):
    model = HistGradientBoostingRegressor(max_iter=15, min_samples_leaf=5, random_state=seed)
    forest = Forest.of(model.fit(X, y))
    assert forest is not None
    return forest


def test_sums_of_two_forests_with_missing_entries(rows):
    X, y = rows
    forests = [boosted(X[half::2], y[half::2], half) for half in range(2)]
    assert any(torch.isinf(own.threshold).any() for own in forests)  # splits of missing from all others
    x = torch.as_tensor(np.concatenate([X, [[np.inf] * 4, [-np.inf] * 4, [1e300] * 4]]))
    expected = torch.cat([own(x) for own in forests], 1)
    torch.testing.assert_close(TreeSums(forests)(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("unit", [1e-300, 1e40, 1e300])
def test_columns_of_any_size(rows, unit):
    X, y = rows[0] * unit, rows[1]
    forest = boosted(X, y, 0)
    torch.testing.assert_close(TreeSums([forest])(torch.as_tensor(X)), forest(torch.as_tensor(X)))


def test_nodes_that_no_path_reaches_are_refused(rows):
    forest = boosted(*rows, 0)
    with pytest.raises(ValueError, match="not the child of one node"):
        Descent([replace(forest, root=forest.root[1:], output=forest.output[1:])])


def test_bagged_trees_of_numbers_and_of_classes(rows):
    X, y = np.nan_to_num(rows[0]), rows[1]
    x = torch.as_tensor(X)
    numbers = Forest.of_bagged([RandomForestRegressor(5, random_state=0).fit(X, y)])
    torch.testing.assert_close(TreeSums([numbers])(x), numbers(x), rtol=0, atol=1e-12)
    labels = np.digitize(y, [-1.0, 1.0])
    classes = LogAverage.of_labels([RandomForestClassifier(5, random_state=0).fit(X, labels)], 3)
    torch.testing.assert_close(LogAverages(classes)(x), classes(x), rtol=0, atol=1e-6)


def test_children_stand_side_by_side_and_leaves_hold_their_rows(rows):
    X, y = rows
    descent = Descent([boosted(X, y, 0)])
    place = torch.arange(len(descent.first))
    leaf = descent.first == place
    assert torch.isinf(descent.threshold[leaf]).all() and torch.isfinite(descent.threshold[~leaf]).all()
    children = torch.cat([descent.first[~leaf], descent.first[~leaf] + 1])
    assert torch.equal(children.sort().values, place[descent.trees :])


def test_a_forest_without_trees_is_its_baseline():
    empty = torch.zeros(0, dtype=torch.long)
    none = Forest(
        empty, empty.double(), empty.bool(), empty, empty, empty.double(), empty, empty,
        torch.tensor([1.5], dtype=torch.float64), 0, 3,
    )  # fmt: skip
    assert TreeSums([none])(torch.zeros(2, 3, dtype=torch.float64)).tolist() == [[1.5], [1.5]]
