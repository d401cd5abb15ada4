"""Search spaces: every point is valid, maps to the cube and back, and satisfies the constraints."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duogp.bo.spaces import Categorical, Integer, Linear, Real, Space, read_space, space_of_arguments

MIXED = Space(
    {
        "lr": Real(1e-5, 1e-1, log=True),
        "layers": Integer(1, 8),
        "width": Integer(8, 1024, log=True),
        "kind": Categorical(["sgd", "adam", "lion"]),
        "momentum": Real(0, 1, when={"kind": "sgd"}),
        "beta": Real(0.5, 0.999, when={"kind": ["adam", "lion"], "layers": [2, 3]}),
        "nesterov": Categorical(["yes", "no"], when={"kind": "sgd"}),
    }
)

finite = st.floats(-1e6, 1e6)


@st.composite
def parameters(draw):
    kind = draw(st.sampled_from(["real", "log", "int", "logint", "cat"]))
    if kind == "cat":
        return Categorical(draw(st.lists(st.text(max_size=5), min_size=2, max_size=5, unique=True)))
    if kind == "real":
        low = draw(finite)
        return Real(low, low + draw(st.floats(1e-3, 1e6)))
    if kind == "log":
        low = draw(st.floats(1e-8, 1e3))
        return Real(low, low * draw(st.floats(1.01, 1e8)), log=True)
    low = draw(st.integers(-1000, 1000)) if kind == "int" else draw(st.integers(1, 1000))
    return Integer(low, low + draw(st.integers(1, 5000)), log=kind == "logint")


@st.composite
def spaces(draw):
    found = draw(st.lists(parameters(), min_size=1, max_size=5))
    parents = [i for i, p in enumerate(found) if isinstance(p, Categorical)]
    named = {f"p{i}": p for i, p in enumerate(found)}
    if parents and draw(st.booleans()):
        parent = draw(st.sampled_from(parents))
        value = draw(st.sampled_from(list(found[parent].categories)))
        named["child"] = Real(-1.0, 2.0, when={f"p{parent}": value})
    return Space(named)


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_any_space_round_trips_to_the_cube(space, seed):
    rng = np.random.default_rng(seed)
    U = space.sample(5, rng)
    assert U.shape == (5, space.width) and (U >= 0).all() and (U <= 1).all()
    points = space.decode(U)
    for point in points:
        assert space.checked(point) == point  # valid, in the types of the space
    np.testing.assert_allclose(space.encode(points), U, atol=1e-9)
    again = space.decode(space.encode(points))
    for a, b in zip(points, again, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            if isinstance(value, float):
                assert b[name] == pytest.approx(value, rel=1e-9, abs=1e-9 * max(1.0, abs(value)))
            else:
                assert b[name] == value and type(b[name]) is type(value)
    anywhere = rng.uniform(-0.5, 1.5, (20, space.width))  # a model may propose anything
    for point in space.decode(anywhere):
        space.checked(point)
    assert json.loads(json.dumps(points)) == points
    assert Space.of(json.loads(json.dumps(space.spec()))) == space


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-3, 3).filter(lambda w: abs(w) > 1e-2), min_size=3, max_size=3),
    st.floats(0.05, 0.95),
    st.sampled_from(["<=", ">=", "=="]),
    st.integers(0, 2**32 - 1),
)
def test_any_constraint_holds(weights, level, sign, seed):
    names = ["a", "b", "n"]
    parameters = {
        "a": Real(-1, 1),
        "b": Real(1e-3, 10, log=True),
        "n": Integer(0, 9),
        "c": Categorical(["x", "y"]),
    }
    lows, highs = np.array([-1.0, 1e-3, 0.0]), np.array([1.0, 10.0, 9.0])
    w = np.array(weights)
    least, most = np.minimum(w * lows, w * highs).sum(), np.maximum(w * lows, w * highs).sum()
    space = Space(
        parameters, [Linear(dict(zip(names, weights, strict=True)), sign, least + level * (most - least))]
    )
    rng = np.random.default_rng(seed)
    centre = space.sample(1, rng)[0]
    near = space.perturbed(centre, np.zeros(space.width), np.ones(space.width), 20, rng, moved=2)
    for U in (space.sample(10, rng), space.design(10, rng), space.snap(rng.random((10, space.width))), near):
        for point in space.decode(U):
            space.checked(point)


def test_a_mixed_space_with_conditions():
    U = MIXED.sample(400, np.random.default_rng(0))
    points = MIXED.decode(U)
    assert {p["kind"] for p in points} == {"sgd", "adam", "lion"}
    for p in points:
        assert type(p["layers"]) is int and type(p["kind"]) is str and type(p["lr"]) is float
        assert ("momentum" in p) == ("nesterov" in p) == (p["kind"] == "sgd")
        assert ("beta" in p) == (p["kind"] != "sgd" and p["layers"] in (2, 3))
    assert {p["layers"] for p in points} == set(range(1, 9))
    counts = np.bincount([p["layers"] for p in points])[1:]
    assert counts.min() > 25  # uniform: 50 each
    assert np.median([p["width"] for p in points]) == pytest.approx(90, rel=0.3)  # uniform in the logarithm
    inactive = [i for i, p in enumerate(points) if p["kind"] != "sgd"]
    assert np.unique(U[inactive][:, MIXED.slices[4]]).tolist() == [0.5]


def test_a_latin_hypercube_of_integers_has_every_value():
    U = Space({"n": Integer(1, 8), "x": (0.0, 1.0)}).design(8, np.random.default_rng(0))
    space = Space({"n": Integer(1, 8), "x": (0.0, 1.0)})
    assert sorted(p["n"] for p in space.decode(U)) == list(range(1, 9))


def test_perturbations_move_few_parameters_and_categories_too():
    rng = np.random.default_rng(1)
    space = Space({f"x{i}": (0.0, 1.0) for i in range(30)} | {"kind": Categorical(["a", "b", "c"])})
    centre = space.sample(1, rng)[0]
    U = space.perturbed(centre, np.clip(centre - 0.1, 0, 1), np.clip(centre + 0.1, 0, 1), 500, rng, moved=5)
    changed = np.stack([(np.abs(U[:, s] - centre[s]) > 0).any(1) for s in space.slices], 1)
    assert 3.5 < changed.sum(1).mean() < 6
    assert changed[:, -1].any()
    assert np.abs(U - centre)[:, :30].max() <= 0.1 + 1e-12


def test_constraints_that_nearly_forbid_everything():
    space = Space({"a": (0.0, 1.0), "b": (0.0, 1.0), "n": Integer(0, 5)}, ["a + b == 1", "n >= 5"])
    for point in space.decode(space.sample(5, np.random.default_rng(0))):
        assert point["a"] + point["b"] == pytest.approx(1.0, abs=1e-5) and point["n"] == 5


def test_a_constraint_binds_where_its_parameters_are_active():
    space = Space(
        {"k": Categorical(["u", "v"]), "a": Real(0, 1, when={"k": "u"}), "b": Real(0, 1)}, ["a + b <= 0.5"]
    )
    points = space.decode(space.sample(200, np.random.default_rng(0)))
    assert max(p["b"] for p in points if p["k"] == "v") > 0.9
    assert max(p["a"] + p["b"] for p in points if p["k"] == "u") < 0.51


def test_an_integer_moved_by_a_constraint_activates_its_dependents():
    space = Space({"n": Integer(0, 9), "x": Real(0, 1, when={"n": [0, 1]})}, ["n <= 1"])
    (point,) = space.decode(space.encode([{"n": 1, "x": 0.2}]) * 0 + 0.95)
    assert point == {"n": 1, "x": 0.5}


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (Real(1, 1), "'p': the lower bound must be below.*leave a parameter with one value out"),
        (Real(2, 1), "got 2 and 1"),
        (Real(0, 1, log=True), "log scale needs positive bounds"),
        (Real(0, float("inf")), "must be finite"),
        (Real(float("nan"), 1), "must be finite"),
        (Real(1.0, 1.0 + 1e-16), "must be below"),
        (Real(-1e308, 1e308), "too far apart"),
        (Integer(1, 2.5), "bounds of an integer must be integers"),
        (Integer(0, 2**60), "beyond 2"),
        (Categorical(["a"]), "at least two categories"),
        (Categorical(["a", "a"]), "occurs twice"),
        ("int(3)", "a lower and an upper bound"),
        ("uniform(0, 1)", "must be real"),
        ("int(a, b)", "bounds must be numbers"),
        (Real(0, 1, when={"q": "a"}), "depends on 'q', which is not in the space"),
        (Real(0, 1, when={"p": 1}), "real parameter"),
        ({"type": "int", "low": 1}, "lacks high"),
        ({"type": "int", "low": 1, "high": 2, "stepp": 1}, "has no stepp"),
        ({"type": "float", "low": 1, "high": 2}, "type must be one of"),
    ],
)
def test_degenerate_parameters_are_refused(parameter, words):
    with pytest.raises(ValueError, match=words):
        Space({"p": parameter})


def test_other_mistakes():
    with pytest.raises(TypeError, match="categories must be a list"):
        Space({"p": Categorical("ab")})
    with pytest.raises(TypeError, match="bounds must be numbers"):
        Space({"p": Real("0", 1)})
    with pytest.raises(TypeError, match="must be Real, Integer"):
        Space({"p": 3})
    with pytest.raises(ValueError, match="at least one parameter"):
        Space({})
    with pytest.raises(ValueError, match="go in a circle"):
        Space({"a": Integer(0, 1, when={"b": 0}), "b": Integer(0, 1, when={"a": 0})})
    with pytest.raises(ValueError, match="no point of the space satisfies"):
        Space({"a": (0.0, 1.0)}, ["a >= 2"])
    with pytest.raises(ValueError, match="no parameter 'b'"):
        Space({"a": (0.0, 1.0)}, ["a + b <= 2"])
    with pytest.raises(ValueError, match="'k' is not a number"):
        Space({"k": Categorical(["a", "b"])}, ["k <= 2"])
    for text in ("a*a <= 1", "a", "a <= b <= c", "f(a) <= 1", "__import__('os') <= 1", "1 <= 2", "a <= 1/0"):
        with pytest.raises(ValueError, match="a constraint is a linear inequality"):
            Space({"a": (0.0, 1.0)}, [text])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 1.0}, "'lr' must lie between"),
        ({"layers": 2.5}, "'layers' must be an integer"),
        ({"kind": "rmsprop"}, "'kind' must be one of"),
        ({"depth": 2}, "no parameter depth"),
        ({"momentum": 0.5}, "'momentum' is not active"),
        ({"lr": None}, "must be a number"),
    ],
)
def test_points_outside_a_space_are_refused(change, words):
    good = {"lr": 0.01, "layers": 4, "width": 64, "kind": "adam"}
    assert (
        MIXED.checked({"lr": np.float64(0.01), "layers": np.int64(4), "width": 64.0, "kind": "adam"}) == good
    )
    with pytest.raises((ValueError, TypeError), match=words):
        MIXED.checked(good | change)
    with pytest.raises(ValueError, match="no value of parameter 'width'"):
        MIXED.checked({k: v for k, v in good.items() if k != "width"})


# -- text ----------------------------------------------------------------------------------------------------


def test_the_command_line_toml_and_python_say_the_same(tmp_path):
    by_hand = Space(
        {
            "lr": Real(1e-5, 1e-1, log=True),
            "layers": Integer(1, 8),
            "width": Integer(8, 64, log=True),
            "kind": Categorical(["sgd", "a, b"]),
            "momentum": Real(0.0, 1.0, when={"kind": ["sgd"], "layers": [1, 2]}),
        },
        [Linear({"layers": 2.0, "width": 1.0}, "<=", 70.0)],
    )
    typed = space_of_arguments(
        [
            "lr=log(1e-5, 1e-1)",
            "layers=int(1,8)",
            "width=logint(8,64)",
            'kind=cat(sgd,"a, b")',
            "momentum=real(0,1) if kind=sgd & layers=1|2",
        ],
        ["2*layers + width <= 70"],
    )
    file = tmp_path / "space.toml"
    file.write_text(
        """
        constraints = ["2*layers <= 70 - width"]
        [parameters]
        lr = { type = "log", low = 1e-5, high = 1e-1 }
        layers = "int(1, 8)"
        width = { type = "int", low = 8, high = 64, log = true }
        kind = { categories = ["sgd", "a, b"] }
        momentum = { type = "real", low = 0, high = 1, when = { kind = "sgd", layers = [1, 2] } }
        """
    )
    assert typed == by_hand == read_space(file)


def test_mistakes_in_text(tmp_path):
    for arguments, words in (
        (["lr"], "--param takes name="),
        (["a=real(0,1)", "a=real(0,1)"], "given twice"),
        (["a=real(0,1) if b"], "a condition is name = value"),
    ):
        with pytest.raises(ValueError, match=words):
            space_of_arguments(arguments)
    file = tmp_path / "space.toml"
    for text, words in (
        ("[parameters", "space.toml"),
        ("x = 1", "unknown x"),
        ("constraints = []", "no table"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_space(file)


def test_boxes():
    assert Space.box([(0, 1), (-5, 10)]) == Space({"x0": Real(0.0, 1.0), "x1": Real(-5.0, 10.0)})
    with pytest.raises(ValueError, match="pairs"):
        Space.box([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
