"""Pictures of deep GPs, after the supplement of Popescu et al. (Decoupled Sparse GP Components).

    python benchmarks/deep_figure.py                  both figures; `layers` is computed if it is not stored
    python benchmarks/deep_figure.py --only layers    their Figure 5: docs/images/deep_layers.png
    python benchmarks/deep_figure.py --only scores    their Figure 6: docs/images/deep_scores.png
    python benchmarks/deep_figure.py --figure-only    compute nothing
    python benchmarks/deep_figure.py --no-figure      where there is no matplotlib
    python benchmarks/deep_figure.py --quick          a moment of training, nothing stored

`layers` looks into a DDGPC of three layers of one unit each on a table of one column (Snelson's; the paper
does not name its own). Every column of the figure is a layer over the space of the layer before it. Above:
its mean, the inducing values of 25 α as violins at their places, and the rows as they pass through, a sample
of each. Below: what its variance is made of. The paper remarks that within the data the distributional
variance of the hidden layers is almost zero although they have five β only; `distributional_share` in
benchmarks/results/deep_layers.json is its average over rows relative to the prior variance. All numbers are
in standardised units.

`scores` draws what `duogp bench run paper_deep` has stored: test log-likelihood against the number of layers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import duogp
from duogp.bench.measure import device_name, resolve_device
from duogp.bench.provenance import stamp
from duogp.bench.results import Results
from duogp.bench.suite import Suite, load_suite
from duogp.data.benchmark import load
from duogp.data.splits import Split, components_protocol
from duogp.errors import DuoGPWarning
from duogp.plots import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION
from duogp.posterior.deep import DeepGP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "deep_layers.json"
IMAGES = ROOT / "docs" / "images"

DATA = "toy/snelson"
SETTINGS: dict[str, Any] = {
    "num_layers": 3,
    "hidden_width": 1,
    "num_inducing": 25,  # α of every layer
    "num_extra": 25,  # β of the first
    "num_residual": 5,  # β of the others
    "kernel": "rbf",
    "mean": "zero",
    "num_samples": 8,
    "solver": "stochastic",
    "steps": 4000,
    "batch_size": 160,  # all rows
    "learning_rate": 1e-2,
    "schedule": "cosine",
    "validation_fraction": 0,
    "early_stopping": False,
    "standardize": False,  # the split has done it
}
GRID = 241
#: Prior variance, relative to the largest, below which a layer is not drawn.
SWITCHED_OFF = 1e-3


# -- layers: what each does to the rows --------------------------------------------------------------------


def look_into_layers(device: str, *, quick: bool) -> dict[str, Any]:
    """Train the model and describe its layers in numbers."""
    data = load(DATA)
    part = components_protocol(data.X, data.y, 0)
    settings = SETTINGS | ({"steps": 60} if quick else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuoGPWarning)
        gp = duogp.fit(part.X_train, part.y_train, "ddgpc", device=device, random_state=0, **settings)
    assert isinstance(gp, DeepGP)
    metrics = gp.predict(part.X_test).metrics(part.y_test)
    return {
        "data": DATA,
        "settings": settings,
        "device": device_name(device),
        **stamp(),
        "loss": gp.history[-1].loss,
        "test": {name: metrics[name] for name in ("rmse", "nll")},
        "layers": describe_layers(gp, part),
    }


def describe_layers(gp: DeepGP, part: Split) -> list[dict[str, Any]]:
    """Of every layer, over the space of the one before: its function, its points, and the rows passing by."""
    random = np.random.default_rng(0)
    rows = {"train": part.X_train[:, 0], "test": part.X_test[:, 0]}
    out = []
    for index, layer in enumerate(gp.model.layers):
        basis = layer.basis
        beta = basis.orthogonal_inducing if index == 0 else basis.residual_inducing
        everywhere = np.concatenate([*rows.values()])
        margin = 0.45 * np.ptp(everywhere)
        grid = np.linspace(everywhere.min() - margin, everywhere.max() + margin, GRID)
        alpha = flat(basis.inducing)
        mean, within, distributional, prior = at(gp, index, grid)
        # φ(α) spans the inducing values: the explained variance at α is the variance of u.
        u_mean, u_variance, *_ = at(gp, index, alpha)
        seen, share = {}, {}
        for name, x in rows.items():
            m, w, d, p = at(gp, index, x)
            f = m + np.sqrt(w + d) * random.standard_normal(len(x))
            seen[name] = {"x": rounded(x), "f": rounded(f)}
            share[name] = float(np.mean(d / p))
            rows[name] = f
        out.append(
            {
                "grid": rounded(grid),
                "mean": rounded(mean),
                "within": rounded(within),
                "distributional": rounded(distributional),
                "prior": float(prior.mean()),
                "alpha": rounded(alpha),
                "u_mean": rounded(u_mean),
                "u_std": rounded(np.sqrt(u_variance)),
                "beta": rounded(flat(beta)),
                "rows": seen,
                "distributional_share": share,
            }
        )
    return out


@torch.no_grad()
def at(gp: DeepGP, index: int, x: Array) -> tuple[Array, Array, Array, Array]:
    """Mean, within-data, distributional and prior variance of a layer of one unit at places x [n]."""
    form, layer = gp.layer_posteriors[index], gp.model.layers[index]
    places = torch.as_tensor(x, dtype=torch.float64, device=form.mean_weights.device)[None, None, :, None]
    f = layer.complete(form.marginals(places), places)
    mean, residual, explained, prior = (
        part.expand(f.mean.shape)[0, 0].double().cpu().numpy()
        for part in (f.mean, f.residual, f.explained, form.prior.diag(places))
    )
    return mean, explained, np.maximum(residual, 1e-12 * prior), prior


def flat(points: Any) -> Array:
    return points.detach().double().cpu().numpy()[0, 0, :, 0]


def rounded(values: Array) -> list[float]:
    return [float(f"{v:.5g}") for v in values]


def draw_layers(content: dict[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    top = max(layer["prior"] for layer in content["layers"])
    numbered = dict(enumerate(content["layers"], 1))
    # A layer that has been switched off hands its input on: there is nothing to see.
    layers = {i: layer for i, layer in numbered.items() if layer["prior"] > SWITCHED_OFF * top}
    off = [i for i in numbered if i not in layers]
    figure, axes = plt.subplots(
        2, len(layers), figsize=(4.4 * len(layers), 6), layout="constrained", sharex="col", squeeze=False,
        height_ratios=[1.4, 1],
    )  # fmt: skip
    for (i, layer), (above, below) in zip(layers.items(), axes.T, strict=True):
        draw_function(above, layer)
        draw_variances(below, layer, (1e-4 * top, 4 * top))
        last = i == len(numbered)
        sizes = f"{len(layer['alpha'])} α, {len(layer['beta'])} β"
        above.set_title(f"{'last layer' if last else f'layer {i}'}: {sizes}", fontsize=10, loc="left")
        hands_on = f" (which hands on that of layer {i - 2})" if i - 1 in off else ""
        below.set_xlabel("x" if i == 1 else f"output of layer {i - 1}{hands_on}", fontsize=9)
        for ax in (above, below):
            tidy(ax)
    axes[0, 0].set_ylabel("output of the layer", fontsize=9)
    axes[1, 0].set_ylabel("variance", fontsize=9)
    handles, labels = (
        [*above, *below]
        for above, below in zip(*(ax.get_legend_handles_labels() for ax in axes[:, 0]), strict=True)
    )
    figure.legend(
        handles, labels, loc="outside lower center", frameon=False, fontsize=8.5, ncols=5, columnspacing=1.4,
    )  # fmt: skip
    save(figure, path)


def draw_function(ax: Axes, layer: dict[str, Any]) -> None:
    """The mean with its band, inducing values as violins, the rows passing through."""
    grid, mean = np.array(layer["grid"]), np.array(layer["mean"])
    spread = 2 * np.sqrt(np.array(layer["within"]) + np.array(layer["distributional"]))
    ax.fill_between(grid, mean - spread, mean + spread, color=FAINT, alpha=0.22, lw=0, label="95 % of f")
    draw_violins(ax, layer, width=0.022 * float(np.ptp(grid)))
    ax.plot(grid, mean, color=INK, lw=1.4, label="mean")
    for name, color in (("train", VERMILION), ("test", BLUE)):
        seen = layer["rows"][name]
        ax.scatter(seen["x"], seen["f"], s=7, color=color, alpha=0.55, lw=0, zorder=3, label=f"{name} rows")
    ax.set_xlim(grid[0], grid[-1])
    reach = np.concatenate([layer["rows"]["train"]["f"], layer["rows"]["test"]["f"]])
    pad = 0.6 * float(np.ptp(reach))
    ax.set_ylim(reach.min() - pad, reach.max() + pad)


def draw_violins(ax: Axes, layer: dict[str, Any], width: float) -> None:
    """q(u) of every α at its place: ± 2.5 standard deviations, as wide as it is probable."""
    along = np.linspace(-2.5, 2.5, 41)
    half = 0.5 * width * np.exp(-0.5 * along**2)
    places = zip(layer["alpha"], layer["u_mean"], layer["u_std"], strict=True)
    for i, (place, mean, std) in enumerate(places):
        label = "q(u) at α" if i == 0 else None
        ax.fill_betweenx(
            mean + std * along, place - half, place + half, color=GREEN, alpha=0.55, lw=0.4, label=label
        )


def draw_variances(ax: Axes, layer: dict[str, Any], limits: tuple[float, float]) -> None:
    """Within-data and distributional variance; the rows as ticks at the bottom, β at the top."""
    grid, floor = layer["grid"], limits[0]
    ax.plot(grid, np.maximum(layer["within"], floor), color=PURPLE, lw=1.5, label="within-data variance")
    distributional = np.maximum(layer["distributional"], floor)
    ax.plot(grid, distributional, color=ORANGE, lw=1.5, label="distributional variance")
    ax.axhline(layer["prior"], color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=0, label="prior variance")
    across = ax.get_xaxis_transform()
    for name, color in (("train", VERMILION), ("test", BLUE)):
        x = layer["rows"][name]["x"]
        ax.plot(x, np.full(len(x), 0.03), "|", transform=across, color=color, ms=6, alpha=0.5)
    beta = layer["beta"]
    ax.plot(beta, np.full(len(beta), 0.97), "v", transform=across, color=ORANGE, ms=5, label="β")
    ax.set_yscale("log")
    ax.set_ylim(*limits)


# -- scores: depth against test log-likelihood -------------------------------------------------------------

FAMILIES = {
    "SGP": INK,
    "DGP": BLUE,
    "DGP-SOLVE": ORANGE,
    "DDGPC": VERMILION,
    "SGP wide": FAINT,
    "DGP wide": SKY,
    "DGP-DC wide": PURPLE,
}
Scores = dict[str, dict[str, dict[int, list[float]]]]  # data → family → layers → test log-likelihoods


def read_scores(suite: Suite, results: Results) -> Scores:
    """Labels of the suite are a family and its number of layers."""
    found: Scores = {}
    for cell in suite.cells():
        if (row := results.ok(cell)) is not None:
            family, layers = cell.label.rsplit(" ", 1)
            of_family = found.setdefault(cell.data, {}).setdefault(family, {})
            of_family.setdefault(int(layers), []).append(-row["metrics"]["nll"])
    return found


def draw_scores(scores: Scores, path: Path) -> None:
    """A panel for each table: one dot for each split, lines through the means."""
    from matplotlib import pyplot as plt

    columns = min(3, len(scores))
    rows = -(-len(scores) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.5 * columns, 2.7 * rows + 0.5), layout="constrained", squeeze=False,
    )  # fmt: skip
    families = [name for name in FAMILIES if any(name in table for table in scores.values())]
    offsets = dict(zip(families, np.linspace(-0.16, 0.16, len(families)), strict=True))
    named: dict[str, Any] = {}
    for ax, (data, table) in zip(axes.flat, scores.items(), strict=False):
        for family in families:
            by_layers = sorted(table.get(family, {}).items())
            if not by_layers:
                continue
            color = FAMILIES[family]
            places = [layers + (offsets[family] if layers > 1 else 0.0) for layers, _ in by_layers]
            means = [statistics.fmean(values) for _, values in by_layers]
            (named[family],) = ax.plot(places, means, "-o", color=color, lw=1.3, ms=4.5, label=family)
            for place, (_, values) in zip(places, by_layers, strict=True):
                ax.scatter([place] * len(values), values, s=10, color=color, alpha=0.45, lw=0)
            if family == "SGP":  # what depth has to beat
                ax.axhline(means[0], color=color, lw=0.8, ls=(0, (4, 3)), zorder=0)
        ax.set_title(data, fontsize=10, loc="left")
        deepest = max(layers for family in table.values() for layers in family)
        ax.set_xticks(range(1, deepest + 1))
        ax.set_xlim(0.6, deepest + 0.4)
        tidy(ax)
    for ax in axes.flat[len(scores) :]:
        ax.set_visible(False)
    for ax in axes[-1]:
        ax.set_xlabel("layers", fontsize=9)
    for ax in axes[:, 0]:
        ax.set_ylabel("test log-likelihood", fontsize=9)
    figure.legend(
        [named[f] for f in families if f in named], [f for f in families if f in named],
        loc="outside lower center", frameon=False, fontsize=8.5, ncols=len(named), columnspacing=1.4,
    )  # fmt: skip
    save(figure, path)


# -- style and files ---------------------------------------------------------------------------------------


def tidy(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=3, labelsize=8)


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


def stored(path: Path) -> dict[str, Any] | None:
    """What is stored of this experiment; None where there is nothing, or with other settings."""
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if (content["data"], content["settings"]) == (DATA, SETTINGS) else None


def store(content: dict[str, Any], path: Path) -> None:
    """Whole or not at all, every list of numbers on one line."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    text = re.sub(r"\[[-+\s\d.,eE]*\]", lambda found: " ".join(found[0].split()), text) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def report_layers(content: dict[str, Any]) -> str:
    lines = [f"test rmse {content['test']['rmse']:.4f}, nll {content['test']['nll']:.4f}"]
    for i, layer in enumerate(content["layers"], 1):
        share = layer["distributional_share"]
        sizes = f"{len(layer['alpha'])} α, {len(layer['beta'])} β"
        lines.append(
            f"layer {i} ({sizes}): distributional variance at the rows, of the prior's: "
            f"train {share['train']:.2e}, test {share['test']:.2e}"
        )
    return "\n".join(lines)


