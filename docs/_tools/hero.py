"""The first figure of the README and of the site, and its numbers: `python docs/_tools/hero.py`.

A slow wave with a fast ripple, sin x + ½ sin 4x, 200 noisy rows, ten inducing points, an RBF kernel, all
other settings at their defaults. One lengthscale has to interpolate and to say how uncertain the
interpolation is: SVGP takes the ripple for noise. DCSVGP has a lengthscale for each job. Scores are those of
1,000 new noisy rows, for five seeds (other rows, noise, validation rows and starting points), with ten and
with twelve points; the figure is that of seed 0. The
example was chosen, among four functions and three numbers of points each, because it shows the effect.
It writes ``docs/images/hero.png`` and
``docs/images/hero.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import duogp
from duogp.plots import BLUE, FAINT, INK, ORANGE

IMAGES = Path(__file__).resolve().parents[1] / "images"
SEEDS, ROWS, POINTS, NOISE, END = 5, 200, 10, 0.1, 10.0
MORE = 12  # points with which SVGP follows the ripple too
METHODS = {"svgp": "SVGP", "dcsvgp": "DCSVGP"}


def wave(x: np.ndarray) -> np.ndarray:
    return np.sin(x) + 0.5 * np.sin(4 * x)


def rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training rows and 1,000 new ones, with noise."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, END, ROWS))
    y = wave(x) + NOISE * rng.standard_normal(ROWS)
    new = np.linspace(0, END, 1000)
    return x, y, new, wave(new) + NOISE * rng.standard_normal(1000)


def run(method: str, seed: int, points: int = POINTS) -> tuple[Any, dict[str, float]]:
    x, y, new, y_new = rows(seed)
    gp = duogp.fit(x[:, None], y, method, kernel="rbf", num_inducing=points, random_state=seed, device="cpu")
    prediction = gp.predict(new[:, None])
    found = prediction.metrics(y_new)
    return (gp, prediction), {name: found[name] for name in ("rmse", "nll", "coverage")}


def draw(fits: dict[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    x, y, new, _ = rows(0)
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.5), sharex=True, sharey=True, layout="constrained")
    for ax, (method, label) in zip(panels, METHODS.items(), strict=True):
        gp, prediction = fits[method]
        low, high = prediction.interval(0.95)
        ax.fill_between(new, low, high, color=BLUE, alpha=0.18, lw=0, label="95 % interval")
        ax.plot(new, wave(new), color=ORANGE, lw=1.2, label="truth")
        ax.plot(new, prediction.mean, color=BLUE, lw=1.6, label="mean")
        ax.plot(x, y, ".", color=INK, ms=3, alpha=0.6, label="rows")
        points = gp.inducing_points[:, 0]
        ax.plot(points, np.full(len(points), -2.35), "|", color=FAINT, ms=9, label="inducing points")
        learned = gp.hyperparameters()
        if method == "dcsvgp":
            mean, covariance = (
                float(np.ravel(learned[f"lengthscale_{part}"])[0]) for part in ("mean", "covariance")
            )
            lengths = f"lengthscales: mean {mean:.2f}, covariance {covariance:.2f}"
        else:
            lengths = f"one lengthscale: {float(np.ravel(learned['lengthscale'])[0]):.2f}"
        ax.set_title(f"{label}, {lengths}", fontsize=10, loc="left")
        ax.set_xlabel("x")
        ax.set_ylim(-2.6, 2.3)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    panels[0].set_ylabel("y")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(path, dpi=170)


def mean_of(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in found])) for name in found[0]}


def main() -> None:
    seeds = range(SEEDS)
    few = {method: [run(method, seed) for seed in seeds] for method in METHODS}
    more = {method: [run(method, seed, MORE)[1] for seed in seeds] for method in METHODS}
    draw({method: found[0][0] for method, found in few.items()}, IMAGES / "hero.png")
    scores = {method: [row for _, row in found] for method, found in few.items()}
    stored = {
        "rows": ROWS,
        "noise": NOISE,
        str(POINTS): {method: mean_of(found) for method, found in scores.items()},
        str(MORE): {method: mean_of(found) for method, found in more.items()},
        "seeds": {str(POINTS): scores, str(MORE): more},
    }
    (IMAGES / "hero.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: stored[name] for name in (str(POINTS), str(MORE))}, indent=1))


if __name__ == "__main__":
    main()
