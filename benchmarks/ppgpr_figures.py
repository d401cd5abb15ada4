"""The tables of ranks and the figures of Jankowiak et al. 2020, Parametric Gaussian Process Regressors.

    python benchmarks/ppgpr_figures.py toy       Figure 1: parts of the variance on a heteroscedastic table
    python benchmarks/ppgpr_figures.py ranks     Tables 1 and 2: mean ranks beside the paper's
    python benchmarks/ppgpr_figures.py scores    Figures 2, 3 and 4, and curves of β_reg

`ranks` and `scores` read what the suite ``paper_ppgpr`` has stored. Numbers go to
benchmarks/results/ppgpr_figures.json, pictures to docs/images/ppgpr_*.png. The paper does not describe the
data of its Figure 1; ours are 400 rows of sin(3x) on [-3, 3] whose noise grows from 0.05 to 0.65.

A rank is that of a method among those of its table, on one data set and one split; blocks where a method of
the table has no row are left out, and the count of those that remain is stored. The paper's twelve sets and
the small tables that we added are averaged apart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

import duogp
from drawing import IMAGES, RESULTS, common_legend, keep_part, rounded, save, tidy
from duogp.bench.provenance import stamp
from duogp.bench.results import Results, Row
from duogp.bench.suite import Suite, load_suite
from duogp.plots import BLUE, INK, ORANGE, PALETTE, SKY

Array = NDArray[np.float64]

STORE = RESULTS / "ppgpr_figures.json"
#: Sets of the suite that are not the paper's.
SMALL = ("energy", "concrete", "airfoil", "housing", "yacht", "hl_wine")
METRICS = {"nll": "test NLL", "rmse": "test RMSE", "crps": "CRPS", "noise_share": "noise / variance"}


def keep(part: str, content: Any) -> None:
    """Replace a part of the stored file."""
    keep_part(STORE, part, content)


# -- Figure 1 ----------------------------------------------------------------------------------------------

TOY_ROWS, TOY_POINTS, TOY_STEPS = 400, 20, 3000
TOY_METHODS = {"SVGP": "svgp", "PPGPR-Chol": "ppgpr-chol", "PPGPR-MFD": "ppgpr-mfd"}


def toy_noise(x: Array) -> Array:
    """Standard deviation of the noise at x."""
    return 0.05 + 0.1 * (x + 3.0)


def toy_rows(rows: int, seed: int) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    x = random.uniform(-3.0, 3.0, rows)
    return x[:, None], np.sin(3 * x) + toy_noise(x) * random.standard_normal(rows)


def toy(quick: bool = False) -> None:
    from matplotlib import pyplot as plt

    X, y = toy_rows(TOY_ROWS, 0)
    X_test, y_test = toy_rows(4000, 1)
    along = np.linspace(-3.0, 3.0, 301)
    figure, axes = plt.subplots(
        1, len(TOY_METHODS), figsize=(11, 3.6), layout="constrained", sharex=True, sharey=True
    )
    found = {}
    for ax, (label, method) in zip(axes, TOY_METHODS.items(), strict=True):
        gp: Any = duogp.fit(
            X, y, method, kernel="matern52", mean="zero", num_inducing=TOY_POINTS, solver="stochastic",
            steps=20 if quick else TOY_STEPS, batch_size=TOY_ROWS, learning_rate=1e-2, schedule="cosine",
            beta1=1.0, validation_fraction=0, early_stopping=False,
            device="cpu", random_state=0,
        )  # fmt: skip
        scores = gp.predict(X_test).metrics(y_test)
        learned = gp.hyperparameters()
        found[label] = {
            "nll": rounded(scores["nll"]),
            "crps": rounded(scores["crps"]),
            "noise_share": rounded(scores["noise_share"]),
            "noise_std": rounded(np.sqrt(gp.predict(X_test).noise.mean())),
            "kernel_std": rounded(np.sqrt(learned["kernel"]["variance"] * gp.y_scaler.scale[0] ** 2)),
        }
        draw_toy(ax, gp.predict(along[:, None]), along, X, y)
        shown = found[label]
        ax.set_title(
            f"{label}: NLL {shown['nll']:.3f}, noise share {shown['noise_share']:.2f}",
            fontsize=9.5,
            loc="left",
        )
    ideal = float(np.mean(0.5 * np.log(2 * np.pi * toy_noise(X_test[:, 0]) ** 2) + 0.5))
    common_legend(figure, [axes[0]])
    if quick:
        plt.close(figure)
        return
    save(figure, IMAGES / "ppgpr_toy.png")
    about = {"rows": TOY_ROWS, "points": TOY_POINTS, "steps": TOY_STEPS, "nll_of_the_truth": rounded(ideal)}
    keep("toy", about | {"methods": found, **stamp("cpu")})
    print_lines("Figure 1", found)


def draw_toy(ax: Any, prediction: Any, along: Array, X: Array, y: Array) -> None:
    """Two standard deviations of function and noise together, of the function alone, and of the truth."""
    whole, function = 2 * prediction.std, 2 * np.sqrt(prediction.residual + prediction.explained)
    mean = prediction.mean
    ax.fill_between(along, mean - whole, mean + whole, color=SKY, alpha=0.35, lw=0, label="± 2σ, with noise")
    ax.fill_between(
        along, mean - function, mean + function, color=BLUE, alpha=0.45, lw=0, label="± 2σ of the function"
    )
    ax.plot(along, mean, color=INK, lw=1.4, label="mean")
    for sign in (-2, 2):
        ax.plot(
            along, np.sin(3 * along) + sign * toy_noise(along), color=ORANGE, lw=1, ls=(0, (4, 2)),
            label="± 2σ of the truth",
        )  # fmt: skip
    ax.scatter(X[:, 0], y, s=3, color=INK, alpha=0.4, lw=0)
    ax.set_xlabel("x", fontsize=9)
    tidy(ax)


def print_lines(title: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}")
    for label, row in rows.items():
        print(f"  {label:14s}" + "  ".join(f"{name} {value}" for name, value in row.items()))


# -- Tables 1 and 2 ----------------------------------------------------------------------------------------


def stored(suite: Suite) -> dict[tuple[str, int, str], Row]:
    """The successful rows by data set, split and label."""
    results = Results.read(suite.results)
    found = ((cell, results.ok(cell)) for cell in suite.cells())
    return {(cell.data, cell.split, cell.label): row for cell, row in found if row is not None}


def mean_ranks(
    rows: dict[tuple[str, int, str], Row], labels: Sequence[str], metric: str, data: Sequence[str]
) -> tuple[dict[str, float], int]:
    """Mean rank of every label, and the number of blocks (data set and split) that have them all."""
    blocks = sorted({(name, split) for name, split, _ in rows if name in data})
    ranks = []
    for name, split in blocks:
        own = [rows.get((name, split, label)) for label in labels]
        if all(row is not None for row in own):
            ranks.append(rankdata([row["metrics"][metric] for row in own if row is not None]))
    means = np.mean(ranks, axis=0) if ranks else []
    return dict(zip(labels, map(float, means), strict=False)), len(ranks)


def ranks() -> None:
    suite = load_suite("paper_ppgpr")
    rows = stored(suite)
    groups = {
        "the paper's sets": [d.name for d in suite.data if d.name not in SMALL],
        "small tables": list(SMALL),
    }
    found: dict[str, Any] = {}
    for metric, tables in suite.paper_ranks.items():
        for table, paper in tables.items():
            entry: dict[str, Any] = {"paper": paper}
            for group, data in groups.items():
                ours, blocks = mean_ranks(rows, list(paper), metric, data)
                if blocks:
                    tau = kendalltau(list(paper.values()), [ours[label] for label in paper]).statistic
                    entry[group] = {
                        "ranks": {label: rounded(value) for label, value in ours.items()},
                        "blocks": blocks,
                        "sets": len({d for d, _, label in rows if d in data and label in paper}),
                        "kendall_tau": rounded(tau),
                    }
            found.setdefault(table, {})[metric] = entry
    keep("ranks", found)
    for table, by_metric in found.items():
        for metric, entry in by_metric.items():
            print(f"\n{table}, {metric}: mean ranks")
            print(f"  {'':34s}" + "".join(f"{label:>12s}" for label in entry["paper"]))
            print(f"  {'paper (120 blocks)':34s}" + "".join(f"{v:12.2f}" for v in entry["paper"].values()))
            for group in groups:
                if group in entry:
                    mine = entry[group]
                    head = f"{group} ({mine['blocks']} blocks, τ {mine['kendall_tau']:.2f})"
                    print(f"  {head:34s}" + "".join(f"{mine['ranks'][v]:12.2f}" for v in entry["paper"]))


# -- Figures 2, 3 and 4, and β_reg --------------------------------------------------------------------------


def scores() -> None:
    suite = load_suite("paper_ppgpr")
    rows = stored(suite)
    curves = [m.label for m in suite.methods if "β=" in m.label]
    labels = [m.label for m in suite.methods if m.label not in curves]
    table = averages(rows, labels)
    keep("scores", table)
    keep("beta", averages(rows, curves))
    if table:
        draw_scores(table, labels)
    curve = averages(rows, curves)
    if curve:
        draw_curves(curve)


def averages(rows: dict[tuple[str, int, str], Row], labels: Sequence[str]) -> dict[str, Any]:
    """data → label → metric → [mean, standard error], with the number of splits."""
    found: dict[str, Any] = {}
    for (data, _, label), _row in rows.items():
        if label in labels and label not in found.get(data, {}):
            own = [row for (d, _, other), row in rows.items() if (d, other) == (data, label)]
            entry: dict[str, Any] = {"splits": len(own)}
            for metric in METRICS:
                values = [row["metrics"][metric] for row in own if metric in row["metrics"]]
                if values:
                    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
                    entry[metric] = rounded([statistics.fmean(values), error])
            found.setdefault(data, {})[label] = entry
    return found


def draw_scores(table: dict[str, Any], labels: Sequence[str]) -> None:
    """A panel for each metric and data set, a point for each method with its standard error."""
    from matplotlib import pyplot as plt

    metrics = ("nll", "rmse", "noise_share")
    figure, axes = plt.subplots(
        len(metrics), len(table), figsize=(1.6 + 1.55 * len(table), 6.6), layout="constrained", squeeze=False,
        sharey=True,
    )  # fmt: skip
    height = {label: -i for i, label in enumerate(labels)}
    for row, metric in zip(axes, metrics, strict=True):
        for ax, (data, by_label) in zip(row, table.items(), strict=True):
            for i, label in enumerate(labels):
                if metric in by_label.get(label, {}):
                    mean, error = by_label[label][metric]
                    colour = PALETTE[i % len(PALETTE)]
                    ax.errorbar(mean, height[label], xerr=error, fmt="o", ms=4, color=colour)
            ax.set_yticks(list(height.values()), list(height))
            if metric == metrics[0]:
                ax.set_title(data, fontsize=9, loc="left")
            ax.grid(axis="y", lw=0.4, alpha=0.5)
            tidy(ax)
        row[0].set_ylabel(METRICS[metric], fontsize=9)
    save(figure, IMAGES / "ppgpr_scores.png")


def draw_curves(curve: dict[str, Any]) -> None:
    """NLL and RMSE against β_reg."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(curve), figsize=(1.2 + 2.1 * len(curve), 4.6), layout="constrained", squeeze=False, sharex=True
    )
    families = sorted({label.split(" β=")[0] for by_label in curve.values() for label in by_label})
    for row, metric in zip(axes, ("nll", "rmse"), strict=True):
        for ax, (data, by_label) in zip(row, curve.items(), strict=True):
            for family, colour in zip(families, (BLUE, ORANGE), strict=False):
                points = sorted(
                    (float(label.split("β=")[1]), *entry[metric])
                    for label, entry in by_label.items()
                    if label.split(" β=")[0] == family
                )
                if points:
                    beta, mean, error = map(list, zip(*points, strict=True))
                    ax.errorbar(beta, mean, error, marker="o", ms=3.5, lw=1.4, color=colour, label=family)
            ax.set_xscale("log")
            if metric == "nll":
                ax.set_title(data, fontsize=9, loc="left")
            else:
                ax.set_xlabel("β_reg", fontsize=9)
            tidy(ax)
        row[0].set_ylabel(METRICS[metric], fontsize=9)
    common_legend(figure, list(axes[0]))
    save(figure, IMAGES / "ppgpr_beta.png")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("toy", "ranks", "scores", "all"), nargs="?", default="all")
    parser.add_argument("--quick", action="store_true", help="a moment of training; nothing is stored")
    options = parser.parse_args(arguments)
    if options.what in ("toy", "all"):
        toy(options.quick)
    if options.what in ("ranks", "all") and not options.quick:
        ranks()
    if options.what in ("scores", "all") and not options.quick:
        scores()
    return 0


if __name__ == "__main__":
    sys.exit(main())
