"""Where the hyperparameters of small data end: ours from two starts, and BoTorch's, by one objective.

Rows of Hartmann-6 with and without noise, half of them spread out, half near others, as a search leaves
them. Every contestant's hyperparameters are put into `SingleTaskGP`, which computes log p(y) + log p(them).
"best": within 0.01 of the best that any contestant found; "lost": the mean of what is missing to it.

    python benchmarks/bo_optima.py
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_loops import hartmann6
from duogp.bench.provenance import stamp
from duogp.bo import DuoGPModel

RESULTS = Path(__file__).parent / "results" / "bo_optima.json"
SEEDS = range(300, 324)
#: Within which two optima are the same.
SAME = 0.01
#: Starts of `DuoGPModel.fit`: the modes of the priors, and those of a fit without priors (up to 0.1).
STARTS = {"modes": {}, "plain": {"initial_noise": 0.1, "initial_lengthscale": 1.4}}


def rows(noise: float, n: int, seed: int) -> tuple[Tensor, Tensor]:
    problem = hartmann6(noise)
    X = problem.start(seed)
    torch.manual_seed(seed)
    near = X[torch.randint(len(X), (n - len(X),))]
    new = torch.rand(near.shape, dtype=torch.float64)
    new[::2] = (near + 0.05 * torch.randn_like(near)).clamp(0, 1)[::2]
    X = torch.cat([X, new])
    return X, problem.observe(X, torch.Generator().manual_seed(seed))


def objective(model: SingleTaskGP) -> float:
    bound = ExactMarginalLogLikelihood(model.likelihood, model)
    with torch.no_grad():
        law = model.train()(*model.train_inputs)
        return len(model.train_targets) * float(bound(law, model.train_targets))


def as_theirs(model: DuoGPModel, X: Tensor, Y: Tensor) -> SingleTaskGP:
    core, theirs = model.gp.model, SingleTaskGP(X, Y)
    with torch.no_grad():
        theirs.covar_module.lengthscale = core.basis.kernel.lengthscale()[0] * model.x_scale
        theirs.likelihood.noise = core.likelihood.noise()[0]
        theirs.mean_module.constant.copy_(core.mean.constant.squeeze())
    return theirs


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {}
    for noise in (0.0, 0.2):
        for n in (20, 40):
            values = []
            for seed in SEEDS:
                X, Y = rows(noise, n, seed)
                theirs = SingleTaskGP(X, Y)
                fit_gpytorch_mll(ExactMarginalLogLikelihood(theirs.likelihood, theirs))
                ours = [as_theirs(DuoGPModel.fit(X, Y, **start), X, Y) for start in STARTS.values()]
                values.append([objective(model) for model in (*ours, theirs)])
            table = torch.tensor(values)
            missing = table.amax(1, keepdim=True) - table
            counts, lost = (missing < SAME).sum(0).tolist(), missing.mean(0).tolist()
            names = [*STARTS, "SingleTaskGP"]
            key = f"noise {noise}, {n} rows, {len(SEEDS)} seeds"
            found[key] = {
                name: {"best": b, "lost": round(m, 3)} for name, b, m in zip(names, counts, lost, strict=True)
            }
            print(key, found[key], flush=True)
    RESULTS.write_text(json.dumps(found | stamp("cpu"), indent=1) + "\n")


if __name__ == "__main__":
    main()
