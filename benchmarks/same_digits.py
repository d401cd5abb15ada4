"""Whether the library still computes the numbers it computed: every method, and options that run other code.

    python benchmarks/same_digits.py record FILE     fit all cases, write their numbers
    python benchmarks/same_digits.py compare FILE    fit them again; exit status 1 where a number has changed

A case is a fit of 20 steps in float64 on the CPU from a fixed seed, to the first rows of one split of pol or
kin40k (`DUOGP_DATA`). Kept of it: the losses, the prediction at 50 test rows (mean, variance and the part of
it that is not explained; class probabilities), mean log density there, a few samples, hyperparameters. A
difference is relative to max(1, |value|); `compare` allows ``--tolerance`` 1e-6, which leaves room for sums
in another order and for little else. Only `duogp.fit`, `duogp.fit_replicates` and `duogp.METHODS` are used
for them.

``--only TEXT`` (repeatable) runs the cases with the text in their name: ``--only pol/svgp --only kernel``.
Two processes of one thread each, one to two minutes. benchmarks/results/same_digits.json says in its
first entry which commit recorded it.
"""

from __future__ import annotations

import os

# Before numpy and torch: one thread for each process, and products that do not depend on where memory begins.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
os.environ.setdefault("MKL_CBWR", "AVX2")

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

ROWS, TEST_ROWS, STEPS = 2000, 50, 20
#: The entry of a record that says where it comes from.
ABOUT = "about"
#: Rows of methods and options whose cost is their cube.
FEW_ROWS = 800
COMMON: dict[str, Any] = {
    "steps": STEPS,
    "num_inducing": 50,
    "evaluate_every": 1,  # every epoch leaves a loss
    "dtype": "float64",
    "device": "cpu",
    "random_state": 0,
}
NETWORKS = {"widths": [16, 8, 3]}
DEEP = {"num_inducing": 20, "hidden_width": 3, "batch_size": 500}
STREAM: dict[str, Any] = {
    "num_inducing": 30,
    "growth": 10,
    "start_rows": 200,
    "batch_size": 200,
    "evaluate_every": None,
}
BASELINE: dict[str, Any] = {"num_inducing": None, "widths": [16, 8], "batch_size": 500}
ALL_POINTS: dict[str, Any] = {"num_inducing": None, "rows": FEW_ROWS}
#: Settings by method; a value of None takes one of COMMON away.
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "svgp-dkl",
            "svgp-dcdkl",
            "svgp-meandkl",
            "ppgpr-dkl",
            "ppgpr-dcdkl",
            "ppgpr-meandkl",
            "ppgpr-mfd-dkl",
        ),
        NETWORKS,
    ),
    **dict.fromkeys(("nnsvgp", "nnppgpr"), NETWORKS),
    **dict.fromkeys(("dgp", "dgp-solve", "dgp-dc"), DEEP),
    **dict.fromkeys(("ddgpc", "ddgpc-ridge"), DEEP | {"num_residual": 5}),
    **dict.fromkeys(("exact", "bkrr"), ALL_POINTS),
    "ivsgpr": STREAM,
    "svdgp": STREAM | {"num_extra": 60, "mean_columns": 20},
    "mc-dropout": BASELINE | {"passes": 10},
    "deep-ensemble": BASELINE | {"members": 2},
}

Numbers = dict[str, Any]


# -- data ----------------------------------------------------------------------------------------------------


@cache
def table(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training rows and test rows of the first split."""
    root = os.environ.get("DUOGP_DATA")
    if not root:
        raise SystemExit("same_digits: set DUOGP_DATA to the folder of the benchmark data")
    with np.load(Path(root) / "regression" / f"{name}.npz") as file:
        X, y, test = file["X"].astype(np.float64), file["y"].astype(np.float64), file["test_mask"][:, 0]
    return X[~test], y[~test], X[test][:TEST_ROWS], y[test][:TEST_ROWS]


def standard(y: np.ndarray) -> np.ndarray:
    """A target in units of kin40k's training rows."""
    known = table("kin40k")[1][:ROWS]
    return (y - known.mean()) / known.std()


def two_outputs(y: np.ndarray) -> np.ndarray:
    return np.stack([y, np.sin(3 * y)], 1)


#: kin40k's target as each likelihood can have it.
TARGETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "same": lambda y: y,
    "sign": lambda y: y > 0,
    "three": lambda y: np.digitize(standard(y), [-0.5, 0.5]),
    "names": lambda y: np.array(["low", "middle", "high"])[np.digitize(standard(y), [-0.5, 0.5])],
    "counts": lambda y: np.floor(np.exp(1 + 0.7 * standard(y))),
    "positive": lambda y: np.exp(0.5 * standard(y)),
    "share": lambda y: 1 / (1 + np.exp(-standard(y))),
    "two": two_outputs,
}


