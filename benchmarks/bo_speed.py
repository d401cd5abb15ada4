"""One refit and one proposal of Bayesian optimisation: ours against BoTorch's SingleTaskVariationalGP.

Both learn from the same observations with as many inducing points and as many Adam steps, then choose q
points of the same candidates by Thompson sampling. Ours is a warm-started refit, by minibatches in float32
(the default from a thousand rows on) or of the closed form (-closed), and q functions; BoTorch's is a new
model (inducing points included), its ELBO, and a joint draw of all candidates (`MaxPosteriorSampling`), or,
for the fairest comparison, its own pathwise samples. Runs take turns, medians are printed, with the root mean
squared error on new points in standard deviations: steps of one kind are not worth as much as those of
another.

    OMP_NUM_THREADS=2 python benchmarks/bo_speed.py --repeats 5 --output benchmarks/results/bo_speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskVariationalGP
from botorch.optim.fit import fit_gpytorch_mll_torch
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import VariationalELBO

from duogp.bench.measure import device_name, versions
from duogp.bench.provenance import stamp
from duogp.bo.candidates import distinct_maximisers, latin_hypercube, perturbations, trust_box
from duogp.bo.surrogates import SPREAD, GPSurrogate, standard_units


def value(X: np.ndarray) -> np.ndarray:
    """Rugged in a few coordinates, smooth in the others."""
    return np.sin(6 * X[:, :10]).sum(1) - 5 * ((X - 0.4) ** 2).sum(1)


class Ours:
    """A refit of a method of the registry, from where it was some observations ago."""

    def __init__(self, name: str, X: np.ndarray, y: np.ndarray, options: argparse.Namespace) -> None:
        method, closed, _ = name.partition("-closed")
        settings = {"solver": "closed-form"} if closed else {}
        start = GPSurrogate.of(method, num_inducing=options.inducing, steps=options.steps, **settings)
        self.X, self.y, self.q = X, y, options.q
        first = start.fit(X[: -2 * self.q], y[: -2 * self.q], seed=0)
        self.before = first.fit(X[: -self.q], y[: -self.q], seed=3)

    def error(self, X: np.ndarray, y: np.ndarray) -> float:
        gp = self.fitted.gp
        assert gp is not None
        predicted = self.fitted.centre + self.fitted.scale * gp.predict(SPREAD * (X - 0.5)).mean
        return float(np.sqrt(np.mean((predicted - y) ** 2)) / self.y.std())

    def run(self, candidates: np.ndarray) -> dict[str, float]:
        start = time.perf_counter()
        self.fitted = self.before.fit(self.X, self.y, seed=1)
        middle = time.perf_counter()
        chosen = distinct_maximisers(self.fitted.draw(candidates, self.q, seed=2))
        assert len(set(chosen)) == self.q
        return {"fit": middle - start, "propose": time.perf_counter() - middle}


class BoTorch:
    """A new SingleTaskVariationalGP with Matérn-5/2 and ARD."""

    def __init__(self, X: np.ndarray, y: np.ndarray, options: argparse.Namespace, pathwise: bool) -> None:
        centre, scale = standard_units(y)
        self.X, self.y = torch.as_tensor(X), torch.as_tensor((y - centre) / scale).unsqueeze(-1)
        self.options, self.pathwise = options, pathwise
        self.centre, self.scale = centre, scale

    def error(self, X: np.ndarray, y: np.ndarray) -> float:
        with torch.no_grad():
            mean = self.model.posterior(torch.as_tensor(X)).mean.squeeze(-1).numpy()
        return float(np.sqrt(np.mean((self.centre + self.scale * mean - y) ** 2)) / self.scale)

    def run(self, candidates: np.ndarray) -> dict[str, float]:
        from gpytorch.kernels import MaternKernel, ScaleKernel

        x = torch.as_tensor(candidates)
        q = self.options.q
        start = time.perf_counter()
        kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=x.shape[1]))
        model = self.model = SingleTaskVariationalGP(
            self.X, self.y, inducing_points=self.options.inducing, covar_module=kernel, outcome_transform=None
        )
        mll = VariationalELBO(model.likelihood, model.model, num_data=len(self.X))
        built = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the steps are used up is the idea
            fit_gpytorch_mll(
                mll,
                optimizer=fit_gpytorch_mll_torch,
                optimizer_kwargs={"step_limit": self.options.steps, "stopping_criterion": None},
                max_attempts=1,
                warning_handler=lambda warning: True,
            )
        fitted = time.perf_counter()
        with torch.no_grad():
            if self.pathwise:
                draws = draw_matheron_paths(model, torch.Size([q]))(x)
                chosen = distinct_maximisers(draws.reshape(q, -1).numpy())
                assert len(chosen) == q
            else:
                assert MaxPosteriorSampling(model, replacement=False)(x, num_samples=q).shape == (
                    q,
                    x.shape[1],
                )
        done = time.perf_counter()
        return {"build": built - start, "fit": fitted - built, "propose": done - fitted}


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    parts = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**parts, "total": statistics.median(sum(run.values()) for run in runs)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--dims", type=int, default=60)
    parser.add_argument("--inducing", type=int, default=200)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--q", type=int, default=50)
    parser.add_argument("--candidates", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--methods", default="svgp,dcsvgp,svgp-closed,dcsvgp-closed")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    X = latin_hypercube(options.rows, options.dims, rng)
    y = value(X)
    centre = X[y.argmax()]
    candidates = perturbations(
        centre, *trust_box(centre, 0.8, np.ones(options.dims)), options.candidates, rng
    )
    contestants: dict[str, Ours | BoTorch] = {
        name: Ours(name, X, y, options) for name in options.methods.split(",")
    }
    contestants["botorch"] = BoTorch(X, y, options, pathwise=False)
    contestants["botorch-pathwise"] = BoTorch(X, y, options, pathwise=True)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    loads = []
    for turn in range(options.repeats + 1):  # the first turn warms everybody up
        for name, contestant in contestants.items():
            found = contestant.run(candidates)
            if turn:
                runs[name].append(found)
        loads.append(os.getloadavg()[0])
    seconds = {name: medians(found) for name, found in runs.items()}
    new = rng.random((2000, options.dims))
    reference = seconds["botorch"]["total"]
    result: dict[str, Any] = {
        "settings": {k: v for k, v in vars(options).items() if k != "output"},
        "device": device_name("cpu"),
        **stamp(),
        "versions": versions() | {"botorch": __import__("botorch").__version__},
        "load": loads,
        "seconds": seconds,
        "error": {name: contestant.error(new, value(new)) for name, contestant in contestants.items()},
        "times_faster_than_botorch": {name: reference / s["total"] for name, s in seconds.items()},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
