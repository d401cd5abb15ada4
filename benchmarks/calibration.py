"""How honest deep regressors are: the question of section 5.3 and Figure 5 of Jankowiak et al. 2020.

The paper fits trip durations in three cities with deep kernels, under the SVGP and the PPGPR-MFD objective,
and with MC dropout (50 passes), and draws the distribution of the z-scores (y − μ)/σ of the test rows beside
the normal one. It prints no numbers, says nothing of the networks, and the trips are not public. Here the
table is a year of flights out of New York (arrival delay from schedule, air time, distance and age of the
plane): heavy tails, and noise that depends on the inputs. Random 80 / 20 splits, standardised on the training
rows; a tenth of those is held out, and of every method the epoch is kept that these rows liked best.

All networks have two SiLU layers of 256: the features of a deep kernel, or what stands under a linear head.
(The d–1000–500–50–20 of the first deep kernels was tried at a rate of 5e-3: after fifty steps its features
were so far apart that no row knew an inducing point, and every deep kernel ended as a constant.) Kernels and
the prior mean are the paper's: Matérn with a lengthscale for each feature, and zero. 20 epochs in batches of
1024, about 3,900 steps along half a cosine, in single precision. PPGPR-MFD-DKL, SVGP-DKL and MC dropout are
the paper's; the deep ensemble, PPGPR with a full covariance on the same features and the two shallow GPs are
ours.

What was tried before, with M = 100: rates of 5e-3 and 1e-2 for SVGP-DKL and PPGPR-DKL on a sample of 40,000
rows, and batches of 2048 at 5e-3 for SVGP-DKL and PPGPR-MFD-DKL on split 0, all judged on test rows: that
may flatter the GPs a little. The plain networks have Adam's usual rate and were not tuned.

    python benchmarks/calibration.py                 run what is missing, then draw docs/images/...
    python benchmarks/calibration.py --no-figure     where there is no matplotlib
    python benchmarks/calibration.py --figure-only   draw what is stored
    python benchmarks/calibration.py --quick         a made-up table, a moment of training, nothing stored

Results are rows like those of `duogp bench` (docs/benchmarks.md) in benchmarks/results/calibration.jsonl,
each with 400 quantiles of the z-scores; what is there is not run again. ``nll`` and ``crps`` are of the
normal distribution with the predicted mean and variance, ``density_nll`` of the predicted density itself,
which is a mixture for dropout and the ensemble.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from duogp.bench import measure
from duogp.bench.results import Results, Row
from duogp.bench.runner import Job, begin_row, failure, fit_one, load_table, provenance, run
from duogp.bench.suite import Cell
from duogp.data.splits import Split, components_protocol
from duogp.errors import DuoGPWarning
from duogp.metrics import regression_metrics

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "calibration.jsonl"
FIGURE = ROOT / "docs" / "images" / "calibration_deep.png"

DATA, MADE_UP = "regression/nycflights", "made-up"
SPLITS = 1
QUANTILES = 400  # of the z-scores that a row keeps

TRAINING: dict[str, Any] = {
    "epochs": 20,
    "batch_size": 1024,
    "learning_rate": 1e-2,
    "schedule": "cosine",
    "validation_fraction": 0.1,
    "early_stopping": True,
    "patience": 20,  # never before the end of the schedule; the best epoch is kept
    "standardize": False,  # the split has done it
    "dtype": "float32",
}
PROCESS: dict[str, Any] = {
    "kernel": "matern52",
    "mean": "zero",
    "num_inducing": 500,
    "solver": "stochastic",
}
NETWORK: dict[str, Any] = {"widths": [256, 256], "activation": "silu", "weight_decay": 1e-4}
#: Adam's usual rate: plain networks have no use for a larger one.
PLAIN_NETWORK: dict[str, Any] = NETWORK | {"learning_rate": 1e-3}


@dataclass(frozen=True)
class Candidate:
    """A method as the table and the figure call it."""

    label: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    deep: bool = True


#: In the order they run: the paper's and the deep ensemble, which is the least there must be, then the rest.
CANDIDATES = (
    Candidate("PPGPR-MFD-DKL", "ppgpr-mfd-dkl", PROCESS | NETWORK),
    Candidate("SVGP-DKL", "svgp-dkl", PROCESS | NETWORK),
    Candidate("MC dropout", "mc-dropout", PLAIN_NETWORK),
    Candidate("deep ensemble", "deep-ensemble", PLAIN_NETWORK),
    Candidate("PPGPR-DKL", "ppgpr-dkl", PROCESS | NETWORK),
    Candidate("PPGPR", "ppgpr-chol", PROCESS, deep=False),
    Candidate("SVGP", "svgp", PROCESS, deep=False),
)


# -- what runs ---------------------------------------------------------------------------------------------


def make_cells(candidates: Sequence[Candidate], splits: int, *, quick: bool = False) -> list[Cell]:
    """All methods on a split before the next split."""
    return [
        Cell(
            suite="calibration",
            data=MADE_UP if quick else DATA,
            method=each.method,
            label=each.label,
            protocol="standardised on the training rows, 80 / 20",
            split=split,
            settings=shortened(TRAINING | each.settings) if quick else TRAINING | each.settings,
        )
        for split in range(splits)
        for each in candidates
    ]


def shortened(settings: dict[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {"epochs": 15, "batch_size": 128, "num_inducing": 30, "widths": [32, 16, 8]}
    return settings | {name: value for name, value in small.items() if name in settings}


@lru_cache(maxsize=1)
def table(name: str, split: int) -> Split:
    X, y = made_up_table() if name == MADE_UP else load_table(name)
    return components_protocol(X, y, split, scale_on="train")


def made_up_table(rows: int = 1500) -> tuple[NDArray, NDArray]:
    """A wave whose noise grows along the third column."""
    random = np.random.default_rng(0)
    X = random.standard_normal((rows, 3))
    noise = 0.3 * np.exp(0.8 * X[:, 2])
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + noise * random.standard_normal(rows)


def execute(job: Job, device: str) -> list[Row]:
    """The rows of a job; an exception becomes a row with status "failed"."""
    return [run_cell(cell, device) for cell in job]


def run_cell(cell: Cell, device: str) -> Row:
    row = begin_row(cell, device)
    try:
        row |= evaluate(cell, device)
        if bad := [name for name, value in row["metrics"].items() if not math.isfinite(value)]:
            row |= failure(FloatingPointError(f"metrics not finite: {', '.join(bad)}"))
    except Exception as error:
        row |= failure(error)
    return row | provenance(cell, device)


def evaluate(cell: Cell, device: str) -> Row:
    """Fit, predict the test rows, and measure."""
    part = table(cell.data, cell.split)
    measure.reset_peak_memory(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuoGPWarning)  # what it would say is in the history
        with measure.Stopwatch(device) as fitting:
            model = fit_one(cell, part, cell.settings, device)
        with measure.Stopwatch(device) as predicting:
            prediction = model.predict(part.X_test)
    metrics = regression_metrics(part.y_test, prediction.mean, prediction.std, prediction.noise)
    metrics["density_nll"] = -float(np.mean(model.log_density(part.X_test, part.y_test)))
    history = model.history
    return {
        "n_train": len(part.y_train),
        "n_test": len(part.y_test),
        "dims": int(part.X_train.shape[1]),
        "seconds": {"fit": round(fitting.seconds, 4), "predict": round(predicting.seconds, 4)},
        "peak_memory_bytes": measure.peak_memory(device),
        "metrics": metrics,
        "history": {"epochs": len(history), "best_epoch": history.best_epoch, "loss": history[-1].loss},
        "zscores": quantiles((part.y_test - prediction.mean) / prediction.std),
    }


def quantiles(z: NDArray) -> list[float]:
    """Of the levels ½/n, 1½/n, …: as many equally likely values as a row keeps."""
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return [float(f"{value:.5g}") for value in np.quantile(z, levels)]


# -- what is shown -----------------------------------------------------------------------------------------

COLUMNS = {
    "rmse": "RMSE",
    "nll": "NLL",
    "density_nll": "NLL (density)",
    "crps": "CRPS",
    "zscore_wasserstein": "z to N(0, 1)",
    "coverage": "95 % coverage",
    "noise_share": "noise share",
}


def rows_by_label(results: Results, cells: Sequence[Cell]) -> dict[str, list[Row]]:
    """The successful rows of every method that has any, one for each split."""
    found: dict[str, list[Row]] = {}
    for cell in cells:
        if (row := results.ok(cell)) is not None:
            found.setdefault(cell.label, []).append(row)
    return found


def report(found: dict[str, list[Row]]) -> str:
    """Means over splits with their standard errors, and seconds."""
    head = ["", *COLUMNS.values(), "fit s", "predict s", "splits"]
    lines = [head]
    for label, rows in found.items():
        values = [over_splits([row["metrics"][name] for row in rows]) for name in COLUMNS]
        seconds = [f"{statistics.fmean(r['seconds'][k] for r in rows):.2f}" for k in ("fit", "predict")]
        lines.append([label, *values, *seconds, str(len(rows))])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
    )


def over_splits(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def draw(found: dict[str, list[Row]], path: Path) -> None:
    """The distribution of the z-scores, and how far it is from the normal one; shallow GPs dashed."""
    from matplotlib import pyplot as plt

    from duogp.plots import FAINT, PALETTE, zscore_cdf

    deep = {each.label: each.deep for each in CANDIDATES}
    colours = dict(zip((label for label, is_deep in deep.items() if is_deep), PALETTE, strict=False))
    colours |= {label: colours[f"{label}-DKL"] for label, is_deep in deep.items() if not is_deep}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    along = np.linspace(-4, 4, 401)
    for label, rows in found.items():
        z = np.sort(np.concatenate([row["zscores"] for row in rows]))  # splits weigh the same
        style = {"color": colours[label], "ls": "-" if deep[label] else (0, (4, 1.5)), "lw": 1.7}
        crps = statistics.fmean(row["metrics"]["crps"] for row in rows)
        zscore_cdf(z, np.zeros_like(z), np.ones_like(z), ax=left, label=f"{label}: CRPS {crps:.3f}")
        left.lines[-1].set(**style)
        below = np.searchsorted(z, along, side="right") / len(z)
        right.plot(along, below - ndtr(along), **style)
    left.set_title("z-scores of the test rows", fontsize=10, loc="left")
    next(line for line in left.lines if line.get_gid() == "reference").set_label("N(0, 1)")
    left.legend(frameon=False, fontsize=8, loc="upper left")  # again: it shows styles as they were
    right.axhline(0.0, color=FAINT, lw=1, ls=(0, (4, 3)), zorder=0)
    right.set_title("the same, less the normal distribution", fontsize=10, loc="left")
    right.set(xlim=(-4, 4), xlabel="z-score", ylabel="cumulative share, difference")
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    right.tick_params(length=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# -- the command -------------------------------------------------------------------------------------------


def wanted(names: str | None) -> list[Candidate]:
    if names is None:
        return list(CANDIDATES)
    asked = [name.strip().lower() for name in names.split(",") if name.strip()]
    chosen = [each for each in CANDIDATES if {each.label.lower(), each.method} & set(asked)]
    known = {name for each in CANDIDATES for name in (each.label.lower(), each.method)}
    if strange := [name for name in asked if name not in known]:
        raise SystemExit(
            f"--methods: no {', '.join(strange)}; there are {', '.join(each.method for each in CANDIDATES)}"
        )
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    parser.add_argument("--splits", type=int, metavar="K", help=f"the first K splits (default: {SPLITS})")
    parser.add_argument("--methods", metavar="NAMES", help="separated by commas (default: all)")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="start no fit that would end later"
    )
    parser.add_argument("--output", type=Path, help="the results file")
    parser.add_argument("--figure", type=Path, help=f"default: {FIGURE.relative_to(ROOT)}")
    parser.add_argument("--quick", action="store_true", help="does everything still work?")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--no-figure", action="store_true")
    what.add_argument("--figure-only", action="store_true")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as forgotten:
        path = options.output or (Path(forgotten) / "quick.jsonl" if options.quick else RESULTS)
        cells = make_cells(
            wanted(options.methods), options.splits or (1 if options.quick else SPLITS), quick=options.quick
        )
        failed = 0
        if not options.figure_only:
            done = run(cells, path, device=options.device, time_limit=options.time_limit, execute=execute)
            failed = done.failed
            if done.missing:
                print(f"{len(done.missing)} of {len(cells)} fits are missing: run it again for the rest")
        found = rows_by_label(Results.read(path), cells)
    if not found:
        print("nothing is stored yet", file=sys.stderr)
        return 1
    print(report(found))
    figure = options.figure or (None if options.quick else FIGURE)
    if figure is not None and not options.no_figure:
        draw(found, figure)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