# -- cases ---------------------------------------------------------------------------------------------------


def one(data: str, method: str, target: str = "same", **given: Any) -> Numbers:
    """One fit. ``weights``, ``noise``, ``validation``: whether there are some."""
    import duogp

    X, y, X_test, y_test = table(data)
    settings = {k: v for k, v in (COMMON | OWN.get(method, {}) | given).items() if v is not None}
    rows = settings.pop("rows", ROWS)
    extra: dict[str, Any] = {}
    if settings.pop("weights", False):
        extra["sample_weight"] = 0.5 + np.arange(rows) % 4
    if known := settings.pop("noise", False):
        extra["noise"] = 0.01 + 0.02 * (np.arange(rows) % 5)
    if settings.pop("validation", False):
        held_out = slice(rows, rows + 200)
        extra["validation"] = (X[held_out], TARGETS[target](y[held_out]))
    model = duogp.fit(X[:rows], TARGETS[target](y[:rows]), method, **extra, **settings)
    row_noise = np.full(len(X_test), 0.02) if known else None
    paths = OWN.get(method) is not NETWORKS
    return numbers(model, X_test, TARGETS[target](y_test), row_noise, paths=paths)


def replicates(data: str, method: str, **given: Any) -> Numbers:
    """Two models at once, on different rows, each with its β chosen from a list."""
    import duogp

    X, y, X_test, y_test = table(data)
    rows = [np.arange(800), np.arange(600, 1400)]
    models = duogp.fit_replicates(X, y, rows, method, **COMMON | given)
    paths = OWN.get(method) is not NETWORKS
    return {str(i): numbers(model, X_test, y_test, paths=paths) for i, model in enumerate(models)}


