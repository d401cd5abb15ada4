"""Metrics against their definitions: quadrature, large samples, hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from duogp import metrics


def problem(n: int = 20_000, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets drawn from the prediction itself, their standard deviation off by the factor `spread`."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2.0, size=n)
    return mean + std * rng.normal(size=n), mean, std * spread


def test_errors_of_the_mean_by_hand():
    y, mean = [1.0, 2.0, 3.0, 6.0], [1.0, 2.0, 3.0, 2.0]
    assert metrics.rmse(y, mean) == 2.0
    assert metrics.mae(y, mean) == 1.0
    assert metrics.nmse(y, mean) == pytest.approx(4.0 / np.var(y))
    assert metrics.nmse(y, np.full(4, np.mean(y))) == pytest.approx(1.0)
    assert np.isnan(metrics.nmse([1.0, 1.0], [1.0, 2.0]))


def test_nll_is_the_normal_log_density():
    y, mean, std = problem(50)
    assert metrics.nll(y, mean, std) == pytest.approx(-stats.norm.logpdf(y, mean, std).mean(), rel=1e-13)
    tiny = 1e-200  # σ² underflows, log σ does not
    assert metrics.nll([0.0], [0.0], [tiny]) == pytest.approx(0.5 * np.log(2 * np.pi) + np.log(tiny))


@pytest.mark.parametrize("y", [-3.0, 0.2, 1.0, 6.0])
def test_crps_is_its_integral(y):
    mean, std = 0.7, 1.3
    below, _ = integrate.quad(lambda t: stats.norm.cdf(t, mean, std) ** 2, -20, y, epsabs=1e-12)
    above, _ = integrate.quad(lambda t: stats.norm.sf(t, mean, std) ** 2, y, 25, epsabs=1e-12)
    assert metrics.crps([y], [mean], [std]) == pytest.approx(below + above, abs=1e-9)


def test_crps_tends_to_the_absolute_error_as_std_vanishes():
    assert metrics.crps([3.0], [1.0], [1e-12]) == pytest.approx(2.0)


def test_wasserstein_is_the_integral_between_quantile_functions():
    z = np.array([-2.5, -0.1, 0.1, 0.3, 4.0])
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    expected = np.abs(np.sort(z)[(u * 5).astype(int)] - stats.norm.ppf(u)).mean()
    assert metrics.zscore_wasserstein(z, np.zeros(5), np.ones(5)) == pytest.approx(expected, abs=2e-6)


def test_wasserstein_agrees_with_scipy_on_a_large_sample():
    y, mean, std = problem(2_000, spread=0.7)
    normal = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    expected = stats.wasserstein_distance((y - mean) / std, normal)
    assert metrics.zscore_wasserstein(y, mean, std) == pytest.approx(expected, rel=1e-4)


def test_wasserstein_known_values():
    one, zero = np.ones(1), np.zeros(1)
    assert metrics.zscore_wasserstein(zero, zero, one) == pytest.approx(np.sqrt(2 / np.pi))  # E|N(0,1)|
    assert metrics.zscore_wasserstein(50 * one, zero, one) == pytest.approx(50.0)
    assert metrics.zscore_wasserstein(1e200 * one, zero, one) == pytest.approx(1e200)


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=30), st.floats(-3, 3))
@settings(max_examples=50, deadline=None)
def test_wasserstein_moves_by_at_most_the_shift(z, shift):
    z, zero, one = np.array(z), np.zeros(len(z)), np.ones(len(z))
    before = metrics.zscore_wasserstein(z, zero, one)
    after = metrics.zscore_wasserstein(z + shift, zero, one)
    assert before >= 0
    assert abs(after - before) <= abs(shift) + 1e-9
    assert before == pytest.approx(metrics.zscore_wasserstein(-z, zero, one), abs=1e-9)


def test_honest_predictions_are_calibrated_and_others_are_not():
    honest, timid = problem(), problem(spread=3.0)
    assert metrics.quantile_calibration_error(*honest) < 0.01
    assert metrics.zscore_wasserstein(*honest) < 0.02
    assert metrics.coverage(*honest) == pytest.approx(0.95, abs=0.005)
    assert metrics.coverage(*honest, level=0.5) == pytest.approx(0.5, abs=0.02)
    assert metrics.quantile_calibration_error(*timid) > 0.1
    assert metrics.coverage(*timid) > 0.999
    assert metrics.crps(*honest) < metrics.crps(*timid)
    assert metrics.nll(*honest) < metrics.nll(*timid)


def test_quantile_calibration_of_a_point_mass():
    # every y at the median: P̂ is 0 below p = ½ and 1 from there on
    p = np.arange(1, 100) / 100
    expected = np.abs((p >= 0.5) - p).mean()
    assert metrics.quantile_calibration_error(np.zeros(7), np.zeros(7), np.ones(7)) == pytest.approx(expected)


def test_noise_share():
    assert metrics.noise_share(1.0, [2.0, 4.0]) == pytest.approx(0.375)
    assert metrics.noise_share([1.0, 3.0], [2.0, 4.0]) == pytest.approx(0.625)


def test_all_metrics_at_once():
    y, mean, std = problem(100)
    values = metrics.regression_metrics(y, mean, std)
    assert {
        name: getattr(metrics, name)(y, mean, std) for name in values if name not in ("rmse", "mae", "nmse")
    } == {name: value for name, value in values.items() if name not in ("rmse", "mae", "nmse")}
    noisy = metrics.regression_metrics(y, mean, std, noise_variance=0.1)
    assert noisy["noise_share"] == pytest.approx(metrics.noise_share(0.1, std**2))
    assert set(noisy) - set(values) == {"noise_share"}
    assert all(type(value) is float for value in noisy.values())
    tensors = [torch.tensor(a, requires_grad=True) for a in (y, mean, std)]
    assert metrics.regression_metrics(*tensors) == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[1.0]], [1.0]), r"mean must be one-dimensional.*\(1, 1\)"),
        (([1.0, 2.0], [1.0, 2.0], [1.0]), "std has 1 values but y has 2"),
        (([], [], []), "y is empty"),
        (([1.0], [np.nan], [1.0]), "mean holds 1 of 1"),
        (([1.0], [1.0], [0.0]), "std must be positive"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    for function in (metrics.regression_metrics, metrics.nll, metrics.zscore_wasserstein):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


def test_errors_of_noise_and_level():
    with pytest.raises(ValueError, match=r"noise_variance must be one number or have shape \(2,\)"):
        metrics.regression_metrics([1.0, 2.0], [1.0, 2.0], [1.0, 1.0], noise_variance=[1.0])
    with pytest.raises(ValueError, match="noise_variance must not be negative"):
        metrics.noise_share(-1.0, [2.0])
    with pytest.raises(ValueError, match="level must lie"):
        metrics.coverage([1.0], [1.0], [1.0], level=95)


# -- classes -----------------------------------------------------------------------------------------------


def class_problem(n: int = 50_000, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from the probabilities themselves."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.full(classes, 0.7), n)
    return (p.cumsum(1) < rng.uniform(size=(n, 1))).sum(1), p


def test_class_metrics_by_hand():
    p = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]]
    values = metrics.classification_metrics([0, 2, 2], p)
    assert values["accuracy"] == pytest.approx(2 / 3)
    assert values["nll"] == pytest.approx(-np.log([0.7, 0.3, 0.4]).mean())
    squares = [0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.6**2 + 0.7**2, 0.3**2 + 0.3**2 + 0.6**2]
    assert values["brier"] == pytest.approx(np.mean(squares))
    assert values["ece"] == pytest.approx((0.3 + 0.6 + 0.6) / 3)  # each row alone in its bin
    assert all(type(value) is float for value in values.values())
    assert metrics.classification_metrics(torch.tensor([0, 2, 2]), torch.tensor(p)) == pytest.approx(values)


def test_class_metrics_against_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    y, p = class_problem(500)
    assert metrics.log_loss(y, p) == pytest.approx(sklearn.log_loss(y, p))
    assert metrics.accuracy(y, p) == sklearn.accuracy_score(y, p.argmax(1))


def test_honest_classes_are_calibrated_and_others_are_not():
    y, p = class_problem()
    bold = p**3 / (p**3).sum(1, keepdims=True)
    assert metrics.expected_calibration_error(y, p) < 0.01
    assert metrics.expected_calibration_error(y, bold) > 0.1
    assert metrics.accuracy(y, bold) == metrics.accuracy(y, p)
    assert metrics.log_loss(y, p) < metrics.log_loss(y, bold)
    assert metrics.brier(y, p) < metrics.brier(y, bold)


def test_calibration_error_is_the_sum_over_bins():
    y, p = class_problem(3000)
    top, hit = p.max(1), p.argmax(1) == y
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (top >= low) & (top < low + 1 / 15)
        if inside.any():
            total += inside.mean() * abs(hit[inside].mean() - top[inside].mean())
    assert metrics.expected_calibration_error(y, p) == pytest.approx(total)
    assert metrics.expected_calibration_error(y, p, bins=1) == pytest.approx(abs(hit.mean() - top.mean()))


def test_nothing_is_held_impossible():
    certain = [[1.0, 0.0], [0.0, 1.0]]
    assert metrics.log_loss([0, 0], certain) == pytest.approx(-np.log(1e-12) / 2)
    assert metrics.log_loss([0, 1], certain) == pytest.approx(0, abs=1e-11)


def test_classes_have_names_and_unseen_ones_no_probability():
    p = [[0.1, 0.9], [0.8, 0.2]]
    by_name = metrics.classification_metrics([7, 3], p, classes=[3, 7])
    assert by_name == metrics.classification_metrics([1, 0], p)
    assert metrics.classification_metrics(["b", "a"], p, classes=["a", "b"]) == by_name
    unseen = metrics.classification_metrics([7, 5], p, classes=[3, 7])
    assert unseen["accuracy"] == 0.5
    assert unseen["nll"] == pytest.approx((-np.log(0.9) - np.log(1e-12)) / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [0.5]), r"probabilities must have shape \[n, classes\], got \(1,\)"),
        (([[0]], [[0.5, 0.5]]), "labels must be one-dimensional"),
        (([], np.zeros((0, 2))), "labels is empty"),
        (([0], np.full((2, 2), 0.5)), "probabilities has 2 rows but labels has 1"),
        (([0], [[np.nan, 1.0]]), "probabilities holds 1 of 2"),
        (([0], [[-2.0, 3.0]]), r"must lie in \[0, 1\]"),
        (([0], [[0.5, 0.2]]), "must sum to 1 in every row, got a sum of 0.7"),
        (([2], [[0.5, 0.5]]), "labels must be column numbers from 0 to 1, got 2 to 2"),
        ((["a"], [[0.5, 0.5]]), "unless classes are given"),
        (([1], [[0.5, 0.5]], [1, 1]), "classes must be 2 different names"),
    ],
)
def test_errors_of_class_metrics_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics.classification_metrics(*arguments)