# -- the command -------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("layers", "scores"))
    parser.add_argument("--device", default="cpu", help="of the model of `layers` (it is small)")
    parser.add_argument("--layers-file", type=Path, default=RESULTS, help="what `layers` stores")
    parser.add_argument("--results", type=Path, help="of the suite (default: where the suite puts them)")
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where figures go")
    parser.add_argument("--quick", action="store_true", help="does everything still work?")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--no-figure", action="store_true")
    what.add_argument("--figure-only", action="store_true")
    options = parser.parse_args(arguments)

    missing = []
    if options.only != "scores":
        content = None if options.quick else stored(options.layers_file)
        if content is None and not options.figure_only:
            content = look_into_layers(resolve_device(options.device), quick=options.quick)
            if not options.quick:
                store(content, options.layers_file)
        if content is None:
            missing.append("layers")
        else:
            print(report_layers(content))
            if not options.no_figure:
                draw_layers(content, options.folder / "deep_layers.png")
    if options.only != "layers":
        suite = load_suite("paper_deep")
        scores = read_scores(suite, Results.read(options.results or suite.results))
        if not scores:
            missing.append("scores (run `duogp bench run paper_deep` first)")
        elif not options.no_figure:
            draw_scores(scores, options.folder / "deep_scores.png")
    if missing:
        print(f"nothing is stored of {' and '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
