"""The report page: its content, what it escapes, and what it says where little is known."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import duogp
from duogp import cli
from duogp.reports.page import report_of
from duogp.reports.subject import subject_of

HOSTILE = "<script>alert(1)</script>"
LEVEL = 'blue\' onload="x" <b>'
QUICK = {"method": "svgp", "num_inducing": 20, "epochs": 15, "random_state": 0}


def frame(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    """Rows with hostile names, a category, dates and gaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n) + shift
    colour = rng.choice(["red", "green", LEVEL], n)
    gaps = rng.normal(size=n)
    gaps[rng.random(n) < 0.2] = np.nan
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    y = np.sin(2 * x) + (colour == "red") + 0.2 * rng.normal(size=n)
    labels = np.where(y > 0.8, "<img src=x>", np.where(y > 0.0, "mid", "low"))
    return pd.DataFrame(
        {HOSTILE: x, "colour": colour, "gappy": gaps, "day": days, "price & <i>": y, "label": labels}
    )


INPUTS = [HOSTILE, "colour", "gappy", "day"]


@pytest.fixture(scope="module")
def regressor():
    train = frame(200, 1)
    return duogp.GPRegressor(**QUICK).fit(train[INPUTS], train["price & <i>"])


@pytest.fixture(scope="module")
def classifier():
    train = frame(200, 1)
    return duogp.GPClassifier(**QUICK).fit(train[INPUTS], train["label"])


class Elements(HTMLParser):
    """Names of the elements of a page, and attributes that load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.sources: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href", "srcset")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def require_self_contained(page: str) -> None:
    """No script, no element of a stranger's, nothing from elsewhere."""
    found = Elements()
    found.feed(page)
    assert found.names.isdisjoint({"script", "i", "iframe", "object", "link"})
    assert not found.handlers
    assert all(source.startswith(("#", "data:image/svg+xml;base64,")) for source in found.sources)
    assert "url(" not in page
    assert "@import" not in page


def headings(page: str) -> list[str]:
    return re.findall(r"<h2 id=\"(\w+)\">", page)


EVERYTHING = ["model", "scores", "calibration", "variance", "far", "drift", "effects", "worst"]


def test_report_of_numbers(regressor):
    new = frame(120, 2)
    made = duogp.report(regressor, new[INPUTS], new["price & <i>"])
    require_self_contained(made.html)
    assert headings(made.html) == EVERYTHING
    words = ("R²", "CRPS", "targets inside", "noise", "svgp", "held back")
    assert [word in made.html for word in words] == [True] * 5 + [False]  # the estimator held nothing back
    assert "price &amp; &lt;i&gt;" in made.html  # the name of the Series
    assert made.findings[0].text.startswith("R² ")


def test_report_of_classes(classifier):
    new = frame(120, 2)
    made = duogp.report(classifier, new[INPUTS], new["label"], title="<u>classes</u>")
    require_self_contained(made.html)
    assert headings(made.html) == EVERYTHING
    assert "<title>&lt;u&gt;classes&lt;/u&gt;</title>" in made.html
    assert "&lt;img src=x&gt;" in made.html
    assert "log-loss" in made.html


def test_metrics_alone(regressor, classifier):
    """`duogp.evaluate`: of frames and arrays, for numbers the scores of `score` and `log_density`."""
    new = frame(120, 2)
    found = duogp.evaluate(regressor, new[INPUTS], new["price & <i>"])
    assert found["r2"] == pytest.approx(regressor.score(new[INPUTS], new["price & <i>"]))
    assert found["nll"] == pytest.approx(-regressor.log_density(new[INPUTS], new["price & <i>"]).mean())
    assert 0 <= found["coverage_50"] <= found["coverage_90"] <= found["coverage_95"] <= 1
    classes = duogp.evaluate(classifier, new[INPUTS], new["label"])
    assert classes["accuracy"] == pytest.approx(classifier.score(new[INPUTS], new["label"]))
    assert set(classes) == {"accuracy", "log_loss", "brier", "calibration_error"}
    with pytest.raises(ValueError, match="y"):
        duogp.evaluate(regressor, new[INPUTS], new["price & <i>"][:5])


def test_report_without_targets(regressor, tmp_path):
    made = duogp.report(regressor, frame(60, 2)[INPUTS], path=tmp_path / "report.html")
    assert headings(made.html) == ["model", "variance", "far", "drift", "effects"]
    assert (tmp_path / "report.html").read_text() == made.html


