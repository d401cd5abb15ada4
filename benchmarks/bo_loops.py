"""Bayesian optimisation in small loops: our default model against BoTorch's, at equal evaluations.

    hartmann6          6-d, 40 evaluations, log expected improvement
    noisy-hartmann6    the same with noise of standard deviation 0.2 (values from −3.3 to 0), log NEI
    constrained-branin 2-d, 18 evaluations; the constraint is a disk, modelled as a second output
    mixed              two numbers and a category of four (one-hot): a Branin function each, 30 evaluations
    two-objectives     Branin and Currin, 30 evaluations, log NEHVI; regret of the hypervolume
    ackley10           10-d on [−5, 10], 60 evaluations, log expected improvement

All models of a seed start from the same points and are asked by the same acquisition function with the same
restarts. Regret is that of the best evaluation, of noisy ones that of the point whose posterior mean is best.
Contestants: "duogp", the default of `DuoGPModel.fit` with `refit` after every evaluation; "anew", the same
fitted anew each time; methods of the registry by their names; "SingleTaskGP" and "SingleTaskVariationalGP" of
BoTorch, fitted anew, the latter by 200 iterations of L-BFGS.

Every finished loop is a line of the results file (`bo_rows.py`) and is not computed again.

    python benchmarks/bo_loops.py --seeds 5 --workers 16
    python benchmarks/bo_loops.py --table
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf, optimize_acqf_mixed
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.test_functions import Ackley, Branin, BraninCurrin, Hartmann
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from torch import Tensor

from bo_rows import Comparison
from duogp.bo import DuoGPModel

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "bo_loops.jsonl"
DEFAULT, EXACT, VARIATIONAL = "duogp", "SingleTaskGP", "SingleTaskVariationalGP"
RESTARTS, RAW_SAMPLES = 4, 128
#: Of L-BFGS for the variational model, about 2 s a fit; to the end a fit of 12 to 40 rows took 10 to 76 s.
ITERATIONS = 200


# -- problems ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A function of the cube, larger being better; ``true`` [n, m] without noise, ``noise`` its deviation."""

    dims: int
    initial: int
    evaluations: int
    true: Callable[[Tensor], Tensor]
    regret: Callable[[Tensor, Tensor], float]  # of X and the model's guess of its true values
    acquisition: Callable[[Model, Tensor, Tensor], Any]
    noise: float = 0.0
    fixed: tuple[dict[int, float], ...] = ()  # choices of a category

    def start(self, seed: int) -> Tensor:
        X = torch.quasirandom.SobolEngine(self.dims, scramble=True, seed=seed).draw(self.initial).double()
        if not self.fixed:
            return X
        for i, row in enumerate(X):
            for column, value in self.fixed[i % len(self.fixed)].items():
                row[column] = value
        return X

    def observe(self, X: Tensor, generator: torch.Generator) -> Tensor:
        values = self.true(X)
        return values + self.noise * torch.randn(values.shape, generator=generator, dtype=values.dtype)


def _bounds(dims: int) -> Tensor:
    return torch.stack([torch.zeros(dims), torch.ones(dims)]).double()


def _log_ei(model: Model, X: Tensor, Y: Tensor) -> Any:
    return LogExpectedImprovement(model, Y.max())


def _log_nei(model: Model, X: Tensor, Y: Tensor) -> Any:
    return qLogNoisyExpectedImprovement(model, X, prune_baseline=True)


def _regret_of_best(best: float, true: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], float]:
    """Of the point with the best value by the model (without noise: by the evaluations themselves)."""

    def regret(X: Tensor, guess: Tensor) -> float:
        return float(best - true(X[guess[:, 0].argmax()][None])[0, 0])

    return regret


def hartmann6(noise: float = 0.0) -> Problem:
    function = Hartmann(6, negate=True)

    def true(X: Tensor) -> Tensor:
        return function(X).unsqueeze(-1)

    acquisition = _log_nei if noise else _log_ei
    best = float(function.optimal_value)
    return Problem(6, 10, 40, true, _regret_of_best(best, true), acquisition, noise)


def ackley10() -> Problem:
    function = Ackley(10, negate=True)

    def true(X: Tensor) -> Tensor:
        return function(-5 + 15 * X).unsqueeze(-1)

    return Problem(10, 20, 60, true, _regret_of_best(0.0, true), _log_ei)


def _branin(X: Tensor) -> Tensor:
    return -Branin()(torch.stack([-5 + 15 * X[..., 0], 15 * X[..., 1]], -1))


def constrained_branin() -> Problem:
    """Branin inside a disk around (2.5, 7.5) of radius √50; the second output is positive inside."""

    def true(X: Tensor) -> Tensor:
        x, y = -5 + 15 * X[..., 0], 15 * X[..., 1]
        return torch.stack([_branin(X), 50 - (x - 2.5) ** 2 - (y - 7.5) ** 2], -1)

    grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 2001).double()])
    values = true(grid)
    feasible = values[values[:, 1] >= 0, 0]
    best, worst = float(feasible.max()), float(values[:, 0].min())

    def regret(X: Tensor, guess: Tensor) -> float:
        found = true(X)
        inside = found[found[:, 1] >= 0, 0]
        return best - (float(inside.max()) if len(inside) else worst)

    def acquisition(model: Model, X: Tensor, Y: Tensor) -> Any:
        inside = Y[Y[:, 1] >= 0, 0]
        return qLogExpectedImprovement(
            model,
            inside.max() if len(inside) else Y[:, 0].min(),
            objective=GenericMCObjective(lambda samples, X=None: samples[..., 0]),
            constraints=[lambda samples: -samples[..., 1]],
        )

    return Problem(2, 6, 18, true, regret, acquisition)


