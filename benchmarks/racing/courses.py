"""What is raced: for every part a list of courses, each of them ours against peers, side by side."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from functools import partial
from typing import Any

import numpy as np

from racing import ours, roofline
from racing.clock import Contestant
from racing.problem import Problem
from racing.remote import Remote

Maker = Callable[[], Contestant]

#: Optimistic matrix-product rates of one CPU core, to guess how many steps make a block.
CORE_RATE = {"float32": 5e10, "float64": 2.5e10}
CLASSES = 10
#: Mean points and others of the decoupled basis, and points of the coupled one it is held against.
MANY, BETA, COUPLED = 3500, 1500, 2000


@dataclass(frozen=True)
class Options:
    """What all courses share."""

    device: str
    threads: int
    batch: int = 1024
    dims: int = 8
    sizes: tuple[int, ...] = (200, 500, 1000, 2000)
    dtypes: tuple[str, ...] = ("float32", "float64")
    peer_pythons: dict[str, str] = field_of(default_factory=dict)
    rows: int = 1_000_000  # of a prediction
    data_rows: int | None = None  # of the closed form; None: all
    steps: int | None = None  # of a block
    warm_up: int = 2  # blocks
    rounds: int = 7
    seconds: float = 30.0  # of the rounds of one course
    compile_up_to: int | None = None  # inducing points with which our CPU steps may be compiled; None: any

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Course:
    part: str
    what: str
    M: int
    dtype: str
    ours: Maker
    peers: dict[str, Maker]
    flops: float  # of one unit of work
    product: tuple[int, int, int]  # the shape of the matrix product whose rate is the roof
    facts: dict[str, Any]
    once: bool = False  # a unit of work takes long: no second warm-up, fewer rounds


# -- training steps ----------------------------------------------------------------------------------------


def problem_of(options: Options, m: int, dtype: str, flops: float, **more: Any) -> Problem:
    """A problem with as many batches in a block as make it last about an eighth of a second."""
    steps = options.steps or 10
    if options.steps is None and not options.on_cuda:
        guess = 0.003 + 3 * flops / (CORE_RATE[dtype] * options.threads)
        steps = int(np.clip(0.12 / guess, 2, 10))
    points = m + more.get("extra", 0)
    return Problem(
        inducing=m,
        dtype=dtype,
        device=options.device,
        batch=options.batch,
        dims=options.dims,
        steps=max(steps, -(-points // options.batch)),
        threads=options.threads,
        **more,
    )


def backend_of(options: Options, m: int) -> str:
    """That of a fit by default, unless its compiler would take longer than the race."""
    small = options.on_cuda or options.compile_up_to is None or m <= options.compile_up_to
    return "auto" if small else "eager"


def fit_of(options: Options, problem: Problem, method: str, **settings: Any) -> Maker:
    """Steps of ours."""
    return partial(ours.Fit, problem, method, backend=backend_of(options, problem.inducing), **settings)


def facts_of(problem: Problem, **more: Any) -> dict[str, Any]:
    out = {"batch": problem.batch, "dims": problem.dims, "steps_per_round": problem.steps}
    return out | ({"extra": problem.extra} if problem.extra else {}) | more


def gpytorch_training(problem: Problem, *args: Any, **settings: Any) -> Maker:
    def make() -> Contestant:
        from racing.peers_gpytorch import Training

        return Training(problem, *args, **settings)

    return make


def gpytorch_peers(problem: Problem, name: str | None = None, **settings: Any) -> dict[str, Maker]:
    """Both of its strategies, in float32 with both precisions of its factorisation.

    ``name``: what is raced stands on the standard strategy, and is called so.
    """
    if not importlib.util.find_spec("gpytorch"):
        return {}
    strategies = {"VariationalStrategy": "standard", "LargeBatchVariationalStrategy": "large-batch"}
    if name is not None:
        strategies = {name: "standard"}
    linalgs = ("float64", "float32") if problem.dtype == "float32" else ("float64",)
    return {
        f"gpytorch {label}" + (", float32 linalg" if linalg == "float32" else ""): gpytorch_training(
            problem, strategy, linalg=linalg, **settings
        )
        for label, strategy in strategies.items()
        for linalg in linalgs
    }


def steps(options: Options) -> list[Course]:
    out = []
    for dtype in options.dtypes:
        for m in options.sizes:
            flops = roofline.coupled(m, options.batch, options.dims)
            problem = problem_of(options, m, dtype, flops)
            peers = gpytorch_peers(problem)
            if not options.on_cuda:
                for library, python in options.peer_pythons.items():
                    peers[library] = partial(Remote, library, python, problem)
            backend = backend_of(options, m)
            out.append(
                Course(
                    "steps", "svgp step", m, dtype, fit_of(options, problem, "svgp"),
                    peers, flops, (m, m, options.batch), facts_of(problem, backend=backend),
                )
            )  # fmt: skip
    return out


def variants(options: Options) -> list[Course]:
    sizes = tuple(m for m in (500, 1000, 2000) if m <= max(options.sizes)) or options.sizes[:1]
    if not options.on_cuda:
        sizes = sizes[:1]
    out: list[Course] = []
    for dtype in options.dtypes:
        for m in sizes:
            out += _conditional(options, m, dtype)
    dtype = options.dtypes[0]
    m = sizes[0]
    out += _second_block(options, m, dtype)
    out.append(_predictive(options, m, dtype))
    out += _classes(options, min(m, 200), dtype)
    out.append(_replicates(options, m, dtype))
    return out + _many_means(options, dtype)


def field(options: Options) -> list[Course]:
    """Steps of the four methods at every size and precision: what `--within` races, besides predictions."""
    out: list[Course] = []
    for dtype in options.dtypes:
        for m in options.sizes:
            one = replace(options, sizes=(m,), dtypes=(dtype,))
            out += steps(one) + _second_block(one, m, dtype) + _conditional(one, m, dtype)[:1]
    return out


def _conditional(options: Options, m: int, dtype: str) -> list[Course]:
    """Decoupled conditionals beside our own coupled step, with Ω over rows and without Ω."""
    out = []
    for what, omega, settings in (
        ("dcsvgp step", True, {}),
        ("dcsvgp step, beta2 = 0", False, {"beta2": 0.0}),
    ):
        flops = roofline.conditional(m, options.batch, options.dims, omega=omega)
        problem = problem_of(options, m, dtype, flops)
        out.append(
            Course(
                "variants", what, m, dtype, fit_of(options, problem, "dcsvgp", **settings),
                {"duogp svgp": fit_of(options, problem, "svgp")}, flops, (m, m, options.batch),
                facts_of(problem),
            )
        )  # fmt: skip
    return out


def _second_block(options: Options, m: int, dtype: str) -> list[Course]:
    out = []
    for method in ("odsvgp", "solvegp"):
        flops = roofline.two_block(m, m, options.batch, options.dims, full=method == "solvegp")
        problem = problem_of(options, m, dtype, flops, extra=m)
        peers = gpytorch_peers(problem, "OrthogonallyDecoupledVariationalStrategy")
        peers["duogp svgp"] = fit_of(options, problem_of(options, m, dtype, flops), "svgp")
        out.append(
            Course(
                "variants", f"{method} step", m, dtype, fit_of(options, problem, method), peers, flops,
                (m, m, options.batch), facts_of(problem),
            )
        )  # fmt: skip
    return out


def _predictive(options: Options, m: int, dtype: str) -> Course:
    flops = roofline.coupled(m, options.batch, options.dims)
    problem = problem_of(options, m, dtype, flops)
    theirs = gpytorch_peers(problem, objective="predictive")
    peers = {f"{name}, PredictiveLogLikelihood": maker for name, maker in theirs.items()}
    return Course(
        "variants", "ppgpr step", m, dtype, fit_of(options, problem, "ppgpr"), peers, flops,
        (m, m, options.batch), facts_of(problem),
    )  # fmt: skip


def _classes(options: Options, m: int, dtype: str) -> list[Course]:
    out = []
    flops = roofline.coupled(m, options.batch, options.dims, CLASSES)
    problem = problem_of(options, m, dtype, flops, classes=CLASSES)
    for likelihood in ("softmax", "robust-max"):
        peers = gpytorch_peers(problem, "IndependentMultitask, SoftmaxLikelihood")
        out.append(
            Course(
                "variants", f"svgp step, {CLASSES} classes, {likelihood}", m, dtype,
                fit_of(options, problem, "svgp", likelihood=likelihood), peers, flops,
                (m, m, options.batch), facts_of(problem, classes=CLASSES),
            )
        )  # fmt: skip
    return out


def _replicates(options: Options, m: int, dtype: str, count: int = 10) -> Course:
    flops = roofline.coupled(m, options.batch, options.dims)
    problem = problem_of(options, m, dtype, count * flops)
    return Course(
        "variants", f"svgp step, {count} replicates", m, dtype,
        fit_of(options, problem, "svgp", replicates=count),
        {"duogp svgp, one replicate": fit_of(options, problem, "svgp")}, count * flops,
        (m, m, options.batch), facts_of(problem, replicates=count),
    )  # fmt: skip


def _many_means(options: Options, dtype: str) -> list[Course]:
    """The wall-clock claim of Salimbeni et al. 2018: many mean points at the price of fewer coupled ones."""
    scale = min(1.0, max(options.sizes) / COUPLED)  # smaller where all sizes are
    extra, beta, coupled = (int(scale * size) for size in (MANY, BETA, COUPLED))
    columns = min(64, extra)
    flops = roofline.many_means(beta, extra, options.batch, options.dims, columns)
    mine = problem_of(options, beta, dtype, flops, extra=extra)
    other = problem_of(options, coupled, dtype, roofline.coupled(coupled, options.batch, options.dims))
    out = []
    for what, own, peer, solver in (
        ("orth-a step, Adam", "orth-a", "svgp", "stochastic"),
        ("orth-a step, natural gradients", "orth-a", "coupled-nat", "natural"),
    ):
        out.append(
            Course(
                "variants", what, beta, dtype,
                fit_of(options, mine, own, solver=solver, mean_columns=columns),
                {f"duogp {peer}, M = {coupled}": fit_of(options, other, peer, solver=solver)}, flops,
                (beta, beta, options.batch), facts_of(mine),
            )
        )  # fmt: skip
    return out


PARTS: dict[str, Callable[[Options], list[Course]]] = {"steps": steps, "variants": variants, "field": field}