def test_report_finds_drift_unknown_levels_and_far_rows(regressor):
    new = frame(200, 3, shift=5.0)
    new.loc[:30, "colour"] = "a <new> level"
    made = duogp.report(regressor, new[INPUTS])
    text = " ".join(finding.text for finding in made.findings if not finding.is_good)
    assert "other values than in training" in text
    assert "colour (31 rows)" in text
    assert "farther from the training rows" in text
    require_self_contained(made.html)


def test_report_says_that_rows_are_those_of_the_fit(regressor):
    train = frame(200, 1)
    made = duogp.report(regressor, train[INPUTS], train["price & <i>"])
    assert any("same inputs as rows of this table" in finding.text for finding in made.findings)


def test_report_of_an_array_and_of_a_gp():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=80)
    gp = duogp.fit(X, y, "svgp", num_inducing=10, epochs=10)
    made = duogp.report(gp, X[:30], y[:30])
    assert "keeps none of its training rows" in made.html
    estimator = duogp.GPRegressor(**QUICK).fit(X, y)
    new = rng.normal(size=(40, 3))
    made = duogp.report(estimator, new, new[:, 0])
    assert headings(made.html) == EVERYTHING
    assert "column 0" in made.html
    assert duogp.report(estimator, X, y, max_rows=10).html.count("10 of 80 rows") == 1


@pytest.mark.parametrize("likelihood", ["poisson", "gamma"])
def test_report_of_other_likelihoods(likelihood):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    rate = np.exp(0.5 * X[:, 0] + 1)
    y = rng.poisson(rate).astype(float) if likelihood == "poisson" else rng.gamma(4, rate / 4)
    model = duogp.GPRegressor(likelihood=likelihood, **QUICK).fit(X[:60], y[:60])
    assert headings(duogp.report(model, X[60:], y[60:]).html) == EVERYTHING


def test_report_of_few_rows_and_constant_targets(regressor, classifier):
    one = frame(1, 5)
    assert headings(duogp.report(regressor, one[INPUTS], one["price & <i>"]).html) == EVERYTHING
    assert headings(duogp.report(classifier, one[INPUTS], one["label"]).html) == EVERYTHING
    some = frame(12, 5)
    strange = pd.Series(["never <seen>"] * 12)
    page = duogp.report(classifier, some[INPUTS], strange).html
    assert "never &lt;seen&gt;" in page


def test_report_of_rows_of_which_some_have_a_target(regressor):
    new = frame(40, 2)
    whole = subject_of(regressor, new[INPUTS], new["price & <i>"])
    there = np.arange(40) % 2 == 0
    part = type(whole)(gp=whole.gp, schema=whole.schema, table=whole.table, y=whole.y, there=there)
    assert "40 rows, 20 of them with a known y" in report_of(part).html
    np.testing.assert_allclose(part.scores["mean"], whole.scores["mean"][there], rtol=1e-9)


def test_several_outputs_are_refused():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = duogp.GPRegressor(**QUICK).fit(X, X)
    with pytest.raises(ValueError, match="one target"):
        duogp.report(model, X)
    with pytest.raises(ValueError, match="max_rows"):
        duogp.report(model, X, max_rows=0)


def test_report_command(tmp_path):
    train, new = frame(150, 1), frame(60, 2)
    train.to_csv(tmp_path / "train.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    new[INPUTS].to_csv(tmp_path / "unknown.csv", index=False)
    run = CliRunner()
    app = cli.build()
    model, page = str(tmp_path / "model"), tmp_path / "report.html"
    quick = ["--method", "svgp", "--num-inducing", "15", "--epochs", "10", "--test-fraction", "0.2", "-q"]
    roles = ["-t", "price & <i>", "--drop", "label", "-o", model]
    fitted = run.invoke(app, ["fit", str(tmp_path / "train.csv"), *roles, *quick])
    assert fitted.exit_code == 0, fitted.output
    made = run.invoke(app, ["report", model, str(tmp_path / "new.csv"), "-o", str(page)])
    assert made.exit_code == 0, made.output
    text = page.read_text()
    require_self_contained(text)
    assert headings(text) == EVERYTHING
    assert "held back at the fit" in text
    assert "120 rows in" in text
    again = run.invoke(app, ["report", model, str(tmp_path / "unknown.csv"), "-o", str(page), "--json"])
    assert again.exit_code == 0, again.output
    assert headings(page.read_text()) == ["model", "variance", "far", "drift", "effects"]
    refused = run.invoke(
        app, ["report", model, str(tmp_path / "new.csv"), "-o", str(tmp_path / "report.pdf")]
    )
    assert refused.exit_code == 2
    assert ".html" in refused.output