def numbers(
    model: Any, X: np.ndarray, y: np.ndarray, noise: np.ndarray | None = None, *, paths: bool = True
) -> Numbers:
    """What a fitted model says, as JSON.

    ``paths``: draws of functions too. Not on a network's features: inducing points lie so close together
    there that the draws magnify rounding to 1e-2.
    """
    known = {} if noise is None else {"noise": noise}
    prediction = model.predict(X, **known)
    names = ("probabilities", "latent_mean", "residual", "explained")
    if not hasattr(prediction, "probabilities"):
        names = ("mean", "variance", "residual")
    out: Numbers = {name: plain(getattr(prediction, name)) for name in names}
    out["log_density"] = float(np.mean(model.log_density(X, y, **known)))
    out["loss"] = plain(model.history.series("loss"))
    out["validation_nll"] = plain(model.history.validation_nll)
    out["hyperparameters"] = plain(model.hyperparameters())
    if hasattr(model, "sample"):
        for kind in ("joint", "pathwise") if paths else ("joint",):
            try:
                out[kind] = plain(model.sample(X[:3], 2, seed=0, kind=kind))
            except (NotImplementedError, ValueError) as error:  # a kernel without random features
                out[kind] = type(error).__name__
    return out


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def variations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, method, settings: what makes other code run. All on kin40k."""
    for method in ("svgp", "dcsvgp", "odsvgp", "solvegp"):
        for solver in ("natural", "stochastic", "closed-form"):
            yield f"solver {solver} {method}", method, {"solver": solver}
    yield "solver natural ppgpr", "ppgpr-chol", {"solver": "natural"}
    yield "solver stochastic map", "map", {"solver": "stochastic"}
    yield "solver stochastic map unwhitened", "map", {"solver": "stochastic", "log_prior": "unwhitened"}
    yield "solver stochastic vfitc", "vfitc", {"solver": "stochastic"}
    yield "solver stochastic decoupled-s", "decoupled-s", {"solver": "stochastic"}
    yield "solver stochastic dsgpc-free", "dsgpc-free", {"solver": "stochastic"}
    yield "solver stochastic dsgpc-eps", "dsgpc-eps", {"solver": "stochastic", "epsilon": 0.3}

    likelihoods = {
        "bernoulli": "sign",
        "logit": "sign",
        "robust-max": "three",
        "softmax": "three",
        "student-t": "same",
        "poisson": "counts",
        "heteroscedastic": "same",
        "beta": "share",
        "gamma": "positive",
    }
    for name, target in likelihoods.items():
        yield f"likelihood {name}", "svgp", {"likelihood": name, "target": target}
    adam = {"solver": "stochastic"}
    for name in ("bernoulli", "softmax", "student-t", "heteroscedastic"):
        own = {"likelihood": name, "target": likelihoods[name]}
        yield f"likelihood {name} stochastic", "svgp", own | adam
        yield f"likelihood {name} dcsvgp", "dcsvgp", own | adam
    yield "likelihood student-t ppgpr", "ppgpr-chol", {"likelihood": "student-t"}
    yield "likelihood bernoulli ppgpr", "ppgpr-chol", {"likelihood": "bernoulli", "target": "sign"}
    yield "likelihood poisson odsvgp", "odsvgp", {"likelihood": "poisson", "target": "counts"}
    yield "likelihood classes solvegp", "solvegp", {"likelihood": "classes", "target": "names"}
    yield "likelihood classes dgp", "dgp", {"likelihood": "classes", "target": "names"}
    yield "likelihood bernoulli ivsgpr", "ivsgpr", {"likelihood": "bernoulli", "target": "sign"}
    for method in ("mc-dropout", "deep-ensemble"):
        yield f"likelihood classes {method}", method, {"likelihood": "classes", "target": "names"}

    for name in ("rbf", "matern12", "matern32", "rq", "periodic", "generalised-rbf", "rbf + linear"):
        yield f"kernel {name}", "svgp", {"kernel": name, "solver": "stochastic"}
        yield f"kernel {name} closed form", "sgpr", {"kernel": name}
    for name in ("rbf", "matern52 + rbf + constant", "generalised-rbf"):
        yield f"kernel {name} dcsvgp", "dcsvgp", {"kernel": name, "solver": "stochastic"}
    yield "kernel rbf exact", "exact", {"kernel": "rbf"}
    yield "kernel generalised-rbf decoupled", "decoupled", {"kernel": "generalised-rbf"}
    yield "kernel one lengthscale", "odsvgp", {"ard": False, "output_scale": False, **adam}

    for solver in ("stochastic", "closed-form"):
        yield f"whitening K {solver}", "dcsvgp", {"whitening": "K", "solver": solver, "mean_jitter": 1e-5}
        for omega in ("rows", "batch", "blocks", "full"):
            few = {"rows": 300, "batch_size": 300} if omega == "full" else {}
            own = {"omega": omega, "solver": solver, "beta2": 0.5}
            yield f"omega {omega} {solver}", "dcsvgp", own | few
    yield "omega blocks natural", "dcsvgp-nat", {"omega": "blocks", "omega_block": 40}
    yield "whitening K ppgpr", "dcppgpr", {"whitening": "K"}
    yield "warm start", "dcppgpr", {"warm_start": 10, "warm_start_rows": 500}

    yield "outputs two", "svgp", {"target": "two"}
    yield "outputs two stochastic", "dcsvgp", {"target": "two", "solver": "stochastic"}
    yield "outputs two mixed", "svgp", {"target": "two", "num_latents": 2}
    yield "outputs one latent", "dcsvgp", {"target": "two", "num_latents": 1}
    yield "outputs two shared kernel", "solvegp", {"target": "two", "shared_kernel": True, **adam}
    yield "outputs two exact", "exact", {"target": "two", "rows": 400}
    yield "outputs two mixed dgp", "dgp", {"target": "two", "num_latents": 2}

    for method in ("svgp", "dcsvgp", "exact"):
        few = {"rows": 400} if method == "exact" else {}
        yield f"rows weighted {method}", method, {"weights": True, **few}
        yield f"rows of known noise {method}", method, {"noise": True, **few}
    yield "rows weighted stochastic", "dcsvgp", {"weights": True, **adam}
    yield "rows of known noise stochastic", "dcsvgp", {"noise": True, "learn_noise": True, **adam}
    yield "rows weighted svdgp", "svdgp", {"weights": True}
    yield "rows weighted ensemble", "deep-ensemble", {"weights": True}
    yield "validation given", "dcsvgp", {"validation": True}
    yield "validation split off", "ppgpr-chol", {"early_stopping": True, "validation_fraction": 0.2}
    yield "betas of a list", "dcppgpr", {"beta1": [0.1, 1.0], "beta2": [1e-3, 0.1]}

    for mean in ("zero", "linear"):
        yield f"mean {mean}", "svgp", {"mean": mean, **adam}
        yield f"mean {mean} closed form", "sgpr", {"mean": mean}
    for scaling in ("minmax", False):
        yield f"standardize {scaling}", "svgp", {"standardize": scaling}
    for name in ("random", "greedy"):
        yield f"points {name}", "odsvgp", {"inducing_init": name, "extra_init": "random"}
    yield "points that stay", "svgp", {"learn_inducing": False, **adam}
    yield "points fewer than extra", "odsvgp", {"num_inducing": 20, "num_extra": 40, **adam}
    for rule in ("exact", "joint"):
        yield f"mean rule {rule}", "orthnat", {"mean_rule": rule}
    for rule in ("exact", "diagonal"):
        yield f"mean rule {rule} hybrid", "hybrid-nat", {"mean_rule": rule}
    for kind in ("none", "nystrom"):
        yield f"preconditioner {kind}", "decoupled", {"preconditioner": kind}
    for kind in ("kernel", "contracting"):
        yield f"ridge {kind}", "dsgpc", {"ridge": kind}
    yield "hybrid columns", "hybrid", {"mean_columns": 16, "num_extra": 80}
    yield "gamma", "gamma-robust", {"gamma": 1.2, "solver": "stochastic"}
    yield "schedule cosine", "svgp", {"schedule": "cosine", "learning_rate": 0.03, **adam}

    yield "network in feature space", "svgp-dkl", {"inducing_space": "feature"}
    yield "network of the mean", "svgp-dcdkl", {"mean_widths": [8, 3], "activation": "tanh"}
    for kind in ("layer", "spectral", "batch"):
        yield f"network normalisation {kind}", "ppgpr-dkl", {"normalisation": kind}
        yield f"network normalisation {kind} mean", "nnsvgp", {"normalisation": kind}
    yield "network dropout batch", "mc-dropout", {"normalisation": "batch", "heteroscedastic": True}
    yield "network ensemble plain", "deep-ensemble", {"heteroscedastic": False, "target": "two"}
    yield "layers three", "dgp", {"num_layers": 3, "num_samples": 3}
    yield "layers three dc", "dgp-dc", {"num_layers": 3, "hidden_width": 2, "whitening": "K"}
    yield "layers printed kl", "ddgpc", {"printed_kl": True}

    yield "auto small", "auto", {}
    yield "auto small classes", "auto", {"likelihood": "classes", "target": "three"}
    # So many seconds that the clock has no say: the race is decided by steps.
    yield "auto race", "auto", {"rows": 2200, "time_budget": 1e12}


def cases() -> dict[str, Callable[[], Numbers]]:
    import duogp

    out: dict[str, Callable[[], Numbers]] = {}
    for data in ("pol", "kin40k"):
        for method in duogp.METHODS:
            out[f"{data}/{method}"] = partial(one, data, method)
    for name, method, given in variations():
        out[f"kin40k/{name}"] = partial(one, "kin40k", method, **given)
    grid = {"validation_fraction": 0.1}
    betas = {"beta1": [0.3, 1.0], "beta2": [1e-3, 0.1]}
    out["pol/replicates dcsvgp"] = partial(replicates, "pol", "dcsvgp", solver="stochastic", **betas, **grid)
    out["pol/replicates ppgpr"] = partial(replicates, "pol", "ppgpr-chol", beta1=[0.1, 1.0], **grid)
    out["pol/replicates svgp"] = partial(replicates, "pol", "svgp")
    out["pol/replicates svgp-dkl"] = partial(replicates, "pol", "svgp-dkl", **NETWORKS)
    return out


def fits() -> dict[str, tuple[str, dict[str, Any]]]:
    """The method and the settings of every case: what decides which rooms of the numerics it runs through."""
    own = {"rows", "weights", "noise", "validation", "target"}
    out = {}
    for name, case in cases().items():
        assert isinstance(case, partial)
        method = case.args[1]
        settings = COMMON | OWN.get(method, {}) | case.keywords
        out[name] = (method, {k: v for k, v in settings.items() if v is not None and k not in own})
    return out


# -- running -------------------------------------------------------------------------------------------------


def run(name: str) -> tuple[str, Numbers, float]:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = cases()[name]()
        except Exception as error:  # a case that fails is a result too
            found = {"error": f"{type(error).__name__}: {error}"}
    return name, found, time.perf_counter() - start


def run_all(names: list[str], jobs: int) -> dict[str, Numbers]:
    import duogp

    print(f"duogp {duogp.__version__} from {Path(duogp.__file__).parent}", file=sys.stderr)
    out: dict[str, Numbers] = {}
    times: dict[str, float] = {}
    begun = time.perf_counter()
    with get_context("spawn").Pool(jobs) as pool:
        for name, found, seconds in pool.imap_unordered(run, names):
            out[name], times[name] = found, seconds
            print(f"{len(out):4d} of {len(names)}  {seconds:5.1f} s  {name}", file=sys.stderr, flush=True)
    slow = ", ".join(f"{name} {times[name]:.0f} s" for name in sorted(times, key=times.__getitem__)[:-6:-1])
    print(f"{len(out)} cases, {time.perf_counter() - begun:.0f} s; the slowest: {slow}", file=sys.stderr)
    return out


def distance(found: Any, expected: Any) -> float:
    """The largest difference, relative to max(1, |value|); infinite where they are not of one form."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return math.inf
        return max((distance(found[name], expected[name]) for name in expected), default=0.0)
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return math.inf
        return max(map(distance, found, expected), default=0.0)
    both = [isinstance(value, int | float) and not isinstance(value, bool) for value in (found, expected)]
    if all(both):
        return abs(found - expected) / max(1.0, abs(expected))
    return 0.0 if found == expected else math.inf


