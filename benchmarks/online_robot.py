"""The experiment of Cheng and Boots (2017) on robot dynamics: SVDGP, SVI, iVSGPR, VSGPR and GPR, Tables 3–6.

Every data set is split 90/10. Stochastic methods are fed minibatches of 1,024 random training rows and
take 2,000 steps (`OnlineGP`, to which every row is new); VSGPR maximises Titsias' bound of all training rows,
GPR is the exact GP of 1,024 of them. Outputs are independent latent functions with hyperparameters of their
own, trained together on shared basis points; all but GPR use the generalised RBF kernel, as the paper does.
Each stochastic method chooses its learning rate from one and the same grid, by the mean nMSE on a tenth of
the training rows after ``--tuning-iterations`` steps.

    svdgp      1,024 points for the mean, 128 for the covariance, tied, then freed (Jacobi preconditioner)
    svdgp-nystrom   the same with the Nyström preconditioner that the paper's appendix A.1 proposes
    svi        1,024 points fixed in number, natural gradients        svi-128      the same with 128
    ivsgpr     1,024 points grown online, natural gradients           ivsgpr-128   the same with 128
    vsgpr      1,024 points, closed form                              vsgpr-128    the same with 128
    gpr        exact, on 1,024 rows

The methods with 128 points cost about what SVDGP costs, those with 1,024 have as many mean parameters. The
lower bound is that of all training rows at the final state, in nats, of targets with the standard deviation
one; GPR's is that of its posterior as an approximation: log p(y of its rows) + Σ of the others.

Results are appended to a file, line by line, and what it holds is not computed again.

    export DUOGP_DATA=<folder with robot/*.npz>
    python benchmarks/online_robot.py --device cuda --time-limit 1500
    python benchmarks/online_robot.py --tables

The MuJoCo sets are made once, in an environment that has ``gymnasium[mujoco]``:

    python benchmarks/online_robot.py --generate --data-cache local/data/robot
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import duogp
from duogp.bases import Exact
from duogp.bench.measure import device_name
from duogp.bench.provenance import stamp
from duogp.data.benchmark import load
from duogp.likelihoods import GaussianLikelihood
from duogp.metrics import nmse
from duogp.online import OnlineGP
from duogp.posterior.gp import GP

ROBOTS = ("kuka_iiwa14_inverse", "kuka_lwr_forward", "ur10_picknplace", "sarcos_test")
MUJOCO = {"mujoco_halfcheetah": "HalfCheetah-v5", "mujoco_walker2d": "Walker2d-v5"}
MUJOCO_ROWS = 25_000
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
SUBSET = 1024
RESULTS = Path(__file__).parent / "results" / "online_robot.jsonl"
CHUNK = 4096
LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Contestant:
    """A method of the table: streamed (with a learning rate to choose) or fitted at once."""

    method: str
    points: int
    settings: dict[str, Any] = field(default_factory=dict)
    streamed: bool = True


KERNEL = {"kernel": "generalised-rbf"}
SVDGP = {"num_extra": 1024, "mean_columns": 128}
CONTESTANTS = {
    "svdgp": Contestant("svdgp", 128, SVDGP | {"preconditioner": "jacobi"}),
    "svi": Contestant("svi", 1024, KERNEL),
    "ivsgpr": Contestant("ivsgpr", 1024, KERNEL),
    "vsgpr": Contestant("sgpr", 1024, KERNEL, streamed=False),
    "gpr": Contestant("exact", SUBSET, {"kernel": "rbf"}, streamed=False),
    "svdgp-nystrom": Contestant("svdgp", 128, SVDGP | {"preconditioner": "nystrom"}),
    "svi-128": Contestant("svi", 128, KERNEL),
    "ivsgpr-128": Contestant("ivsgpr", 128, KERNEL),
    "vsgpr-128": Contestant("sgpr", 128, KERNEL, streamed=False),
}
CHEAP_FIRST = "svdgp,svi-128,ivsgpr-128,vsgpr-128,gpr,svdgp-nystrom,vsgpr,svi,ivsgpr"


# -- data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    X: NDArray
    Y: NDArray  # [n, outputs]

    def __len__(self) -> int:
        return len(self.X)

    def take(self, index: NDArray) -> Rows:
        return Rows(self.X[index], self.Y[index])


def read(name: str, cache: Path) -> Rows:
    """A robot set of DUOGP_DATA, or a MuJoCo set of the cache."""
    if name in MUJOCO:
        path = cache / f"{name}.npz"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: make it by --generate (needs gymnasium[mujoco])")
        with np.load(path) as archive:
            return Rows(archive["X"].astype(np.float64), archive["Y"].astype(np.float64))
    data = load(f"robot/{name}")
    return Rows(data.X.astype(np.float64), data.y.astype(np.float64))


def split(rows: Rows, seed: int, share: float = 0.1) -> tuple[Rows, Rows]:
    order = np.random.default_rng(seed).permutation(len(rows))
    held_out = round(share * len(rows))
    return rows.take(order[held_out:]), rows.take(order[:held_out])


def generate(cache: Path, rows: int, seed: int = 0) -> None:
    """(state, action) → change of the nine velocities in one step, under random actions."""
    try:
        import gymnasium
    except ImportError as error:
        raise SystemExit("--generate needs gymnasium: pip install 'gymnasium[mujoco]'") from error
    cache.mkdir(parents=True, exist_ok=True)
    for name, environment in MUJOCO.items():
        env = gymnasium.make(environment)
        env.action_space.seed(seed)
        state, _ = env.reset(seed=seed)
        X, Y = [], []
        while len(X) < rows:
            action = env.action_space.sample()
            velocity = env.unwrapped.data.qvel.copy()  # type: ignore[attr-defined]
            X.append(np.concatenate([state, action]))
            state, _, terminated, truncated, _ = env.step(action)
            Y.append(env.unwrapped.data.qvel - velocity)  # type: ignore[attr-defined]
            if terminated or truncated:
                state, _ = env.reset()
        path = cache / f"{name}.npz"
        np.savez_compressed(path, X=np.array(X, dtype=np.float32), Y=np.array(Y, dtype=np.float32))
        print(f"{path}: {len(X)} rows, {X[0].size} inputs, {Y[0].size} outputs", flush=True)


# -- training ------------------------------------------------------------------------------------------------


def stream(
    contestant: Contestant, train: Rows, rate: float, iterations: int, options: argparse.Namespace
) -> GP:
    rng = np.random.default_rng(options.seed)
    batch = min(options.batch_size, len(train))
    points = min(round(contestant.points * options.shrink), batch)
    settings = dict(contestant.settings)
    if "num_extra" in settings:
        settings["num_extra"] = round(settings["num_extra"] * options.shrink)
    learner = OnlineGP(
        contestant.method, num_inducing=points, num_data=len(train), learning_rate=rate, batch_size=batch,
        device=options.device, dtype=options.dtype, random_state=options.seed, **settings,
    )  # fmt: skip
    for _ in range(iterations):
        rows = train.take(rng.choice(len(train), batch, replace=False))
        learner.partial_fit(rows.X, rows.Y)
    return learner.gp


def fit_at_once(contestant: Contestant, train: Rows, options: argparse.Namespace) -> tuple[GP, NDArray]:
    """The fitted model, and which training rows it saw."""
    index = np.arange(len(train))
    settings = dict(contestant.settings)
    points = round(contestant.points * options.shrink)
    if contestant.method == "exact":
        index = np.random.default_rng(options.seed).permutation(len(train))[:points]
    else:
        settings["num_inducing"] = min(points, len(train))
    if options.iterations < 200:
        settings["epochs"] = options.iterations
    settings |= {"device": options.device, "dtype": options.dtype, "random_state": options.seed}
    seen = train.take(index)
    return duogp.fit(seen.X, seen.Y, contestant.method, **settings), index


# -- scores --------------------------------------------------------------------------------------------------


@torch.no_grad()
def lower_bound(gp: GP, train: Rows, seen: NDArray | None = None) -> NDArray:
    """The bound of all training rows for each output, for targets scaled to a standard deviation of one.

    ``seen``: the rows of an exact GP, whose posterior q has KL(q ‖ p) = E log p(y_seen | f) − log p(y_seen).
    """
    model = copy.deepcopy(gp.model)
    if getattr(model.basis, "columns_index", None) is not None:
        model.basis.columns_index = None  # type: ignore[assignment]  # all of the quadratic form
    likelihood, factors = model.likelihood, model.factors()
    assert isinstance(likelihood, GaussianLikelihood)
    noise = likelihood.noise().double().unsqueeze(-1)  # [1, outputs, 1]
    left = train
    if isinstance(model.basis, Exact):
        assert seen is not None
        white = model.basis.q.mean.double()
        total = -0.5 * white.square().sum(-1) - factors.half_log_det() - 0.5 * white.shape[-1] * LOG_2PI
        mask = np.ones(len(train), dtype=bool)
        mask[seen] = False
        left = train.take(np.flatnonzero(mask))
    else:
        total = -model.basis.kl(factors, model.basis.q_of(factors)).double()
    device = model.beta1.device
    dtype = next(model.parameters()).dtype
    for start in range(0, len(left), CHUNK):
        rows = left.take(np.arange(start, min(start + CHUNK, len(left))))
        x = torch.as_tensor(gp.x_scaler.transform(rows.X[:, gp.columns]), dtype=dtype, device=device)
        y = torch.as_tensor(gp.y_scaler.transform(rows.Y).T, dtype=torch.float64, device=device)
        f = model.marginals(x[None], factors)
        fit: Tensor = (y - f.mean.double()).square() + f.variance.double()
        total = total - 0.5 * (fit / noise + noise.log() + LOG_2PI).sum(-1)
    shift = np.log(train.Y.std(0, ddof=1)) - np.log(gp.y_scaler.scale)
    return total[0].cpu().numpy() + len(train) * shift


def errors(gp: GP, rows: Rows) -> list[float]:
    mean = gp.predict(rows.X).mean.reshape(rows.Y.shape)
    return [nmse(rows.Y[:, p], mean[:, p]) for p in range(rows.Y.shape[1])]


# -- running -------------------------------------------------------------------------------------------------


class Store:
    """One JSON line per finished piece of work."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]

    def find(self, **key: Any) -> dict[str, Any] | None:
        return next((row for row in self.lines if all(row.get(k) == v for k, v in key.items())), None)

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        self.lines.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row


