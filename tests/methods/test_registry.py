"""The registry: names, aliases, hints, citations, and counts that agree with the fitted models."""

from __future__ import annotations

import numpy as np
import pytest

import duogp
from duogp.methods import CITATIONS, METHODS

NAMES = (
    *("svgp", "map", "gamma-robust", "vfitc", "ppgpr-delta", "ppgpr-mf", "ppgpr-chol", "ppgpr-mfd"),
    *("dcsvgp", "dcppgpr", "odsvgp", "odppgpr", "solvegp", "dsgpc-eps", "dsgpc-free"),
)
BOUNDS = {"svgp", "odsvgp", "solvegp", "dsgpc-eps"}


def test_the_methods_of_the_papers_are_all_here():
    assert set(NAMES) <= set(METHODS)
    assert len(METHODS) == len(list(METHODS))
    assert all(METHODS[name].name == name for name in METHODS)


def test_names_are_unique_and_described():
    assert len(set(METHODS)) == len(METHODS)
    for method in METHODS.values():
        assert method.summary
        assert method.reference == CITATIONS[method.citation]


@pytest.mark.parametrize("spelling", ["ppgpr", "PPGPR", "PPGPR-Chol"])
def test_ppgpr_is_ppgpr_chol(spelling):
    assert METHODS[spelling] is METHODS["ppgpr-chol"]
    assert spelling in METHODS


def test_orth_is_odsvgp():
    assert METHODS["orth"] is METHODS["ORTH"] is METHODS["odsvgp"]


def test_which_methods_are_bounds_at_their_defaults():
    assert {name for name in NAMES if METHODS[name].is_bound} == BOUNDS
    assert all(METHODS[name].objective == "elbo" for name in BOUNDS)


def test_which_methods_have_a_second_block():
    expected = {"odsvgp", "odppgpr", "solvegp", "dsgpc-eps", "dsgpc-free"}
    assert {name for name in NAMES if METHODS[name].has_second_block} == expected


@pytest.mark.parametrize(
    ("name", "count", "formula"),
    [
        ("svgp", 4 + 10, "M + M(M+1)/2"),
        ("odsvgp", 4 + 6 + 10, "M + E + M(M+1)/2"),
        ("solvegp", 4 + 6 + 10 + 21, "M + E + M(M+1)/2 + E(E+1)/2"),
        ("dsgpc-eps", 4 + 10, "M + M(M+1)/2"),
        ("dsgpc-free", 4 + 10, "M + M(M+1)/2"),
    ],
)
def test_parameter_counts(name, count, formula):
    assert METHODS[name].num_variational_parameters(4, 6) == count
    assert METHODS[name].variational_parameters == formula


@pytest.mark.parametrize(("typed", "meant"), [("dcsvpg", "dcsvgp"), ("ppgrp", "ppgpr"), ("vftic", "vfitc")])
def test_an_unknown_name_gets_a_hint(typed, meant):
    assert typed not in METHODS
    with pytest.raises(ValueError, match=f"unknown method '{typed}'; did you mean '{meant}"):
        METHODS[typed]


def test_an_unrelated_name_gets_the_list():
    with pytest.raises(ValueError, match=r"unknown method 'zzzz'.*svgp.*dcppgpr"):
        METHODS["zzzz"]


def test_a_method_is_named_by_a_string():
    with pytest.raises(TypeError, match="method must be a name or a Method, got int"):
        METHODS[3]
    assert 3 not in METHODS


def test_a_recipe_cannot_be_changed_by_accident():
    METHODS["dcsvgp"].defaults["beta2"] = 1.0
    assert METHODS["dcsvgp"].defaults["beta2"] == 1e-3
    with pytest.raises(AttributeError):
        METHODS["dcsvgp"].q = "point"


@pytest.mark.parametrize("name", NAMES)
def test_parameter_counts_agree_with_the_model(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    method = METHODS[name]
    extra = {"num_extra": 9} if method.basis == "separate" or method.has_second_block else {}
    gp = duogp.fit(X, X[:, 0], name, num_inducing=5, epochs=1, validation_fraction=0.0, **extra)
    counted = METHODS[name].num_variational_parameters(5, extra.get("num_extra"))
    assert gp.num_variational_parameters() == counted
    formula = METHODS[name].variational_parameters.replace("M(M+1)", "M*(M+1)").replace("E(E+1)", "E*(E+1)")
    assert eval(formula, {"M": 5, "E": 9}) == counted
