"""Courses of prediction and of the closed form: whole calls, arrays in and arrays out."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from duogp.data.benchmark import available, load
from racing import ours, roofline
from racing.clock import Contestant
from racing.courses import Course, Maker, Options, problem_of
from racing.problem import Problem

# -- prediction --------------------------------------------------------------------------------------------


class Products(ours.Call):
    """The two matrix products of a mean, x·Z and k·a, in chunks: arrays in, an array out."""

    def __init__(self, problem: Problem, X: np.ndarray, chunk: int = 16384) -> None:
        kind, device = getattr(torch, problem.dtype), problem.device
        Z = torch.as_tensor(problem.points()[0], dtype=kind, device=device).mT.contiguous()
        a = torch.ones(problem.inducing, 1, dtype=kind, device=device)
        buffer = torch.empty(min(chunk, len(X)), problem.inducing, dtype=kind, device=device)
        out = torch.empty(len(X), 1, dtype=kind, device=device)

        def products() -> np.ndarray:
            x = torch.as_tensor(X, dtype=kind, device=device)
            for i in range(0, len(X), chunk):
                part = x[i : i + chunk]
                k = torch.mm(part, Z, out=buffer[: len(part)])
                torch.mm(k, a, out=out[i : i + chunk])
            return out.cpu().numpy()

        super().__init__(device, products)


def prediction(options: Options) -> list[Course]:
    """Mean and variance at every size, the mean alone at the largest up to 1000."""
    X = np.random.default_rng(1).standard_normal((options.rows, options.dims))
    largest = max((size for size in options.sizes if size <= 1000), default=min(options.sizes))
    facts = {"rows": options.rows, "dims": options.dims}
    out = []
    for dtype in options.dtypes:
        for m in options.sizes:
            problem = problem_of(options, m, dtype, 0.0)
            out.append(
                Course(
                    "prediction", "prediction with variance", m, dtype, partial(_predicting, problem, X),
                    gpytorch_predicting(problem, X, variance=True),
                    roofline.prediction(m, options.rows, options.dims), (m, m, 8192), facts, once=True,
                )
            )  # fmt: skip
        problem = problem_of(options, largest, dtype, 0.0)
        peers: dict[str, Maker] = {"matrix products": partial(Products, problem, X)}
        out.append(
            Course(
                "prediction", "prediction of the mean", largest, dtype, partial(_mean_only, problem, X),
                peers | gpytorch_predicting(problem, X, variance=False),
                roofline.mean_prediction(largest, options.rows, options.dims),
                (8192, options.dims, largest), facts, once=True,
            )
        )  # fmt: skip
    return out


def _predicting(problem: Problem, X: np.ndarray) -> Contestant:
    gp = ours.fitted(problem)
    # In the precision of the course, where `predict` can be asked for one.
    asked = {"precision": problem.dtype} if "precision" in inspect.signature(gp.predict).parameters else {}
    return ours.Call(problem.device, lambda: gp.predict(X, in_parts=False, **asked))


def _mean_only(problem: Problem, X: np.ndarray) -> Contestant:
    mean = ours.fitted(problem).predict_mean
    return ours.Call(problem.device, lambda: mean(X))


def gpytorch_predicting(problem: Problem, X: np.ndarray, *, variance: bool) -> dict[str, Maker]:
    def maker(strategy: str, linalg: str) -> Maker:
        def make() -> Contestant:
            from racing.peers_gpytorch import Predicting

            return Predicting(problem, strategy, X, variance=variance, linalg=linalg)

        return make

    if not importlib.util.find_spec("gpytorch"):
        return {}
    linalgs = ("float64", "float32") if problem.dtype == "float32" else ("float64",)
    strategies = {"VariationalStrategy": "standard", "LargeBatchVariationalStrategy": "large-batch"}
    return {
        f"gpytorch {name}" + (", float32 linalg" if linalg == "float32" else ""): maker(strategy, linalg)
        for name, strategy in strategies.items()
        for linalg in linalgs
    }


# -- the closed form ---------------------------------------------------------------------------------------


def closed_form(options: Options) -> list[Course]:
    """The optimal q(u) of houseelectric (or of as many random rows, where there are no data)."""
    m = max((size for size in options.sizes if size <= 1000), default=min(options.sizes))
    if "regression/houseelectric" in available():
        data = load("regression/houseelectric")
        name, X, y = "houseelectric", data.X, data.y
    else:
        rng = np.random.default_rng(0)
        name, X = "random rows", rng.standard_normal((options.data_rows or 2_049_258, 11))
        y = np.sin(X.sum(1))
    X, y = X[: options.data_rows].astype(np.float64), y[: options.data_rows].astype(np.float64)
    out = []
    for dtype in reversed(options.dtypes):
        problem = Problem(m, dtype, options.device, threads=options.threads)

        def solving(problem: Problem = problem) -> Contestant:
            return ours.Call(problem.device, ours.optimal_q(X, y, problem))

        flops = roofline.optimal_q(m, len(X), X.shape[1])
        facts = {"data": name, "rows": len(X), "dims": X.shape[1]}
        out.append(
            Course(
                "closed-form", "optimal q(u)", m, dtype, solving, {}, flops, (m, m, 8192), facts, once=True
            )
        )
    return out


PARTS: dict[str, Callable[[Options], list[Course]]] = {"prediction": prediction, "closed-form": closed_form}
