"""Names of choices stand as literals in the types of `Settings`; the tables that they name are elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from duogp.bases.inducing import INITIALISERS
from duogp.bases.subspace import Preconditioner
from duogp.inference.mean_rules import MEAN_RULES
from duogp.methods import settings
from duogp.methods.settings import DTYPES, Settings, checks_of
from duogp.numerics.networks import ACTIVATIONS, Normalisation
from duogp.variational import RIDGES

TABLES = {
    "inducing_init": INITIALISERS,
    "extra_init": INITIALISERS,
    "mean_rule": MEAN_RULES,
    "ridge": RIDGES,
    "activation": ACTIVATIONS,
    "normalisation": get_args(Normalisation),
    "preconditioner": get_args(Preconditioner),
    "dtype": DTYPES,
}


@pytest.mark.parametrize("name", list(TABLES))
def test_choices_are_those_of_the_tables(name):
    hint: Any = get_type_hints(Settings)[name]
    names = get_args(hint) if isinstance(get_args(hint)[0], str) else get_args(get_args(hint)[0])
    assert names == tuple(TABLES[name])


def test_every_setting_with_a_range_has_a_check():
    free = {"likelihood", "kernel", "schedule", "device"}  # objects, or looked up where they are used
    assert {name for name, checks in checks_of(Settings).items() if not checks} == free


def test_settings_need_no_other_module_of_duogp():
    tree = ast.parse(Path(settings.__file__).read_text(encoding="utf-8"))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported if name.startswith("duogp")]
