"""Figures: what is drawn, on which axes, and that matplotlib stays out until then."""

import subprocess
import sys

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

import duogp  # noqa: E402
from duogp import metrics, plots  # noqa: E402
from duogp.training.history import History, Record  # noqa: E402


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def line():
    x = np.linspace(100.0, 300.0, 40)[:, None]
    return x, np.sin(x[:, 0] / 30)


@pytest.fixture(scope="module")
def gp(line):
    return duogp.fit(*line, "svgp", num_inducing=7, epochs=20, device="cpu")


@pytest.fixture
def forecast():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=300), rng.uniform(0.5, 2.0, 300)
    return mean + std * rng.normal(size=300), mean, std


@pytest.mark.slow
def test_the_package_and_the_module_import_without_matplotlib():
    code = "import sys, duogp, duogp.plots; assert not any(m.startswith('matplotlib') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_history_without_validation_has_one_axis():
    ax = plots.history_plot(History([Record(1, 2.0, 0.1), Record(2, 1.0, 0.2)]))
    assert ax.get_xlabel() == "epoch"
    assert len(ax.figure.axes) == 1
    assert list(ax.lines[0].get_ydata()) == [2.0, 1.0]


def test_history_with_validation_has_a_twin_and_marks_the_best_epoch():
    records = [
        Record(1, 2.0, 0.1, 1.5),
        Record(2, 1.0, 0.2),
        Record(3, 0.5, 0.3, float("inf")),
        Record(4, 0.4, 0.4, 1.2),
    ]
    history = History(records, best_epoch=4)
    ax = history.plot()
    _, twin = ax.figure.axes
    assert list(twin.lines[0].get_xdata()) == [1, 4]  # epochs without a finite look are left out
    assert "best: 4" in [t.get_text() for t in ax.texts]


def test_one_dimensional_fit_draws_in_the_users_units(gp, line):
    _, given = plt.subplots()
    grid = np.linspace(100.0, 300.0, 50)
    ax = plots.one_dimensional_fit(given, gp, *line, grid, np.sin(grid / 30), title="fit")
    assert ax is given
    drawn = {artist.get_label(): artist for artist in ax.lines}
    np.testing.assert_allclose(drawn["predictive mean"].get_ydata(), gp.predict(grid[:, None]).mean)
    ticks = drawn["inducing points"].get_xdata()
    assert len(ticks) == 7
    assert ticks.min() > 80 and ticks.max() < 320
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("x", "y", "fit")


def test_calibration_draws_what_the_metric_measures(forecast):
    ax = plots.calibration_plot(*forecast)
    curve = ax.lines[-1]
    error = np.mean(np.abs(curve.get_ydata() - curve.get_xdata()))
    assert error == pytest.approx(metrics.quantile_calibration_error(*forecast))


def test_intervals_that_are_too_wide_are_steep_in_the_middle(forecast):
    y, mean, std = forecast
    curve = plots.calibration_plot(y, mean, 5 * std).lines[-1]
    levels, below = curve.get_xdata(), curve.get_ydata()
    assert np.interp(0.2, levels, below) < 0.1
    assert np.interp(0.8, levels, below) > 0.9


@pytest.mark.parametrize("draw", [plots.calibration_plot, plots.zscore_cdf])
def test_several_models_share_axes_and_one_reference(draw, forecast):
    ax = draw(*forecast, label="a")
    assert draw(*forecast, ax, label="b") is ax
    references = [line for line in ax.lines if line.get_gid() == "reference"]
    colors = [line.get_color() for line in ax.lines if line.get_gid() != "reference"]
    assert len(references) == 1
    assert colors == list(plots.PALETTE[:2])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"]


def test_zscores_end_at_one(forecast):
    curve = plots.zscore_cdf(*forecast).lines[-1]
    assert curve.get_ydata()[-1] == 1.0
    assert (np.diff(curve.get_xdata()) >= 0).all()


def test_predicted_vs_observed_thins_long_tables(forecast):
    ax = plots.predicted_vs_observed(*forecast, max_rows=50)
    assert len(ax.collections[-1].get_offsets()) == 50
    assert ax.get_xlim() == ax.get_ylim()


def test_bad_input_is_named(forecast):
    y, mean, std = forecast
    with pytest.raises(ValueError, match="mean has .* values but y has"):
        plots.calibration_plot(y[:-1], mean, std)
    with pytest.raises(ValueError, match="std must be positive"):
        plots.zscore_cdf(y, mean, 0 * std)