def mixed() -> Problem:
    """A category of four moves the valleys of Branin and adds to them; the third is best."""
    offsets = torch.tensor([6.0, 3.0, 0.0, 9.0]).double()

    def true(X: Tensor) -> Tensor:
        category = X[..., 2:].argmax(-1)
        turned = torch.where((category == 1)[..., None], X[..., :2].flip(-1), X[..., :2])
        turned = torch.where((category == 2)[..., None], 1 - turned, turned)
        return (_branin(turned) - offsets[category]).unsqueeze(-1)

    fixed = tuple({2 + j: float(i == j) for j in range(4)} for i in range(4))
    best = -Branin().optimal_value
    return Problem(6, 8, 30, true, _regret_of_best(best, true), _log_ei, fixed=fixed)


def two_objectives() -> Problem:
    function = BraninCurrin(negate=True)
    reference = function.ref_point

    def hypervolume(Y: Tensor) -> float:
        return float(Hypervolume(reference).compute(Y[is_non_dominated(Y)]))

    def true(X: Tensor) -> Tensor:
        return function(X)

    def acquisition(model: Model, X: Tensor, Y: Tensor) -> Any:
        return qLogNoisyExpectedHypervolumeImprovement(model, reference.tolist(), X, prune_baseline=True)

    most = float(function.max_hv)
    return Problem(2, 8, 30, true, lambda X, guess: most - hypervolume(true(X)), acquisition)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "hartmann6": hartmann6,
    "noisy-hartmann6": lambda: hartmann6(0.2),
    "constrained-branin": constrained_branin,
    "mixed": mixed,
    "two-objectives": two_objectives,
    "ackley10": ackley10,
}


# -- models --------------------------------------------------------------------------------------------------


def learn(name: str, X: Tensor, Y: Tensor, before: Any) -> Model:
    """A contestant's model of all observations; ``before``: its last one."""
    if name == DEFAULT:
        return DuoGPModel.fit(X, Y) if before is None else before.refit(X, Y)
    if name == EXACT:
        model = SingleTaskGP(X, Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model
    if name == VARIATIONAL:
        models = [_variational(X, Y[:, i : i + 1]) for i in range(Y.shape[-1])]
        return ModelListGP(*models) if len(models) > 1 else models[0]
    if name == "anew":
        return DuoGPModel.fit(X, Y)
    method, _, rest = name.partition(":")
    settings = json.loads(rest) if rest else {}
    return DuoGPModel.fit(X, Y, method or None, **settings) if before is None else before.refit(X, Y)


def _variational(X: Tensor, y: Tensor) -> Model:
    model = SingleTaskVariationalGP(X, y, inducing_points=len(X), outcome_transform=Standardize(1))
    bound = VariationalELBO(model.likelihood, model.model, num_data=len(X)).train()
    fit_gpytorch_mll_scipy(bound, options={"maxiter": ITERATIONS})
    return model.eval()


def run(problem_name: str, model_name: str, seed: int, total: int) -> dict[str, Any]:
    """One loop as a row of the results."""
    torch.set_num_threads(1)
    problem = PROBLEMS[problem_name]()
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    X = problem.start(seed)
    Y = problem.observe(X, generator)
    model: Any = None
    regrets, learning, asking = [], 0.0, 0.0
    bounds = _bounds(problem.dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            start = time.perf_counter()
            model = learn(model_name, X, Y, model)
            learning += time.perf_counter() - start
            with torch.no_grad():
                guess = model.posterior(X).mean if problem.noise else Y
            regrets.append(problem.regret(X, guess))
            if len(X) >= total:
                break
            start = time.perf_counter()
            torch.manual_seed(1000 * seed + len(X))
            new = _ask(problem, problem.acquisition(model, X, Y), bounds)
            asking += time.perf_counter() - start
            X, Y = torch.cat([X, new]), torch.cat([Y, problem.observe(new, generator)])
    return {"regret": regrets[-1], "trace": regrets, "seconds_model": learning, "seconds_acquisition": asking}


def _ask(problem: Problem, acquisition: Any, bounds: Tensor) -> Tensor:
    options: dict[str, Any] = {"q": 1, "num_restarts": RESTARTS, "raw_samples": RAW_SAMPLES}
    if not problem.fixed:
        return optimize_acqf(acquisition, bounds, **options)[0].detach()
    return optimize_acqf_mixed(acquisition, bounds, fixed_features_list=list(problem.fixed), **options)[
        0
    ].detach()


def main() -> None:
    evaluations = {name: make().evaluations for name, make in PROBLEMS.items()}
    Comparison(run, evaluations, DEFAULT, (EXACT, VARIATIONAL), seeds=5).main(__doc__, RESULTS)


if __name__ == "__main__":
    main()
