"""Extension is a promise: one class or function each, and everything else works with it.

The parts of `own.py` are what `docs/extending.md` shows. Each fits with every solver that its traits allow,
predicts, samples, and comes back from a folder in a new process by ``classes=``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import duogp
from duogp import Method
from duogp.fitting.builder import Builder
from duogp.fitting.dataset import Dataset
from duogp.fitting.plan import make_plan
from duogp.methods.settings import Settings
from extending import own

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "extending.md"
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.normal(size=60)
QUICK = {"num_inducing": 8, "steps": 3}

#: What an outsider passes to `duogp.fit`, and the solvers that its traits allow.
CASES = {
    "kernel": ({"kernel": own.Cauchy(1.5)}, ["closed-form", "stochastic", "natural"]),
    "basis": ({"method": Method("coefficients", own.Coefficients)}, ["closed-form", "stochastic", "natural"]),
    "basis of u": ({"method": Method("u", own.Unwhitened)}, ["closed-form", "stochastic", "natural"]),
    "basis without closed form": ({"method": Method("wide", own.WidePrior)}, ["stochastic", "natural"]),
    "basis, diagonal q": (
        {"method": Method("mf", own.Coefficients, "diagonal")},
        ["closed-form", "stochastic"],
    ),
    "basis, predictive": (
        {"method": Method("pp", own.Coefficients, "full", "predictive")},
        ["stochastic", "natural"],
    ),
    "likelihood": ({"likelihood": own.LaplaceWithMoments()}, ["stochastic", "natural"]),
    "objective": (
        {"method": Method("half", "coupled", "full", own.half_and_half)},
        ["stochastic", "natural"],
    ),
    "objective with a trait": (
        {"method": Method("3/4", "conditional", "full", own.three_quarters)},
        ["stochastic", "natural"],
    ),
    "mean": ({"mean": own.Ramp(0.2)}, ["closed-form", "stochastic", "natural"]),
    "all": (
        {
            "method": Method("all", own.WidePrior, "full", own.half_and_half),
            "kernel": own.Cauchy(),
            "likelihood": own.LaplaceWithMoments(),
            "mean": own.Ramp(),
        },
        ["stochastic", "natural"],
    ),
    "layers": ({"method": Method("deep", own.WidePrior, own_settings=(("num_layers", 2),))}, ["stochastic"]),
    "deep and predictive": (
        {"method": Method("dpp", "coupled", "full", "predictive", own_settings=(("num_layers", 2),))},
        ["stochastic"],
    ),
}


def fitted(case: str, solver: str = "auto"):
    return duogp.fit(X, Y, **({"method": "svgp"} | CASES[case][0] | QUICK), solver=solver)


@pytest.mark.parametrize("case", CASES)
def test_it_fits_with_the_solvers_of_its_traits_predicts_and_samples(case):
    for solver in CASES[case][1]:
        gp = fitted(case, solver)
        assert gp.history.solver == solver
        prediction = gp.predict(X[:5])
        assert np.isfinite(prediction.mean).all()
        assert (prediction.variance > 0).all()
        assert gp.sample(X[:4], 3, seed=0).shape == (3, 4)
        assert np.isfinite(gp.log_density(X, Y)).all()


@pytest.mark.parametrize(
    "case", [name for name, (_, solvers) in CASES.items() if "closed-form" not in solvers]
)
def test_without_the_trait_there_is_no_closed_form(case):
    assert fitted(case).history.solver != "closed-form"
    with pytest.raises(ValueError, match="solver='closed-form' is not possible"):
        fitted(case, "closed-form")


@pytest.mark.parametrize("q", ["full", "diagonal", "point"])
@pytest.mark.parametrize("basis", [own.Coefficients, own.Unwhitened])
def test_the_closed_form_of_a_basis_is_its_optimum(basis, q):
    """The gradient of the ordinary loss with respect to q vanishes at the solved q(u), to 1e-8."""
    settings = Settings(num_inducing=8, random_state=0)
    data = Dataset.of_table(X, Y, settings)
    builder = Builder(data, make_plan(data, Method("own", basis, q), settings))
    model = builder.model()
    builder.closed_form(model).finish()
    batch = builder.table.gather(builder.rows)
    model.loss(batch).sum().backward()
    for name, p in model.basis.q.named_parameters():
        assert p.grad is not None
        assert float(p.grad.abs().max()) < 1e-8, name


@pytest.mark.parametrize("basis", [own.Coefficients, own.Unwhitened])
def test_the_solved_posterior_is_that_of_the_coupled_basis_in_other_coordinates(basis):
    """a = L⁻ᵀm and u = Lm: the penalties agree, so the optima do, to rounding of K⁻¹ (1e-6)."""
    mine, theirs = (
        duogp.fit(
            X, Y, method, num_inducing=8, steps=1, learning_rate=1e-12, random_state=0, solver="closed-form"
        )
        for method in (Method("own", basis), "svgp")
    )
    np.testing.assert_allclose(mine.predict(X).mean, theirs.predict(X).mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(mine.predict(X).variance, theirs.predict(X).variance, rtol=1e-6)


def test_log_prob_alone_is_enough_to_train_and_errors_name_what_is_missing():
    gp = duogp.fit(X, Y, "svgp", likelihood=own.Laplace(), **QUICK)
    assert np.isfinite(gp.log_density(X, Y)).all()
    assert gp.sample(X[:4], 2, seed=0).shape == (2, 4)
    with pytest.raises(ValueError, match="conditional_moments"):
        gp.predict(X)
    with pytest.raises(ValueError, match="sample"):
        gp.sample(X[:4], 2, seed=0, observation_noise=True)


def test_estimators_take_a_method_of_ones_own():
    method = Method("coefficients", own.Coefficients)
    estimator = duogp.GPRegressor(method=method, num_inducing=8, epochs=3).fit(X, Y)
    assert np.isfinite(estimator.predict(X)).all()


def test_a_new_process_loads_them_by_their_classes(tmp_path):
    expected = {}
    for i, case in enumerate(CASES):
        gp = fitted(case)
        gp.save(tmp_path / str(i))
        prediction = gp.predict(X[:5])
        expected[str(i)] = [prediction.mean.tolist(), prediction.variance.tolist()]
    code = """
        import json, sys
        import numpy as np
        import duogp
        sys.path.insert(0, sys.argv[1])
        from extending import own
        out = {}
        for name in json.loads(sys.argv[3]):
            gp = duogp.load(f"{sys.argv[2]}/{name}", classes=own.CLASSES)
            prediction = gp.predict(np.array(json.loads(sys.argv[4])))
            out[name] = [prediction.mean.tolist(), prediction.variance.tolist()]
        print(json.dumps(out))
    """
    arguments = [str(HERE.parent), str(tmp_path), json.dumps(list(expected)), json.dumps(X[:5].tolist())]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, values in json.loads(done.stdout).items():
        np.testing.assert_allclose(
            values, expected[name], rtol=1e-9, atol=1e-9, err_msg=list(CASES)[int(name)]
        )


def test_without_the_classes_the_error_names_them(tmp_path):
    fitted("basis").save(tmp_path / "model")
    with pytest.raises(duogp.io.SavedModelError, match=r"Coefficients.*classes="):
        duogp.load(tmp_path / "model")


def test_the_page_shows_this_code():
    """Every section of `own.py` between two markers stands in docs/extending.md, word for word."""
    if not DOCS.exists():
        pytest.skip("no docs folder beside these tests")
    page, code = DOCS.read_text(), (HERE / "own.py").read_text()
    sections = [part.split("]\n", 1)[1].strip() for part in code.split("\n# [")[1:-1]]
    assert len(sections) == 9
    for section in sections:
        assert section in page, section.splitlines()[0]


def test_a_subclass_with_other_formulas_does_not_inherit_the_closed_form():
    assert not own.WidePrior.has_closed_form
    assert type("Same", (own.Coefficients,), {}).has_closed_form