class OutOfTime(Exception):
    pass


def work(options: argparse.Namespace) -> None:
    store = Store(options.output)
    deadline = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
    try:
        for method in options.methods.split(","):  # a method is done everywhere before the next one starts
            for name in options.data.split(","):
                compete(name, method, store, deadline, options)
    except OutOfTime:
        print("the time is up; the same command goes on from here", flush=True)


def compete(name: str, method: str, store: Store, deadline: float, options: argparse.Namespace) -> None:
    contestant = CONTESTANTS[method]
    key = {
        "data": name,
        "method": method,
        "seed": options.seed,
        "iterations": options.iterations,
        "shrink": options.shrink,
        "dtype": options.dtype,
    }
    train, test = split(read(name, options.data_cache), options.seed)
    seen = None
    rate = choose_rate(contestant, train, key, store, deadline, options) if contestant.streamed else None
    if store.find(kind="result", **key, learning_rate=rate):
        return
    check(deadline)
    start = time.perf_counter()
    if rate is not None:
        gp = stream(contestant, train, rate, options.iterations, options)
    else:
        gp, seen = fit_at_once(contestant, train, options)
    row = {
        "kind": "result",
        **key,
        "learning_rate": rate,
        "nmse": errors(gp, test),
        "lower_bound": lower_bound(gp, train, seen).tolist(),
        "nll": float(-gp.log_density(test.X, test.Y).mean()),
        "train_rows": len(train),
        "seconds": time.perf_counter() - start,
        "rollbacks": gp.history.rollbacks,
        "points": len(gp.inducing_points),
        "device": device_name(options.device),
        **stamp(),
    }
    store.add(row)
    print(
        f"{name} {method}: nMSE {np.mean(row['nmse']):.4f}, bound {np.mean(row['lower_bound']):.4g}, "
        f"rate {rate}, {row['seconds']:.0f} s",
        flush=True,
    )


