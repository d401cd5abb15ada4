"""The guide names every method, and methods that exist."""

from __future__ import annotations

import json
import re

from typer.testing import CliRunner

import duogp
from duogp import cli
from duogp.methods import CHOOSER, METHODS, USE_WHEN


def test_every_method_has_a_line_on_when_to_use_it():
    assert list(USE_WHEN) == list(METHODS)
    assert METHODS["orth"].use_when == USE_WHEN["odsvgp"]


def test_the_chooser_names_methods_that_exist():
    assert len(CHOOSER) == 6
    named = {name for _, text in CHOOSER for name in re.findall(r"\b[a-z]+(?:-[a-z]+)*\b", text)}
    assert {"exact", "svgp", "ppgpr-chol", "ivsgpr"} <= named & set(METHODS)


def test_the_command_lists_aliases_and_when_to_use_each():
    rows = {
        row["name"]: row for row in json.loads(CliRunner().invoke(cli.build(), ["methods", "--json"]).stdout)
    }
    assert rows["odsvgp"]["aliases"] == ["orth"]
    assert rows["exact"]["use_when"] == USE_WHEN["exact"]
    chosen = CliRunner().invoke(cli.build(), ["methods", "--choose"])
    assert chosen.exit_code == 0
    assert "ppgpr-chol" in chosen.output
    assert "orth" in CliRunner().invoke(cli.build(), ["methods"]).output


def test_public_names_are_listed_without_an_import():
    assert {"GPRegressor", "GPClassifier", "fit", "load", "report", "METHODS"} <= set(dir(duogp))