def differing(found: Numbers, expected: Numbers, tolerance: float) -> str:
    """The parts that changed, for people."""
    if "error" in found and "error" not in expected:
        return found["error"]
    parts = {name: distance(found.get(name), expected.get(name)) for name in {*found, *expected}}
    return ", ".join(f"{name} {d:.1e}" for name, d in sorted(parts.items()) if d > tolerance)


def chosen(names: list[str], only: list[str] | None) -> list[str]:
    return [name for name in names if not only or any(text in name for text in only)]


def provenance() -> dict[str, Any]:
    """Where the source that is measured comes from; an old one cannot say."""
    try:
        from duogp.bench.provenance import stamp
    except ImportError:
        return {}
    return stamp()


def record(path: Path, only: list[str] | None, jobs: int) -> int:
    found = run_all(chosen(list(cases()), only), jobs)
    if failed := {name: numbers["error"] for name, numbers in found.items() if "error" in numbers}:
        for name, error in failed.items():
            print(f"{name}: {error}", file=sys.stderr)
        return 1
    # A line for each part of a case: differences between two files stay readable.
    lines = [f"{json.dumps(ABOUT)}: {json.dumps(provenance())}"]
    for name in sorted(found):
        parts = [
            f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(found[name].items())
        ]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path}: {len(found)} cases, {path.stat().st_size / 1e6:.2f} MB")
    return 0