def choose_rate(
    contestant: Contestant,
    train: Rows,
    key: dict[str, Any],
    store: Store,
    deadline: float,
    options: argparse.Namespace,
) -> float:
    inner, validation = split(train, options.seed + 1)
    iterations = min(options.tuning_iterations, options.iterations)
    scores = {}
    for rate in RATES:
        own = {"kind": "tuning", **key, "learning_rate": rate, "tuning_iterations": iterations}
        row = store.find(**own)
        if row is None:
            check(deadline)
            start = time.perf_counter()
            gp = stream(contestant, inner, rate, iterations, options)
            score = float(np.mean(errors(gp, validation)))
            row = store.add(own | {"nmse": score, "seconds": time.perf_counter() - start, **stamp()})
            print(f"{key['data']} {key['method']}: rate {rate} has {score:.4f}", flush=True)
        scores[rate] = row["nmse"]
    return min(scores, key=lambda rate: scores[rate] if math.isfinite(scores[rate]) else math.inf)


def check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise OutOfTime


# -- tables --------------------------------------------------------------------------------------------------


def tables(options: argparse.Namespace) -> Iterator[str]:
    """The layout of Tables 3–6: outputs in rows, methods in columns, then mean and standard deviation."""
    asked = {name: getattr(options, name) for name in ("iterations", "seed", "shrink", "dtype")}
    rows = [
        row
        for row in Store(options.output).lines
        if row["kind"] == "result" and all(row[name] == value for name, value in asked.items())
    ]
    for name in dict.fromkeys(row["data"] for row in rows):
        found = {row["method"]: row for row in rows if row["data"] == name}
        methods = [method for method in CONTESTANTS if method in found]
        largest = max(np.abs(found[method]["lower_bound"]).max() for method in methods)
        power = 10 ** max(0, math.floor(math.log10(max(largest, 1.0))))
        for title, what, scale, digits in (
            (f"variational lower bound (10^{round(math.log10(power))} nats)", "lower_bound", power, 3),
            ("prediction error (nMSE)", "nmse", 1.0, 4),
        ):
            values = np.array([found[method][what] for method in methods]).T / scale  # [outputs, methods]
            yield f"\n{name} after {options.iterations} iterations: {title}"
            yield " " * 5 + "".join(f"{method:>15}" for method in methods)
            labels = [f"Y{p + 1}" for p in range(len(values))]
            body = [*values, values.mean(0), values.std(0)]
            for label, line in zip([*labels, "mean", "std"], body, strict=True):
                yield f"{label:<5}" + "".join(f"{value:15.{digits}f}" for value in line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=",".join(ROBOTS), help=f"of {', '.join([*ROBOTS, *MUJOCO])}")
    parser.add_argument("--methods", default=CHEAP_FIRST)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--tuning-iterations", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--shrink", type=float, default=1.0, help="numbers of points times this, to try out")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--time-limit", type=float, help="seconds after which nothing new is started")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results" / "online_robot.jsonl"
    )
    parser.add_argument(
        "--data-cache", type=Path, default=Path("local/data/robot"), help="of the MuJoCo sets"
    )
    parser.add_argument("--generate", action="store_true", help="make the MuJoCo sets and stop")
    parser.add_argument("--rows", type=int, default=MUJOCO_ROWS, help="of a MuJoCo set")
    parser.add_argument("--tables", action="store_true", help="print what is stored and stop")
    options = parser.parse_args()
    if options.generate:
        generate(options.data_cache, options.rows)
        return
    for kind, known, asked in (
        ("data", [*ROBOTS, *MUJOCO], options.data),
        ("methods", list(CONTESTANTS), options.methods),
    ):
        if unknown := [name for name in asked.split(",") if name not in known]:
            parser.error(f"--{kind}: {', '.join(unknown)} not among {', '.join(known)}")
    if not options.tables:
        warnings.simplefilter("ignore", duogp.DataWarning)
        work(options)
    for line in tables(options):
        print(line)


if __name__ == "__main__":
    main()