# -- titles, labels, long tables ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("weight_kg", "weight (kg)"),
        ("depth [m]", "depth (m)"),
        ("air_temp_c", "air temp (°C)"),
        ("share_pct", "share (%)"),
        ("petal length (cm)", "petal length (cm)"),
        ("vitamin c", "vitamin c"),
        ("m", "m"),
        ("a_b", "a b"),
        ("größe", "größe"),
        ("cost $ and $", r"cost \$ and \$"),
        ("", "y"),
        ("x" * 60, "x" * 39 + "…"),
    ],
)
def test_names_become_labels_with_units(name, label):
    assert plots.label_of(name) == label


def test_own_axes_have_a_title_and_given_ones_keep_theirs(forecast):
    assert plots.calibration_plot(*forecast).get_title(loc="left") == "Calibration of quantiles"
    _, ax = plt.subplots()
    assert plots.zscore_cdf(*forecast, ax=ax).get_title(loc="left") == ""


def test_many_rows_are_counted_in_hexagons():
    rng = np.random.default_rng(0)
    mean = rng.normal(size=20_000)
    y = mean + rng.normal(size=20_000)
    ax = plots.predicted_vs_observed(y, mean, np.ones(20_000), name="price_eur")
    assert any("20,000 rows" in text.get_text() for text in ax.texts)
    assert ax.get_xlabel() == "predicted price (EUR)"
    counts = ax.collections[0].get_array()
    assert 0.99 * 20_000 < counts.sum() <= 20_000
    assert len(plots.zscore_cdf(y, mean, np.ones(20_000)).lines[-1].get_xdata()) <= 2000
    with pytest.raises(ValueError, match="style must be"):
        plots.predicted_vs_observed(y, mean, y, style="pie")


def test_a_selection_of_rows_says_so(forecast):
    ax = plots.predicted_vs_observed(*forecast, max_rows=50)
    assert any("50 of 300 rows" in text.get_text() for text in ax.texts)


def test_slices_nest_the_parts_of_the_variance(gp):
    grid = np.linspace(100.0, 300.0, 30)
    prediction = gp.predict(grid[:, None])
    widths = plots.bands(prediction)
    assert list(widths) == ["explained", "residual", "noise"]
    assert (widths["explained"] <= widths["residual"]).all()
    low, high = prediction.interval(0.95)
    np.testing.assert_allclose(2 * widths["noise"], high - low)
    ax = plots.slice_plot(grid, prediction, name="depth_m", target="heat", data=grid)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("depth (m)", "heat")
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["within the data", "+ far from the data", "+ noise", "mean"]


def test_slices_along_categories_and_dates(gp):
    prediction = gp.predict(np.array([[120.0], [180.0], [250.0]]))
    ax = plots.slice_plot(np.array(["a", "b", "c"]), prediction)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b", "c"]
    dates = np.array(["2020-01-01", "2021-01-01", "2022-01-01"], dtype="datetime64[D]")
    ax = plots.slice_plot(dates, prediction)
    ax.figure.canvas.draw()


def test_slices_of_a_matrix_share_their_scale(gp, line):
    (ax,) = plots.slices(gp, line[0], names=["depth"], target="heat")
    assert ax.get_xlabel() == "depth"
    with pytest.raises(ValueError, match="two-dimensional"):
        plots.slices(gp, line[0][:, 0])


def test_relevance_shows_the_largest_first():
    names = [f"c{i}" for i in range(20)]
    ax = plots.relevance_plot(names, np.arange(20.0))
    shown = [tick.get_text() for tick in ax.get_yticklabels()]
    assert shown[0] == "c19" and len(shown) == 15
    assert any("15 of 20 columns" in text.get_text() for text in ax.texts)


def test_the_parts_of_the_variance_add_up_to_the_deviation(gp):
    prediction = gp.predict(np.linspace(50.0, 350.0, 60)[:, None])
    ax = plots.variance_plot(prediction, target="heat", steps=20)
    top = max(path.vertices[:, 1].max() for c in ax.collections for path in c.get_paths())
    assert top == pytest.approx(np.sqrt(np.sort(prediction.variance)[-3:].mean()))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sum(int(label.split("(")[1].rstrip("%)")) for label in labels) == pytest.approx(100, abs=2)


def test_classes_have_figures_of_their_own():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 400)
    codes = np.array([rng.choice(3, p=row) for row in p])
    curve = plots.reliability_plot(codes, p).lines[-1]
    assert len(curve.get_xdata()) == 10
    assert np.abs(curve.get_xdata() - curve.get_ydata()).mean() < 0.1  # drawn from these probabilities
    ax = plots.confusion_plot(codes, p.argmax(1), ["a", "b", "c"])
    assert sum(int(text.get_text().replace(",", "")) for text in ax.texts) == 400


def test_a_history_of_one_step_is_seen():
    assert plots.history_plot(History([Record(1, 2.0, 0.1)])).lines[0].get_marker() == "o"