def compare(
    path: Path, only: list[str] | None, jobs: int, tolerance: float, distances_to: Path | None
) -> int:
    expected = json.loads(path.read_text(encoding="utf-8"))
    expected.pop(ABOUT, None)
    known = cases()
    names = chosen([name for name in known if name in expected], only)
    gone = chosen([name for name in expected if name not in known], only)
    new = chosen([name for name in known if name not in expected], only)
    found = run_all(names, jobs)
    distances = {name: distance(found[name], expected[name]) for name in names}
    for name in sorted(distances, key=distances.__getitem__):
        over = distances[name] > tolerance
        why = f"   <-- {differing(found[name], expected[name], tolerance)}" if over else ""
        print(f"{distances[name]:8.1e}  {name}{why}")
    for name in gone:
        print(f"    gone  {name}")
    for name in new:
        print(f"     new  {name}")
    if distances_to:
        kept = {"tolerance": tolerance, "gone": gone, "distances": distances}
        distances_to.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    over = sum(d > tolerance for d in distances.values())
    worst = max(distances.values(), default=0.0)
    summary = f"{over} differ by more than {tolerance:g}, {len(gone)} gone"
    print(f"{len(names)} cases: {summary}; worst {worst:.1e}")
    return 1 if over or gone or not names else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "compare"):
        own = commands.add_parser(name)
        own.add_argument("file", type=Path)
        own.add_argument("--only", action="append", help="cases with this text in their name (repeatable)")
        own.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
        if name == "compare":
            own.add_argument("--tolerance", type=float, default=1e-6)
            own.add_argument("--distances-to", type=Path, metavar="FILE", help="of every case, as JSON")
    given = vars(parser.parse_args())
    if not os.environ.get("DUOGP_DATA"):
        parser.error("it needs the data sets: set DUOGP_DATA to their folder")
    command = given.pop("command")
    path = given.pop("file")
    return record(path, **given) if command == "record" else compare(path, **given)


if __name__ == "__main__":
    raise SystemExit(main())
