"""The figures of Zhu et al. 2023, Variational GPs with Decoupled Conditionals, but for its optimisation runs.

    python benchmarks/dc_figures.py toy           Figures 1 and 7, top of Figure 8: a table of one column
    python benchmarks/dc_figures.py beta2         Figures 2, 8 and 9: scores and lengthscales against β₂
    python benchmarks/dc_figures.py calibration   Figure 6, appendix B.1.3: z-scores beside N(0, 1)

`toy` fits on the CPU. `beta2` and `calibration` read what the suites ``paper_dc_beta2`` and ``paper_dc`` have
stored. Numbers go to benchmarks/results/dc_figures.json, pictures to docs/images/dc_*.png. The table of one
column is `duogp.data.dc_one_dimensional`, with the model of the paper's code: raw units, no output scale.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

import duogp
from drawing import IMAGES, RESULTS, common_legend, keep_part, read_json, rounded, save, tidy
from duogp.bench.provenance import stamp
from duogp.bench.results import Results, Row
from duogp.bench.suite import load_suite
from duogp.data import dc_one_dimensional
from duogp.plots import BLUE, FAINT, GREEN, INK, ORANGE

STORE = RESULTS / "dc_figures.json"
#: Values of β₂ of Figure 2; the line of Figure 8 has those and SVGP.
BETAS = (1.0, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0)
LENGTHSCALES = ("lengthscale_mean", "lengthscale_covariance")
TOY_STEPS, TOY_SEEDS = 2000, (0, 1, 2)


def keep(part: str, content: Any) -> None:
    """Replace a part of the stored file."""
    keep_part(STORE, part, content)


# -- one column ---------------------------------------------------------------------------------------------


def fit_toy(method: str, points: int, seed: int, quick: bool, **own: Any) -> tuple[Any, dict[str, float]]:
    """A fit to 100 rows, and its scores on rows that it has not seen."""
    problem = dc_one_dimensional(seed=seed)
    unseen = problem.f_test + 0.1 * np.random.default_rng(1000 + seed).standard_normal(len(problem.f_test))
    gp: Any = duogp.fit(
        problem.x, problem.y, method, kernel="rbf", ard=False, output_scale=False, mean="constant",
        standardize=False, initial_lengthscale=0.693, initial_noise=0.693,
        num_inducing=points, inducing_init="kmeans", solver="stochastic", steps=20 if quick else TOY_STEPS,
        batch_size=100, learning_rate=1e-2, schedule="cosine", validation_fraction=0, early_stopping=False,
        device="cpu", random_state=seed, **own,
    )  # fmt: skip
    scores = gp.predict(problem.x_test).metrics(unseen)
    learned = gp.hyperparameters()
    shared = learned.get("lengthscale")
    found = {"rmse": scores["rmse"], "nll": scores["nll"]}
    found |= {name: float(np.mean(learned.get(name, shared))) for name in LENGTHSCALES}
    return gp, {name: rounded(value) for name, value in found.items()}


def dc_settings(beta2: float) -> dict[str, Any]:
    """As in the suite paper_dc."""
    return {"beta2": beta2, "omega": "batch", "whitening": "Q", "jitter": 1e-3, "mean_jitter": 1e-4}


def toy(quick: bool = False) -> None:
    panels = [
        ("SVGP, 10 points", "svgp", 10, {}),
        *((f"DCSVGP, β₂ = {b:g}, 10 points", "dcsvgp", 10, dc_settings(b)) for b in (1.0, 0.1, 0.01)),
        ("SVGP, 100 points", "svgp", 100, {}),
        ("DCSVGP, β₂ = 0.001, 100 points", "dcsvgp", 100, dc_settings(1e-3)),
    ]
    fits = {label: fit_toy(method, points, 0, quick, **own) for label, method, points, own in panels}
    seeds = TOY_SEEDS[:1] if quick else TOY_SEEDS
    curve = {
        f"{b:g}": [fit_toy("dcsvgp", 10, seed, quick, **dc_settings(b))[1] for seed in seeds] for b in BETAS
    }
    reference = [fit_toy("svgp", 10, seed, quick)[1] for seed in seeds]
    if quick:
        return
    keep(
        "toy",
        {
            "rows": 100,
            "steps": TOY_STEPS,
            "seeds": list(TOY_SEEDS),
            "fits": {label: scores for label, (_, scores) in fits.items()},
            "dcsvgp": curve,
            "svgp": reference,
            **stamp("cpu"),
        },
    )
    draw_fits({label: (gp, scores) for label, (gp, scores) in fits.items()})
    for label, (_, scores) in fits.items():
        print(f"{label:32s}" + "  ".join(f"{name} {value}" for name, value in scores.items()))


def draw_fits(fits: dict[str, tuple[Any, dict[str, float]]]) -> None:
    from matplotlib import pyplot as plt

    problem = dc_one_dimensional(seed=0)
    low, high = problem.x.min(), problem.x.max()
    along = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), 400)
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained", sharex=True, sharey=True)
    for ax, (label, (gp, scores)) in zip(axes.ravel(), fits.items(), strict=True):
        prediction = gp.predict(along[:, None])
        bottom, top = prediction.interval(0.95)
        ax.fill_between(along, bottom, top, color=BLUE, alpha=0.2, lw=0, label="95 % of observations")
        ax.plot(along, prediction.mean, color=BLUE, lw=1.5, label="mean")
        ax.scatter(problem.x[:, 0], problem.y, s=5, color=INK, alpha=0.6, lw=0, label="rows")
        mean, covariance = (scores[name] for name in LENGTHSCALES)
        scales = f"ℓ {mean:.2f}" if mean == covariance else f"ℓ {mean:.2f} and {covariance:.2f}"
        ax.set_title(f"{label}\n{scales}, test NLL {scores['nll']:.2f}", fontsize=9, loc="left")
        tidy(ax)
    common_legend(figure, [axes[0, 0]])
    save(figure, IMAGES / "dc_toy.png")


# -- β₂ -----------------------------------------------------------------------------------------------------


def beta2() -> None:
    """Panels of Figures 2, 8 and 9: rows of data set and method, columns of scores and lengthscales."""
    suite = load_suite("paper_dc_beta2")
    results = Results.read(suite.results)
    rows: dict[tuple[str, str], list[Row]] = {}
    for cell in suite.cells():
        if (row := results.ok(cell)) is not None:
            rows.setdefault((cell.data, cell.label), []).append(row)
    found: dict[str, Any] = {}
    for (data, label), own in rows.items():
        family, _, value = label.partition(" β₂=")
        entry = summary([values_of(row) for row in own])
        found.setdefault(f"{data} {family}", {})[value or "none"] = entry
    keep("beta2", found)
    lines = {key: by_beta for key, by_beta in found.items() if len(by_beta) > 3}
    one = read_json(STORE).get("toy")
    if one:
        lines = {"one column DCSVGP": {beta: summary(runs) for beta, runs in one["dcsvgp"].items()}, **lines}
    if lines:
        draw_beta2(lines, found, one)
    else:
        print("no curve has more than three values of β₂ yet: run the suite paper_dc_beta2")


def values_of(row: Row) -> dict[str, float]:
    """Scores and lengthscales of a row; a coupled model has one lengthscale for both."""
    learned = row["hyperparameters"]
    shared = learned.get("lengthscale")
    own = {name: float(np.mean(learned.get(name, shared))) for name in LENGTHSCALES}
    return {"rmse": row["metrics"]["rmse"], "nll": row["metrics"]["nll"], **own}


def summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """name → [mean, standard error], and the number of runs."""
    out: dict[str, Any] = {"runs": len(runs)}
    for name in ("rmse", "nll", *LENGTHSCALES):
        values = [run[name] for run in runs]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        out[name] = rounded([statistics.fmean(values), error])
    return out


def draw_beta2(lines: dict[str, Any], found: dict[str, Any], one: dict[str, Any] | None) -> None:
    from matplotlib import pyplot as plt

    names = {
        "rmse": "test RMSE",
        "nll": "test NLL",
        LENGTHSCALES[0]: "ℓ of the mean",
        LENGTHSCALES[1]: "ℓ of the covariance",
    }
    figure, axes = plt.subplots(
        len(lines), 4, figsize=(11, 0.6 + 1.9 * len(lines)), layout="constrained", squeeze=False, sharex=True
    )
    for row, (key, by_beta) in zip(axes, lines.items(), strict=True):
        data, _, family = key.rpartition(" ")
        coupled = "SVGP" if family == "DCSVGP" else "PPGPR"
        base = found.get(f"{data} {coupled}", {}).get("none")
        if base is None and one and data == "one column":
            base = summary(one["svgp"])
        for ax, (name, title) in zip(row, names.items(), strict=True):
            points = sorted((float(b), *entry[name]) for b, entry in by_beta.items() if float(b or 0) > 0)
            beta, mean, error = map(list, zip(*points, strict=True))
            ax.errorbar(beta, mean, error, color=BLUE, marker="o", ms=3.5, lw=1.4, label="β₂ > 0")
            if "0" in by_beta:
                ax.axhline(by_beta["0"][name][0], color=GREEN, ls=(0, (4, 2)), lw=1.3, label="β₂ = 0")
            if base is not None:
                ax.axhline(base[name][0], color=ORANGE, ls=(0, (1, 1.5)), lw=1.6, label="coupled")
            ax.set_xscale("log")
            if key == next(iter(lines)):
                ax.set_title(title, fontsize=9, loc="left")
            tidy(ax)
        row[0].set_ylabel(f"{data}\n{family}", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("β₂", fontsize=9)
    common_legend(figure, list(axes[0]))
    save(figure, IMAGES / "dc_beta2.png")


# -- calibration --------------------------------------------------------------------------------------------


def calibration(data: str = "kin40k") -> None:
    """The distance of z-scores to N(0, 1) by set and on average; the z-scores of one set."""
    suite = load_suite("paper_dc")
    results = Results.read(suite.results)
    labels = ("SVGP", "DCSVGP", "PPGPR", "DCPPGPR")
    distances: dict[str, dict[str, Any]] = {}
    quantiles: dict[str, list[list[float]]] = {}
    for cell in suite.cells():
        row = results.ok(cell)
        if row is None or cell.label not in labels:
            continue
        distances.setdefault(cell.data, {}).setdefault(cell.label, []).append(
            rounded(row["metrics"]["zscore_wasserstein"])
        )
        if cell.data == data and row.get("zscores"):
            quantiles.setdefault(cell.label, []).append(row["zscores"])
    complete = [name for name, by_label in distances.items() if set(by_label) == set(labels)]
    mean = {
        label: rounded(statistics.fmean(statistics.fmean(distances[name][label]) for name in complete))
        for label in labels
        if complete
    }
    paper = suite.paper_averages["zscore_wasserstein"]
    keep("calibration", {"paper": paper, "mean": mean, "sets": complete, "distances": distances})
    print(f"W₁ of z-scores to N(0, 1), mean over {', '.join(complete)}")
    for label in labels:
        theirs = next(iter(paper.values()))[label]
        print(f"  {label:8s} paper (ten sets) {theirs:.2f}, ours {mean.get(label, float('nan')):.3f}")
    if set(quantiles) == set(labels):
        draw_zscores(data, quantiles, distances[data])
    else:
        lacking = [label for label in labels if label not in quantiles]
        print(f"no picture of {data}: rows without z-scores of {', '.join(lacking)}")


def draw_zscores(data: str, quantiles: dict[str, list[list[float]]], distances: dict[str, Any]) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained", sharex=True, sharey=True)
    along = np.linspace(-4, 4, 301)
    for ax, (label, runs) in zip(axes, quantiles.items(), strict=True):
        z = np.sort(np.concatenate([np.asarray(run) for run in runs]))
        levels = (np.arange(len(z)) + 0.5) / len(z)
        ax.plot(ndtri(levels), z, color=ORANGE, lw=1.8, label="test rows")
        ax.plot(along, along, color=FAINT, ls=(0, (4, 3)), lw=1, label="N(0, 1)")
        ax.set(xlim=(-3, 3), ylim=(-5, 5), xlabel="normal quantile")
        ax.set_title(f"{label}: W₁ = {statistics.fmean(distances[label]):.3f}", fontsize=9.5, loc="left")
        tidy(ax)
    axes[0].set_ylabel(f"z-score, {data}", fontsize=9)
    common_legend(figure, [axes[0]])
    save(figure, IMAGES / "dc_zscores.png")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("toy", "beta2", "calibration", "all"), nargs="?", default="all")
    parser.add_argument("--quick", action="store_true", help="a moment of training; nothing is stored")
    options = parser.parse_args(arguments)
    if options.what in ("toy", "all"):
        toy(options.quick)
    if options.what in ("beta2", "all") and not options.quick:
        beta2()
    if options.what in ("calibration", "all") and not options.quick:
        calibration()
    return 0


if __name__ == "__main__":
    sys.exit(main())
